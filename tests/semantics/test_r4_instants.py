"""R4: all that becomes ready or free at an instant does so before servers choose, level by level."""

import pytest

from rapid_des.program.program import WorkLevel
from tests.program.machines import STORE, machine, ring
from tests.program.tracing import Nodes, trace_set
from tests.semantics.messages import CUT
from tests.semantics.sketch import Sketch


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
    rank = sketch.rank(capacities=(1, 1), levels=[WorkLevel.SLOT, WorkLevel.STREAM])
    stream = rank.compute(10, server=1)
    # a stream's start makes a slot's visit ready a tick later; the slot itself is taken at 0 by the other
    rank.compute(7, server=0, after=[(stream, 1, "start")])
    rank.compute(4, server=0)
    assert run(sketch.program()).start.tolist() == [0, 4, 0]


@pytest.mark.parametrize("switching", [STORE, CUT, {"mode": "fluid"}], ids=lambda keys: keys["mode"])
def test_a_message_to_oneself_takes_no_link_but_a_tick(replayed, switching):
    nodes = Nodes()
    nodes.compute(100, priority=5)
    asked = nodes.recv(0, 80, stream="recv")
    nodes.compute(7, after=asked, priority=-1)
    nodes.send(0, 80)
    traces = trace_set([nodes, Nodes()], unordered={"compute", "recv"})
    done = replayed(traces, machine(ring(2), switching=switching))
    # it is there at 1, so what follows was not ready when the stream chose at 0
    assert done.start[0] == [0, 0, 100, 0]
    assert done.finish[0] == [100, 1, 107, 1]
    assert done.records.hops == 0
