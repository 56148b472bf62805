"""Routes that a machine file states by a node that they come by."""

import numpy as np
import pytest

from rapid_des.errors import TopologyError
from rapid_des.machine import load_machine
from rapid_des.network.faults import parse_fault

LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
STAR = {"name": "nv", "shape": "switch", "size": 8, **LINK}
CLOS = {"name": "ib", "shape": "clos", "size": 8, "leaf_size": 2, "spines": 2, "uplink": LINK, **LINK}
"""Leaves are switch0 to switch3, spines switch4 and switch5."""


def machine(*waypoints, fabric=CLOS, ecmp="lowest_id", **more):
    keys = ("source", "destination", "through")
    stated = [dict(zip(keys, one, strict=True)) for one in waypoints]
    return load_machine({
        "name": "x", "device": "a100_sxm_80gb", "fabric": [fabric],
        "routing": {"order": "innermost_first", "tie": "positive", "ecmp": ecmp, "waypoints": stated, **more},
        "switching": {"mode": "store_and_forward"},
    })  # fmt: skip


def test_a_waypoint_rules_one_pair_in_one_direction():
    planned, stated = machine(), machine((0, 7, "switch5"))
    up = ("gpu0>switch0", "switch0>switch5", "switch5>switch3", "switch3>gpu7")
    assert planned.route(0, 7)[1] == "switch0>switch4"
    assert stated.route(0, 7) == up
    pairs = [(a, b) for a in range(8) for b in range(8)]
    routes, others = stated.router.routes(pairs), planned.router.routes(pairs)
    differ = [pair for flow, pair in enumerate(pairs) if routes.of(flow) != others.of(flow)]
    assert differ == [(0, 7)]
    assert machine((0, 7, "switch0"), fabric=STAR).router.joins_arms(np.arange(6))
    assert not machine((0, 7, "switch0"), fabric=STAR).router.joins_arms(np.arange(8))


def test_the_way_on_comes_by_no_node_again():
    # By the leaf of gpu2: planned over spine switch4 there and back, so over the other spine from there.
    hops = machine((0, 7, "switch1")).route(0, 7)
    spines = ["switch0>switch4", "switch4>switch1", "switch1>switch5", "switch5>switch3"]
    assert hops == ("gpu0>switch0", *spines, "switch3>gpu7")


def test_coordinates_name_the_ends_and_a_hyperx_may_go_over_any_router():
    hyperx = {
        "name": "h",
        "shape": "hyperx",
        "size": 9,
        "hosts": 1,
        "routers": [3, 3],
        "router_link": LINK,
        **LINK,
    }
    routes = machine(("(0)", "gpu1", "switch8"), fabric=hyperx)
    assert routes.route(0, 1)[0] == "gpu0>switch0"
    assert "switch8" in " ".join(routes.route(0, 1))
    assert len(routes.route(0, 1)) == 6  # up, two hops to (2, 2), two back to (1, 0), down


def test_where_the_way_on_is_blocked_the_way_there_gives_way():
    # Routers 0 1 / 2 3 of a 2x2 HyperX: planned by 1 to 3, but 1 is gpu1's own router, so there by 2.
    hyperx = {
        "name": "h",
        "shape": "hyperx",
        "size": 4,
        "hosts": 1,
        "routers": [2, 2],
        "router_link": LINK,
        **LINK,
    }
    route = machine((0, 1, "switch3"), fabric=hyperx).route(0, 1)
    assert route == ("gpu0>switch0", "switch0>switch2", "switch2>switch3", "switch3>switch1", "switch1>gpu1")


def test_a_dead_link_on_a_stated_way_is_gone_around():
    broken = machine((0, 7, "switch5")).with_faults([parse_fault("link=switch0-switch5 down=true")])
    assert broken.route(0, 7)[1] == "switch0>switch4"


@pytest.mark.parametrize(
    ("waypoints", "says"),
    [
        ([(0, 0, "switch4")], r"waypoints\[0\]: gpu0 needs no route to itself"),
        ([(0, 1, "gpu2")], "through: gpu2 is a GPU; allowed: a switch or a NIC"),
        ([(0, 1, "switch9")], "there is no switch 9; allowed: switch0 to switch5"),
        ([(0, "switch0", "switch4")], "switch0 is no GPU"),
        ([(0, 7, "switch4"), (0, 7, "switch5")], r"waypoints\[1\]: gpu0 to gpu7 has a waypoint already"),
    ],
)
def test_a_waypoint_that_can_not_be_is_one_line(waypoints, says):
    with pytest.raises(TopologyError, match=says):
        machine(*waypoints)


def test_a_leaf_that_only_its_own_spine_joins_is_no_waypoint():
    with pytest.raises(
        TopologyError, match="no route leads by switch1 from gpu0 to gpu7 but twice by a node"
    ):
        machine((0, 7, "switch1"), fabric=CLOS | {"spines": 1})
