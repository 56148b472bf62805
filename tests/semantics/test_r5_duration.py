"""R5: how long a visit lasts, and which instance of a collective it meets."""

import pytest

from rapid_des.engines.deadlock import why_unfinished
from rapid_des.errors import CannotFinishError, TraceError
from rapid_des.program.program import NONE
from tests.program.machines import dimension, machine, ring
from tests.program.tracing import ALL_GATHER, ALL_REDUCE, Nodes, same_everywhere, trace_set
from tests.semantics.messages import hop
from tests.semantics.sketch import Sketch


def test_a_visit_lasts_at_least_a_tick_on_a_server(run):
    sketch = Sketch()
    rank = sketch.rank()
    first = rank.compute(0)
    rank.compute(0, after=[first])
    assert run(sketch.program()).finish.tolist() == [1, 2]


def test_work_past_the_last_moment_is_told_from_a_deadlock(run):
    sketch = Sketch()
    rank = sketch.rank()
    month = 30 * 86_400 * 10**12
    rank.compute(month, after=[rank.compute(month)])
    program = sketch.program()
    records = run(program)
    assert not records.finished
    error = why_unfinished(program, records)
    assert type(error) is CannotFinishError
    assert "time horizon of 4611686018427387904 ps (53 days): 1 of 2" in str(error)


def test_without_a_server_nothing_has_to_pass(run):
    sketch = Sketch()
    rank = sketch.rank()
    rank.compute(0, server=NONE)
    rank.compute(8, server=NONE)
    rank.compute(8, server=NONE)
    assert run(sketch.program()).finish.tolist() == [0, 8, 8]


def test_a_join_takes_no_server(run):
    sketch = Sketch()
    rank = sketch.rank()
    first = rank.compute(10)
    joined = rank.join(4, after=[first])
    at_once = rank.join(after=[first])
    rank.compute(1, after=[joined, at_once])
    records = run(sketch.program())
    assert records.finish.tolist() == [10, 14, 10, 15]


def test_a_hold_keeps_its_server_until_the_named_visit_finishes(run):
    sketch = Sketch()
    rank = sketch.rank()
    hold = rank.hold(server=0, slot=rank.slot(sketch.group([0], {}), 0))
    inner = rank.compute(30, server=1, after=[(hold, 2, "start")])
    rank.release(hold, inner)
    rank.compute(5, server=0)
    records = run(sketch.program())
    # the hold lasts from 0 to 2 + 30
    assert records.finish.tolist() == [32, 32, 37]


def test_a_hold_whose_visit_is_over_still_takes_a_tick(run):
    sketch = Sketch()
    rank = sketch.rank()
    over = rank.compute(3, server=1)
    hold = rank.hold(server=0, slot=rank.slot(sketch.group([0], {}), 0), after=[(over, 4)])
    rank.release(hold, over)
    assert run(sketch.program()).finish.tolist() == [3, 8]


def test_a_collective_holds_its_stream_from_arrival_until_its_member_is_done(replayed):
    early, late = Nodes(), Nodes()
    for nodes, work in ((early, 0), (late, 1_000_000)):
        gate = nodes.compute(work) if work else ()
        nodes.collective(ALL_REDUCE, 80, after=gate)
        nodes.compute(10, stream="dp")
    done = replayed(trace_set([early, late]), machine(ring(2)))
    end = 1_000_000 + 2 * hop(40)
    assert done.start[0] == [0, end]
    assert done.finish[0] == [end, end + 10]
    assert done.records.met.max() == 1_000_000


def test_the_kth_call_of_each_member_meets_whatever_stream_it_is_on(replayed):
    one, other = Nodes(), Nodes()
    one.collective(ALL_REDUCE, 80, stream="a")
    one.collective(ALL_GATHER, 40, stream="b")
    other.collective(ALL_REDUCE, 80, stream="c")
    other.collective(ALL_GATHER, 40, stream="c")
    done = replayed(trace_set([one, other]), machine(ring(2)))
    # rank 1's stream c runs one after the other
    assert done.finish[1] == [2 * hop(40), 3 * hop(40)]
    assert done.finish[0][0] == 2 * hop(40)


def test_collectives_of_two_groups_do_not_meet(replayed):
    nodes = [Nodes() for _ in range(4)]
    groups = {"low": (0, 1), "high": (2, 3)}
    for rank, mine in enumerate(nodes):
        mine.collective(ALL_REDUCE, 80, "low" if rank < 2 else "high")
    done = replayed(trace_set(nodes, groups), machine(dimension("mesh", [4])))
    assert done.finish == [[2 * hop(40)]] * 4


def test_members_that_disagree_are_named_with_group_number_and_values(replayed):
    one, other = Nodes(), Nodes()
    for nodes, size in ((one, 80), (other, 120)):
        nodes.collective(ALL_REDUCE, 40)
        nodes.collective(ALL_REDUCE, size)
    with pytest.raises(TraceError) as refusal:
        replayed(trace_set([one, other]), machine(ring(2)))
    text = str(refusal.value)
    assert "group world" in text
    assert "collective number 1" in text
    assert "all_reduce of 80 B" in text
    assert "all_reduce of 120 B" in text


def test_a_send_and_a_receive_of_different_sizes_disagree(replayed):
    sender, receiver = Nodes(), Nodes()
    sender.send(1, 100, tag=7)
    receiver.recv(0, 99, tag=7)
    with pytest.raises(TraceError, match=r"0>1 tag 7.*number 0.*a message of (100|99) B"):
        replayed(trace_set([sender, receiver]), machine(ring(2)))


def test_on_an_unordered_stream_the_number_is_bound_when_a_visit_starts(replayed):
    one, other = Nodes(), Nodes()
    # rank 0 lists the two in the other order, but its second is ready first
    one.collective(ALL_GATHER, 40, stream="any", after=one.compute(50))
    one.collective(ALL_REDUCE, 80, stream="any")
    other.collective(ALL_REDUCE, 80, stream="any")
    other.collective(ALL_GATHER, 40, stream="any", after=other.compute(50))
    done = replayed(trace_set([one, other], unordered={"any"}), machine(ring(2)))
    assert done.finish[0] == [50, 3 * hop(40), 2 * hop(40)]
    assert done.finish[1] == [2 * hop(40), 50, 3 * hop(40)]


def test_a_group_on_streams_with_and_without_order_counts_all_its_calls_together(replayed):
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 80, stream="dp")
    nodes.collective(ALL_REDUCE, 80, stream="any", after=nodes.compute(50))
    done = replayed(same_everywhere(nodes, 2, unordered={"any"}), machine(ring(2)))
    # the second is issued at 50 ps and shares the links: both steps of both are sent behind one another
    assert done.finish == [[2 * hop(40), 50, 2 * hop(40) + 40_000]] * 2


def numbered(run, order, **columns):
    """Two ranks meet twice in a linkless barrier; rank 1 starts its visits in `order`."""
    sketch = Sketch()
    first, second = sketch.rank(capacities=(9,)), sketch.rank(capacities=(9,))
    task = {"source": 0, "gates": [(0, 0), (1, 0)]}
    barrier = sketch.template(2, [task], {0: [(0, 5)], 1: [(0, 5)]})
    one, other = sketch.meet((first, second), {barrier: {}})
    for moment, k in ((100, 0), (200, 1)):
        first.member(one, barrier, after=[first.join(moment)], **{name: k for name in columns})
    for moment, k in zip(order, (0, 1), strict=True):
        second.member(other, barrier, after=[second.join(moment)], **{name: k for name in columns})
    return run(sketch.program()).finish[[1, 3, 5, 7]].tolist()


def test_a_dynamic_number_counts_starts(run):
    # rank 1's second visit starts first and meets rank 0's first at 100
    assert numbered(run, (30, 20)) == [105, 205, 205, 105]


def test_a_static_number_is_kept_whatever_starts_first(run):
    assert numbered(run, (30, 20), occurrence=True) == [105, 205, 105, 205]
