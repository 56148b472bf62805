"""How far a mode's step may be from the flattened one."""

from __future__ import annotations

import msgspec

from rapid_des.units import Duration, seconds

FAR = 0.05
"""The share of a step from which on reports show its bound beside it."""


class ModeBound(msgspec.Struct, frozen=True):
    """Where the flattened step lies, by what a mode leaves out; times in picoseconds.

    >>> bound = ModeBound(100_000_000, 120_000_000, "gpu0>switch0", "2 links carry what is simulated apart")
    >>> bound.as_json(), bound.width
    ({'low': 0.0001, 'high': 0.00012}, 20000000)
    """

    low: int
    """The flattened step is this long or longer."""
    high: int
    """The flattened step is this long or shorter."""
    link: str | None
    """The fullest link of those where the mode leaves out waiting; None: there is none."""
    reason: str
    """What the mode leaves out."""

    @property
    def width(self) -> int:
        """The difference between the high end and the low one."""
        return self.high - self.low

    def as_json(self) -> dict[str, float]:
        """Return both ends in seconds."""
        return {"low": seconds(self.low), "high": seconds(self.high)}

    def most(self, step: int) -> float:
        """Return the share by which the flattened step may be longer than `step` picoseconds.

        >>> ModeBound(100, 120, None, "all").most(100)
        0.2
        """
        return (self.high - step) / max(step, 1)

    def row(self, step: int) -> dict[str, str]:
        """Return where the flattened step lies, as a row of a report, where it may be far from a step.

        >>> ModeBound(100_000, 120_000, None, "all").row(100_000)
        {'flattened step': '100 ns to 120 ns'}
        """
        if self.most(step) <= FAR:
            return {}
        return {"flattened step": f"{Duration(self.low)} to {Duration(self.high)}"}

    def note(self, step: int) -> str:
        """Return the lines of a report on a step of `step` picoseconds; empty where nothing is left out."""
        if not self.width:
            return ""
        return f"{self.reason} would add at most {Duration(self.high - step)} ({self.most(step):.1%})"


UNBOUNDED = ModeBound(0, 0, None, "not known")
