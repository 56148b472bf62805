"""What evidence says: constants that changed, and how far off each measured case was before and after.

A part of the cases never enters a fit. Cases stand in the order of the sha256 of their names, and every third
is held out. A constant is kept only if the cases held out are closer to it than to what the base says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

EVERY = 3
"""The number of cases of which one is held out."""


class MeasuredCase(Struct, frozen=True):
    """A measured case, and what the machine's files say of it; times in seconds."""

    name: str
    measured: float
    before: float
    after: float
    held_out: bool

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "case": self.name,
            "measured_s": self.measured,
            "before_s": self.before,
            "after_s": self.after,
            "held_out": self.held_out,
        }


class CalibratedPart(Struct, frozen=True):
    """What one kind of evidence says of one file."""

    what: str
    """The evidence, for people, with its file."""
    target: str
    """The file that changes: device, nccl, machine or software."""
    changes: Mapping[str, object]
    """The new values by key path."""
    cases: Sequence[MeasuredCase]

    @property
    def kept(self) -> bool:
        """Whether the changes lower the error of the cases that are held out."""
        before, after = self.errors(held_out=True)
        return bool(self.changes) and after < before

    def errors(self, *, held_out: bool) -> tuple[float, float]:
        """Return the mean absolute errors in percent, before and after; 0 where there is no such case."""
        chosen = [case for case in self.cases if case.held_out == held_out]
        sides = ((case.before, case.after) for case in chosen)
        pairs = [
            [abs(value / case.measured - 1.0) for value in side]
            for case, side in zip(chosen, sides, strict=True)
        ]
        means = (100.0 * sum(column) / len(chosen) for column in zip(*pairs, strict=True))
        before, after = means if chosen else (0.0, 0.0)
        return before, after

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        parts = {"fitted": False, "held_out": True}
        errors = {name: self.errors(held_out=held) for name, held in parts.items()}
        return {
            "evidence": self.what,
            "file": self.target,
            "changes": dict(self.changes),
            "kept": self.kept,
            "mean_abs_pct": {name: {"before": pair[0], "after": pair[1]} for name, pair in errors.items()},
            "cases": [case.as_json() for case in self.cases],
        }


def held_out(names: Sequence[str]) -> list[bool]:
    """Return which cases are held out: every third in the order of their names' sha256.

    >>> held_out(["a", "b", "c"])
    [True, False, False]
    """
    order = sorted(set(names), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    chosen = set(order[EVERY - 1 :: EVERY]) or set(order[1:2])
    return [name in chosen for name in names]


def most_useful(
    free: Sequence[str],
    names: Sequence[str],
    error: Callable[[Sequence[str], Sequence[int], Sequence[int]], float],
) -> Sequence[str]:
    """Return how many of the constants, the first ones, the cases bear: by a part of the fitted cases alone.

    `error` fits constants to the cases of the first numbers and returns the error of those of the second.
    """
    apart = held_out([f"within {name}" for name in names])
    kept, out = ([number for number, is_out in enumerate(apart) if is_out == side] for side in (False, True))
    if not out or not kept:
        return free[:1]
    sizes = sorted({1, (len(free) + 1) // 2, len(free)} - {0})
    best = min(sizes, key=lambda size: error(free[:size], kept, out)) if sizes else 0
    return free[:best]
