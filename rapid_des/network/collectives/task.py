"""What a collective has to move: the blocks of its logical buffer, and where each must start and end.

A logical buffer names every byte once, whoever holds it: the one tensor that all-reduce, reduce and
broadcast work on; the concatenated shards of all-gather and gather; the full tensor that reduce-scatter and
scatter cut; for all-to-all the tensors of all members one after the other. Pieces of an uneven cut differ by
one byte.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError

Ints: TypeAlias = NDArray[np.int64]

SHARDED_INPUT = frozenset({CollectiveType.ALL_GATHER, CollectiveType.GATHER})
ROOTED = frozenset(
    {CollectiveType.BROADCAST, CollectiveType.REDUCE, CollectiveType.GATHER, CollectiveType.SCATTER}
)
_WHOLE = frozenset({CollectiveType.ALL_REDUCE, CollectiveType.BROADCAST, CollectiveType.REDUCE})


def even_bounds(size: int, parts: int) -> Ints:
    """Return the `parts + 1` boundaries that cut `size` bytes evenly, longer parts first.

    >>> even_bounds(10, 4).tolist()
    [0, 3, 6, 8, 10]
    """
    quotient, remainder = divmod(size, parts)
    index = np.arange(parts + 1, dtype=np.int64)
    return index * quotient + np.minimum(index, remainder)


@dataclass(frozen=True)
class Task:
    """One collective over one group: block b of the logical buffer is `offset[b], size[b]`.

    Block b belongs to member b; in an all-to-all block `s * members + d` goes from member s to member d.
    Blocks need not be adjacent (a chunk of a larger collective).
    """

    collective: CollectiveType
    members: int
    root: int
    offset: Ints
    size: Ints

    @property
    def total(self) -> int:
        """Bytes of the logical buffer that this task covers."""
        return int(self.size.sum())


def task(collective: CollectiveType, members: int, size: int, *, root: int = 0) -> Task:
    """Return the blocks of a collective whose input buffer on each rank has `size` bytes.

    `size` is Chakra's: the shard for all-gather and gather, else the full tensor. A barrier's message has at
    least one byte.
    """
    if members < 1:
        raise InputError(f"a collective needs at least 1 member, not {members}")
    if size < 0:
        raise InputError(f"a collective's size must be 0 bytes or more, not {size}")
    if not 0 <= root < members:
        raise InputError(f"root {root} is not one of the {members} members (0 to {members - 1})")
    if collective is CollectiveType.BARRIER:
        bounds = even_bounds(max(size, 1), members)
    elif collective in SHARDED_INPUT:
        bounds = np.arange(members + 1, dtype=np.int64) * size
    elif collective is CollectiveType.ALL_TO_ALL:
        tensors = np.arange(members, dtype=np.int64)[:, None] * size
        bounds = np.append((tensors + even_bounds(size, members)[:-1]).reshape(-1), members * size)
    else:
        bounds = even_bounds(size, members)
    return Task(collective, members, root, bounds[:-1].copy(), np.diff(bounds))


def chunk(whole: Task, index: int, count: int) -> Task:
    """Return chunk `index` of `count`: an interval of the one tensor, else that part of every block."""
    if whole.collective in _WHOLE:
        start, end = even_bounds(whole.total, count)[index : index + 2]
        bounds = even_bounds(int(end - start), whole.members) + start + whole.offset[0]
        return replace(whole, offset=bounds[:-1].copy(), size=np.diff(bounds))
    quotient, remainder = np.divmod(whole.size, count)
    start = index * quotient + np.minimum(index, remainder)
    end = (index + 1) * quotient + np.minimum(index + 1, remainder)
    return replace(whole, offset=whole.offset + start, size=end - start)
