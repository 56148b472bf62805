"""What a collective has to move, and what an algorithm returns: transfers joined by dependencies.

A logical buffer names every byte once, whoever holds it: the one tensor that all-reduce, reduce and
broadcast work on; the concatenated shards of all-gather and gather; the full tensor that reduce-scatter and
scatter cut; for all-to-all the tensors of all members one after the other. Pieces of an uneven cut differ by
one byte.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rapid_des.arrays import Bools, Int32s, Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError

SHARDED_INPUT = frozenset({CollectiveType.ALL_GATHER, CollectiveType.GATHER})
ROOTED = frozenset(
    {CollectiveType.BROADCAST, CollectiveType.REDUCE, CollectiveType.GATHER, CollectiveType.SCATTER}
)
_ONE_TENSOR = frozenset({CollectiveType.ALL_REDUCE, CollectiveType.BROADCAST, CollectiveType.REDUCE})


def even_bounds(size: int, parts: int) -> Int64s:
    """Return the `parts + 1` boundaries that cut `size` bytes evenly, longer parts first.

    >>> even_bounds(10, 4).tolist()
    [0, 3, 6, 8, 10]
    """
    quotient, remainder = divmod(size, parts)
    index = np.arange(parts + 1, dtype=np.int64)
    return index * quotient + np.minimum(index, remainder)


@dataclass(frozen=True, eq=False)
class Demand:
    """One collective over one group: block b of the logical buffer is `offset[b], size[b]`.

    Block b belongs to member b; in an all-to-all block `s * members + d` goes from member s to member d.
    Blocks need not be adjacent (a chunk of a larger collective).
    """

    collective: CollectiveType
    members: int
    root: int
    offset: Int64s
    size: Int64s

    @property
    def total(self) -> int:
        """Bytes of the logical buffer that this demand covers."""
        return int(self.size.sum())

    def chunks(self, count: int) -> list[Demand]:
        """Return `count` parts, each an interval of the one tensor, else that part of every block.

        A barrier is not cut.
        """
        if count == 1 or self.collective is CollectiveType.BARRIER:
            return [self]
        return [self._chunk(index, count) for index in range(count)]

    def _chunk(self, index: int, count: int) -> Demand:
        if self.collective in _ONE_TENSOR:
            start, end = even_bounds(self.total, count)[index : index + 2]
            bounds = even_bounds(int(end - start), self.members) + start + self.offset[0]
            return replace(self, offset=bounds[:-1].copy(), size=np.diff(bounds))
        quotient, remainder = np.divmod(self.size, count)
        start = index * quotient + np.minimum(index, remainder)
        end = (index + 1) * quotient + np.minimum(index + 1, remainder)
        return replace(self, offset=self.offset + start, size=end - start)


def demand(collective: CollectiveType, members: int, size: int, *, root: int = 0) -> Demand:
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
    return Demand(collective, members, root, bounds[:-1].copy(), np.diff(bounds))


@dataclass(frozen=True, eq=False)
class Pieces:
    """What each transfer carries where that is not one interval: rows of a compressed sparse table.

    Transfer t carries the intervals `offset[i], size[i]` for i in `starts[t] : starts[t + 1]`; their sizes
    add up to the transfer's.
    """

    starts: Int64s
    offset: Int64s
    size: Int64s


@dataclass(frozen=True, eq=False)
class Schedule:
    """Transfers among members 0..members-1 as read-only columns, ordered so that dependencies point back.

    A transfer starts once its source member has arrived at the collective and all transfers it depends on
    have arrived; one that waits for nothing carries its source's own input. A member is done once it has
    arrived and every transfer from it and to it has arrived.
    A *join* (source equals destination, 0 bytes) moves nothing and arrives the instant it may start: it
    stands for "all of these have arrived here"; no other transfer has 0 bytes.
    Members `members … members + switches - 1` are switches that combine or multiply data on the way; they
    have nothing of their own, arrive at once, and whoever uses the schedule says which switches they are.
    """

    members: int
    source: Int32s
    destination: Int32s
    size: Int64s
    """Bytes."""
    reduces: Bools
    """The receiver combines the payload with its own copy instead of replacing it."""
    offset: Int64s
    """Where the payload stands in the logical buffer of the collective (the data property reads this)."""
    dependency_starts: Int64s
    dependencies: Int32s
    """Transfer t waits for dependencies[dependency_starts[t] : dependency_starts[t + 1]]."""
    switches: int = 0
    pieces: Pieces | None = None
    """Payloads of several intervals; None: transfer t carries the one at `offset[t]` of `size[t]` bytes."""

    def __len__(self) -> int:
        return len(self.source)
