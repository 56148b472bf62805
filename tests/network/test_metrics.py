"""Bisection bandwidth against counted cables; all links 100 GB/s."""

import itertools

import pytest

from rapid_des.network.build import build
from rapid_des.network.metrics import bisection
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
        ([{"shape": "king_mesh", "size": [4, 4]}], 4 + 2 * 3, False),
        ([{"shape": "torus", "size": [4, 4]}, {"shape": "ring", "size": 4}], 2 * 16, True),
        ([{"shape": "switch", "size": 4}, {"shape": "switch", "size": 2}], 4, False),  # four rails
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
