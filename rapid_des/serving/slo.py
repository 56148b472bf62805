"""Limits on the latencies of requests."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Floats, Int64s
from rapid_des.errors import ConfigError
from rapid_des.units import Duration

LIMITS = ("ttft", "tpot", "e2e")
"""The latencies of a request that may have a limit."""


class Latencies(Protocol):
    """The times of answered requests, in picoseconds (`result.ServeResult`)."""

    @property
    def requests(self) -> Mapping[str, Int64s]:
        """Columns by name, of which `output` is read."""
        ...

    @property
    def ttft(self) -> Int64s:
        """Time to the first token."""
        ...

    @property
    def e2e(self) -> Int64s:
        """Time to the last token."""
        ...


@dataclass(frozen=True)
class Slo:
    """Limits that a request keeps if all its times do, in picoseconds.

    >>> sorted(Slo.parse("ttft=2s tpot=50ms").limits)
    ['tpot', 'ttft']
    """

    text: str
    limits: Mapping[str, int] = field(hash=False)

    @classmethod
    def parse(cls, text: str, stated: str = "--slo") -> Slo:
        """Return what a text such as `ttft=2s tpot=50ms` states; errors name where it is `stated`.

        >>> Slo.parse("ttft=2s").limits
        {'ttft': 2000000000000}
        """
        limits: dict[str, int] = {}
        for word in text.replace(",", " ").split():
            name, _, value = word.partition("=")
            if name not in LIMITS or name in limits:
                near = difflib.get_close_matches(name, LIMITS, n=1)
                hint = f"did you mean {near[0]!r}? " if near and near[0] not in limits else ""
                problem = f"unknown limit {name!r}" if name not in LIMITS else f"{name} stands twice"
                allowed = "allowed: ttft=…, tpot=…, e2e=…, each once"
                raise ConfigError(f"{problem}; {hint}{allowed}", file=f"{stated} {text!r}")
            if not value:
                raise ConfigError(f"{name} states no time, as in {name}=2s", file=f"{stated} {text!r}")
            try:
                limits[name] = int(Duration.parse(value))
            except ValueError as error:
                raise ConfigError(str(error), file=f"{stated} {text!r}", key=name) from None
            if limits[name] <= 0:
                raise ConfigError(
                    f"{value}: no request takes no time; allowed: more than 0",
                    file=f"{stated} {text!r}",
                    key=name,
                )
        if not limits:
            raise ConfigError("states no limit, as in ttft=2s tpot=50ms", file=f"{stated} {text!r}")
        return cls(text, limits)

    def of_requests(self, *, embeds: bool, stated: str = "--slo") -> Slo:
        """Return the limits; `ConfigError` for one on what requests that want no tokens do not have."""
        if embeds and "tpot" in self.limits:
            problem = "requests of `task: embed` make no tokens one by one; allowed: ttft=…, e2e=…"
            raise ConfigError(problem, file=f"{stated} {self.text!r}", key="tpot")
        return self

    def used(self, ttft: int, e2e: int, output: int) -> float:
        """Return the largest part of a limit that one request takes, given its times and tokens out."""
        times = {"ttft": ttft, "e2e": e2e, "tpot": (e2e - ttft) / max(output - 1, 1)}
        return max(times[name] / limit for name, limit in self.limits.items())

    def used_by(self, result: Latencies) -> Floats:
        """Return the largest part of a limit that each request takes; one token takes none of `tpot`."""
        later = np.maximum(result.requests["output"] - 1, 1)
        times = {"ttft": result.ttft, "e2e": result.e2e, "tpot": (result.e2e - result.ttft) / later}
        used: Floats = np.max([times[name] / limit for name, limit in self.limits.items()], axis=0)
        return used

    def met_by(self, result: Latencies) -> NDArray[np.bool_]:
        """Return which requests keep all limits."""
        return self.used_by(result) <= 1
