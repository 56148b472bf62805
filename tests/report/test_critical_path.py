"""The critical path: its parts add up to the step, and what is on it, and only that, decides the end."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.engines.simpy.engine import run
from rapid_des.errors import TraceError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.program.free_messages import with_free_messages
from rapid_des.program.latest import latest_times
from rapid_des.program.lowering import lower
from rapid_des.program.program import NONE, VisitKind
from rapid_des.report.critical_path import critical_path
from rapid_des.report.critical_path.off_path import OffPath, link_queues, operator_slacks
from rapid_des.report.critical_path.slack import slack_of
from rapid_des.report.critical_path.walk import Chain, StepKind
from rapid_des.report.tables import Table
from rapid_des.report.why_text import why_report
from rapid_des.simulation import replay, simulate
from rapid_des.studies.changes import best_changes
from rapid_des.values import replace
from tests.engines.random_programs import machines, programs, traces
from tests.program.machines import machine, ring
from tests.program.tracing import ALL_REDUCE, Nodes, trace_set

DRAWS = settings().max_examples
FEW = settings(
    max_examples=8 if settings.get_profile("default").max_examples == DRAWS else DRAWS, deadline=None
)
"""`python -m validation.critical_path` draws more."""
ONE = EngineChoice("simpy")


def steps_of(program):
    """The steps of the critical path of a program, and when it ends; nothing if it cannot finish."""
    try:
        records = run(program)
    except TraceError:  # ranks start an unordered stream's collectives in different orders
        return [], 0
    return (Chain(program, records).steps(), records.makespan) if records.finished else ([], 0)


@FEW
@given(programs(unordered=True, contention=True, late=True))
def test_steps_follow_one_another_from_time_0_to_the_end(program):
    steps, end = steps_of(program)
    edges = [0, *(step.end for step in steps)]
    assert [step.begin for step in steps] == edges[:-1]
    assert edges[-1] == end


@FEW
@given(programs(timetables=True))
def test_steps_follow_one_another_at_rates_that_change(program):
    steps, end = steps_of(program)
    assert sum(step.end - step.begin for step in steps) == end
    assert all(before.end == after.begin for before, after in pairwise(steps))


@st.composite
def computing(draw):
    """A program of kernels on ordered streams alone: its end is the longest path."""
    rng = draw(st.randoms(use_true_random=False))
    nodes = Nodes()
    for _ in range(rng.randint(1, 30)):
        after = tuple(sorted(rng.sample(range(len(nodes.rows)), min(len(nodes.rows), rng.randint(0, 2)))))
        nodes.compute(rng.randint(1, 50) * 10, stream=rng.choice(["compute", "s0", "s1"]), after=after)
    return lower(trace_set([nodes]), machine(ring(2))).program


def with_work(program, visit, change, number=0):
    """The program with the work of a visit of one of its rank programs changed."""
    programs = list(program.programs)
    work = programs[number].work.copy()
    work[visit] += change
    programs[number] = replace(programs[number], work=work)
    return replace(program, programs=tuple(programs))


@FEW
@given(computing())
def test_what_is_on_the_path_decides_the_end_and_nothing_else_does(program):
    steps, end = steps_of(program)
    on_path = {step.visit for step in steps}
    for visit in np.flatnonzero(program.programs[0].kind == VisitKind.COMPUTE).tolist():
        if visit in on_path:
            assert run(with_work(program, visit, 7)).makespan == end + 7
        else:
            assert run(with_work(program, visit, -7)).makespan == end


@FEW
@given(computing())
def test_a_kernel_can_run_later_by_its_slack_and_no_more(program):
    records = run(program)
    slack = slack_of(program, records)
    for visit in np.flatnonzero(program.programs[0].kind == VisitKind.COMPUTE).tolist():
        room = int(slack[visit])
        assert run(with_work(program, visit, room)).makespan == records.makespan
        assert run(with_work(program, visit, room + 7)).makespan == records.makespan + 7


@FEW
@given(st.lists(st.tuples(*[st.integers(0, 9)] * 3), max_size=40))
def test_latest_times_are_equal_in_python_and_in_compiled_code(rows):
    """Edges may close cycles: what no walk from the end reaches is not known."""
    source, target, lag = np.array(rows, np.int64).reshape(-1, 3).T
    edges = source, target, lag
    slow, fast = (latest_times(edges, 10, 100, compiled=compiled) for compiled in (False, True))
    assert slow[1].tolist() == fast[1].tolist()
    assert slow[0].tolist() == fast[0].tolist()


@st.composite
def meeting(draw):
    """A program of ranks that meet in all-reduces of one order: its end is the longest path, too."""
    rng = draw(st.randoms(use_true_random=False))
    ranks = [Nodes() for _ in range(rng.randint(2, 3))]
    for _ in range(rng.randint(1, 3)):
        size = rng.randint(1, 9) * 60
        for nodes in ranks:
            done = [
                nodes.compute(rng.randint(1, 5_000) * 10, stream=rng.choice(["compute", "s0"]))
                for _ in range(rng.randint(1, 4))
            ]
            nodes.collective(ALL_REDUCE, size, after=rng.choice(done))
    return lower(trace_set(ranks), machine(ring(len(ranks)))).program


@FEW
@given(meeting())
def test_work_of_any_rank_on_the_path_decides_the_end_and_no_other_does(program):
    records = run(program)
    chain, end = Chain(program, records), records.makespan
    on_path = {chain.place(step.visit) for step in chain.steps()}
    for position, binding in enumerate(program.bindings):
        table = program.programs[binding.program]
        assert [each.program for each in program.bindings].count(binding.program) == 1
        for visit in np.flatnonzero(table.kind == VisitKind.COMPUTE).tolist():
            change = 7 if (position, visit) in on_path else -7
            changed = run(with_work(program, visit, change, binding.program)).makespan
            assert changed == end + max(change, 0)


@FEW
@given(meeting())
def test_what_is_on_the_path_has_no_slack_and_what_has_more_than_none_can_wait(program):
    records = run(program)
    slack, offsets = slack_of(program, records), program.visits().tolist()
    chain = Chain(program, records)
    on_path = {chain.place(step.visit) for step in chain.steps()}
    for position, binding in enumerate(program.bindings):
        for visit in np.flatnonzero(program.programs[binding.program].kind == VisitKind.COMPUTE).tolist():
            room = int(slack[offsets[position] + visit])
            assert room == 0 or (position, visit) not in on_path
            later = run(with_work(program, visit, room + 7, binding.program)).makespan
            assert later >= records.makespan + 7


def test_a_path_goes_on_at_the_rank_that_arrives_last():
    early, late = Nodes(), Nodes()
    early.collective(ALL_REDUCE, 64, after=early.compute(10_000))
    late.collective(ALL_REDUCE, 64, after=late.compute(70_000))
    result = replay(trace_set([early, late]), machine(ring(2)), engine=ONE)
    path = critical_path(result)
    # The second rank computes for 70 ns, and the all-reduce begins when it arrives.
    first, second = path.parts
    assert (first.cause, first.rank, first.start, first.length) == ("compute", 1, 0, 70_000)
    assert (second.cause, second.start + second.length) == ("dp", result.step_time)


def test_a_sender_does_not_wait_for_its_receiver():
    sender, receiver = Nodes(), Nodes()
    sender.compute(90_000, after=sender.send(1, 100, stream="s"), stream="c")
    receiver.recv(0, 100, after=receiver.compute(95_000))
    program = lower(trace_set([sender, receiver]), machine(ring(2))).program
    records = run(program)
    steps = Chain(program, records).steps()
    # The receiver computes for 95 ns and is done when it arrives: its message is there already.
    assert [step.kind for step in steps][0] is StepKind.SERVICE
    assert sum(step.end - step.begin for step in steps) == records.makespan


@pytest.mark.parametrize("mode", ["flattened", "analytical", "hierarchical"])
def test_parts_add_up_to_the_step_of_a_job(mode):
    job = load_job("llama2_7b_train", settings=[("model.layers", "4")])
    result = simulate(job, load_machine("dgx_a100"), mode=mode)
    path = critical_path(result)
    beside = OffPath(operator_slacks(result, path), tuple(link_queues(result.run)))
    assert min(row.least for row in beside.slacks) == 0
    assert all(0 <= row.least <= row.median <= result.step_time for row in beside.slacks)
    assert beside.next is None or not beside.next.on_path
    assert {row.on_path for row in beside.slacks} >= {True}
    assert sum(part.length for part in path.parts) == result.step_time
    assert sum(path.by_cause.values()) == result.step_time
    assert path.as_json()["step_time_ps"] == result.step_time


def test_parts_add_up_where_decode_steps_are_left_out():
    few = [("model.layers", "2"), ("inference.output_length", "64"), ("inference.decode_steps", "3")]
    job = load_job("llama2_7b_inference", settings=few)
    result = simulate(job, load_machine("dgx_a100"), mode="analytical")
    assert sum(part.length for part in critical_path(result).parts) == result.step_time


@FEW
@given(st.data())
def test_free_messages_take_no_link_and_no_longer(data):
    where = data.draw(machines())
    lowered = lower(data.draw(traces(where.fabric.gpus, priorities=False)), where)
    streams = {name for trace in lowered.traces.ranks for name in trace.nodes.streams}
    before, after = run(lowered.program), run(with_free_messages(lowered, streams))
    assert after.finished
    assert after.hops == 0
    assert after.makespan <= before.makespan
    assert (after.finish != NONE).all()


@pytest.fixture(scope="module")
def small():
    """Two layers of Llama 2 7B by closed forms, and the critical path."""
    job, where = load_job("llama2_7b_train", settings=[("model.layers", "2")]), load_machine("dgx_a100")
    result = simulate(job, where, mode="analytical")
    return job, where, result, critical_path(result)


def test_the_best_changes_are_simulated_and_the_largest_saving_comes_first(small):
    job, where, result, path = small
    told: list[str] = []
    changes = best_changes((job, where), result, path, ONE, told.append)
    steps = [change.step_time for change in changes]
    assert steps == sorted(steps)
    assert steps[-1] < result.step_time
    faster = load_machine("dgx_a100", device_settings=[("tensor_peak.bf16", "2x")])
    again = simulate(job, faster, mode="analytical")
    assert changes[0].what == "tensor cores twice as fast"
    assert abs(changes[0].step_time - again.step_time) <= again.step_time // 100
    assert (changes[0].before, changes[0].mode) == (result.step_time, "")
    # Of nine candidates those that can not be among the best three are left out.
    assert {change.what for change in changes} < {*told}
    assert len(told) < 9


def test_changes_of_a_long_run_are_simulated_by_closed_forms_beside_its_step_by_them(small, monkeypatch):
    job, where, by_forms, _ = small
    monkeypatch.setattr("rapid_des.studies.changes.MOST_HOPS", 0)
    result = simulate(job, where)
    change = best_changes((job, where), result, critical_path(result), ONE)[0]
    assert (change.mode, change.before) == ("analytical", by_forms.step_time)
    assert change.step_time < change.before
    said = [*why_report(critical_path(result), [change], [], "a job")][-1]
    assert isinstance(said, Table)
    assert f"in mode analytical, where the step takes {by_forms.step_time}" in said.title
