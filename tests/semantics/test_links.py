"""Messages on links: 1 GB/s, so 1000 ps a byte, and 100 ns of latency a hop unless stated otherwise."""

import numpy as np
import pytest

from rapid_des.program.lowering import lower
from rapid_des.program.program import Timetable
from tests.program.machines import STORE, dimension, machine, ring, switch
from tests.program.tracing import Nodes, trace_set
from tests.semantics.sketch import Sketch

LATENCY = 100_000
CUT = {"mode": "cut_through", "segment": "64 B"}
PARTS = CUT | {"parts": 4}


def one_message(size, *, peer, ranks):
    """Rank 0 sends to rank `peer`, which asks at once."""
    programs = [Nodes() for _ in range(ranks)]
    programs[0].send(peer, size)
    programs[peer].recv(0, size)
    return trace_set(programs)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_store_and_forward_pays_the_whole_message_at_every_hop(replayed, hops):
    done = replayed(one_message(500, peer=hops, ranks=7), machine(ring(7)))
    # each of h links takes 500 * 1000 ps, and the message 100 ns more to the next node
    assert done.finish[hops] == [hops * (500_000 + LATENCY)]
    assert done.records.hops == hops
    assert done.records.link_bytes.sum() == hops * 500


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_segments_pipeline_over_store_and_forward_hops(replayed, hops):
    done = replayed(
        one_message(500, peer=hops, ranks=7), machine(ring(7), switching=STORE | {"segment": "100 B"})
    )
    # the first of five segments takes every hop, the other four follow it over the last one
    assert done.finish[hops] == [hops * (100_000 + LATENCY) + 4 * 100_000]
    assert done.records.hops == 5 * hops


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_cut_through_pays_the_head_at_every_hop_and_the_message_once(replayed, hops):
    done = replayed(one_message(640, peer=hops, ranks=7), machine(ring(7), switching=CUT))
    assert done.finish[hops] == [640_000 + (hops - 1) * 64_000 + hops * LATENCY]
    # every link is busy for the whole message
    assert done.records.link_busy.sum() == hops * 640_000


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_message_in_parts_arrives_alone_as_the_whole_does(replayed, hops):
    done = replayed(one_message(640, peer=hops, ranks=7), machine(ring(7), switching=PARTS))
    assert done.finish[hops] == [640_000 + (hops - 1) * 64_000 + hops * LATENCY]
    # ten packets in parts of three
    assert done.records.hops == 4 * hops
    assert done.records.link_busy.sum() == hops * 640_000
    assert done.records.sent == done.records.received == 640


def test_parts_behind_a_slow_link_arrive_with_its_last_packet(replayed):
    slow_then_fast = (ring(2, bandwidth="500 MB/s"), ring(2))
    done = replayed(one_message(640, peer=3, ranks=4), machine(*slow_then_fast, switching=PARTS))
    assert done.finish[3] == [1_280_000 + 64_000 + 2 * LATENCY]


def test_parts_before_a_slow_link_queue_for_it(replayed):
    fast_then_slow = (ring(2), ring(2, bandwidth="500 MB/s"))
    done = replayed(one_message(640, peer=3, ranks=4), machine(*fast_then_slow, switching=PARTS))
    assert done.finish[3] == [64_000 + 1_280_000 + 2 * LATENCY]


def test_cut_through_behind_a_slow_link_arrives_with_the_slow_links_last_packet(replayed):
    slow_then_fast = (ring(2, bandwidth="500 MB/s"), ring(2))
    done = replayed(one_message(640, peer=3, ranks=4), machine(*slow_then_fast, switching=CUT))
    # the slow link takes 1280 ns; the last packet of 64 B then takes 64 ns on the fast one
    assert done.finish[3] == [1_280_000 + 64_000 + 2 * LATENCY]


def test_a_message_of_no_bytes_takes_a_tick_and_the_latency(replayed):
    assert replayed(one_message(0, peer=1, ranks=2), machine(ring(2))).finish[1] == [1 + LATENCY]


def test_a_fluid_message_of_no_bytes_arrives_too(replayed):
    done = replayed(one_message(0, peer=1, ranks=2), machine(ring(2), switching={"mode": "fluid"}))
    assert LATENCY <= done.finish[1][0] <= LATENCY + 1000


def test_fluid_messages_share_a_link_in_equal_parts(replayed):
    done = replayed(two_senders(500, 300), machine(ring(2), switching={"mode": "fluid"}))
    # half the link each: 300 B are out after 600 ns; the other 200 B then take 200 ns
    assert done.finish[1] == pytest.approx([800_000 + LATENCY, 600_000 + LATENCY], abs=2)


def test_a_switch_is_two_hops_away(replayed):
    done = replayed(one_message(500, peer=2, ranks=3), machine(switch(3)))
    assert done.finish[2] == [2 * (500_000 + LATENCY)]


def test_a_send_ends_when_the_message_is_there_whether_or_not_it_is_asked_for(replayed):
    late = Nodes()
    late.recv(0, 500, after=late.compute(5_000_000))
    early = Nodes()
    early.send(1, 500)
    done = replayed(trace_set([early, late]), machine(ring(2)))
    assert done.finish[0] == [500_000 + LATENCY]
    # the receive starts at 5 us, finds its message, and holds its stream for a tick
    assert done.finish[1] == [5_000_000, 5_000_001]


def test_a_receive_that_waits_ends_when_the_message_arrives(replayed):
    late = Nodes()
    late.send(1, 500, after=late.compute(5_000_000))
    early = Nodes()
    early.recv(0, 500)
    done = replayed(trace_set([late, early]), machine(ring(2)))
    assert done.finish[1] == [5_000_000 + 500_000 + LATENCY]


def test_messages_with_one_tag_are_matched_in_order_and_tags_apart(replayed):
    sender, receiver = Nodes(), Nodes()
    for size, tag in ((100, 0), (200, 1), (300, 0)):
        sender.send(1, size, tag=tag)
    for size, tag in ((200, 1), (100, 0), (300, 0)):
        receiver.recv(0, size, tag=tag)
    done = replayed(trace_set([sender, receiver]), machine(ring(2)))
    ends = np.cumsum([100_000 + LATENCY, 200_000 + LATENCY, 300_000 + LATENCY]).tolist()
    assert done.finish[0] == ends
    # tag 1 arrives second, so the receive of the first of tag 0 starts then and ends a tick later
    assert done.finish[1] == [ends[1], ends[1] + 1, ends[2]]


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


def two_senders(first, second, *, streams=("a", "b"), priorities=(0, 0), delays=(0, 0)):
    """Rank 0 sends two messages to rank 1 on streams of their own."""
    sender, receiver = Nodes(), Nodes()
    for size, tag, stream in zip((first, second), (0, 1), streams, strict=True):
        gate = sender.compute(delays[tag], stream=f"gate{tag}") if delays[tag] else ()
        sender.send(1, size, tag=tag, stream=stream, after=gate, priority=priorities[tag])
        receiver.recv(0, size, tag=tag, stream=stream)
    return trace_set([sender, receiver])


def test_two_messages_share_a_link_one_after_the_other(replayed):
    done = replayed(two_senders(500, 300), machine(ring(2)))
    # equal priority, equal ready time: the one with the lower node goes first
    assert done.finish[1] == [500_000 + LATENCY, 800_000 + LATENCY]
    assert done.records.link_busy.sum() == 800_000
    assert done.records.link_wait.sum() == 500_000


def test_messages_in_parts_take_turns(replayed):
    done = replayed(two_senders(256, 128), machine(ring(2), switching=PARTS))
    # a part is one packet of 64 B, handed over every 64 ns: at 0 stand a1 and b1, at 64 a2 and b2, at 128 a3;
    # the link serves a1 b1 a2 b2 a3 a4
    assert done.finish[1] == [384_000 + LATENCY, 256_000 + LATENCY]
    assert done.records.hops == 6


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


def test_a_link_takes_the_smaller_priority_among_those_that_wait(replayed):
    done = replayed(two_senders(500, 300, priorities=(1, 0)), machine(ring(2)))
    assert done.finish[1] == [800_000 + LATENCY, 300_000 + LATENCY]


def test_a_link_does_not_preempt(replayed):
    done = replayed(two_senders(500, 300, priorities=(1, 0), delays=(0, 1)), machine(ring(2)))
    # the urgent one comes a picosecond late
    assert done.finish[1] == [500_000 + LATENCY, 800_000 + LATENCY]


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


def merging():
    """Rank 0's message to rank 2 stands at node 1 of a ring of 5 at 300 ns, when rank 1 sends its own."""
    programs = [Nodes() for _ in range(5)]
    programs[0].send(2, 200)
    programs[1].send(2, 200, after=programs[1].compute(200_000 + LATENCY))
    programs[2].recv(1, 200, stream="from1")
    programs[2].recv(0, 200, stream="from0")
    return trace_set(programs)


def test_at_one_instant_the_lower_source_rank_goes_first(replayed):
    done = replayed(merging(), machine(ring(5)))
    assert done.finish[2] == [700_000 + LATENCY, 500_000 + LATENCY]


def test_who_folds_learns_how_often_a_link_chose_by_rank(run):
    assert run(lower(merging(), machine(ring(5))).program).ties == 1
    # one rank's own messages are no such choice
    assert run(lower(two_senders(500, 300), machine(ring(2))).program).ties == 0


def test_a_ring_goes_the_short_way(replayed):
    done = replayed(one_message(500, peer=6, ranks=7), machine(ring(7)))
    assert done.records.hops == 1


def with_link(timetable, *, size=500):
    """A message over a link that follows a timetable."""
    sketch = Sketch()
    source, sink = sketch.rank(), sketch.rank()
    link, template = sketch.link(lag=7), sketch.message(size)
    send, receive = sketch.meet((source, sink), {template: {(0, 1): [link]}})
    source.member(send, template)
    sink.member(receive, template)
    columns = (np.array(column, np.int64) for column in zip(*timetable, strict=True))
    return sketch.program(link_timetables={link: Timetable(*columns)})


@pytest.mark.parametrize(
    ("timetable", "finish"),
    [
        # half the rate from the beginning
        ([(0, 2048, 0)], 1_000_000 + 7),
        # 100 us done, the other 400 us at a quarter of the rate
        ([(100_000, 1024, 0)], 100_000 + 1_600_000 + 7),
        # closed from 100 us to 350 us
        ([(100_000, 0, 0), (350_000, 4096, 0)], 750_000 + 7),
        # flapping: closed for half of each of the first 400 us
        ([(0, 0, 0), (100_000, 4096, 0), (200_000, 0, 0), (300_000, 4096, 0)], 700_000 + 7),
        # the extra lag of the moment at which service starts
        ([(0, 4096, 55), (1, 4096, 0)], 500_000 + 7 + 55),
        ([(0, 4096, 0), (1, 4096, 55)], 500_000 + 7),
        # a rate of 3/4096: the least tick by which the work is done
        ([(0, 3, 0)], -(-500_000 * 4096 // 3) + 7),
        # nothing happens before the step of a far day
        ([(3_600 * 10**12, 0, 0)], 500_000 + 7),
    ],
)
def test_a_link_follows_its_timetable(run, timetable, finish):
    records = run(with_link(timetable))
    assert records.finish.tolist() == [finish, finish]
    assert records.link_busy.sum() == finish - 7 - (55 if timetable[0][2] else 0)


def test_a_link_that_closes_for_ever_is_never_passed(run):
    assert run(with_link([(100_000, 0, 0)])).finish.tolist() == [-1, -1]


def test_a_stream_follows_its_timetable(run):
    sketch = Sketch()
    rank = sketch.rank()
    first = rank.compute(100)
    rank.compute(100, after=[first])
    columns = (np.array(column, np.int64) for column in ([50, 200], [2048, 0], [0, 0]))
    program = sketch.program(stream_timetables={(0, 0): Timetable(*columns)})
    # 50 at full rate, 50 at half: 150; then 50 ps at half rate are 25 of 100 when the GPU stops
    assert run(program).finish.tolist() == [150, -1]


def test_an_hour_of_work_at_a_changing_rate_does_not_overflow(run):
    second = 10**12
    sketch = Sketch()
    sketch.rank().compute(3600 * second)
    columns = (np.array(column, np.int64) for column in ([1000 * second], [2048], [0]))
    program = sketch.program(stream_timetables={(0, 0): Timetable(*columns)})
    assert run(program).finish.tolist() == [(1000 + 2 * 2600) * second]


def test_a_message_counts_under_the_stream_of_its_sender(replayed):
    # rank 0 is met first, as the receiver of one message and the sender of the other
    one, other = Nodes(), Nodes()
    one.recv(1, 100, stream="inbox")
    one.send(1, 200, stream="outbox")
    other.send(0, 100, stream="outbox")
    other.recv(0, 200, stream="inbox")
    done = replayed(trace_set([one, other]), machine(ring(2)))
    assert done.program.labels == ("outbox",)
    assert done.records.link_bytes.sum() == 300


def test_bytes_are_conserved_over_shared_links(replayed):
    programs = [Nodes() for _ in range(5)]
    for source in range(5):
        for destination in range(5):
            if source != destination:
                programs[source].send(destination, 100 + source, stream=f"to{destination}")
                programs[destination].recv(source, 100 + source, stream=f"from{source}")
    done = replayed(trace_set(programs), machine(dimension("mesh", [5])))
    sent = sum(4 * (100 + source) for source in range(5))
    assert done.records.sent == done.records.received == sent
    # on a line the message from i to j takes |i - j| hops
    carried = sum((100 + i) * abs(i - j) for i in range(5) for j in range(5))
    assert done.records.link_bytes.sum() == carried
    assert done.records.link_busy.sum() == carried * 1000
