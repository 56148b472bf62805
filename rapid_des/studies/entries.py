"""Candidates in the queue of a search, each at what is known of it, and those that are none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from rapid_des.report.result import Result
from rapid_des.studies.splits import Family

Why = Literal["memory", "bound", "refused"]
PLAIN, KERNELS, EXCHANGED, BOUNDED, ESTIMATED, FINAL = range(6)
"""The levels of knowledge: bounds of kernels (not run again, all), with their layers' messages, of the whole
step; then both simulated steps."""


@dataclass(order=True)
class Entry:
    """Candidates in the queue."""

    least: int
    """Picoseconds that each takes at least, by what is known."""
    number: tuple[int, ...]
    """The number of the family, and the place in it: ties are broken by the order of the space."""
    family: Family = field(compare=False)
    level: int = field(default=PLAIN, compare=False)
    result: Result | None = field(default=None, compare=False)

    @property
    def certain(self) -> bool:
        """Whether nothing is left to be found out."""
        return self.level == FINAL

    @property
    def flattened(self) -> int:
        """What its flattened steps take at least, in picoseconds."""
        bound = None if self.result is None else self.result.mode_bound
        return self.least if bound is None else min(self.least, bound.low)

    @property
    def key(self) -> tuple[tuple[int, ...], int]:
        """What no other entry of a search has."""
        return self.number, self.level

    def part(self, place: int, family: Family, *, level: int, least: int) -> Entry:
        """Return a part of these candidates, with a bound that holds for it."""
        return Entry(max(self.least, least), (*self.number, place), family, level)


class Out(Struct, frozen=True):
    """Candidates that are none, and why."""

    family: Family
    why: Why
    text: str
