"""R3: of those that wait a server takes the smallest (priority, ready time, id); links by part and rank."""

import pytest

from rapid_des.program.lowering import lower
from tests.program.machines import machine, ring, switch
from tests.program.tracing import ALL_GATHER, Nodes, same_everywhere, trace_set
from tests.semantics.messages import LATENCY, PARTS, merging, two_senders
from tests.semantics.sketch import Sketch


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


def test_a_link_takes_the_smaller_priority_among_those_that_wait(replayed):
    done = replayed(two_senders(500, 300, priorities=(1, 0)), machine(ring(2)))
    assert done.finish[1] == [800_000 + LATENCY, 300_000 + LATENCY]


def three_to_one(ready, priorities):
    """Three messages of 100 B over one link that a fourth keeps busy until 500 ns; returns their starts."""
    sketch = Sketch()
    source, sink = sketch.rank(capacities=(9,)), sketch.rank(capacities=(9,))
    link = sketch.link()
    blocker, small = sketch.message(500), sketch.message(100)
    for place, (moment, priority) in enumerate([(0, 0), *zip(ready, priorities, strict=True)]):
        template = small if place else blocker
        send, receive = sketch.meet((source, sink), {template: {(0, 1): [link]}})
        gate = [source.join(moment)] if moment else []
        source.member(send, template, after=gate, link_priority=priority)
        sink.member(receive, template)
    return sketch.program()


@pytest.mark.parametrize(
    ("ready", "priorities", "order"),
    [
        ((10, 20, 30), (0, 0, 0), (0, 1, 2)),
        ((30, 20, 10), (0, 0, 0), (2, 1, 0)),
        ((10, 20, 30), (5, 5, -1), (2, 0, 1)),
        ((10, 20, 30), (2, 1, 0), (2, 1, 0)),
        ((10, 10, 10), (0, 0, 0), (0, 1, 2)),
    ],
)
def test_a_link_takes_the_smallest_priority_then_ready_time_then_source(run, ready, priorities, order):
    records = run(three_to_one(ready, priorities))
    arrivals = records.finish[records.finish >= 500_000]
    # the sink's visits, in the order of the messages: 500 us, then 100 us each
    arrivals = arrivals[-3:].tolist()
    assert arrivals == [500_000 + 100_000 * (order.index(message) + 1) for message in range(3)]


def test_at_one_instant_the_lower_source_rank_goes_first(replayed):
    done = replayed(merging(), machine(ring(5)))
    assert done.finish[2] == [700_000 + LATENCY, 500_000 + LATENCY]


def test_who_folds_learns_how_often_a_link_chose_by_rank(run):
    assert run(lower(merging(), machine(ring(5))).program).ties == 1
    # one rank's own messages are no such choice
    assert run(lower(two_senders(500, 300), machine(ring(2))).program).ties == 0


def test_the_first_chunk_of_a_collective_goes_through_its_phases_before_the_next(replayed):
    where = machine(ring(3), ring(3), collectives={"default": {"algorithm": ["ring", "ring"], "chunks": 3}})
    nodes = Nodes()
    nodes.collective(ALL_GATHER, 3000)
    done = replayed(same_everywhere(nodes, 9), where)
    # two rounds of 1000 B a chunk along the outer rings: a link takes 0 1 0 1 2 and, 100 ns later, 2 again,
    # so chunk 0 is through at 3.1 us, not at 4.1; then two rounds of 3000 B along the inner ones: 0 1 0 1 2
    # to 18.1 us, and 2 again from 18.2 us on
    assert set(done.finish[0]) == {21_300_000}


def test_messages_in_parts_take_turns(replayed):
    done = replayed(two_senders(256, 128), machine(ring(2), switching=PARTS))
    # a part is one packet of 64 B, handed over every 64 ns: at 0 stand a1 and b1, at 64 a2 and b2, at 128 a3;
    # the link serves a1 b1 a2 b2 a3 a4
    assert done.finish[1] == [384_000 + LATENCY, 256_000 + LATENCY]
    assert done.records.hops == 6


def test_segments_of_messages_that_set_off_together_take_no_turns(replayed):
    where = machine(ring(2), switching={"mode": "store_and_forward", "segment": "64 B"})
    done = replayed(two_senders(256, 128), where)
    # the link serves a1 a2 a3 a4 b1 b2
    assert done.finish[1] == [256_000 + LATENCY, 384_000 + LATENCY]
    assert done.records.hops == 6


def test_segments_that_come_from_another_link_go_between_those_that_wait(replayed):
    # rank 1's segments stand at its link from 0 on, rank 0's reach it at 164, 228, 292 and 356 ns
    programs = [Nodes() for _ in range(5)]
    programs[0].send(2, 256)
    programs[1].send(2, 256)
    programs[2].recv(1, 256, stream="from1")
    programs[2].recv(0, 256, stream="from0")
    where = machine(ring(5), switching={"mode": "store_and_forward", "segment": "64 B"})
    # all of rank 1's wait since earlier, and go first
    assert replayed(trace_set(programs), where).finish[2] == [256_000 + LATENCY, 512_000 + LATENCY]


def test_segments_of_messages_from_two_links_alternate_where_they_meet(replayed):
    # ranks 0 and 1 send by the switch to rank 2: their segments reach its link at 164, 228, 292 and 356 ns
    programs = [Nodes() for _ in range(3)]
    programs[0].send(2, 256)
    programs[1].send(2, 256)
    programs[2].recv(0, 256, stream="from0")
    programs[2].recv(1, 256, stream="from1")
    where = machine(switch(3), switching={"mode": "store_and_forward", "segment": "64 B"})
    # a1 b1 a2 b2 a3 b3 a4 b4 from 164 ns on
    assert replayed(trace_set(programs), where).finish[2] == [
        164_000 + 448_000 + LATENCY,
        164_000 + 512_000 + LATENCY,
    ]


def test_a_message_that_begins_goes_before_a_part_that_comes_at_the_same_instant(replayed):
    done = replayed(two_senders(256, 64, delays=(0, 64_000)), machine(ring(2), switching=PARTS))
    # at 64 stand a2 and b1
    assert done.finish[1] == [320_000 + LATENCY, 128_000 + LATENCY]


def test_parts_of_two_senders_take_turns_where_their_ways_meet(replayed):
    # rank 0's message reaches rank 1's link at 164 ns, where its own parts stand from 0, 64, 128 and 192 on
    programs = [Nodes() for _ in range(5)]
    programs[0].send(2, 256)
    programs[1].send(2, 256)
    programs[2].recv(1, 256, stream="from1")
    programs[2].recv(0, 256, stream="from0")
    done = replayed(trace_set(programs), machine(ring(5), switching=PARTS))
    # own parts from 0, 64 and 128, then those of 164, 192 (own), 228, 292 and 356
    assert done.finish[2] == [320_000 + LATENCY, 512_000 + LATENCY]
