"""R1 to R4 on hand-made programs: when a visit is ready, and whom a server takes. Times are picoseconds."""

import pytest

from rapid_des.program.program import NONE, Level
from tests.semantics.sketch import Sketch


def test_a_visit_waits_for_the_latest_of_its_predecessors_plus_lags(run):
    sketch = Sketch()
    rank = sketch.rank()
    short, long = rank.compute(10, server=0), rank.compute(30, server=1)
    rank.compute(5, server=2, after=[(short, 25), (long, 2)])
    records = run(sketch.program())
    # max(10 + 25, 30 + 2) = 35
    assert records.start.tolist() == [0, 0, 35]
    assert records.finish.tolist() == [10, 30, 40]


def test_an_edge_may_be_anchored_at_the_start(run):
    sketch = Sketch()
    rank = sketch.rank()
    first = rank.compute(100)
    rank.compute(5, server=1, after=[(first, 1, "start")])
    rank.compute(5, server=2, after=[(first, 40, "start")])
    assert run(sketch.program()).start.tolist() == [0, 1, 40]


def test_a_start_counts_from_service_not_from_waiting(run):
    sketch = Sketch()
    rank = sketch.rank()
    rank.compute(60)
    second = rank.compute(10)
    rank.compute(5, server=1, after=[(second, 7, "start")])
    # the second waits for its server until 60
    assert run(sketch.program()).start.tolist() == [0, 60, 67]


def test_a_counting_predecessor_is_met_when_enough_have_finished(run):
    sketch = Sketch()
    rank = sketch.rank(capacities=(1, 1, 1, 1))
    ends = [rank.compute(work, server=server) for server, work in enumerate((50, 20, 90))]
    waiting = rank.compute(5, server=3, after=[(ends[0], 3), ends[1], ends[2]])
    rank.need[waiting] = 2
    # two of three have finished at 50, plus the lag of that edge
    assert run(sketch.program()).start.tolist() == [0, 0, 0, 53]


def test_what_comes_after_a_counting_predecessor_is_met_is_no_news(run):
    sketch = Sketch()
    rank = sketch.rank()
    rank.compute(100, server=0)
    early, late = rank.compute(10, server=1), rank.compute(60, server=2)
    first = rank.compute(5, server=0)
    rival = rank.compute(5, server=0, after=[(early, 10)])
    counted = rank.compute(5, server=0, after=[early, late])
    rank.need[counted] = 1
    # all wait for 100; `counted` has been ready since 10, before `rival` (20), whatever ended at 60
    assert run(sketch.program()).start[[first, counted, rival]].tolist() == [100, 105, 110]


def test_a_join_takes_no_server(run):
    sketch = Sketch()
    rank = sketch.rank()
    first = rank.compute(10)
    joined = rank.join(4, after=[first])
    at_once = rank.join(after=[first])
    rank.compute(1, after=[joined, at_once])
    records = run(sketch.program())
    assert records.finish.tolist() == [10, 14, 10, 15]


def test_a_visit_lasts_at_least_a_tick_on_a_server(run):
    sketch = Sketch()
    rank = sketch.rank()
    first = rank.compute(0)
    rank.compute(0, after=[first])
    assert run(sketch.program()).finish.tolist() == [1, 2]


def test_without_a_server_nothing_has_to_pass(run):
    sketch = Sketch()
    rank = sketch.rank()
    rank.compute(0, server=NONE)
    rank.compute(8, server=NONE)
    rank.compute(8, server=NONE)
    assert run(sketch.program()).finish.tolist() == [0, 8, 8]


@pytest.mark.parametrize(("capacity", "starts"), [(1, [0, 10, 20, 30]), (2, [0, 0, 10, 10]), (4, [0] * 4)])
def test_a_server_serves_up_to_its_capacity(run, capacity, starts):
    sketch = Sketch()
    rank = sketch.rank(capacities=(capacity,))
    for _ in range(4):
        rank.compute(10)
    assert run(sketch.program()).start.tolist() == starts


def test_a_server_never_preempts_and_never_idles(run):
    sketch = Sketch()
    rank = sketch.rank()
    gate = rank.compute(10, server=1)
    rank.compute(100, priority=9)
    rank.compute(5, priority=-9, after=[gate])
    # the urgent one is ready at 10 and waits; the other began at 0 rather than wait for it
    assert run(sketch.program()).start.tolist() == [0, 0, 100]


def test_the_smallest_priority_goes_first(run):
    sketch = Sketch()
    rank = sketch.rank()
    for priority in (2, 1, -1):
        rank.compute(10, priority=priority)
    assert run(sketch.program()).start.tolist() == [20, 10, 0]


def test_among_equal_priorities_the_earliest_ready_goes_first(run):
    sketch = Sketch()
    rank = sketch.rank()
    blocker = rank.compute(100)
    late, early = rank.compute(20, server=1), rank.compute(10, server=2)
    rank.compute(5, after=[late])
    rank.compute(5, after=[early])
    assert run(sketch.program()).start[[blocker, 3, 4]].tolist() == [0, 105, 100]


def test_among_equals_the_smallest_id_goes_first(run):
    sketch = Sketch()
    rank = sketch.rank()
    gates = [rank.compute(10, server=server) for server in (1, 2)]
    # whichever of the gates is worked off first, visit 2 goes before visit 3
    rank.compute(5, after=[gates[1]])
    rank.compute(5, after=[gates[0]])
    assert run(sketch.program()).start.tolist() == [0, 0, 10, 15]


@pytest.mark.parametrize("gates", [(1, 2), (2, 1)])
def test_everything_of_an_instant_happens_before_a_server_chooses(run, gates):
    sketch = Sketch()
    rank = sketch.rank()
    rank.compute(100)
    rank.compute(100, server=1)
    rank.compute(100, server=2)
    # the server becomes free, and both become ready, at 100
    rank.compute(5, priority=5, after=[gates[0]])
    rank.compute(5, priority=0, after=[gates[1]])
    assert run(sketch.program()).start[3:].tolist() == [105, 100]


def test_what_a_chain_makes_ready_in_one_instant_still_counts(run):
    sketch = Sketch()
    rank = sketch.rank()
    gate = rank.compute(10, server=1)
    rank.compute(5, priority=1, after=[gate])
    chain = rank.join(after=[rank.join(after=[gate])])
    rank.compute(5, priority=0, after=[chain])
    records = run(sketch.program())
    assert records.start[[1, 4]].tolist() == [15, 10]


def test_streams_choose_before_slots(run):
    sketch = Sketch()
    rank = sketch.rank(capacities=(1, 1), levels=[Level.SLOT, Level.STREAM])
    stream = rank.compute(10, server=1)
    # a stream's start makes a slot's visit ready a tick later; the slot itself is taken at 0 by the other
    rank.compute(7, server=0, after=[(stream, 1, "start")])
    rank.compute(4, server=0)
    assert run(sketch.program()).start.tolist() == [0, 4, 0]


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


def test_a_visit_that_waits_for_itself_never_starts(run):
    sketch = Sketch()
    rank = sketch.rank()
    rank.compute(5, after=[1])
    rank.compute(5, after=[0])
    rank.compute(9, server=1)
    assert run(sketch.program()).finish.tolist() == [NONE, NONE, 9]
