"""Messages over several equal ways: parts in turn, messages by a hash, shares by bandwidth, around faults."""

import pytest

from rapid_des.errors import ConfigError, UnsupportedByEngine
from rapid_des.modes.execution import EngineChoice
from rapid_des.network.faults import parse_fault
from rapid_des.simulation import run_traces
from tests.program.machines import dimension, machine, ring
from tests.program.tracing import Nodes, trace_set
from tests.semantics.messages import CUT, LATENCY, PARTS, one_message

UPLINK = {"bandwidth": "1 GB/s", "latency": "100 ns"}
HEADS, HOPS = 3 * 64_000, 4
"""A message crosses four links; at three of them the next waits for its first packet."""
SPINES = [("switch0", "switch2"), ("switch0", "switch3")]


def clos(*, spines=2, links=(), **switching):
    """Two leaves of two GPUs; without spraying all messages cross the first spine."""
    return machine(
        dimension("clos", 4, leaf_size=2, spines=spines, uplink=UPLINK),
        switching=PARTS | switching,
        routing={"order": "innermost_first", "tie": "positive", "ecmp": "lowest_id"},
        links=list(links),
    )


def parts_over(ways, **more):
    return {"ways": ways, "per": "part", **more}


def crossing(size, senders=2):
    """GPUs 0 and 1 send to 2 and 3."""
    programs = [Nodes() for _ in range(4)]
    for sender in range(senders):
        programs[sender].send(sender + 2, size)
        programs[sender + 2].recv(sender, size)
    return trace_set(programs)


def forty_messages():
    """GPU 0 sends to 2."""
    programs = [Nodes() for _ in range(4)]
    for tag in range(40):
        programs[0].send(2, 64, tag=tag)
        programs[2].recv(0, 64, tag=tag)
    return trace_set(programs)


def carried(done, where, *ends):
    """Bytes by link, each named by its two ends."""
    nodes = {where.fabric.node_name(node): node for node in range(where.fabric.nodes)}
    links = [where.fabric.link(nodes[one], nodes[other]) for one, other in ends]
    return [int(done.records.link_bytes[link].sum()) for link in links]


def test_a_sprayed_message_arrives_alone_as_any_other(replayed):
    where = clos(spray=parts_over(2))
    done = replayed(crossing(640, senders=1), where)
    assert done.finish[2] == [640_000 + HEADS + HOPS * LATENCY]
    # parts of 192, 192, 192 and 64 B in turn
    assert carried(done, where, *SPINES) == [384, 256]


def test_messages_that_would_share_a_spine_wait_for_one_part_only(replayed):
    done = replayed(crossing(640), clos(spray=parts_over(2)))
    alone = 640_000 + HEADS + HOPS * LATENCY
    # the second one's third part waits for the first one's, and its last part behind that where both go down
    assert [done.finish[2], done.finish[3]] == [[alone], [alone + 192_000]]


def test_no_more_ways_are_taken_than_there_are(replayed):
    many, two = (replayed(crossing(640), clos(spray=parts_over(ways))) for ways in (64, 2))
    assert many.finish == two.finish


def test_shares_may_follow_the_bandwidth_of_the_slowest_link(replayed):
    slow = {"source": "switch0", "destination": "switch3", "both_directions": True, "bandwidth": "500 MB/s"}
    where = clos(spray=parts_over(2, weights="bandwidth"), links=[slow], parts=6)
    done = replayed(crossing(6 * 64, senders=1), where)
    # of six packets every third one goes over the slow spine
    assert carried(done, where, *SPINES) == [4 * 64, 2 * 64]


def test_messages_take_ways_by_a_hash_of_their_own(replayed):
    where = clos(spray={"ways": 2, "per": "message"})
    first, second = carried(replayed(forty_messages(), where), where, *SPINES)
    assert first + second == 40 * 64
    assert 10 * 64 <= first <= 30 * 64


def test_messages_of_a_pair_take_one_way_without_spraying(replayed):
    where = clos()
    assert carried(replayed(forty_messages(), where), where, *SPINES) == [40 * 64, 0]


def test_dead_links_are_no_way(replayed):
    dead = parse_fault("link=switch0>switch3 down=true")
    where = clos(spines=3, spray=parts_over(3)).with_faults([dead])
    done = replayed(crossing(640, senders=1), where)
    assert done.finish[2] == [640_000 + HEADS + HOPS * LATENCY]
    assert carried(done, where, *SPINES, ("switch0", "switch4")) == [384, 0, 256]


def test_queue_pairs_spray_their_parts_too(replayed):
    where = clos(spray=parts_over(2), congestion={"control": "window", "bandwidth_delay_products": 2})
    done = replayed(crossing(640, senders=1), where)
    assert done.finish[2] == [640_000 + HEADS + HOPS * LATENCY]
    assert carried(done, where, *SPINES) == [384, 256]


def test_what_is_no_way_to_spray_is_refused():
    with pytest.raises(ConfigError, match="switching.spray: stated with mode fluid; allowed: mode cut"):
        machine(ring(3), switching={"mode": "fluid", "spray": parts_over(2)})
    with pytest.raises(ConfigError, match="switching.spray.per: part, but switching.parts is 1; allowed"):
        machine(ring(3), switching=CUT | {"spray": parts_over(2)})
    with pytest.raises(ConfigError, match="switching.spray.ways"):
        machine(ring(3), switching=PARTS | {"spray": parts_over(1)})
    fault = parse_fault("link=gpu0>gpu1 down=true from=1ns until=1us policy=reroute detection=0ns")
    where = machine(ring(3), switching=PARTS | {"spray": parts_over(2)}).with_faults([fault])
    with pytest.raises(UnsupportedByEngine, match="switching.spray: sprayed messages are not rerouted"):
        run_traces(one_message(640, peer=1, ranks=3), where, EngineChoice("simpy"))
