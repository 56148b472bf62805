"""R13: a node stops the link over which more came than it lets wait; all behind it waits too."""

import pytest

from rapid_des.errors import ConfigError, DeadlockError
from rapid_des.simulation import replay
from rapid_des.units import PS_PER_S, Duration
from tests.program.machines import dimension, machine, ring
from tests.program.tracing import Nodes, trace_set
from tests.semantics.messages import LATENCY, PARTS, one_message

LINK = {"bandwidth": "1 GB/s", "latency": "100 ns"}
ALONE = 640_000 + 3 * 64_000 + 4 * LATENCY
"""640 B over four links."""


def pausing(above="1 B", at="0 B"):
    return PARTS | {"congestion": {"control": "none", "pause": {"stop_above": above, "go_at": at}}}


def one_spine(switching):
    """Two leaves of four GPUs under one spine."""
    return machine(dimension("clos", 8, leaf_size=4, spines=1, uplink=LINK), switching=switching)


def incast_and_victim():
    """GPUs 5 and 1 send 1,280 B to 4; GPU 2, which shares the way between the leaves with 1, sends to 6."""
    programs = [Nodes() for _ in range(8)]
    for sender in (1, 5):
        programs[sender].send(4, 1280, tag=sender)
        programs[4].recv(sender, 1280, tag=sender, stream=f"from{sender}")
    gate = programs[2].compute(400_000, stream="gate")
    programs[2].send(6, 640, after=gate)
    programs[6].recv(2, 640)
    return trace_set(programs)


def test_a_report_tells_which_links_were_stopped_and_how_long():
    paused = replay(incast_and_victim(), one_spine(pausing()))
    stopped = {row.link: row.stopped_s for row in paused.links() if row.stopped_s}
    longest = max(stopped, key=stopped.get)
    (note,) = [line for line in paused.notes if "priority flow control" in line]
    assert f"held {len(stopped)} of 20 links" in note
    assert f"{longest} longest, {Duration(round(stopped[longest] * PS_PER_S))}" in note
    free = replay(incast_and_victim(), one_spine(PARTS | {"congestion": {"control": "none"}}))
    assert not any("priority flow control" in line for line in free.notes)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_message_alone_stops_nothing(replayed, hops):
    done = replayed(one_message(640, peer=hops, ranks=7), machine(ring(7), switching=pausing()))
    assert done.finish[hops] == [640_000 + (hops - 1) * 64_000 + hops * LATENCY]
    assert done.records.link_stopped.sum() == 0


def test_a_link_is_stopped_a_latency_after_too_much_waits_and_goes_on_a_latency_after_it_does_not(replayed):
    programs = [Nodes() for _ in range(4)]
    for sender in (0, 1):
        programs[sender].send(2, 640, tag=sender)
        programs[2].recv(sender, 640, tag=sender, stream=f"from{sender}")
    fabric = dimension("clos", 4, leaf_size=4, spines=1, uplink=LINK)
    done = replayed(trace_set(programs), machine(fabric, switching=pausing()), trail=True)
    # Parts of 192, 192, 192 and 64 B. Both first ones are at the leaf at 164 ns, where GPU 1's waits until
    # 356; its second one, on the link when that is stopped at 264 ns, comes at 356 and waits until 740: the
    # third one goes at 840.
    trail = done.records.trail
    starts = trail.start[(trail.position == 0) & (trail.link == 1)]
    assert sorted(starts.tolist()) == [0, 192_000, 840_000, 1_032_000]
    assert done.records.makespan == 164_000 + 1_280_000 + LATENCY  # the link to GPU 2 never idles


def test_a_stopped_link_holds_back_what_goes_elsewhere(replayed):
    free = replayed(incast_and_victim(), one_spine(PARTS | {"congestion": {"control": "none"}}))
    held = replayed(incast_and_victim(), one_spine(pausing()))
    # Parts of GPU 1 wait for GPU 4's link, so the spine's link to that leaf is stopped from 764 to 904 ns and
    # again and again: the victim's last part leaves the spine at 2,512 ns instead of 2,184
    assert free.finish[6] == [2_512_000]
    assert held.finish[6] == [2_840_000]


def test_room_for_all_that_comes_changes_nothing(replayed):
    free = replayed(incast_and_victim(), one_spine(PARTS | {"congestion": {"control": "none"}}))
    roomy = replayed(incast_and_victim(), one_spine(pausing("1 MiB", "0 B")))
    assert roomy.finish == free.finish


def test_links_that_stop_each_other_in_a_circle_are_told_of(replayed):
    programs = [Nodes() for _ in range(5)]
    for source in range(5):
        for tag in range(2):
            peer = (source + 2) % 5
            programs[source].send(peer, 6400, tag=tag, stream=f"s{tag}")
            programs[peer].recv(source, 6400, tag=tag, stream=f"r{tag}")
    # every link's buffer holds what waits for the next link round the ring
    with pytest.raises(DeadlockError, match="nodes keep 5 links stopped .switching.congestion.pause"):
        replayed(trace_set(programs), machine(ring(5), switching=pausing()))
    roomy = replayed(trace_set(programs), machine(ring(5), switching=pausing("12800 B", "0 B")))
    assert roomy.records.finished


def test_thresholds_that_can_not_be_are_refused():
    with pytest.raises(ConfigError, match="switching.congestion.pause.go_at: 64 B; allowed: from 0 to below"):
        machine(ring(3), switching=pausing("64 B", "64 B"))
