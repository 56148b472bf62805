"""Plans over dimensions: which phases, how many bytes, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives import Hierarchy, chunk_phases, flatten

OVER = Hierarchy((4, 2, 8), ("direct", "halving_doubling", "ring"))


def shown(phases):
    return [(phase.dimension, phase.collective.name, phase.algorithm, phase.size) for phase in phases]


def test_an_all_reduce_goes_inwards_and_back():
    # 6400 B over 4·2·8: a quarter after the first dimension, an eighth after the second
    assert shown(chunk_phases(CollectiveType.ALL_REDUCE, OVER, 6400)[0]) == [
        (0, "REDUCE_SCATTER", "direct", 6400),
        (1, "REDUCE_SCATTER", "halving_doubling", 1600),
        (2, "ALL_REDUCE", "ring", 800),
        (1, "ALL_GATHER", "halving_doubling", 800),
        (0, "ALL_GATHER", "direct", 1600),
    ]


def test_an_all_gather_starts_outermost_with_the_shard():
    assert [(p.dimension, p.size) for p in chunk_phases(CollectiveType.ALL_GATHER, OVER, 10)[0]] == [
        (2, 10),
        (1, 80),
        (0, 160),
    ]


def test_rotated_chunks_start_in_different_dimensions():
    over = Hierarchy((2, 2, 2), ("ring",) * 3)
    chunks = chunk_phases(CollectiveType.REDUCE_SCATTER, over, 2400, chunks=3, rotate=True)
    assert [[phase.dimension for phase in phases] for phases in chunks] == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    assert [phases[0].size for phases in chunks] == [800, 800, 800]


def test_dimensions_of_one_member_are_left_out():
    over = Hierarchy((1, 4, 1), ("ring",) * 3)
    assert [phase.dimension for phase in chunk_phases(CollectiveType.ALL_REDUCE, over, 100)[0]] == [1]


def test_a_flattened_all_reduce_sends_the_planned_bytes():
    # per member: 3/4·6400 twice, 1/2·1600 twice, 2·7/8·800
    schedule = flatten(CollectiveType.ALL_REDUCE, OVER, 6400)
    sent = np.bincount(schedule.source, schedule.size)
    assert sent.tolist() == [2 * 4800 + 2 * 800 + 1400] * 64


def test_a_dimension_whose_algorithm_lacks_the_step_is_refused():
    over = Hierarchy((4, 4), ("double_binary_tree", "ring"))
    with pytest.raises(InputError, match=r"double_binary_tree \(dimension 0\) does not do reduce_scatter"):
        chunk_phases(CollectiveType.ALL_REDUCE, over, 100)


def test_rooted_collectives_have_no_per_dimension_form():
    with pytest.raises(InputError, match="scatter has no per-dimension form; those that have: all_reduce"):
        chunk_phases(CollectiveType.SCATTER, OVER, 100)


def test_every_dimension_needs_its_algorithm():
    with pytest.raises(InputError, match="2 dimensions need as many algorithms, not 1"):
        Hierarchy((4, 4), ("ring",))
