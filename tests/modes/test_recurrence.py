"""Few periods stand for all: equal to the tick with the whole program."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rapid_des.chakra.trace import CollectiveType
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes import execution
from rapid_des.modes.periodicity import drop_periods, periodic_ranges
from rapid_des.modes.symmetry import recurrence
from rapid_des.modes.symmetry.recurrence import run_shortened, shortened
from rapid_des.program.lowering import lower
from rapid_des.simulation import simulate
from rapid_des.values import replace
from tests.engines.agreement import RUN, assert_same
from tests.engines.random_programs import ONE_FOR_ALL, PER_AXIS
from tests.modes.symmetric_programs import FABRICS, KINDS
from tests.program.machines import machine, ring
from tests.program.tracing import Nodes, same_everywhere

GATHER, SCATTER = CollectiveType.ALL_GATHER, CollectiveType.REDUCE_SCATTER
REDUCE = CollectiveType.ALL_REDUCE
happened: Counter[str] = Counter()


def layers(draw, nodes, before, periods):
    """Append a body of some nodes so often, each waiting for some nearby or for one before all of them."""
    length = draw.randint(1, 5)
    body = [(draw.choice(["compute", "compute", "world", "row"]), draw.choice([1, 700, 4_000, 90_000]),
             draw.choice(KINDS), draw.choice([8, 100, 2_400]), draw.choice(["s0", "s1"]),
             [draw.randint(1, length + 2) for _ in range(draw.randint(0, 2))], draw.random() < 0.2)
            for _ in range(length)]  # fmt: skip
    last = draw.choice([1, 1, 3])  # the last two periods may send more: they begin like the others
    for period in range(periods):
        for kind, duration, collective, each, stream, back, waits in body:
            place, size = len(nodes.rows), each * last if period >= periods - 2 else each
            targets = {place - step for step in back if place - step >= before}
            after = (*targets, before - 1) if waits else tuple(targets)
            if kind == "compute":
                nodes.compute(duration, after=after)
            else:
                nodes.collective(collective, size, kind, stream=stream, after=after)
    return len(nodes.rows) - length


def repeating_program(seed):
    """Every rank runs one table: a host perhaps, one or two ranges of layers, and what waits for these."""
    draw = random.Random(seed)
    fabric, nodes = draw.choice(FABRICS), Nodes()
    axes = sum(len(part["size"]) if isinstance(part["size"], list) else 1 for part in fabric)
    algorithm = draw.choice([draw.choice(ONE_FOR_ALL), [draw.choice(PER_AXIS) for _ in range(axes)]])
    where = machine(*fabric, collectives={"default": {"algorithm": algorithm, "chunks": draw.choice([1, 2])}})
    ranks, inner = where.fabric.gpus, where.fabric.axes[0]
    host = nodes.host(draw.choice([10, 40_000, 2_000_000])) if draw.random() < 0.4 else None
    nodes.compute(draw.choice([1, 5_000]))
    for _ in range(draw.randint(1, 2)):
        first = len(nodes.rows)
        last = layers(draw, nodes, first, draw.choice([14, 17, 24]))
        every = range(first, len(nodes.rows), max(1, (len(nodes.rows) - last))) if draw.random() < 0.5 else ()
        end = nodes.compute(draw.choice([1, 3_000]), after=(last, *every))
        if host is not None:
            nodes.issue(end, host, draw.choice([1, 30_000, 1_500_000]))
    groups = {f"row{row}": tuple(range(row * inner, (row + 1) * inner)) for row in range(ranks // inner)}
    traces = same_everywhere(
        nodes,
        ranks,
        groups_of=lambda rank: [f"row{rank // inner}" if name == "row" else name for name in nodes.groups],
        groups=groups,
    )
    return lower(traces, where).program


@settings(max_examples=35, deadline=None)
@given(st.integers(0, 10**9))
@example(300285)  # the end waits for the last two periods, and for these alone
def test_short_and_whole_programs_are_equal_to_the_tick(seed):
    program = repeating_program(seed)
    short = shortened(program, kept=10, least=2)
    if short is None:
        happened["nothing repeats"] += 1
        return
    records, whole = run_shortened(short), RUN["compiled"](program)
    happened["not proven" if records is None else "recurs"] += 1
    if records is not None:
        assert_same(records, whole)
        assert records.events == whole.events


def test_random_programs_did_recur():
    # the property above is worth nothing if nothing recurs; about a quarter of the programs do
    if not happened:
        pytest.skip("runs after the property")
    assert happened["recurs"] >= 4, happened


def _gathered_layers(periods, *, ranks=8, lag=0):
    """Layers whose parameters are gathered beside the one before; a host may issue what follows them late."""
    nodes = Nodes()
    host = nodes.host(100)
    last = nodes.compute(1_000)
    for _ in range(periods):
        gather = nodes.collective(GATHER, 8_000, after=last)
        last = nodes.compute(9_000, after=gather)
        nodes.collective(SCATTER, 8_000, after=last)
    end = nodes.compute(50_000, after=last)
    if lag:
        nodes.issue(end, host, lag)
    return lower(same_everywhere(nodes, ranks), machine(ring(ranks))).program


def test_of_layers_few_are_run():
    program = _gathered_layers(100)
    short = shortened(program)
    assert short is not None
    (found,) = short.ranges
    assert found.left_out == (found.stop - found.start) // found.period - recurrence.KEPT >= 80
    records = run_shortened(short)
    assert records is not None
    assert_same(records, RUN["compiled"](program))


def test_what_a_host_issues_too_late_in_the_short_run_alone_is_run_whole():
    # the end waits for its issue where few layers run, and for layers where 100 do
    whole = _gathered_layers(100)
    lag = int(RUN["compiled"](whole).makespan) // 2
    late = _gathered_layers(100, lag=lag)
    assert RUN["compiled"](late).makespan == RUN["compiled"](whole).makespan
    short = shortened(late)
    assert short is not None
    assert run_shortened(short) is None
    assert run_shortened(shortened(_gathered_layers(100, lag=1_000))) is not None


def test_ranks_of_unlike_programs_are_not_shortened():
    program = _gathered_layers(100)
    other = replace(program.bindings[1], program=1)
    bindings = (program.bindings[0], other, *program.bindings[2:])
    two = replace(program, bindings=bindings, programs=program.programs * 2)
    assert shortened(two) is None


def test_a_program_without_periods_waits_for_what_it_did():
    # a program of 100 layers less 84 is one of 16
    table = _gathered_layers(100).programs[0]
    chosen = periodic_ranges(table, 16, 8)
    (found,) = chosen
    short, few = drop_periods(table, chosen), _gathered_layers(100 - found.left_out).programs[0]
    for name in ("kind", "work", "need", "edge_starts", "edge_target", "edge_lag", "server", "slot"):
        np.testing.assert_array_equal(getattr(short, name), getattr(few, name), err_msg=name)


def test_a_server_that_is_held_across_the_end_of_a_range_is_let_go():
    nodes = Nodes()
    last: int | tuple[()] = ()
    for size in (*[8_000] * 40, 2_000, 2_000):  # the first of the small ones holds as those before it
        last = nodes.collective(REDUCE, size, after=last)
    collectives = {"default": {"algorithm": ["ring", "ring"]}}
    program = lower(same_everywhere(nodes, 12), machine(ring(4), ring(3), collectives=collectives)).program
    (table,) = program.programs
    chosen = periodic_ranges(table, 10, 8)
    assert table.release[chosen[-1].stop - 1] >= chosen[-1].stop
    short = drop_periods(table, chosen)
    far = [{int(each.release[place]) - place for place in np.flatnonzero(each.release >= 0).tolist()}
           for each in (table, short)]  # fmt: skip
    assert far[0] == far[1]


MODEL = """\
hidden: 4096
layers: 40
attention: {heads: 32, kv_heads: 8}
feed_forward: {activation: swiglu, hidden: 14336}
norm: rms_norm
position: rope
vocabulary: 4096
max_positions: 4096
tied_embeddings: false
"""
JOB = """\
model: any.model.yaml
phase: training
parallelism: {tp: 2, dp: 8}
training:
  {global_batch: 16, micro_batch: 1, sequence_length: 4096, zero_stage: 3}
"""


@pytest.mark.parametrize("mode", ["hierarchical", "flattened"])
def test_a_step_that_gathers_layer_by_layer_is_the_same(tmp_path, monkeypatch, mode):
    (tmp_path / "any.model.yaml").write_text(MODEL)
    (tmp_path / "any.yaml").write_text(JOB)
    job, where = load_job(tmp_path / "any.yaml"), load_machine("dgx_a100_x4")
    runs = []

    def kept(*given, **how):
        runs.append(run_shortened(*given, **how))
        return runs[-1]

    monkeypatch.setattr(execution, "_WORTH_FOLDING_S", 1e-3)
    monkeypatch.setattr(recurrence, "run_shortened", kept)
    short = simulate(job, where, mode=mode, engine="compiled")
    monkeypatch.setattr(recurrence, "shortened", lambda *given, **how: None)
    whole = simulate(job, where, mode=mode, engine="compiled")
    assert runs
    assert all(records is not None for records in runs)
    cost = {"simulation_wall_s"}
    one, other = (
        {key: value for key, value in result.as_json().items() if key not in cost}
        for result in (short, whole)
    )
    assert one == other
    assert short.finish == whole.finish
