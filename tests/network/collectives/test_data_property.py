"""Everyone ends with exactly their data: every algorithm, any group, size, root, number of chunks, order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives import (
    ALGORITHMS,
    Hierarchy,
    algorithms_for,
    chunk_phases,
    demand,
    flatten,
    prove,
)
from rapid_des.network.collectives.on_fabric import HIERARCHICAL
from rapid_des.testing import check_schedule

from .in_place import play_in_place

PAIRS = [(name, kind) for name, algorithm in ALGORITHMS.items() for kind in algorithm.does]
SEPARATE_BUFFERS = {"one_shot", "recursive_doubling"}
SIZES = st.one_of(st.integers(0, 40), st.integers(41, 5000))


@pytest.mark.parametrize(("name", "kind"), PAIRS, ids=lambda value: getattr(value, "name", value))
@settings(max_examples=8, deadline=None)
@given(members=st.integers(2, 13), size=SIZES, chunks=st.integers(1, 4), pick=st.randoms())
def test_everyone_ends_with_their_data(name, kind, members, size, chunks, pick):
    root = pick.randrange(members)
    schedule = ALGORITHMS[name](kind, members, size, root=root, chunks=chunks)
    whole = demand(kind, members, size, root=root)
    check_schedule(schedule, whole)
    if name not in SEPARATE_BUFFERS:
        play_in_place(schedule, whole, np.random.default_rng(pick.randrange(1000)))


REDUCTIONS = ("ring", "bidirectional_ring", "direct", "halving_doubling")
BY_KIND = {
    CollectiveType.BARRIER: ("dissemination", "direct", "recursive_doubling", "binomial_tree"),
    CollectiveType.ALL_TO_ALL: ("ring", "bidirectional_ring", "direct"),
}


@pytest.mark.parametrize("kind", sorted(HIERARCHICAL), ids=lambda kind: kind.name)
@settings(max_examples=25, deadline=None)
@given(
    extents=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    size=SIZES,
    chunks=st.integers(1, 3),
    rotate=st.booleans(),
    pick=st.randoms(),
)
def test_a_hierarchical_collective_keeps_the_property(kind, extents, size, chunks, rotate, pick):
    names = BY_KIND.get(kind, REDUCTIONS)
    over = Hierarchy(tuple(extents), tuple(pick.choice(names) for _ in extents))
    schedule = flatten(kind, over, size, chunks=chunks, rotate=rotate)
    prove(schedule, demand(kind, over.members, size))
    assert len(chunk_phases(kind, over, size, chunks=chunks, rotate=rotate)) == chunks


@pytest.mark.parametrize("kind", list(CollectiveType), ids=lambda kind: kind.name)
def test_every_collective_has_an_algorithm_for_any_group(kind):
    assert algorithms_for(kind)
    for name in algorithms_for(kind):
        assert len(ALGORITHMS[name](kind, 1, 100)) == 0


def broken(schedule, **columns):
    from rapid_des.values import replace

    return replace(schedule, **columns)


def test_the_proof_sees_a_missing_dependency():
    whole = demand(CollectiveType.ALL_GATHER, 3, 10)
    ring = ALGORITHMS["ring"](CollectiveType.ALL_GATHER, 3, 10)
    none = broken(
        ring, dependency_starts=np.zeros_like(ring.dependency_starts), dependencies=ring.dependencies[:0]
    )
    with pytest.raises(InputError, match="carries data that its source need not have yet"):
        prove(none, whole)


def test_the_proof_sees_a_contribution_counted_twice():
    whole = demand(CollectiveType.ALL_REDUCE, 2, 10)
    direct = ALGORITHMS["one_shot"](CollectiveType.ALL_REDUCE, 2, 10)
    twice = broken(
        direct,
        **{name: np.tile(getattr(direct, name), 2) for name in ("source", "destination", "size")},
        **{name: np.tile(getattr(direct, name), 2) for name in ("reduces", "offset")},
        dependency_starts=np.zeros(5, dtype=np.int64),
    )
    with pytest.raises(InputError, match="adds a contribution that is there already"):
        prove(twice, whole)


def test_the_proof_sees_what_somebody_lacks():
    with pytest.raises(InputError, match="all_gather: member 1 ends with the contributions of \\[\\]"):
        prove(ALGORITHMS["direct"](CollectiveType.GATHER, 3, 4), demand(CollectiveType.ALL_GATHER, 3, 4))


def test_the_proof_sees_bytes_outside_the_buffer():
    with pytest.raises(InputError, match="broadcast: a transfer carries bytes outside the buffer"):
        prove(ALGORITHMS["direct"](CollectiveType.BROADCAST, 3, 13), demand(CollectiveType.BROADCAST, 3, 12))
