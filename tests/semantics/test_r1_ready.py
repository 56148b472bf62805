"""R1: when a visit, or a transfer of a collective, is ready. Hand-made programs; times are picoseconds."""

from rapid_des.program.program import NONE
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


def test_a_visit_that_waits_for_itself_never_starts(run):
    sketch = Sketch()
    rank = sketch.rank()
    rank.compute(5, after=[1])
    rank.compute(5, after=[0])
    rank.compute(9, server=1)
    assert run(sketch.program()).finish.tolist() == [NONE, NONE, 9]


def test_tasks_with_lags_injection_anchors_and_counting(run):
    sketch = Sketch()
    source, sink = sketch.rank(), sketch.rank()
    first, second = sketch.link(lag=11), sketch.link()
    tasks = [
        {"source": 0, "destination": 1, "size": 10, "gates": [(0, 3)]},
        # 40 ps after the first was injected, not after it arrived
        {"source": 0, "destination": 1, "size": 20, "after": [(0, 40, "injection")]},
        # one of two must have arrived
        {"source": 0, "after": [(0, 2, "arrival"), (1, 2, "arrival")], "need": 1},
    ]
    template = sketch.template(2, tasks, {0: [(2, 0)], 1: [(1, 5)]})
    send, receive = sketch.meet((source, sink), {template: {(0, 1): [first, second]}})
    source.member(send, template)
    sink.member(receive, template)
    records = run(sketch.program())
    # task 0: injected 3, first link until 10_003, stands at the second at 10_014, arrives 20_014
    # task 1: injected 43, waits for the first link until 10_003, 20_000 on it, 11 more, 20_000: 50_014
    assert records.finish.tolist() == [20_014 + 2, 50_014 + 5]
    assert records.hops == 4
    assert records.link_wait.sum() == 10_003 - 43
