"""Shapes: how many links, how far, and that every route is a shortest walk along links that exist."""

import networkx
import numpy as np
import pytest

from rapid_des.errors import TopologyError
from rapid_des.network.build import build
from rapid_des.network.routing import DimensionOrderRouter
from rapid_des.network.specs import Routing
from rapid_des.values import replace
from tests.network.fabrics import INNER, dimension, graph_of

UP = {"uplink": {"bandwidth": "50 GB/s", "latency": "500 ns"}}
CORE = UP | {"core_link": {"bandwidth": "50 GB/s", "latency": "500 ns"}}
LINK = {"router_link": UP["uplink"]}
DRAGON = {"local_link": UP["uplink"], "global_link": UP["uplink"]}


def twist(wrap, along, by):
    return {"wrap": wrap, "along": along, "by": by}


# name, shape keys, GPUs, nodes, directed links, most hops between two GPUs
ROWS = [
    ("ring 2", {"shape": "ring", "size": 2}, 2, 2, 2, 1),  # one link each way, not two
    ("ring 7", {"shape": "ring", "size": 7}, 7, 7, 14, 3),
    ("mesh 5", {"shape": "mesh", "size": 5}, 5, 5, 8, 4),
    ("mesh 3x4", {"shape": "mesh", "size": [3, 4]}, 12, 12, 2 * (2 * 4 + 3 * 3), 5),
    ("torus 4x4x2", {"shape": "torus", "size": [4, 4, 2]}, 32, 32, 32 * (2 + 2 + 1), 5),
    ("torus 3", {"shape": "torus", "size": 3}, 3, 3, 6, 1),
    ("king 3x3", {"shape": "king_mesh", "size": [3, 3]}, 9, 9, 2 * (6 + 6 + 4 + 4), 2),
    ("king 8x2", {"shape": "king_mesh", "size": [8, 2]}, 16, 16, 2 * (14 + 8 + 7 + 7), 7),
    ("hypercube 8", {"shape": "hypercube", "size": 8}, 8, 8, 24, 3),
    ("hypercube 6", {"shape": "hypercube", "size": 6}, 6, 6, 14, 3),  # 3 + 2 + 2 pairs; 1 to 6 differ in 3
    ("all 5", {"shape": "fully_connected", "size": 5}, 5, 5, 20, 1),
    ("switch 6", {"shape": "switch", "size": 6}, 6, 7, 12, 2),
    # Two levels of radix-4 switches: leaves of 2 under 2 spines; 4 leaves, 8 + 8 cables.
    (
        "fat tree",
        {"shape": "fat_tree", "size": 8, "levels": 2, "radix": 4, "oversubscription": 1} | UP,
        8,
        14,
        32,
        4,
    ),
    # The k = 4 fat tree of the literature: 16 hosts, 8 + 8 + 4 switches, 48 cables, 6 hops through the core.
    (
        "fat tree 3",
        {"shape": "fat_tree", "size": 16, "levels": 3, "radix": 4, "oversubscription": 1} | CORE,
        16,
        36,
        96,
        6,
    ),
    # Oversubscribed 2:1 with radix 6: 4 down, 2 up; 3 leaves for 12 endpoints, 12 + 6 cables.
    (
        "tapered",
        {"shape": "fat_tree", "size": 12, "levels": 2, "radix": 6, "oversubscription": 2} | UP,
        12,
        17,
        36,
        4,
    ),
    ("clos", {"shape": "clos", "size": 6, "leaf_size": 2, "spines": 3} | UP, 6, 12, 30, 4),
    # 3 groups of 2 routers, 2 hosts each, 1 global link a router: 12 hosts, 3 local and 3 global cables.
    (
        "dragonfly",
        {"shape": "dragonfly", "size": 12, "hosts": 2, "routers": 2, "global_links": 1} | DRAGON,
        12,
        18,
        36,
        5,
    ),
    # Twice the global links: each pair of groups has two, the better one of which is taken.
    (
        "dragonfly 2",
        {"shape": "dragonfly", "size": 12, "hosts": 2, "routers": 2, "global_links": 2} | DRAGON,
        12,
        18,
        42,
        4,
    ),
    # The rectangular twisted torus of 2a x a reaches a hops instead of 3a/2 (Camara et al., TPDS 2010).
    ("twisted 8x4", {"shape": "twisted_torus", "size": [8, 4], "twists": [twist(1, 0, 4)]}, 32, 32, 128, 4),
    # The doubly twisted a x a x 2a reaches 3a/2 instead of 2a: TPU v4's 4x4x8 (same source).
    (
        "twisted 4x4x8",
        {"shape": "twisted_torus", "size": [4, 4, 8], "twists": [twist(0, 2, 4), twist(1, 2, 4)]},
        128,
        128,
        6 * 128,
        6,
    ),
    # 7x2, around the short way 3 along: both links of a pair (x, 0) and (x + 3, 1) are their own.
    ("twisted 7x2", {"shape": "twisted_torus", "size": [7, 2], "twists": [twist(1, 0, 3)]}, 14, 14, 56, 3),
    # L = 2: two hops between routers; 24 hosts, and on 12 routers 3 + 2 links each (Ahn et al., SC 2009).
    (
        "hyperx 4x3",
        {"shape": "hyperx", "size": 24, "hosts": 2, "routers": [4, 3], "cables": [1, 2]} | LINK,
        24,
        36,
        48 + 12 * 5,
        4,
    ),
    ("hyperx 5", {"shape": "hyperx", "size": 9, "hosts": 2, "routers": 5} | LINK, 9, 14, 18 + 5 * 4, 3),
    # 2 q² routers of (3 q - d) / 2 links, two hops (Besta and Hoefler, SC 2014): 32 of 6, 50 of 7 (the
    # Hoffman-Singleton graph, where every two routers have one way), 98 of 11, 162 of 13 over GF(9).
    ("slim fly 4", {"shape": "slim_fly", "q": 4, "size": 64, "hosts": 2} | LINK, 64, 96, 128 + 32 * 6, 4),
    ("slim fly 5", {"shape": "slim_fly", "q": 5, "size": 100, "hosts": 2} | LINK, 100, 150, 200 + 50 * 7, 4),
    ("slim fly 7", {"shape": "slim_fly", "q": 7, "size": 98, "hosts": 1} | LINK, 98, 196, 196 + 98 * 11, 4),
    (
        "slim fly 9",
        {"shape": "slim_fly", "q": 9, "size": 162, "hosts": 1} | LINK,
        162,
        324,
        324 + 162 * 13,
        4,
    ),
    # Five hops between GPUs of different groups (Shpiner et al., HiPINEB 2017): 4 groups of 4 leaves and 4
    # spines, every spine cabled to every other group.
    (
        "dragonfly+",
        {"shape": "dragonfly_plus", "size": 32, "hosts": 2, "leaves": 4, "spines": 4, "global_links": 3}
        | DRAGON,
        32,
        64,
        64 + 2 * 4 * 16 + 4 * 3 * 4,
        5,
    ),
    # 3 groups of 2 spines with 4 cables each: 4 between any two groups, 2 and 2 of them with the same ends.
    (
        "dragonfly+ 2",
        {"shape": "dragonfly_plus", "size": 12, "hosts": 2, "leaves": 2, "spines": 2, "global_links": 4}
        | DRAGON,
        12,
        24,
        24 + 2 * 3 * 4 + 3 * 2 * 2,
        5,
    ),
    ("alone", {"shape": "ring", "size": 1}, 1, 1, 0, 0),
]


@pytest.mark.parametrize(
    ("keys", "gpus", "nodes", "links", "diameter"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS]
)
def test_a_shape_has_its_links_and_every_route_is_a_shortest_one(keys, gpus, nodes, links, diameter):
    plan = build("x", [dimension(**keys)], INNER)
    fabric, router = plan.fabric, DimensionOrderRouter(plan)
    assert (fabric.gpus, fabric.nodes, len(fabric)) == (gpus, nodes, links)
    distances = dict(networkx.all_pairs_shortest_path_length(graph_of(fabric)))
    pairs = [(source, destination) for source in range(gpus) for destination in range(gpus)]
    routes, longest = router.routes(pairs), 0
    for flow, (source, destination) in enumerate(pairs):
        route = list(routes.of(flow))
        ends = [source, *fabric.destination[route].tolist()]
        assert fabric.source[route].tolist() == ends[:-1]
        assert ends[-1] == destination
        assert len(route) == distances[source][destination]
        longest = max(longest, len(route))
    assert longest == diameter


def test_a_tuple_size_is_the_product_of_its_axes():
    tupled = build("x", [dimension(shape="torus", size=[4, 3])], INNER)
    product = build("x", [dimension("a", shape="ring", size=4), dimension("b", shape="ring", size=3)], INNER)
    pairs = [(a, b) for a in range(12) for b in range(12)]
    assert hops(tupled, pairs) == hops(product, pairs)


def hops(plan, pairs):
    router = DimensionOrderRouter(plan)
    return [[int(plan.fabric.destination[link]) for link in router.route(*pair)] for pair in pairs]


def test_the_stated_order_says_which_dimension_is_corrected_first():
    # GPU = x + 4·y; from (0, 0) to (1, 1): along x over GPU 1, or along y over GPU 4.
    inner = Routing(order="innermost_first", tie="positive")
    for routing, middle in ((inner, 1), (replace(inner, order="outermost_first"), 4)):
        plan = build("x", [dimension(shape="torus", size=[4, 4])], routing)
        assert hops(plan, [(0, 5)]) == [[middle, 5]]


def test_a_tie_on_a_ring_goes_up_or_over_the_lower_neighbour():
    # On a ring of 4, from 3 to 1 both ways take two hops: up over 0, down over 2. From 1 to 3: up 2, down 0.
    up = Routing(order="innermost_first", tie="positive")
    for routing, ways in ((up, [[0, 1], [2, 3]]), (replace(up, tie="lowest_id"), [[0, 1], [0, 3]])):
        plan = build("x", [dimension(shape="ring", size=4)], routing)
        assert hops(plan, [(3, 1), (1, 3)]) == ways


def test_a_king_goes_diagonally_while_both_offsets_remain():
    # 4 columns: (0, 0) to (3, 1) is id 7; the first hop is the diagonal to (1, 1) = 5, then straight.
    plan = build("x", [dimension(shape="king_mesh", size=[4, 2])], INNER)
    assert hops(plan, [(0, 7)]) == [[5, 6, 7]]


@pytest.mark.parametrize("order", ["innermost_first", "outermost_first"])
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_a_hypercube_is_routed_as_the_torus_of_its_bits(order, bits):
    routing = Routing(order=order, tie="positive")
    cube = build("x", [dimension(shape="hypercube", size=2**bits)], routing)
    torus = build("x", [dimension(shape="torus", size=[2] * bits)], routing)
    pairs = [(source, destination) for source in range(2**bits) for destination in range(2**bits)]
    assert hops(cube, pairs) == hops(torus, pairs)


def test_an_incomplete_hypercube_flips_the_highest_bit_that_leads_nowhere_outside():
    plan = build(
        "x", [dimension(shape="hypercube", size=6)], Routing(order="outermost_first", tie="positive")
    )
    # from 2 to 5 the flip of bit 2 would lead to 6, which is not there: bit 1 first, then bits 2 and 0
    assert hops(plan, [(2, 5), (5, 2)]) == [[0, 4, 5], [1, 3, 2]]


def test_a_hypercube_flips_the_lowest_differing_bit_first():
    plan = build("x", [dimension(shape="hypercube", size=8)], INNER)
    assert hops(plan, [(0, 7), (6, 1)]) == [[1, 3, 7], [7, 5, 1]]


def test_bulk_routes_equal_single_routes():
    dimensions = [dimension("a", shape="torus", size=[4, 2]), dimension("b", shape="switch", size=3)]
    plan = build("x", [*dimensions, dimension("c", shape="king_mesh", size=[3, 2])], INNER)
    pairs = np.random.default_rng(0).integers(0, plan.fabric.gpus, (500, 2))
    many = DimensionOrderRouter(plan).routes(pairs)
    single = DimensionOrderRouter(plan)
    assert [many.of(i) for i in range(500)] == [single.route(int(a), int(b)) for a, b in pairs]


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("sharing", [0, 1, 2])
def test_routes_over_one_switch_are_those_that_its_steps_take(size, sharing):
    # out of the source and in to the destination; behind a shared NIC some stay below the switch
    nic = {"nic": {"bandwidth": "25 GB/s", "latency": "1 us", "gpus": sharing}} if sharing else {}
    outer = dimension("rail", shape="switch", size=size, spans_inner=True, **nic)
    plan = build("x", [dimension("nvlink", shape="fully_connected", size=2), outer], INNER)
    block = plan.layouts[1].block
    assert block.star == (sharing < 2)
    source, destination = np.divmod(np.arange(block.positions**2), block.positions)
    walked, stepped = (one.walk(source, destination) for one in (block, replace(block, star=False)))
    assert walked.starts.tolist() == stepped.starts.tolist()
    assert walked.links.tolist() == stepped.links.tolist()


def test_the_negative_direction_may_have_a_rate_of_its_own():
    reverse = {"bandwidth": "5 GB/s", "latency": "7 ns"}
    fabric = build("x", [dimension(shape="mesh", size=3, reverse=reverse)], INNER).fabric
    down = fabric.destination < fabric.source
    assert set(fabric.bandwidth[down].tolist()) == {5_000_000_000}
    assert set(fabric.latency[down].tolist()) == {7_000}
    assert set(fabric.bandwidth[~down].tolist()) == {100_000_000_000}


def test_several_gpus_share_a_nic_whose_links_are_their_own():
    # Four servers of four GPUs, two GPUs a NIC: 8 NICs on one switch. 16 PCIe links and 8 cables, both ways.
    nic = {"bandwidth": "25 GB/s", "latency": "1 us", "gpus": 2}
    outer = dimension("rail", shape="switch", size=4, nic=nic, spans_inner=True)
    plan = build("x", [dimension("nvlink", shape="fully_connected", size=4), outer], INNER)
    fabric = plan.fabric
    assert (fabric.gpus, fabric.nics, fabric.nodes) == (16, 8, 16 + 8 + 1)
    assert np.count_nonzero(fabric.dimension == 1) == 2 * (16 + 8)
    names = [fabric.link_name(link) for link in DimensionOrderRouter(plan).route(0, 7)]
    assert names == ["gpu0>gpu3", "gpu3>nic1", "nic1>switch0", "switch0>nic3", "nic3>gpu7"]


def test_the_largest_machine_is_a_table_of_links_and_nothing_else():
    # 131,072 GPUs as a 64x64x32 torus: six links each.
    fabric = build("x", [dimension(shape="torus", size=[64, 64, 32])], INNER).fabric
    assert len(fabric) == 6 * 131_072


@pytest.mark.parametrize(
    ("dimensions", "says"),
    [
        ([], "needs dimensions"),
        ([dimension(shape="ring", size=3), dimension(shape="ring", size=3)], "different names"),
        ([dimension(shape="ring", size=2**20), dimension("b", shape="ring", size=2**20)], "GPUs"),
        ([dimension(shape="fully_connected", size=2**17)], "links; allowed"),
        ([dimension(shape="ring", size=4, bandwidth="0 GB/s")], "bandwidth: must be above 0"),
        (
            [dimension(shape="switch", size=4, nic={"bandwidth": "1 GB/s", "latency": "1 us", "gpus": 2})],
            "nic.gpus",
        ),
    ],
)
def test_an_impossible_fabric_is_one_clear_line(dimensions, says):
    with pytest.raises(TopologyError, match=says):
        build("x", dimensions, INNER)
