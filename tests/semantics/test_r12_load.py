"""R12: messages, or their parts, take the way with the least queued on it, and detours that are sooner."""

import pytest

from rapid_des.errors import ConfigError
from tests.program.machines import dimension, machine
from tests.program.tracing import Nodes, trace_set
from tests.semantics.messages import CUT, LATENCY, PARTS

LINK = {"bandwidth": "1 GB/s", "latency": "100 ns"}
TO_SPINE = 64_000 + LATENCY
"""A message stands at the second link of its way so long after it was sent."""
ALONE = 640_000 + 2 * 64_000 + 3 * LATENCY
"""640 B over three links."""


def three_routers(bias, *, per="message", **switching):
    """Three routers of two GPUs, each joined to the others: one minimal way, and one detour."""
    spray = {"ways": 1, "per": per, "choose": "least_loaded", "detours": 1, "bias": bias}
    fabric = dimension("hyperx", 6, routers=3, hosts=2, router_link=LINK)
    return machine(fabric, switching=CUT | {"spray": spray} | switching)


def two_spines(**switching):
    """Two leaves of two GPUs under two spines."""
    spray = {"ways": 2, "per": "message", "choose": "least_loaded"}
    fabric = dimension("clos", 4, leaf_size=2, spines=2, uplink=LINK)
    return machine(fabric, switching=CUT | {"spray": spray | switching.pop("spray", {})} | switching)


def one_after_the_other(*delays, ranks=6, size=640):
    """GPU 0 sends to 2 and 1 to 3, each after a while."""
    programs = [Nodes() for _ in range(ranks)]
    for sender, delay in enumerate(delays):
        gate = programs[sender].compute(delay, stream="gate") if delay else ()
        programs[sender].send(sender + 2, size, after=gate)
        programs[sender + 2].recv(sender, size)
    return trace_set(programs)


def test_a_message_goes_where_nothing_waits(replayed):
    done = replayed(one_after_the_other(0, 200_000, ranks=4), two_spines())
    alone = ALONE + 64_000 + LATENCY  # a fourth link
    assert [done.finish[2], done.finish[3]] == [[alone], [200_000 + alone]]


@pytest.mark.parametrize(("bias", "detours"), [("439 ns", True), ("440 ns", False)])
def test_a_detour_is_taken_where_it_is_sooner_by_the_bias(replayed, bias, detours):
    done = replayed(one_after_the_other(0, 200_000), three_routers(bias))
    # the first message has the link between the routers from 164 to 804 ns: 604 are left at 200 ns, and the
    # detour's further link costs 164; of equal ones the minimal way is taken
    around, behind = ALONE + TO_SPINE + 200_000, 804_000 + ALONE - TO_SPINE
    assert [done.finish[2], done.finish[3]] == [[ALONE], [around if detours else behind]]


def test_what_sets_off_at_one_instant_does_not_see_each_other(replayed):
    done = replayed(one_after_the_other(0, 0), three_routers("0 ns"))
    # both go the minimal way, the second one behind the first
    assert [done.finish[2], done.finish[3]] == [[ALONE], [ALONE + 640_000]]


def test_what_waits_counts_besides_what_is_served(replayed):
    programs = [Nodes() for _ in range(6)]
    for tag in range(2):
        programs[0].send(2, 640, tag=tag, stream=f"s{tag}")
        programs[2].recv(0, 640, tag=tag, stream=f"r{tag}")
    gate = programs[1].compute(850_000, stream="gate")
    programs[1].send(3, 640, after=gate)
    programs[3].recv(1, 640)
    # at 850 ns the second message has just begun to cross between the routers (it came at 804 ns): 594 ns are
    # left, the bias and a further link are 584
    done = replayed(trace_set(programs), three_routers("420 ns"))
    assert done.finish[3] == [850_000 + ALONE + TO_SPINE]


def test_parts_choose_as_they_set_off(replayed):
    done = replayed(one_after_the_other(0, 0), three_routers("0 ns", per="part", **PARTS))
    links = done.records.link_bytes.sum(axis=1)
    crossing = [int(size) for size in links if size]
    # the first parts of 192 B go the minimal way; of the second ones some go around
    assert done.records.makespan < ALONE + 640_000
    assert sum(crossing) > 2 * 3 * 640


def test_a_fast_way_is_preferred_while_it_is_not_full(replayed):
    slow = {"source": "switch0", "destination": "switch3", "both_directions": True, "bandwidth": "500 MB/s"}
    fabric = dimension("clos", 4, leaf_size=2, spines=2, uplink=LINK)
    spray = {"ways": 2, "per": "message", "choose": "least_loaded"}
    where = machine(fabric, switching=CUT | {"spray": spray}, links=[slow])
    done = replayed(one_after_the_other(0, ranks=4), where)
    assert done.finish[2] == [ALONE + 64_000 + LATENCY]


def test_queue_pairs_choose_part_by_part_too(replayed):
    where = three_routers("0 ns", per="part", **PARTS, congestion={"control": "none"})
    done = replayed(one_after_the_other(0, 0), where)
    assert done.records.makespan < ALONE + 640_000


@pytest.mark.parametrize(
    ("spray", "problem"),
    [
        ({"ways": 1, "per": "message"}, "switching.spray.ways: 1; allowed: from 2, or 1 with detours"),
        (
            {"ways": 2, "per": "message", "detours": 1, "bias": "1 us"},
            "switching.spray.detours: 1 with choose oblivious; allowed: 0, or choose least_loaded",
        ),
        (
            {"ways": 2, "per": "message", "choose": "least_loaded", "detours": 1},
            "switching.spray.bias: missing: how much sooner a detour must be",
        ),
        (
            {"ways": 2, "per": "message", "choose": "least_loaded", "bias": "1 us"},
            "switching.spray.bias: stated without detours",
        ),
        (
            {"ways": 2, "per": "message", "choose": "least_loaded", "weights": "bandwidth"},
            "switching.spray.weights: bandwidth with choose least_loaded",
        ),
    ],
)
def test_what_can_not_be_chosen_is_refused(spray, problem):
    with pytest.raises(ConfigError, match=problem):
        machine(dimension("clos", 4, leaf_size=2, spines=2, uplink=LINK), switching=CUT | {"spray": spray})
