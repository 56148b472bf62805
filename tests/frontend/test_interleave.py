"""Two micro-batches beside each other: a forward and a backward in turns at their exchanges."""

import numpy as np
import pytest

from rapid_des.chakra.trace import CollectiveType, NodeKind
from rapid_des.errors import ConfigError, UnsupportedByEngine
from rapid_des.frontend import build, load_job
from rapid_des.frontend.blocks import blocks
from rapid_des.frontend.passes import interleaved, travels
from rapid_des.frontend.schedules.schedule import in_flight
from rapid_des.frontend.template import GATE, INPUT, SECOND, GradientMark, PieceNode, Writer, make_piece
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate

EXPERTS = [
    ("model.feed_forward", "{kind: experts, experts: 8, topk: 2, hidden: 32}"),
    ("parallelism.dp", "4"),
    ("parallelism.ep", "4"),
]


def kernel(name, after):
    return PieceNode(name, NodeKind.COMPUTE, "compute", after, duration=1)


def exchange(name, after):
    return PieceNode(name, NodeKind.COLLECTIVE, "ep", after, collective=CollectiveType.ALL_TO_ALL, group=0)


def piece(letter, marks=()):
    """Return two kernels around an exchange, and a third that does not wait for it."""
    nodes = [
        kernel(f"{letter}0", (INPUT, GATE)),
        exchange(f"{letter}1", (0,)),
        kernel(f"{letter}2", (0,)),
        kernel(f"{letter}3", (1, 2)),
    ]
    return make_piece(nodes, marks=marks)


def names(whole):
    return [whole.names[number] for number in whole.rows[:, 1].tolist()]


def test_parts_take_turns_behind_exchanges_and_the_backward_begins():
    both = interleaved(piece("f"), piece("b"))
    assert names(both.piece) == ["b0", "b1", "f0", "f1", "b2", "b3", "f2", "f3"]


def test_each_waits_for_what_it_did_and_has_an_input_of_its_own():
    both = interleaved(piece("f"), piece("b"))
    waits = dict(zip(names(both.piece), both.piece.edges.by_row(), strict=True))
    place = {name: row for row, name in enumerate(names(both.piece))}
    assert waits["f0"] == [INPUT, GATE] and waits["b0"] == [SECOND, GATE]
    assert waits["f3"] == [place["f1"], place["f2"]] and waits["b2"] == [place["b0"]]
    assert both.outputs == (place["f3"], place["b3"])


def test_marks_stand_where_their_rows_do():
    both = interleaved(piece("f"), piece("b", marks=[GradientMark(2, 7)]))
    assert both.marks == ((), (GradientMark(4, 7),))


def test_a_list_without_exchanges_stands_in_one_stretch():
    plain = make_piece([kernel("p0", (INPUT,)), kernel("p1", (0,))])
    assert not travels(plain) and travels(piece("b"))
    assert names(interleaved(plain, piece("b")).piece) == ["b0", "b1", "p0", "p1", "b2", "b3"]


def test_an_interleaved_piece_is_placed_with_both_inputs():
    writer = Writer()
    first, second = (writer.append(kernel(name, ()), ()) for name in "xy")
    writer.place(interleaved(piece("f"), piece("b")).piece, {INPUT: first, SECOND: second})
    table = writer.table(writer.table_rows(), np.zeros(99, np.int64), np.zeros(99, np.int64))
    needs = np.split(table.dependencies, table.dependency_starts[1:-1])
    assert needs[2].tolist() == [second] and needs[4].tolist() == [first]


def test_every_rank_does_the_same_work_in_pairs(tiny, prices):
    plain, paired = (tiny(*EXPERTS, ("training.overlap_batches", on)) for on in ("false", "true"))
    one, other = (build(job, prices).tables[0] for job in (plain, paired))
    assert len(one) == len(other)
    assert np.array_equal(np.sort(one.duration), np.sort(other.duration))
    assert np.array_equal(np.sort(one.size), np.sort(other.size))


def test_a_stage_holds_one_micro_batch_more_in_pairs(tiny):
    job = tiny(*EXPERTS, ("training.overlap_batches", "true"))
    assert in_flight(job.stage_orders.orders[0]) == 2 == job.schedule.bound(job.shape)


@pytest.mark.parametrize(
    ("schedule", "split"),
    [
        ("1f1b", {"dp": 8, "ep": 8}),
        ("interleaved_1f1b", {"dp": 4, "ep": 4, "pp": 2, "chunks": 2}),
    ],
)
@pytest.mark.parametrize("mode", ["flattened", "hierarchical"])
def test_exchanges_hide_behind_the_other_batch(schedule, split, mode):
    changes = {
        "model": "deepseek_v2_lite", "model.layers": 4, "model.exceptions": [], "parallelism": split,
        "training.global_batch": 64, "training.schedule": schedule,
    }  # fmt: skip
    machine = load_machine("dgx_h100_x8")
    jobs = [load_job("llama2_7b_train", settings={**changes, "training.overlap_batches": on})
            for on in (False, True)]  # fmt: skip
    alone, beside = (simulate(job, machine, mode=mode) for job in jobs)
    assert beside.step_time < alone.step_time
    assert int(beside.breakdown["ep"]) < 0.6 * int(alone.breakdown["ep"])


def test_blocks_that_hold_exchanges_leave_none_to_the_other_batch(tiny, prices):
    paired = [*EXPERTS, ("training.overlap_batches", "true")]
    blocks(tiny(*paired), prices)
    with pytest.raises(UnsupportedByEngine, match="leaves no exchange to the other batch"):
        blocks(tiny(*paired, ("routing.load", "{kind: zipf, exponent: 1, seed: 1}")), prices)


def test_both_engines_agree_on_pairs(tiny):
    changes = [("training.overlap_batches", "true"), ("software", "megatron-2025")]
    job, machine = tiny(*EXPERTS, *changes), load_machine("dgx_h100")
    runs = [simulate(job, machine, engine=engine) for engine in ("simpy", "compiled")]
    assert runs[0].finish == runs[1].finish


def test_pairs_of_dualpipe_run_beside_each_other():
    changes = {
        "model": "deepseek_v2_lite", "model.layers": 8, "model.exceptions": [],
        "parallelism": {"dp": 4, "ep": 4, "pp": 2}, "training.global_batch": 64,
        "training.schedule": "dualpipe",
    }  # fmt: skip
    table = build(load_job("llama2_7b_train", settings=changes), _Free()).tables[0]
    order = [table.names[number] for number in table.name.tolist()]
    sent = [row for row, name in enumerate(order) if name.endswith("ffn.combine_gradient")]
    assert any(order[row + 1].startswith("forward") for row in sent)


class _Free:
    """Prices by which nothing takes time."""

    @staticmethod
    def estimate(operator):
        from rapid_des.device.operators import Estimate

        del operator
        return Estimate(1, "tensor", 1, {"hbm": 1})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ([("training.schedule", "gpipe")], "are paired in 1f1b and interleaved_1f1b, not in gpipe"),
        ([("parallelism.dp", "2"), ("parallelism.ep", "2"), ("parallelism.pp", "2")], "would wait for each"),
        ([("parallelism.ep", "1")], "no tokens travel among experts"),
        ([("training.zero_stage", "3")], "gathered unit by unit"),
    ],
)
def test_pairs_that_can_not_be_are_refused_by_name(tiny, changes, problem):
    with pytest.raises(ConfigError, match=problem):
        tiny(*EXPERTS, ("training.overlap_batches", "true"), *changes)
