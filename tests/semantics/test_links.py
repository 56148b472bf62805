"""Messages on links that are idle, by switching mode; what sends and receives wait for; the books."""

import numpy as np
import pytest

from rapid_des.program.lowering import lower
from rapid_des.values import replace
from tests.program.machines import STORE, dimension, machine, ring, switch
from tests.program.tracing import Nodes, trace_set
from tests.semantics.messages import CUT, LATENCY, PARTS, one_message


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


def near_beside_far():
    """Rank 0 sends over a fast and a slow link to rank 3, and 100 ns later over the fast one to rank 1."""
    programs = [Nodes() for _ in range(4)]
    programs[0].send(3, 640, stream="far")
    programs[0].send(1, 640, stream="near", after=programs[0].compute(100_000))
    programs[1].recv(0, 640)
    programs[3].recv(0, 640)
    where = machine(ring(2), ring(2, bandwidth="500 MB/s"), switching=PARTS)
    return lower(trace_set(programs), where).program


def near_finish(program, run):
    """When rank 1 has received all, its only visit."""
    return run(program).finish[program.visits()[1]]


def test_senders_hand_parts_over_as_fast_as_the_slowest_link_of_their_way_takes_them(run):
    # parts of 192 B stand at the fast link from 0, 384 and 768 ns on, those of the near message from 100, 292
    # and 484, its last of 64 B from 676: one, one, two, one and two of them leave in turns, until 1024
    assert near_finish(near_beside_far(), run) == 1_024_000 + LATENCY


def test_what_a_library_sends_is_handed_over_as_fast_as_the_first_link_takes_it(run):
    # now those of the far message stand there from 0, 192 and 384 ns on too, the last ones of 64 B come last
    program = near_beside_far()
    ahead = tuple(replace(template, ahead=True) for template in program.templates)
    assert near_finish(replace(program, templates=ahead), run) == 1_280_000 + LATENCY


def test_cut_through_behind_a_slow_link_arrives_with_the_slow_links_last_packet(replayed):
    slow_then_fast = (ring(2, bandwidth="500 MB/s"), ring(2))
    done = replayed(one_message(640, peer=3, ranks=4), machine(*slow_then_fast, switching=CUT))
    # the slow link takes 1280 ns; the last packet of 64 B then takes 64 ns on the fast one
    assert done.finish[3] == [1_280_000 + 64_000 + 2 * LATENCY]


def test_a_message_of_no_bytes_takes_a_tick_and_the_latency(replayed):
    assert replayed(one_message(0, peer=1, ranks=2), machine(ring(2))).finish[1] == [1 + LATENCY]


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


def test_a_ring_goes_the_short_way(replayed):
    done = replayed(one_message(500, peer=6, ranks=7), machine(ring(7)))
    assert done.records.hops == 1


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
