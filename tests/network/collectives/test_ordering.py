"""Rings in another order: everyone still ends with their own data, and dead links are gone round."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives import ALGORITHMS, demand, prove
from rapid_des.network.collectives.on_fabric import ordered_schedule, repaired, snakes


@given(st.data())
def test_everyone_holds_their_own_data_in_any_order(data):
    name = data.draw(st.sampled_from(["ring", "bidirectional_ring", "bucket", "direct", "binomial_tree"]))
    kind = data.draw(st.sampled_from(list(ALGORITHMS[name].does)))
    members = data.draw(st.integers(2, 7))
    order = tuple(data.draw(st.permutations(range(members))))
    size, chunks = data.draw(st.sampled_from([members, 100, 101])), data.draw(st.sampled_from([1, 3]))
    prove(ordered_schedule(name, kind, size, order, chunks=chunks), demand(kind, members, size))


def test_in_rank_order_nothing_changes():
    plain = ALGORITHMS["ring"](CollectiveType.ALL_GATHER, 5, 100)
    ordered = ordered_schedule("ring", CollectiveType.ALL_GATHER, 100, (0, 1, 2, 3, 4))
    for column in ("source", "destination", "size", "offset", "dependencies"):
        np.testing.assert_array_equal(getattr(plain, column), getattr(ordered, column))


def ring_hops(size, *dead):
    """Hops on a ring whose directed links `dead` are gone (Floyd and Warshall)."""
    hops = np.full((size, size), size * size)
    np.fill_diagonal(hops, 0)
    for place in range(size):
        for ends in ((place, (place + 1) % size), ((place + 1) % size, place)):
            if ends not in dead:
                hops[ends] = 1
    for through in range(size):
        hops = np.minimum(hops, hops[:, [through]] + hops[[through], :])
    return hops


def test_a_line_begins_behind_its_gap():
    assert repaired(ring_hops(6, (1, 2), (2, 1)), ring_hops(6)) == (2, 3, 4, 5, 0, 1)


def test_a_ring_that_lost_one_direction_is_walked_backwards():
    order = repaired(ring_hops(6, (1, 2)), ring_hops(6))
    assert {(a - b) % 6 for a, b in zip(order, order[1:], strict=False)} == {1}


def test_without_a_fault_the_ring_is_only_turned():
    assert repaired(ring_hops(6), ring_hops(6)) == (1, 2, 3, 4, 5, 0)


@pytest.mark.parametrize("extents", [(4, 4), (2, 3, 4), (5,), (3, 1, 2)])
def test_snakes_go_from_neighbour_to_neighbour(extents):
    for order in snakes(extents):
        assert sorted(order) == list(range(int(np.prod(extents))))
        places = np.stack(np.unravel_index(order, extents, order="F"))
        assert (np.abs(np.diff(places, axis=1)).sum(axis=0) == 1).all()
