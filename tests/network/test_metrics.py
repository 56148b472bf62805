"""Bisection bandwidth against counted cables; all links 100 GB/s.

Channel dependencies: which routes may wait in a circle.
"""

import itertools

import pytest

from rapid_des.network.build import build
from rapid_des.network.metrics import bisection, channel_dependency_cycle
from rapid_des.network.routing import DimensionOrderRouter
from tests.network.fabrics import INNER, dimension

GB = 10**9


@pytest.mark.parametrize(
    ("keys", "links", "exact"),
    [
        ([{"shape": "ring", "size": 8}], 2, True),
        ([{"shape": "ring", "size": 2}], 1, True),
        ([{"shape": "torus", "size": [4, 8]}], 2 * 4, True),  # cut across the long axis
        ([{"shape": "mesh", "size": [4, 6]}], 4, True),
        ([{"shape": "hypercube", "size": 16}], 8, True),
        ([{"shape": "fully_connected", "size": 6}], 9, True),
        ([{"shape": "switch", "size": 8}], 4, True),
        ([{"shape": "ring", "size": 7}], 2, True),
        ([{"shape": "king_mesh", "size": [4, 4]}], 4 + 2 * 3, True),  # of 12,870 halvings
        ([{"shape": "torus", "size": [4, 4]}, {"shape": "ring", "size": 4}], 2 * 16, True),
        ([{"shape": "switch", "size": 4}, {"shape": "switch", "size": 2}], 4, True),  # four rails
    ],
)
def test_the_narrowest_halving(keys, links, exact):
    dimensions = [dimension(str(index), **each) for index, each in enumerate(keys)]
    found = bisection(build("x", dimensions, INNER).fabric, dimensions)
    assert (found.bandwidth, found.exact) == (links * 100 * GB, exact)


def test_exact_ones_agree_with_trying_all_halvings():
    for keys in (
        {"shape": "torus", "size": [2, 4]},
        {"shape": "mesh", "size": [2, 4]},
        {"shape": "ring", "size": 6},
    ):
        one = [dimension(**keys)]
        fabric = build("x", one, INNER).fabric
        ends = list(zip(fabric.source.tolist(), fabric.destination.tolist(), strict=True))
        halves = itertools.combinations(range(fabric.gpus), fabric.gpus // 2)
        least = min(sum(a in half and b not in half for a, b in ends) for half in map(set, halves))
        found = bisection(fabric, one)
        assert found.exact
        assert found.bandwidth == least * 100 * GB


def test_a_tapered_tree_is_as_narrow_as_its_uplinks():
    # Two leaves of 4 endpoints with 2 spines each: 4 · 100 down, but 2 · 50 GB/s up.
    uplink = {"bandwidth": "50 GB/s", "latency": "1 us"}
    tree = [dimension(shape="clos", size=8, leaf_size=4, spines=2, uplink=uplink)]
    assert bisection(build("x", tree, INNER).fabric, tree).bandwidth == 2 * 50 * GB


def graph(tmp_path, edges):
    """GPUs and switches joined by cables of 100 GB/s, both ways."""
    path = tmp_path / "graph.csv"
    path.write_text("source,destination\n" + "".join(f"{one},{other}\n" for one, other in edges))
    size = len({end for edge in edges for end in edge if isinstance(end, int)})
    stated = [dimension(shape="graph", size=size, file=str(path))]
    return build("x", stated, INNER).fabric, stated


def test_the_halving_of_a_small_irregular_graph_is_the_narrowest_of_all(tmp_path):
    # Rings of the even and of the odd GPUs, joined by one cable, and each of the even ones on a switch too.
    rings = [(gpu, (gpu + 2) % 12) for gpu in range(12)]
    fabric, stated = graph(tmp_path, [*rings, (0, 1), *((gpu, "leaf") for gpu in range(0, 12, 2))])
    found = bisection(fabric, stated)
    assert (found.bandwidth, found.exact) == (100 * GB, True)


def test_switches_stand_where_least_crosses(tmp_path):
    # two leaves of three GPUs, each with one cable to a spine: 100 GB/s leave a leaf's three
    leaves = [(gpu, f"leaf{gpu % 2}") for gpu in range(6)]
    fabric, stated = graph(tmp_path, [*leaves, ("leaf0", "spine"), ("leaf1", "spine")])
    found = bisection(fabric, stated)
    assert (found.bandwidth, found.exact) == (100 * GB, True)


def test_swaps_find_a_narrow_halving_of_a_larger_graph_and_claim_no_proof(tmp_path):
    # Of 40 GPUs the even and the odd ones are two tori's rows of neighbours, with two cables between them.
    rings = [(gpu, (gpu + step) % 40) for gpu in range(40) for step in (2, 8)]
    fabric, stated = graph(tmp_path, [*rings, (0, 1), (20, 21)])
    found = bisection(fabric, stated)
    assert (found.bandwidth, found.exact) == (200 * GB, False)


@pytest.mark.parametrize(
    ("keys", "cycle"),
    [
        (
            {"shape": "mesh", "size": [4, 4]},
            0,
        ),  # dimension order on a mesh is the textbook's deadlock-free routing
        ({"shape": "hypercube", "size": 16}, 0),  # so is e-cube
        ({"shape": "switch", "size": 8}, 0),
        ({"shape": "ring", "size": 3}, 0),  # every route is one hop
        ({"shape": "ring", "size": 4}, 4),  # 0-1-2, 1-2-3, 2-3-0, 3-0-1 wait for each other upwards
        ({"shape": "torus", "size": [5, 5]}, 5),
    ],
)
def test_rings_longer_than_three_need_virtual_channels_and_meshes_do_not(keys, cycle):
    plan = build("x", [dimension(**keys)], INNER)
    found = channel_dependency_cycle(plan.fabric, DimensionOrderRouter(plan))
    assert len(found) == cycle
    ends = [(int(plan.fabric.source[link]), int(plan.fabric.destination[link])) for link in found]
    assert all(one[1] == two[0] for one, two in zip(ends, ends[1:] + ends[:1], strict=True))


def test_only_the_named_pairs_count():
    plan = build("x", [dimension(shape="ring", size=8)], INNER)
    router = DimensionOrderRouter(plan)
    assert channel_dependency_cycle(plan.fabric, router, [(0, 3), (3, 6)]) == ()
    assert (
        len(channel_dependency_cycle(plan.fabric, router, [(0, 3), (3, 6), (6, 1), (2, 4), (5, 7), (7, 2)]))
        == 8
    )
