"""Times that a reliability file states: a constant such as `5 min`, or a distribution of them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from rapid_des.errors import ConfigError
from rapid_des.network.faults.distributions import Measure, distribution_of, is_distribution
from rapid_des.units import PS_PER_US, LongDuration

_TIME = Measure(0.0, float(LongDuration.parse("100 y")), LongDuration)
_POINTS = 2000
"""The number of quantiles whose mean stands for a distribution's mean."""


class Time(Struct, frozen=True):
    """A time that is drawn by inversion: one uniform number is one draw.

    >>> parse_time("5 min").at(0.9), parse_time("uniform(1 s, 3 s)").at(0.5)
    (300000000000000, 2000000000000)
    """

    text: str
    quantile: Callable[[float], float]
    """The inverse distribution function, in microseconds."""

    def at(self, uniform: float) -> int:
        """Return the time in picoseconds that a number between 0 and 1 stands for."""
        return round(self.quantile(uniform)) * PS_PER_US

    @property
    def mean(self) -> float:
        """The mean in picoseconds."""
        points = ((place + 0.5) / _POINTS for place in range(_POINTS))
        return sum(map(self.quantile, points)) / _POINTS * PS_PER_US


def constant(duration: int) -> Time:
    """Return the time of a number of picoseconds, rounded up to microseconds."""
    microseconds = float(-(-duration // PS_PER_US))
    return Time("", lambda _: microseconds)


def parse_time(text: str, *, file: str = "", key: str = "") -> Time:
    """Return the time that a text states; a `ConfigError` names the place and what is allowed."""
    if is_distribution(text, key):
        try:
            return Time(text, distribution_of(text, _TIME, key).quantile)
        except ConfigError as error:
            raise ConfigError(error.message, file=file, key=key) from None
    try:
        constant = float(LongDuration.parse(text))
    except ValueError as error:
        raise ConfigError(
            f"{error}, or a distribution such as lognormal(5 min, 0.5)", file=file, key=key
        ) from None
    return Time(text, lambda _: constant)
