"""Routing: loads of experts, who holds which, how tokens travel, and what of a rank's work follows."""

import numpy as np
import pytest

from rapid_des.chakra.reader import read_set
from rapid_des.chakra.trace import CollectiveType, Exchange
from rapid_des.chakra.writer import write_set
from rapid_des.device.operators import GroupedGemm
from rapid_des.errors import ConfigError, InputError
from rapid_des.frontend import build, load_job, memory
from rapid_des.frontend.blocks import blocks
from rapid_des.frontend.layers.dispatch import placed, weights_of
from rapid_des.frontend.parts import ModelSection, PieceKey, training_lists
from rapid_des.frontend.routing import exchanges, heaviest_place, layer_loads, places
from rapid_des.frontend.spec import DirichletLoad, HistogramLoad, ZipfLoad
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate

EXPERTS = [
    ("model.feed_forward", "{kind: experts, experts: 8, topk: 2, hidden: 32, shared_hidden: 64}"),
    ("parallelism.dp", "4"),
    ("parallelism.ep", "4"),
]
COUNTS = [5, 3, 4, 4, 2, 6, 8, 32]
LOADED = [*EXPERTS, ("routing.load", f"{{kind: histogram, counts: [{COUNTS}]}}")]
BLOCK = ModelSection("block", 0)


def rows(job, place):
    """Return what one rank's experts compute of the first product of a layer."""
    operations = training_lists(job, place)[PieceKey(BLOCK, "forward")]
    return next(one.operator.rows for one in operations if isinstance(one.operator, GroupedGemm))


def names(job, phase="forward"):
    return [one.name for one in training_lists(job)[PieceKey(BLOCK, phase)]]


def test_every_rank_computes_what_its_experts_get(tiny):
    job = tiny(*LOADED)
    # 4 ranks of 32 tokens, two copies each: 256 copies, as many fours as there are counts of 64.
    assert [rows(job, place) for place in range(places(job))] == [(20, 12), (16, 16), (8, 24), (32, 128)]
    assert heaviest_place(job) == 3


def test_an_even_load_is_the_same_for_all_ranks(tiny):
    job = tiny(*EXPERTS)
    assert places(job) == 1 and exchanges(job) == () and layer_loads(job) == ()


def test_all_to_alls_follow_the_load_there_and_back(tiny):
    there, back = exchanges(tiny(*LOADED))
    assert np.array(there.copies) / sum(there.copies) == pytest.approx([1 / 8, 1 / 8, 1 / 8, 5 / 8])
    assert back == Exchange(there.copies, 2, returns=True) and not there.returns


def test_each_layer_has_the_row_that_is_its_own(tiny):
    counts = [COUNTS, COUNTS[::-1], COUNTS, [1] * 8]
    job = tiny(*EXPERTS, ("routing.load", f"{{kind: histogram, counts: {counts}}}"))
    assert job.model.kind_of_layer == (0, 1, 0, 2)
    assert [load.layers for load in layer_loads(job)] == [(0, 2), (1,), (3,)]


def test_counts_may_stand_in_a_file(tiny, tmp_path):
    stated = tiny(*LOADED)
    (tmp_path / "counts.csv").write_text(", ".join(map(str, COUNTS)) + "\n")
    job = tiny(*EXPERTS, ("routing.load", f"{{kind: histogram, file: {tmp_path / 'counts.csv'}}}"))
    assert rows(job, 3) == rows(stated, 3)
    (tmp_path / "counts.csv").write_text("1, 2\n3, many\n")
    with pytest.raises(ConfigError, match="line 2: 'many' is no count"):
        tiny(*EXPERTS, ("routing.load", f"{{kind: histogram, file: {tmp_path / 'counts.csv'}}}"))


def test_drawn_loads_follow_from_their_seed():
    zipf = ZipfLoad(exponent=1.0, seed=3)
    assert weights_of(zipf, 8, 3, "") == weights_of(zipf, 8, 3, "")
    one, two, _ = weights_of(zipf, 8, 3, "")
    assert one != two and sorted(one) == sorted(two)
    assert max(one) / min(one) == pytest.approx(8)  # 1 against 1/8
    assert len(set(weights_of(ZipfLoad(exponent=1.0, seed=3, layers=2), 8, 6, ""))) == 2


def test_dirichlet_shares_are_the_more_alike_the_larger_their_concentration():
    def spread(concentration):
        (weights,) = weights_of(DirichletLoad(concentration=concentration, seed=1), 64, 1, "")
        return np.std(weights) / np.mean(weights)

    # The coefficient of variation of a share is sqrt((n - 1) / (n c + 1)), about 1 / sqrt(c).
    assert spread(100) == pytest.approx(0.1, rel=0.25) and spread(1) == pytest.approx(1, rel=0.25)


def test_eplb_deals_out_the_heaviest_first_to_the_rank_with_least():
    # 9 | 8 | 7 | 3 2 1 on three ranks of two: 9 + 1, 8 + 2, 7 + 3.
    assert placed((9, 8, 7, 3, 2, 1), 3, "eplb", 0).of_ranks(None) == (10**10,) * 3
    assert placed((9, 8, 7, 3, 2, 1), 3, "contiguous", 0).of_ranks(None) == (
        17 * 10**9, 10 * 10**9, 3 * 10**9,
    )  # fmt: skip


def test_redundant_copies_go_to_the_expert_that_carries_most():
    # 12 becomes 6 + 6, then 7 becomes 3.5 + 3.5.
    held = placed((12, 7, 4, 1), 2, "contiguous", 2)
    assert [weight / 10**9 for weight in held.weights] == [6, 6, 3.5, 3.5, 4, 1]


def test_a_capacity_pads_all_alike_or_drops_what_is_beyond(tiny):
    capacity = ("model.feed_forward.capacity", "1.0")
    assert places(tiny(*LOADED, capacity)) == 1
    job = tiny(*LOADED, capacity, ("routing.pads", "false"))
    # At most 2 * 32 / 8 copies of each of four ranks: 32 an expert.
    assert [rows(job, place) for place in range(4)] == [(20, 12), (16, 16), (8, 24), (32, 32)]


def test_memory_is_that_of_the_fullest_rank(tiny):
    even, loaded = tiny(*EXPERTS), tiny(*LOADED)
    assert memory(loaded).fullest.peak > memory(even).fullest.peak


def test_all_gather_brings_all_tokens_to_all_ranks_of_the_experts(tiny):
    job = tiny(*EXPERTS, ("routing.dispatcher", "all_gather"))
    messages = [(one.role, one.size) for one in training_lists(job)[PieceKey(BLOCK, "forward")] if one.role]
    own = 32 * 64 * 2  # a rank's tokens; beside them 5 bytes a token and expert of what they chose
    assert messages == [("experts.gather", own + 32 * 8 * 5), ("experts.scatter", 4 * own)]


def test_tokens_travel_narrow_with_their_scales_and_come_back_as_they_are(tiny):
    job = tiny(*EXPERTS, ("routing.dispatch", "fp8"))
    for phase in ("forward", "backward"):
        messages = [(one.role, one.size) for one in training_lists(job)[PieceKey(BLOCK, phase)] if one.role]
        elements = 32 * 2 * 64
        narrow = elements + 4 * elements // 128
        assert sorted(size for _, size in messages) == [narrow, 2 * elements]


def test_shared_experts_compute_in_halves_while_tokens_travel(tiny):
    order = names(tiny(*EXPERTS, ("routing.overlap_shared", "true")))
    halves = ["ffn.dispatch", "ffn.shared.in", "ffn.in", "ffn.combine", "ffn.shared.out", "ffn.unpermute"]
    assert [name for name in order if name in halves] == halves
    lists = training_lists(tiny(*EXPERTS, ("routing.overlap_shared", "true")))
    operations = lists[PieceKey(BLOCK, "forward")]
    place = {one.name: number for number, one in enumerate(operations)}
    assert operations[place["ffn.shared.in"]].after == (place["ffn.topk"],)
    assert place["ffn.dispatch"] in operations[place["ffn.dispatch.sort"]].after


@pytest.mark.parametrize("mode", ["flattened", "hierarchical"])
@pytest.mark.parametrize("dispatcher", ["all_to_all", "all_gather", "deepep", "hybridep"])
def test_ranks_that_nobody_chooses_wait_for_the_others(tiny, mode, dispatcher):
    counts = [0, 0, 0, 0, 0, 0, 1, 1]
    load = ("routing.load", f"{{kind: histogram, counts: [{counts}]}}")
    job = tiny(*EXPERTS, load, ("routing.dispatcher", dispatcher))
    assert [sum(rows(job, place)) for place in range(4)] == [1, 1, 1, 256]
    assert simulate(job, load_machine("dgx_h100"), mode=mode).step_time > 0


@pytest.mark.parametrize("machine", ["dgx_h100_x8", "torus_2d_a100"])
@pytest.mark.parametrize("dispatcher", ["all_to_all", "all_gather"])
def test_both_engines_agree_on_ranks_that_differ(tiny, machine, dispatcher):
    changes = [("routing.dispatcher", dispatcher), ("software", "megatron-2025")]
    job = tiny(*LOADED, *changes)
    runs = [simulate(job, load_machine(machine), engine=engine) for engine in ("simpy", "compiled")]
    assert runs[0].step_time == runs[1].step_time and runs[0].finish == runs[1].finish


def test_a_trace_of_uneven_exchanges_is_read_as_it_was_written(tiny, prices, tmp_path):
    traces = build(tiny(*LOADED), prices).traces
    write_set(traces, tmp_path, "job")
    again = read_set(tmp_path / "job")
    assert again.exchanges == traces.exchanges != ()
    ours, theirs = traces.ranks[1].nodes, again.ranks[1].nodes
    exchanged = ours.collective == CollectiveType.ALL_TO_ALL
    assert (ours.tag[exchanged] == theirs.tag[exchanged]).all() and ours.tag[exchanged].any()


def test_copies_that_travel_once_need_less_time_on_the_network():
    changes = {
        "model": "deepseek_v2_lite", "model.layers": 2, "parallelism": {"dp": 16, "ep": 16},
        "training.global_batch": 16,
    }  # fmt: skip
    machine = load_machine("dgx_h100_x8")
    jobs = [load_job("llama2_7b_train", settings={**changes, "routing.dispatcher": how})
            for how in ("all_to_all", "deepep", "hybridep")]  # fmt: skip
    every, once, hybrid = (simulate(job, machine) for job in jobs)
    # Six copies of a token go to two nodes: 5/8 of them across (0.98 once), less than a third.
    assert int(once.breakdown["ep"]) < 0.6 * int(every.breakdown["ep"])
    assert int(hybrid.breakdown["ep"]) < int(every.breakdown["ep"])


def test_the_report_says_what_waiting_for_the_busiest_rank_takes(tiny, prices):
    (note,) = build(tiny(*LOADED), prices).notes
    # The busiest rank computes 160 of 256 copies, 2.5 times the mean.
    assert "2.50 times the mean (at most 2.50)" in note and "more than the mean rank's" in note


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ([("routing.load", "{kind: histogram, counts: [[1, 2]]}")], "2 numbers; allowed: 8 of 0 or more"),
        ([("routing.load", f"{{kind: histogram, counts: [{COUNTS}, {COUNTS}]}}")], "2 rows; allowed: 1, or"),
        ([("routing.load", "{kind: histogram}")], "either counts or a file"),
        ([("routing.redundant", "4")], "routing.redundant: copies of an expert would need their gradients"),
        ([("routing.nodes", "4")], "all_to_all sends every copy by itself"),
        (
            [("routing.dispatcher", "deepep"), ("parallelism.tp", "2"), ("parallelism.dp", "2"),
             ("parallelism.sequence_parallel", "true"), ("parallelism.ep", "2")],
            "etp 2 must be 1",
        ),
    ],
)  # fmt: skip
def test_routing_that_does_not_fit_is_refused_by_name(tiny, changes, problem):
    with pytest.raises(ConfigError, match=problem):
        tiny(*EXPERTS, *changes)


def test_routing_of_a_dense_model_is_refused(tiny):
    with pytest.raises(ConfigError, match="is dense, it routes nothing"):
        tiny(("routing.dispatcher", "all_gather"))


@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep"])
def test_kernels_that_send_once_must_have_been_measured(dispatcher):
    changes = {"model": "mixtral_8x7b", "model.layers": 1, "parallelism": {"dp": 4, "ep": 4},
               "training.global_batch": 4, "routing.dispatcher": dispatcher}  # fmt: skip
    with pytest.raises(InputError, match="no library here has measured kernels"):
        simulate(load_job("llama2_7b_train", settings=changes), load_machine("dgx_a100_x2"))


@pytest.mark.parametrize(
    "routing",
    [{"load": {"kind": "zipf", "exponent": 0.6, "seed": 1, "layers": 2}}, {"overlap_shared": True}],
)
def test_blocks_with_exchanges_inside_take_the_flattened_time(routing):
    changes = {
        "model": "deepseek_v2_lite", "model.layers": 4, "parallelism": {"dp": 8, "ep": 4, "pp": 2},
        "training.global_batch": 16, "training.overlap_gradients": False, "routing": routing,
    }  # fmt: skip
    job, machine = load_job("llama2_7b_train", settings=changes), load_machine("dgx_h100_x8")
    flattened, apart = (simulate(job, machine, mode=mode) for mode in ("flattened", "hierarchical"))
    assert int(apart.step_time) == pytest.approx(int(flattened.step_time), rel=0.01)


def test_ranks_that_differ_run_blocks_together(tiny, prices):
    taken = blocks(tiny(*LOADED), prices)
    assert "ep" in taken.inside and taken.run_groups == ((0, 1, 2, 3),) * 4
    traces = taken.blocks[PieceKey(BLOCK, "forward")].on((0, 1, 2, 3))
    assert len(set(traces.table_numbers())) == 4


def test_histograms_are_rows_of_one_or_of_all_layers():
    load = HistogramLoad(counts=((1, 2), (3, 4)))
    assert weights_of(load, 2, 2, "") == ((1, 2), (3, 4))
