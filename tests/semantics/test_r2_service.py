"""R2: a server serves up to its capacity, never preempts, never idles; streams keep program order."""

import pytest

from tests.program.machines import machine, ring
from tests.program.tracing import ALL_REDUCE, Nodes, trace_set
from tests.semantics.messages import LATENCY, hop, two_senders
from tests.semantics.sketch import Sketch


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


def test_two_messages_share_a_link_one_after_the_other(replayed):
    done = replayed(two_senders(500, 300), machine(ring(2)))
    # equal priority, equal ready time: the one with the lower node goes first
    assert done.finish[1] == [500_000 + LATENCY, 800_000 + LATENCY]
    assert done.records.link_busy.sum() == 800_000
    assert done.records.link_wait.sum() == 500_000


def test_a_link_does_not_preempt(replayed):
    done = replayed(two_senders(500, 300, priorities=(1, 0), delays=(0, 1)), machine(ring(2)))
    # the urgent one comes a picosecond late
    assert done.finish[1] == [500_000 + LATENCY, 800_000 + LATENCY]


def test_the_ordered_stream_prevents_opposite_orders(replayed):
    groups = {"a": (0, 1), "b": (0, 1)}
    one, other = Nodes(), Nodes()
    # the second rank's first collective is ready late; the second must wait for it all the same
    one.collective(ALL_REDUCE, 80, "a")
    one.collective(ALL_REDUCE, 80, "b")
    other.collective(ALL_REDUCE, 80, "a", after=other.compute(500_000))
    other.collective(ALL_REDUCE, 80, "b")
    done = replayed(trace_set([one, other], groups), machine(ring(2)))
    assert done.finish[0] == [500_000 + 2 * hop(40), 500_000 + 4 * hop(40)]
