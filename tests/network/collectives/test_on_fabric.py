"""Algorithms that use the fabric: each keeps the data property and uses the links it is made for."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives import (
    ALGORITHMS,
    ON_FABRIC,
    ShapedCollective,
    algorithm,
    build_schedule,
    collectives_of,
    demand,
    on_fabric,
    prove,
)
from rapid_des.network.collectives.in_switch import fits, nvls, switch_tree, two_levels
from rapid_des.network.collectives.trees import grid_tree

AR, AG = CollectiveType.ALL_REDUCE, CollectiveType.ALL_GATHER
PAIRS = [(name, kind) for name, (_, does) in ON_FABRIC.items() for kind in sorted(does)]
ROOTED = (CollectiveType.BROADCAST, CollectiveType.REDUCE)


@pytest.mark.parametrize(("name", "kind"), PAIRS, ids=lambda value: getattr(value, "name", value))
@settings(max_examples=6, deadline=None)
@given(
    extents=st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda extents: prod(extents) <= 24),
    size=st.integers(0, 700),
    chunks=st.integers(1, 3),
    pick=st.randoms(),
)
def test_everyone_ends_with_their_data(name, kind, extents, size, chunks, pick):
    if name == "hypercube":
        extents = [1 << (extent // 2) for extent in extents]
    members = prod(extents)
    root = pick.randrange(members) if kind in ROOTED else 0
    schedule = on_fabric(name, ShapedCollective(kind, tuple(extents), size, root, chunks))
    prove(schedule, demand(kind, members, size, root=root))


def pairs(schedule):
    real = schedule.source != schedule.destination
    return set(zip(schedule.source[real].tolist(), schedule.destination[real].tolist(), strict=True))


def neighbours(extents, *, wrap=False, diagonal=False):
    places = np.stack(np.unravel_index(np.arange(prod(extents)), extents, order="F"), axis=1)
    found = set()
    for a, here in enumerate(places):
        for b, there in enumerate(places):
            offset = np.abs(here - there)
            if wrap:
                offset = np.minimum(offset, np.array(extents) - offset)
            near = offset.max() == 1 if diagonal else offset.sum() == 1
            if near:
                found.add((a, b))
    return found


def test_the_torus_uses_every_link_in_both_directions():
    schedule = on_fabric("torus", ShapedCollective(AR, (4, 3), 1200))
    assert pairs(schedule) == neighbours((4, 3), wrap=True)
    # 2 chunks, 2 directions: the busiest directed link carries as much as the least busy in its dimension
    carried: dict[tuple[int, int], int] = {}
    for source, destination, size in zip(schedule.source, schedule.destination, schedule.size, strict=True):
        carried[source, destination] = carried.get((source, destination), 0) + int(size)
    along_x = {size for (a, b), size in carried.items() if a != b and a // 4 == b // 4}
    assert len(along_x) == 1


def test_buckets_stay_on_the_lines_of_a_mesh():
    assert pairs(on_fabric("mesh_bucket", ShapedCollective(AR, (4, 3), 1200))) == neighbours((4, 3))


def test_a_mesh_tree_uses_mesh_links_and_a_king_mesh_tree_is_shallower():
    assert pairs(on_fabric("mesh_tree", ShapedCollective(AR, (5, 5), 100))) <= neighbours((5, 5))
    king = on_fabric("king_mesh_tree", ShapedCollective(CollectiveType.BROADCAST, (5, 5), 100, root=12))
    assert pairs(king) <= neighbours((5, 5), diagonal=True)
    # from the centre of 5×5 everybody is two king's moves away
    depth = {12: 0}
    for source, destination in sorted(pairs(king), key=lambda pair: depth.get(pair[0], 9)):
        depth[destination] = depth.get(source, 1) + 1
    assert max(depth.values()) == 2


def test_hypercube_partners_differ_in_one_bit():
    schedule = on_fabric("hypercube", ShapedCollective(CollectiveType.ALL_TO_ALL, (8,), 800))
    assert {a ^ b for a, b in pairs(schedule)} == {1, 2, 4}


def test_the_rails_carry_a_node_sharing_of_the_buffer():
    # 8 GPUs a node, 4 nodes, 3200 B: each rail all-reduces 400 B, 2·3/4·400 = 600 B from each GPU
    schedule = on_fabric("rail", ShapedCollective(AR, (8, 4), 3200))
    across = schedule.source // 8 != schedule.destination // 8
    assert np.bincount(schedule.source[across], schedule.size[across]).tolist() == [600] * 32


def test_nvls_sends_all_data_up_once_and_a_share_again():
    # 8 GPUs, 800 B: up 800 + 100, down 100 + 700
    schedule = on_fabric("nvls", ShapedCollective(AR, (8,), 800))
    assert schedule.switches == 1
    up = schedule.destination == 8
    assert np.bincount(schedule.source[up], schedule.size[up]).tolist() == [900] * 8
    down = schedule.source == 8
    assert np.bincount(schedule.destination[down], schedule.size[down]).tolist() == [800] * 8


def test_a_switch_tree_sends_the_buffer_once_each_way():
    schedule = on_fabric("switch_tree", ShapedCollective(AR, (4, 3), 500))
    # 12 members, 3 leaves, 1 root: 15 edges, each 500 B up and down
    assert schedule.switches == 4
    assert len(schedule) == 30
    assert set(schedule.size.tolist()) == {500}


def test_nvls_fetches_a_chunk_once_the_last_but_one_has_come():
    # 2 members, chunks of 20 B in blocks of 10 B; member m sends block b of chunk c to the switch
    schedule = nvls(demand(AR, 2, 80), chunks=4)
    prove(schedule, demand(AR, 2, 80))
    pulls = np.flatnonzero(schedule.reduces)
    waits = [
        schedule.dependencies[schedule.dependency_starts[t] : schedule.dependency_starts[t + 1]].tolist()
        for t in pulls.tolist()
    ]
    assert [len(row) for row in waits] == [0] * 8 + [1] * 8
    for pull, row in zip(pulls[8:].tolist(), waits[8:], strict=True):
        # the block of the same owner two chunks earlier, summed, on its way from the switch to the owner
        assert int(schedule.offset[row[0]]) == int(schedule.offset[pull]) - 40
        assert (schedule.source[row[0]], schedule.destination[row[0]]) == (2, schedule.offset[pull] // 10 % 2)


def test_a_tree_hands_blocks_over_without_passing_the_root():
    # leaves 4 and 5 of two members each below root 6; a shard of 100 B from each member to all others
    schedule = on_fabric("sharp", ShapedCollective(AG, (2, 2), 100))
    ends = list(zip(schedule.source.tolist(), schedule.destination.tolist(), strict=True))
    # each shard goes up once, to the member beside it, to the root, the other leaf and its two members
    assert len(ends) == 4 * 6
    assert ends.count((4, 6)) == ends.count((6, 4)) == 2
    assert ends.count((4, 0)) == 3


def test_what_fits_a_tree_of_switches():
    assert fits("nvls", two_levels(4, 4), 4)
    assert not fits("nvls", two_levels(4, 2), 4)
    assert fits("sharp", two_levels(4, 2), 4)
    assert not fits("sharp", (), 4)


def test_a_bucket_on_a_line_needs_no_link_back():
    schedule = algorithm("bucket")(AG, 5, 100)
    assert pairs(schedule) == neighbours((5,))
    # link i -> i + 1 carries the i + 1 shards to its left
    right = schedule.destination == schedule.source + 1
    assert np.bincount(schedule.source[right], schedule.size[right]).tolist() == [100, 200, 300, 400]


def test_a_shape_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="a hypercube has a power of two of members, not 6"):
        on_fabric("hypercube", ShapedCollective(AR, (6,), 100))
    with pytest.raises(
        InputError, match="mesh_tree does not do all_gather; it does all_reduce, reduce, broadc"
    ):
        on_fabric("mesh_tree", ShapedCollective(AG, (4, 4), 100))
    with pytest.raises(InputError, match="'tree' is no algorithm for a shaped group; allowed: torus, "):
        on_fabric("tree", ShapedCollective(AG, (4, 4), 100))


def test_both_registries_are_reached_by_one_name():
    shaped = ShapedCollective(AR, (2, 3), 600)
    for name in ("ring", "torus"):
        assert AR in collectives_of(name)
        prove(build_schedule(name, shaped), demand(AR, 6, 600))
    assert not set(ALGORITHMS) & set(ON_FABRIC)
    with pytest.raises(InputError, match="'cube' is not a collective algorithm; allowed: ring, .*torus, "):
        build_schedule("cube", shaped)


def test_what_switches_and_grids_can_not_do_is_refused():
    gather = demand(CollectiveType.GATHER, 4, 100)
    with pytest.raises(InputError, match="nvls does all_reduce, .* not gather"):
        nvls(gather)
    with pytest.raises(InputError, match="a tree of switches does all_reduce, .* not gather"):
        switch_tree(gather, 2)
    with pytest.raises(InputError, match="4 members cannot be 3 at each leaf switch"):
        switch_tree(demand(AR, 4, 100), 3)
    with pytest.raises(InputError, match="a grid's tree does all_reduce, .* not gather"):
        grid_tree(gather, (2, 2), diagonal=True)
