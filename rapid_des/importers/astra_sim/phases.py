"""One phase of a collective: what an algorithm is asked to do, and the sizes of its messages.

Between two messages a GPU takes a fixed delay, and the time to reduce what arrived.
"""

from __future__ import annotations

from math import trunc

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import ConfigError
from rapid_des.importers.astra_sim.files import Dialect
from rapid_des.units import PS_PER_NS

AR, AG, RS, A2A = (
    CollectiveType.ALL_REDUCE,
    CollectiveType.ALL_GATHER,
    CollectiveType.REDUCE_SCATTER,
    CollectiveType.ALL_TO_ALL,
)
LONGEST_S = 30 * 24 * 3600
"""Longest time of one operation in seconds: sums then fit into 64 bits of picoseconds."""


class Endpoint(Struct, frozen=True):
    """The delay before every message and after the last, in picoseconds, and the memory that reduces.

    A reduction reads two buffers and writes one, each for trunc(bytes / bandwidth) nanoseconds.
    """

    delay: int
    memory_bandwidth: float
    """Bandwidth in bytes per second; 0: reductions take no time."""
    local: bool
    """Whether it serves an explicit process group rather than the world's dimensions."""

    def reduction(self, size: int) -> int:
        """Return the picoseconds to reduce one message."""
        if self.memory_bandwidth == 0:
            return 0
        seconds = size / self.memory_bandwidth
        if 3 * seconds > LONGEST_S:
            problem = f"the reduction of {size} B takes longer than {LONGEST_S} s (30 days)"
            raise ConfigError(f"{problem} at {self.memory_bandwidth:.4g} B/s", key="local-mem-bw")
        return 3 * trunc(seconds * 1e9) * PS_PER_NS

    def lags(self, sizes: Int64s, reduces: Bools) -> Int64s:
        """Return the delay of each round: `sizes` are what is reduced where `reduces` says so."""
        extra = [
            self.reduction(size) if flag else 0
            for size, flag in zip(sizes.tolist(), reduces.tolist(), strict=True)
        ]
        return self.delay + np.array(extra, np.int64)


def reducing_rounds(collective: CollectiveType, rounds: int, *, plain: int, reducing: int) -> Bools:
    """Return in which of its rounds a member reduces.

    Rounds come in cycles of `plain` ones and then `reducing` ones. A reduce-scatter reduces in every cycle,
    an all-reduce in the first, third, …, the others never.
    """
    cycle, position = np.divmod(np.arange(rounds), plain + reducing)
    if collective is CollectiveType.ALL_REDUCE:
        position[cycle % 2 == 1] = 0
    elif collective is not CollectiveType.REDUCE_SCATTER:
        position[:] = 0
    reduces: Bools = position >= plain
    return reduces


class CollectivePhase(Struct, frozen=True):
    """One collective among the members of one (sub-)group, as an algorithm must do it."""

    collective: CollectiveType
    algorithm: str
    members: int
    size: int
    """Bytes at the start of the phase (ASTRA-sim's phase data size)."""
    ascending: bool
    """Whether messages go to the next higher member; otherwise to the next lower."""
    endpoint: Endpoint
    dialect: Dialect
    port: float = 0.0
    """Bytes a nanosecond of the one switch port that all of a member's messages come through; 0: not so."""
    tree: int = 0
    """Double binary tree: 0 for the tree rooted at the highest member, 1 at the lowest."""

    @property
    def direction(self) -> int:
        """The offset of the next member: 1 or -1."""
        return 1 if self.ascending else -1

    @property
    def title(self) -> str:
        """Name of the phase for messages to users."""
        name = self.collective.name.lower().replace("_", "-")
        return f"{name}, {self.algorithm}, {self.size} B among {self.members}"


def message_size(phase: CollectivePhase, *, halved: bool) -> int:
    """Return the bytes of one neighbour message; `halved` states the extended dialect's sizes."""
    size, members = phase.size, phase.members
    if not halved:
        return nonzero(size if phase.collective is AG else size // members, phase)
    sizes = {AR: size // members // 2, AG: size // 2, RS: size // members, A2A: size}
    return nonzero(sizes[phase.collective], phase)


def final_size(phase: CollectivePhase) -> int:
    """Return the bytes that a phase leaves on each member, with which the next phase starts."""
    if phase.collective is RS:
        return phase.size // phase.members
    return phase.size * phase.members if phase.collective is AG else phase.size


def nonzero(size: int, phase: CollectivePhase) -> int:
    """Return a message size; a `ConfigError` refuses an empty message, which that simulator aborts on."""
    if size < 1:
        raise ConfigError(f"{phase.title}: a message would be empty; make it larger or the splits fewer")
    return size
