"""What each algorithm is known for: its transfers, its bytes, its rounds, and the errors at its door."""

from __future__ import annotations

import numpy as np
import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives import ALGORITHMS, algorithm
from rapid_des.network.collectives.trees import double_tree_parents
from rapid_des.values import fields

AR, AG, RS, A2A = (
    CollectiveType.ALL_REDUCE,
    CollectiveType.ALL_GATHER,
    CollectiveType.REDUCE_SCATTER,
    CollectiveType.ALL_TO_ALL,
)


def rounds(schedule):
    """Longest chain of transfers (joins are free)."""
    depth = np.zeros(len(schedule), dtype=int)
    for t in range(len(schedule)):
        before = schedule.dependencies[schedule.dependency_starts[t] : schedule.dependency_starts[t + 1]]
        depth[t] = max((depth[b] for b in before), default=0) + (schedule.size[t] > 0)
    return depth.max(initial=0)


def sent_by(schedule):
    return np.bincount(schedule.source, schedule.size, schedule.members).astype(int).tolist()


@pytest.mark.parametrize(
    ("name", "kind", "size", "bytes_each", "steps"),
    [
        # 8 members, all-reduce of 800 B: 2·(n-1)/n·800 = 1400 B in 2·7 steps
        ("ring", AR, 800, 1400, 14),
        ("bidirectional_ring", AR, 800, 1400, 14),
        ("direct", AR, 800, 1400, 2),
        ("halving_doubling", AR, 800, 1400, 6),
        # everyone sends all of it to 7 others, or to 3 partners
        ("one_shot", AR, 800, 5600, 1),
        ("recursive_doubling", AR, 800, 2400, 3),
        # all-gather of 100 B shards: 7 shards, reduce-scatter of 800 B: 7/8
        ("ring", AG, 100, 700, 7),
        ("bruck", AG, 100, 700, 3),
        ("halving_doubling", AG, 100, 700, 3),
        ("halving_doubling", RS, 800, 700, 3),
        # all-to-all of 800 B: direct 7/8; ring hops 1+2+…+7 = 28 blocks; both ways 1+2+3+4 + 1+2+3 = 16
        ("direct", A2A, 800, 700, 1),
        ("ring", A2A, 800, 2800, 7),
        ("bidirectional_ring", A2A, 800, 1600, 4),
    ],
)
def test_bytes_and_rounds_are_the_textbook_ones(name, kind, size, bytes_each, steps):
    schedule = ALGORITHMS[name](kind, 8, size)
    assert sent_by(schedule) == [bytes_each] * 8
    assert rounds(schedule) == steps


@pytest.mark.parametrize("members", [2, 3, 4, 5, 8, 13, 16, 31, 32, 100])
def test_who_passes_data_on_in_one_binary_tree_is_a_leaf_or_root_of_the_other(members):
    first, second = double_tree_parents(members)
    busy = []
    for parent in (first, second):
        children = np.bincount(parent[parent >= 0], minlength=members)
        assert children.max() <= 2
        assert (parent < 0).sum() == 1
        busy.append((children > 0) & (parent >= 0))
    # so no member sends more than its half once up and twice down: full bandwidth
    assert not np.any(busy[0] & busy[1])


def test_a_binary_tree_is_logarithmically_deep():
    # 64 members: root, 6 levels below it; up and down: 12 rounds
    assert rounds(ALGORITHMS["double_binary_tree"](AR, 64, 6400)) == 12


def test_the_root_of_a_double_tree_broadcast_sends_the_buffer_once():
    schedule = ALGORITHMS["double_binary_tree"](CollectiveType.BROADCAST, 9, 1000, root=4)
    assert sent_by(schedule)[4] == 1000
    # and nobody else sends more than twice one half
    assert max(sent_by(schedule)) == 1000


def test_binomial_scatter_sends_each_subtree_once():
    # 8 members, 800 B: root sends subtrees of 4, 2, 1 blocks of 100 B
    schedule = ALGORITHMS["binomial_tree"](CollectiveType.SCATTER, 8, 800, root=3)
    assert sent_by(schedule)[3] == 700
    assert rounds(schedule) == 3


def test_uneven_blocks_differ_by_one_byte_and_empty_ones_are_not_sent():
    schedule = ALGORITHMS["direct"](A2A, 4, 10)
    assert sorted(set(schedule.size.tolist())) == [2, 3]
    few = ALGORITHMS["ring"](RS, 8, 3)
    # 3 blocks of 1 B, 7 hops each
    assert len(few) == 21


def test_chunks_follow_each_other_without_waiting():
    schedule = ALGORITHMS["ring"](CollectiveType.BROADCAST, 4, 1000, chunks=5)
    starting = np.flatnonzero(np.diff(schedule.dependency_starts) == 0)
    assert schedule.source[starting].tolist() == [0] * 5
    assert schedule.offset[starting].tolist() == [0, 200, 400, 600, 800]


def test_a_thousand_member_ring_is_lean():
    schedule = ALGORITHMS["ring"](AR, 1024, 2**30)
    assert len(schedule) == 2 * 1023 * 1024
    columns = [
        value
        for value in (getattr(schedule, name) for name in fields(schedule))
        if isinstance(value, np.ndarray)
    ]
    assert sum(column.nbytes for column in columns) < 50 * len(schedule)
    assert schedule.pieces is None


def test_a_ring_all_to_all_carries_at_most_two_intervals_a_transfer():
    # what goes on to the members r + 1 … s - 1 wraps around the end of source s's tensor once
    schedule = ALGORITHMS["ring"](A2A, 64, 6400)
    assert np.diff(schedule.pieces.starts).max() == 2


def test_an_algorithm_says_what_it_does_and_who_does_the_rest():
    with pytest.raises(InputError, match=r"bruck does not do all_reduce; it does all_gather.*done by ring"):
        ALGORITHMS["bruck"](AR, 4, 100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((AR, 0, 10), "at least 1 member, not 0"),
        ((AR, 4, -1), "0 bytes or more, not -1"),
    ],
)
def test_senseless_groups_and_sizes_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        ALGORITHMS["ring"](*arguments)


def test_a_root_outside_the_group_is_refused():
    with pytest.raises(InputError, match=r"root 4 is not one of the 4 members \(0 to 3\)"):
        ALGORITHMS["direct"](CollectiveType.BROADCAST, 4, 10, root=4)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(InputError, match="'rign' is not a collective algorithm; allowed: ring, "):
        algorithm("rign")


def test_a_collective_needs_a_chunk():
    with pytest.raises(InputError, match="1 chunk or more, not 0"):
        ALGORITHMS["ring"](AR, 4, 10, chunks=0)
