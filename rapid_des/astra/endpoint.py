"""What a GPU does between two messages of a collective: a fixed delay, and the reduction of what arrived."""

from __future__ import annotations

from dataclasses import dataclass
from math import trunc

import numpy as np

from rapid_des.arrays import Bools, Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.units import PS_PER_NS


@dataclass(frozen=True)
class Endpoint:
    """The delay before every message and after the last, in picoseconds, and the memory that reduces.

    A reduction reads two buffers and writes one, each for trunc(bytes / bandwidth) nanoseconds.
    """

    delay: int
    memory_bandwidth: float
    """Bytes a second; 0: reductions take no time."""
    local: bool
    """Whether this serves a process group of its own rather than the world's dimensions."""

    def reduction(self, size: int) -> int:
        """Return the picoseconds to reduce one message."""
        if self.memory_bandwidth == 0:
            return 0
        return 3 * trunc(size / self.memory_bandwidth * 1e9) * PS_PER_NS

    def lags(self, sizes: Int64s, reduces: Bools) -> Int64s:
        """Return the delay of each processing step: `sizes` are what is reduced where `reduces` says so."""
        extra = [
            self.reduction(size) if flag else 0
            for size, flag in zip(sizes.tolist(), reduces.tolist(), strict=True)
        ]
        return self.delay + np.array(extra, np.int64)


def reducing_steps(collective: CollectiveType, steps: int, *, plain: int, reducing: int) -> Bools:
    """Tell which of a member's processing steps reduce.

    Steps come in turns of `plain` ones and then `reducing` ones. A reduce-scatter reduces in every turn, an
    all-reduce in the first, third, …, the others never.
    """
    turn, place = np.divmod(np.arange(steps), plain + reducing)
    if collective is CollectiveType.ALL_REDUCE:
        place[turn % 2 == 1] = 0
    elif collective is not CollectiveType.REDUCE_SCATTER:
        place[:] = 0
    reduces: Bools = place >= plain
    return reduces
