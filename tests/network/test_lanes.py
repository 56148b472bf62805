"""Several NICs a GPU and several planes of switches: where links lead, and who takes which."""

import numpy as np
import pytest

from rapid_des.errors import TopologyError
from rapid_des.network.build import build
from rapid_des.network.routing import DimensionOrderRouter
from tests.network.fabrics import INNER, dimension

NVLINK = dimension("nvlink", shape="fully_connected", size=2)
LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
GB = 10**9


def rails(size=4, *, nic=None, **keys):
    pcie = {"nic": {"bandwidth": "60 GB/s", "latency": "600 ns", "gpus": 1, **nic}} if nic else {}
    keys = {"shape": "switch", "spans_inner": True} | keys
    return build("x", [NVLINK, dimension("rail", size=size, **pcie, **keys)], INNER)


def names(plan, source, destination):
    return [plan.fabric.link_name(link) for link in DimensionOrderRouter(plan).route(source, destination)]


def links_between(plan, kinds):
    """Return {(source, destination): bandwidth} of the links between two kinds of nodes."""
    fabric = plan.fabric
    ends = zip(fabric.source.tolist(), fabric.destination.tolist(), fabric.bandwidth.tolist(), strict=True)
    named = {(fabric.node_name(a), fabric.node_name(b)): rate for a, b, rate in ends}
    return {pair: rate for pair, rate in named.items() if (pair[0][:3], pair[1][:3]) == kinds}


def test_planes_are_networks_beside_each_other_and_a_pair_of_gpus_takes_one():
    # 4 servers of 2 GPUs on two switches: 8 links up to each of them.
    plan = rails(planes=2, spread="hash")
    fabric = plan.fabric
    assert (fabric.gpus, fabric.nics, fabric.nodes) == (8, 0, 8 + 2)
    assert len(links_between(plan, ("gpu", "swi"))) == 2 * 8
    taken = set()
    for source in range(0, 8, 2):
        for destination in range(1, 8, 2):
            if source // 2 != destination // 2:
                (_, up, down) = names(plan, source, destination)
                taken.add(up.split(">")[1])
                assert up.split(">")[1] == down.split(">")[0]
    assert taken == {"switch0", "switch1"}


def test_one_nic_has_a_port_into_every_plane():
    plan = rails(planes=2, spread="hash", nic={"count": 1})
    assert (plan.fabric.nics, plan.fabric.nodes) == (8, 8 + 8 + 2)
    assert len(links_between(plan, ("nic", "swi"))) == 2 * 8
    assert len(links_between(plan, ("gpu", "nic"))) == 8


def test_of_as_many_nics_as_planes_each_is_in_one():
    plan = rails(planes=2, spread="hash", nic={"count": 2})
    assert (plan.fabric.nics, plan.fabric.nodes) == (16, 8 + 16 + 2)
    assert {(f"gpu{nic // 2}", f"nic{nic}") for nic in range(16)} == links_between(
        plan, ("gpu", "nic")
    ).keys()
    ports = {(f"nic{nic}", f"switch{nic % 2}") for nic in range(16)}
    assert ports == links_between(plan, ("nic", "swi")).keys()


def test_nics_beyond_the_planes_share_them_and_messages_go_from_nic_to_nic_of_one_number():
    # Four NICs a GPU on two planes: NIC 4 g + n of GPU g is in plane n % 2.
    plan = rails(planes=2, spread="hash", nic={"count": 4})
    assert plan.fabric.nics == 32
    ports = {(f"nic{nic}", f"switch{nic % 2}") for nic in range(32)}
    assert ports == links_between(plan, ("nic", "swi")).keys()
    lanes = []
    for destination in (3, 5, 7):
        for source in (1,):
            up, out, down, last = names(plan, source, destination)
            nics = int(out.split(">")[0][3:]), int(down.split(">")[1][3:])
            assert (nics[0] // 4, nics[1] // 4) == (source, destination)
            assert nics[0] % 4 == nics[1] % 4
            assert (up, last) == (f"gpu{source}>nic{nics[0]}", f"nic{nics[1]}>gpu{destination}")
            lanes.append(nics[0] % 4)
    assert len(set(lanes)) > 1


def test_nics_of_dimensions_that_do_not_span_are_numbered_by_their_gpus():
    outer = dimension(
        "rail",
        shape="switch",
        size=2,
        spread="hash",
        nic={"bandwidth": "60 GB/s", "latency": "1 us", "gpus": 1, "count": 2},
    )
    plan = build("x", [NVLINK, outer], INNER)
    assert {(f"gpu{nic // 2}", f"nic{nic}") for nic in range(8)} == links_between(plan, ("gpu", "nic")).keys()
    route = names(plan, 1, 3)
    assert [route[0][:4], route[-1][-4:]] == ["gpu1", "gpu3"]
    assert route[0].endswith(("nic2", "nic3"))


def test_gpus_may_share_several_nics():
    # Two GPUs a pair of NICs, hashed: 4 pairs of servers' GPUs, NICs 2 s and 2 s + 1 of server s.
    plan = rails(spread="hash", nic={"gpus": 2, "count": 2})
    assert plan.fabric.nics == 8
    expected = {(f"gpu{gpu}", f"nic{gpu // 2 * 2 + n}") for gpu in range(8) for n in (0, 1)}
    assert expected == links_between(plan, ("gpu", "nic")).keys()


def test_flows_spread_over_lanes_evenly():
    # 64 GPUs, all to all: 4,032 flows over 4 lanes, 1,008 each, deviation 27
    plan = build(
        "x",
        [
            dimension(
                shape="switch",
                size=64,
                planes=4,
                spread="hash",
                nic={"bandwidth": "60 GB/s", "latency": "1 us", "gpus": 1, "count": 4},
            )
        ],
        INNER,
    )
    routes = DimensionOrderRouter(plan).routes([(a, b) for a in range(64) for b in range(64) if a != b])
    switches = plan.fabric.destination[routes.links[routes.starts[:-1] + 1]]
    share = np.bincount(switches - switches.min())
    assert len(share) == 4
    assert abs(share - 1008).max() < 110


def test_split_messages_find_all_planes_as_one_of_their_width():
    one, three = rails(nic={"count": 1}), rails(planes=3, spread="split", nic={"count": 3})
    assert three.fabric.nodes == one.fabric.nodes
    outer = one.fabric.dimension == 1
    assert (three.fabric.bandwidth[outer] == 3 * one.fabric.bandwidth[outer]).all()
    assert (three.fabric.bandwidth[~outer] == one.fabric.bandwidth[~outer]).all()
    assert (three.fabric.latency == one.fabric.latency).all()
    assert names(one, 0, 7) == names(three, 0, 7)
    ported = rails(planes=3, spread="split", nic={"count": 1})
    assert set(links_between(ported, ("gpu", "nic")).values()) == {60 * GB}
    assert set(links_between(ported, ("nic", "swi")).values()) == {300 * GB}


def test_several_nics_on_one_clos_are_endpoints_of_it():
    # 4 servers of one GPU with two NICs: 8 endpoints; rails 2: every NIC has a leaf of its own.
    clos = dimension(
        shape="clos", size=4, leaf_size=4, rails=2, spines=1, uplink=LINK, spread="hash",
        nic={"bandwidth": "60 GB/s", "latency": "1 us", "gpus": 1, "count": 2},
    )  # fmt: skip
    plan = build("x", [clos], INNER)
    assert plan.fabric.nodes == 4 + 8 + 2 + 1
    ports = {(f"nic{nic}", f"switch{nic % 2}") for nic in range(8)}
    assert ports == links_between(plan, ("nic", "swi")).keys()


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"planes": 2}, "spread: missing; allowed: hash, split"),
        ({"nic": {"count": 2}}, "spread: missing; allowed: hash, split"),
        ({"spread": "hash"}, "spread: one plane and one NIC need none"),
        (
            {"planes": 2, "spread": "hash", "nic": {"count": 3}},
            "nic.count: 3 NICs on 2 planes; allowed: 1 or a multiple",
        ),
        ({"spread": "split", "nic": {"count": 2}}, "nic.count: 2 NICs on 1 planes; allowed: 1"),
        (
            {"planes": 2, "spread": "split", "nic": {"count": 4}},
            "nic.count: 4 NICs on 2 planes; allowed: 1 or 2",
        ),
        (
            {"planes": 2**21, "spread": "split", "bandwidth": "1 TB/s"},
            "split over 2097152 planes: bandwidth: .*; allowed",
        ),
        ({"planes": 2**24, "spread": "hash"}, "links; allowed"),
        ({"spread": "hash", "nic": {"count": 2**24}}, "links; allowed"),
        ({"nic": {"gpus": 3}}, "nic.gpus: 3 GPUs a NIC; allowed: a divisor"),
    ],
)
def test_lanes_that_do_not_fit_say_what_would(keys, says):
    with pytest.raises(TopologyError, match=says):
        rails(**keys)
