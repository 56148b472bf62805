"""What a collective algorithm returns: transfers among members, joined by dependencies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Pieces:
    """What each transfer carries where that is not one interval: rows of a compressed sparse table.

    Transfer t carries the intervals `offset[i], size[i]` for i in `starts[t] : starts[t + 1]`; their sizes
    add up to the transfer's.
    """

    starts: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]


@dataclass(frozen=True)
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
    source: NDArray[np.int32]
    destination: NDArray[np.int32]
    size: NDArray[np.int64]
    """Bytes."""
    reduces: NDArray[np.bool_]
    """The receiver combines the payload with its own copy instead of replacing it."""
    offset: NDArray[np.int64]
    """Where the payload stands in the logical buffer of the collective (the data property reads this)."""
    dependency_starts: NDArray[np.int64]
    dependencies: NDArray[np.int32]
    """Transfer t waits for dependencies[dependency_starts[t] : dependency_starts[t + 1]]."""
    switches: int = 0
    pieces: Pieces | None = None
    """Payloads of several intervals; None: transfer t carries the one at `offset[t]` of `size[t]` bytes."""

    def __len__(self) -> int:
        return len(self.source)
