"""HyperX, Slim Fly and Dragonfly+: closed forms of the literature, and ways that are not minimal."""

from typing import Any

import networkx
import numpy as np
import pytest

from rapid_des.errors import TopologyError
from rapid_des.network.build import build
from rapid_des.network.metrics import bisection
from rapid_des.network.routing import DimensionOrderRouter, FaultAwareRouter
from rapid_des.network.shapes.low_diameter import finite_field
from rapid_des.network.specs import NonMinimal, Routing
from rapid_des.values import replace
from tests.network.fabrics import INNER, dimension, graph_of

LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
GB = 10**9
HYPERX = {"shape": "hyperx", "size": 32, "hosts": 2, "routers": [4, 4], "router_link": LINK}
SLIM_FLY = {"shape": "slim_fly", "size": 64, "hosts": 2, "q": 4, "router_link": LINK}
PLUS: dict[str, Any] = {
    "shape": "dragonfly_plus", "size": 40, "hosts": 2, "leaves": 4, "spines": 4, "global_links": 4,
    "local_link": LINK, "global_link": LINK,
}  # fmt: skip
SPARSE = PLUS | {"spines": 2, "global_links": 2}
"""5 groups with one cable between any two: who comes over a third often goes down to a leaf there."""
ALL = [(HYPERX, "router"), (SLIM_FLY, "router"), (PLUS, "router"), (PLUS, "group"), (SPARSE, "group")]


def over(through, share=1.0, seed=7, **keys):
    detour = NonMinimal(through=through, share=share, seed=seed)
    return Routing(order="innermost_first", tie="positive", non_minimal=detour, **keys)


def all_routes(keys, routing):
    """Return the fabric, all pairs of its GPUs, and the nodes and links of their routes."""
    plan = build("x", [dimension(**keys)], routing)
    fabric = plan.fabric
    pairs = [(a, b) for a in range(fabric.gpus) for b in range(fabric.gpus)]
    routes = DimensionOrderRouter(plan).routes(pairs)
    links = [list(routes.of(flow)) for flow in range(len(pairs))]
    nodes = [[pair[0], *fabric.destination[row].tolist()] for pair, row in zip(pairs, links, strict=True)]
    return fabric, pairs, nodes, links


@pytest.mark.parametrize("q", [3, 4, 5, 7, 8, 9, 11, 13, 16])
def test_a_slim_fly_is_regular_of_the_published_size_and_no_router_is_more_than_two_hops_away(q):
    # 2 q² routers of (3 q - d) / 2 links for q = 4 w + d (McKay, Miller, Siran 1998; Besta, Hoefler, SC 2014)
    fabric = build("x", [dimension(shape="slim_fly", size=1, hosts=1, q=q, router_link=LINK)], INNER).fabric
    graph = graph_of(fabric).to_undirected()
    graph.remove_node(0)  # the only endpoint
    d = {0: 0, 1: 1, 3: -1}[q % 4]
    assert len(graph) == 2 * q * q
    assert {degree for _, degree in graph.degree} == {(3 * q - d) // 2}
    assert networkx.diameter(graph) == 2


@pytest.mark.parametrize("size", [2, 3, 4, 8, 9, 16, 25, 27, 49, 64])
def test_a_field_of_prime_power_order_is_one(size):
    field, index = finite_field(size), np.arange(size)
    assert sorted(field.powers[:-1]) == list(range(1, size))  # every element but 0 is a power of one
    for table, unit, elements in ((field.sums, 0, index), (field.products, 1, index[1:])):
        assert (table == table.T).all()
        assert (table[unit] == index).all()
        assert all(sorted(table[one, elements]) == sorted(elements) for one in elements)  # inverses
    a, b, c = np.indices((size,) * 3).reshape(3, -1)
    left = field.products[a, field.sums[b, c]]
    assert (left == field.sums[field.products[a, b], field.products[a, c]]).all()
    assert (field.products[field.products[a, b], c] == field.products[a, field.products[b, c]]).all()


@pytest.mark.parametrize("q", [6, 10, 12, 15])
def test_a_slim_fly_of_no_prime_power_is_refused(q):
    with pytest.raises(TopologyError, match=f"q: {q}; allowed: a prime power"):
        build("x", [dimension(**SLIM_FLY | {"q": q})], INNER)


def test_the_cables_of_a_hyperx_add_up():
    # K cables a line: 50 K GB/s; cut across the outer axis of S = 4: K S P / 4 cables (Ahn et al., SC 2009)
    for cables, width in ((1, 16), (3, 48), ((5, 2), 32)):
        one = [dimension(**HYPERX | {"cables": cables, "hosts": 16, "size": 256})]
        fabric = build("x", one, INNER).fabric
        assert bisection(fabric, one).bandwidth == width * 50 * GB
    assert fabric.bandwidth[fabric.link(256, 257)] == 5 * 50 * GB
    assert fabric.bandwidth[fabric.link(256, 260)] == 2 * 50 * GB


def test_a_hyperx_corrects_its_axes_in_the_stated_order():
    for routing, between in ((INNER, "switch1"), (replace(INNER, order="outermost_first"), "switch4")):
        plan = build("x", [dimension(**HYPERX)], routing)
        route = DimensionOrderRouter(plan).route(0, 10)  # from router (0, 0) to router (1, 1)
        nodes = [plan.fabric.node_name(int(plan.fabric.destination[link])) for link in route]
        assert nodes == ["switch0", between, "switch5", "gpu10"]


def test_cables_between_the_same_spines_are_one_link_of_their_width():
    # Two groups of 2 spines with 3 cables each: 6 between them, 3 from spine to spine.
    one = [dimension(**PLUS | {"size": 8, "hosts": 1, "leaves": 4, "spines": 2, "global_links": 3})]
    fabric = build("x", one, INNER).fabric
    spines = 8 + 8 + np.arange(4)  # after 8 GPUs and 8 leaves
    between = [
        fabric.bandwidth[fabric.link(low, high)] for low, high in zip(spines[:2], spines[2:], strict=True)
    ]
    assert between == [3 * 50 * GB] * 2
    assert bisection(fabric, one).bandwidth == 6 * 50 * GB


@pytest.mark.parametrize(("keys", "through"), ALL)
def test_a_way_over_a_third_place_is_a_walk_without_loops_that_another_run_takes_again(keys, through):
    fabric, pairs, nodes, links = all_routes(keys, over(through))
    shortest = dict(networkx.all_pairs_shortest_path_length(graph_of(fabric)))
    longer = 0
    for (source, destination), path, row in zip(pairs, nodes, links, strict=True):
        assert fabric.source[row].tolist() == path[:-1]
        assert path[-1] == destination
        assert len(set(path)) == len(path)
        longer += len(row) > shortest[source][destination]
    assert longer > len(pairs) / 2
    assert all_routes(keys, over(through))[3] == links
    assert all_routes(keys, over(through, seed=8))[3] != links


@pytest.mark.parametrize(("keys", "through"), ALL)
def test_a_pair_takes_the_same_way_alone_and_among_others(keys, through):
    plan = build("x", [dimension(**keys)], over(through, 0.7))
    pairs = np.random.default_rng(0).integers(0, plan.fabric.gpus, (100, 2))
    router = DimensionOrderRouter(plan)
    many = router.routes(pairs)
    assert [many.of(flow) for flow in range(100)] == [router.route(int(a), int(b)) for a, b in pairs]


@pytest.mark.parametrize(("keys", "through"), ALL)
def test_a_share_is_that_of_the_pairs_whose_way_is_not_minimal(keys, through):
    minimal, every, half = (
        all_routes(keys, routing)[3] for routing in (INNER, over(through), over(through, 0.5))
    )
    assert all_routes(keys, over(through, 0.0))[3] == minimal
    assert all(mixed in (short, long) for mixed, short, long in zip(half, minimal, every, strict=True))
    differ = [short != long for short, long in zip(minimal, every, strict=True)]
    taken = sum(mixed != short for mixed, short in zip(half, minimal, strict=True))
    # About 1,000 pairs or more, each at 0.5: a deviation of 3 % at most.
    assert 0.4 * sum(differ) < taken < 0.6 * sum(differ)


def test_through_a_group_comes_by_a_group_that_is_neither_ends_and_a_leaf_only_where_it_must():
    for keys, longest in ((PLUS, 6), (SPARSE, 8)):
        fabric, pairs, nodes, _ = all_routes(keys, over("group"))
        group = {fabric.gpus + leaf: leaf // 4 for leaf in range(20)}
        spines = keys["spines"]
        group |= {fabric.gpus + 20 + spine: spine // spines for spine in range(5 * spines)}
        for (source, destination), path in zip(pairs, nodes, strict=True):
            ends = source // 8, destination // 8
            visited = list(dict.fromkeys(group[node] for node in path[1:-1]))
            if ends[0] == ends[1]:
                assert visited in ([], [ends[0]])
            else:
                assert len(visited) == 3
                assert (visited[0], visited[-1]) == ends
        assert max(len(path) - 1 for path in nodes) == longest


def test_the_third_routers_are_drawn_alike():
    # 3,968 pairs at different ones of 32 routers, about half of them on ways of 6 hops: some 60 a router
    _, _, nodes, _ = all_routes(SLIM_FLY, over("router"))
    middles = np.bincount([path[3] for path in nodes if len(path) == 7], minlength=96)[64:]
    assert middles.min() > 0.4 * middles.mean()
    assert middles.max() < 1.6 * middles.mean()


def test_valiant_spreads_what_minimal_routes_pile_up():
    # Every GPU of a group sends to the next group. Minimal: 32 flows on the 4 cables between the two, 8 or
    # more on one of them. Over third groups the 60 other cables carry them, twice: 5.3 on average.
    def flows_on_cables(routing):
        plan = build("x", [dimension(**PLUS | {"hosts": 8, "size": 160})], routing)
        flows = [(gpu, (gpu + 32) % 160) for gpu in range(160)]
        links = DimensionOrderRouter(plan).routes(flows).links
        first_spine = 160 + 20
        cables = (plan.fabric.source >= first_spine) & (plan.fabric.destination >= first_spine)
        return np.bincount(links, minlength=len(plan.fabric))[cables]

    minimal, spread = flows_on_cables(INNER), flows_on_cables(over("group"))
    assert (len(spread), minimal.sum(), spread.sum()) == (80, 160, 320)
    assert minimal.max() >= 8
    assert np.count_nonzero(minimal) == 20
    assert spread.max() < minimal.max()
    assert 55 < np.count_nonzero(spread) <= 60


@pytest.mark.parametrize(("keys", "through"), ALL)
def test_every_pair_finds_a_way_around_a_dead_router_link(keys, through):
    plan = build("x", [dimension(**keys)], over(through))
    fabric, planned = plan.fabric, DimensionOrderRouter(plan)
    dead = frozenset(planned.route(0, fabric.gpus - 1)[1:2])
    router = FaultAwareRouter(fabric, planned, dead)
    routes = router.routes([(a, b) for a in range(fabric.gpus) for b in range(fabric.gpus)])
    assert dead.isdisjoint(routes.links.tolist())


@pytest.mark.parametrize(
    ("keys", "routing", "says"),
    [
        (HYPERX | {"size": 33}, INNER, "size: 33 endpoints; allowed: up to 32, 2 at each of 16 routers"),
        (HYPERX | {"cables": [1, 2, 3]}, INNER, "cables: 3 numbers; allowed: one, or one for each of 2 axes"),
        (SLIM_FLY | {"size": 65}, INNER, "size: 65 endpoints; allowed: up to 64"),
        (PLUS | {"size": 400}, INNER, "size: 400; allowed: up to 136 with 16 global cables a group"),
        (SLIM_FLY, over("group"), "non_minimal.through: group: dimension a has no groups; allowed: router"),
        (HYPERX, over("group"), "non_minimal.through: group"),
        (
            HYPERX | {"cables": 2**24, "router_link": LINK | {"bandwidth": "1 TB/s"}},
            INNER,
            "16777216 cables: bandwidth: .*; allowed: 0 to",
        ),
        (PLUS | {"spines": 2**24}, INNER, "links; allowed"),
        (PLUS | {"global_link": LINK | {"bandwidth": "900 PB/s"}}, INNER, "cables of a group: bandwidth"),
        ({"shape": "switch", "size": 4}, over("router"), "no dimension has routes to choose from"),
    ],
)
def test_what_can_not_be_is_one_line(keys, routing, says):
    with pytest.raises(TopologyError, match=says):
        build("x", [dimension(**keys)], routing)
