"""Distributions of a fault's numbers: drawn by inversion, so that one uniform number is one draw.

    bandwidth=normal(0.5,0.1)  latency=lognormal(2us,0.5)  count=poisson(1.5)  compute=choice(0.9:3,0.5:1)

What a key does not allow is cut off: a draw is from the distribution *given* that it is allowed (truncated),
and from what `normal` and `lognormal` state as third and fourth argument. Draws are rounded to six digits, or
to whole picoseconds, bytes and counts, so that they are written down exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import comb, exp, inf, isfinite, log
from pathlib import Path
from statistics import NormalDist

from msgspec import Struct

from rapid_des.config import read_text
from rapid_des.errors import ConfigError
from rapid_des.network.protocol import MOST_LATENCY
from rapid_des.units import Duration, Quantity, Size, whole_number

_CALL = re.compile(r"([A-Za-z_]+)\((.*)\)\Z", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?\Z")
_NORMAL = NormalDist()
_LEAST_MASS = 1e-9
"""The least probability that a distribution must have within the allowed range."""
_MOST_CUT = 1e-5
"""The largest share of a uniform distribution that may be cut off, so that 0 may be stated for the least
allowed value.
"""
_MOST_COUNT = 100_000
_LEAST = 1e-6


class Measure(Struct, frozen=True):
    """The measure of a key's numbers: how they are read, which are allowed, and how one is written."""

    low: float
    high: float
    quantity: type[Quantity] | None = None
    whole: bool = False

    def read(self, text: str) -> float:
        """Return the number that an argument states; `ValueError` says what is allowed."""
        text = text.strip()
        if self.quantity is not None:
            return float(self.quantity.parse(text))
        if self.whole and not _NUMBER.match(text):
            return float(whole_number(text))
        if not _NUMBER.match(text):
            raise ValueError(f"{text!r} is no number")
        return float(text)

    def written(self, value: float) -> str | int | float:
        """Return a drawn number as a fault's document holds it."""
        value = min(max(value, self.low), self.high)
        if self.quantity is not None:
            return self.quantity(round(value)).exact()
        return round(value) if self.whole else float(f"{value:.6g}")


_SHARE = Measure(_LEAST, 1.0)
_PROBABILITY = Measure(0.0, 1 - _LEAST)
_TIME = Measure(0.0, MOST_LATENCY, Duration)
_DURATION = Measure(1.0, MOST_LATENCY, Duration)
_COUNT = Measure(0.0, _MOST_COUNT, whole=True)
MEASURES: Mapping[str, Measure] = {
    "count": _COUNT,
    "bandwidth": _SHARE,
    "compute": _SHARE,
    "hbm": _SHARE,
    "load": Measure(_LEAST, 1 - _LEAST),
    "peak": _SHARE,
    "packet_loss": _PROBABILITY,
    "bit_error_rate": _PROBABILITY,
    "packet": Measure(1.0, 2.0**40, Size),
    "latency": _TIME,
    "jitter": _TIME,
    "jitter_every": _DURATION,
    "burst": _DURATION,
    "from": _TIME,
    "until": _DURATION,
    "every": _DURATION,
    "for": _DURATION,
    "detection": _TIME,
    "from_step": _COUNT,
    "until_step": _COUNT,
    "from_progress": Measure(0.0, 1.0),
    "until_progress": Measure(0.0, 1.0),
}
"""The keys whose numbers may be drawn, with their measures."""


class Distribution(Struct, frozen=True):
    """A distribution of one key's numbers.

    >>> half = distribution("normal(0.5,0.1)", "bandwidth")
    >>> half.at(0.5), half.at(0.975)
    (0.5, 0.695996)
    """

    text: str
    measure: Measure
    quantile: Callable[[float], float]
    """The inverse distribution function within the allowed range, for arguments between 0 and 1."""
    values: tuple[tuple[float, float], ...] = ()
    """The (value, probability) pairs of all values, where the distribution lists its values."""

    def at(self, uniform: float) -> str | int | float:
        """Return the draw that a number between 0 and 1 stands for, as a document holds it."""
        return self.measure.written(self.quantile(uniform))


def is_distribution(text: str, key: str) -> bool:
    """Whether a key's value is written as a distribution is: `name(…)`, of numbers whatever the name.

    >>> is_distribution("gauss(0.5,0.1)", "bandwidth"), is_distribution("rack(3)", "node")
    (True, False)
    """
    called = _CALL.match(text.strip())
    return called is not None and (key in MEASURES or called[1] in (*_FAMILIES, *_LISTS))


def distribution(text: str, key: str) -> Distribution:
    """Return the distribution that `name(arguments)` states for a key's numbers.

    `ConfigError` says what is allowed.
    """
    if key not in MEASURES:
        raise ConfigError(f"{text}: not a number to be drawn; these are {', '.join(MEASURES)}", key=key)
    return distribution_of(text, MEASURES[key], key)


def distribution_of(text: str, measure: Measure, key: str) -> Distribution:
    """Return the distribution that `name(arguments)` states for numbers of a measure.

    `ConfigError` names the key and says what is allowed.
    """
    called = _CALL.match(text.strip())
    if called is None or called[1] not in (*_FAMILIES, *_LISTS):
        names = ", ".join((*_FAMILIES, *_LISTS))
        raise ConfigError(f"{text!r} is no distribution; allowed: {names}, each with (…)", key=key)
    name, arguments = called[1], [part for part in called[2].split(",") if part.strip()]
    try:
        if name in _LISTS:
            weighted = _LISTS[name](arguments, measure)
            return Distribution(text, measure, _listed(weighted, measure), tuple(weighted))
        return Distribution(text, measure, _truncated(name, arguments, measure))
    except ValueError as error:
        raise ConfigError(f"{text}: {error}", key=key) from None


class _Family(Struct, frozen=True):
    """A family of distributions: its arguments, and what follows from their values."""

    arguments: tuple[str, ...]
    quantities: int
    """The number of leading arguments in the key's own unit; the other arguments are plain numbers."""
    make: Callable[[Sequence[float]], tuple[Callable[[float], float], Callable[[float], float]]]
    """Returns the distribution function and its inverse for the given arguments."""
    bounds: bool = False
    """Whether two more arguments may limit the range."""


def _truncated(name: str, arguments: Sequence[str], measure: Measure) -> Callable[[float], float]:
    family = _FAMILIES[name]
    needed = len(family.arguments)
    if len(arguments) not in ({needed, needed + 2} if family.bounds else {needed}):
        more = "[, least, most]" if family.bounds else ""
        raise ValueError(f"allowed: {name}({', '.join(family.arguments)}{more})")
    plain = Measure(-inf, inf)
    units = [measure if place < family.quantities else plain for place in range(needed)]
    stated = [unit.read(text) for unit, text in zip(units, arguments, strict=False)]
    low, high = [measure.read(text) for text in arguments[needed:]] or (measure.low, measure.high)
    low, high = max(low, measure.low), min(high, measure.high)
    if low >= high:
        raise ValueError(f"nothing is allowed between {low:g} and {high:g}")
    below, inverse = family.make(stated)
    first = below(low - 1) if measure.whole else below(low)
    mass = below(high) - first
    if mass < _LEAST_MASS:
        raise ValueError(f"it is almost never between {low:g} and {high:g}, which is what the key allows")
    if name == "uniform" and mass < 1 - _MOST_CUT:  # its ends are meant as they stand
        raise ValueError(
            f"{1 - mass:.0%} of it is not between {low:g} and {high:g}, which is what the key allows"
        )
    return lambda uniform: min(max(inverse(first + uniform * mass), low), high)


def _positive(value: float, what: str) -> float:
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{what} must be above 0")
    return value


def _normal(stated: Sequence[float]) -> tuple[Callable[[float], float], Callable[[float], float]]:
    normal = NormalDist(stated[0], _positive(stated[1], "the deviation"))
    return normal.cdf, lambda p: normal.inv_cdf(_inside(p))


def _lognormal(stated: Sequence[float]) -> tuple[Callable[[float], float], Callable[[float], float]]:
    middle, spread = log(_positive(stated[0], "the median")), _positive(stated[1], "sigma")
    normal = NormalDist(middle, spread)
    return lambda x: normal.cdf(log(x)) if x > 0 else 0.0, lambda p: exp(normal.inv_cdf(_inside(p)))


def _uniform(stated: Sequence[float]) -> tuple[Callable[[float], float], Callable[[float], float]]:
    low, high = stated
    if low >= high:
        raise ValueError("the first must be below the second")
    return lambda x: min(max((x - low) / (high - low), 0.0), 1.0), lambda p: low + p * (high - low)


def _weibull(stated: Sequence[float]) -> tuple[Callable[[float], float], Callable[[float], float]]:
    scale, shape = _positive(stated[0], "the scale"), _positive(stated[1], "the shape")
    return (
        lambda x: 1 - exp(-((x / scale) ** shape)) if x > 0 else 0.0,
        lambda p: float(scale * (-log(1 - _inside(p))) ** (1 / shape)),
    )


def _exponential(stated: Sequence[float]) -> tuple[Callable[[float], float], Callable[[float], float]]:
    return _weibull((stated[0], 1.0))


def _poisson(stated: Sequence[float]) -> tuple[Callable[[float], float], Callable[[float], float]]:
    mean = _positive(stated[0], "the mean")
    if mean > 500:
        raise ValueError("allowed: a mean up to 500")
    last, probabilities, term = int(mean + 20 * mean**0.5 + 20), [exp(-mean)], exp(-mean)
    for count in range(1, last + 1):
        term *= mean / count
        probabilities.append(term)
    return _counted(probabilities)


def _binomial(stated: Sequence[float]) -> tuple[Callable[[float], float], Callable[[float], float]]:
    n, p = stated
    if n != int(n) or not 1 <= n <= 1000 or not 0 <= p <= 1:
        raise ValueError("allowed: a whole number of parts up to 1000, and a probability")
    count = int(n)
    return _counted([comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(count + 1)])


def _counted(probabilities: Sequence[float]) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Return the distribution function of 0, 1, … with these probabilities, and its inverse."""
    sums = [*accumulate(probabilities)]

    def below(x: float) -> float:
        return 0.0 if x < 0 else sums[min(int(x), len(sums) - 1)]

    def inverse(p: float) -> float:
        return float(next((count for count, total in enumerate(sums) if p < total), len(sums) - 1))

    return below, inverse


def _inside(p: float) -> float:
    """Return a probability for which inverses are finite."""
    return min(max(p, 1e-15), 1 - 1e-15)


def _choice(arguments: Sequence[str], measure: Measure) -> list[tuple[float, float]]:
    if not arguments:
        raise ValueError("allowed: choice(value, …), or with weights choice(value:weight, …)")
    pairs = [part.partition(":") for part in arguments]
    weights = [float(weight) if colon else 1.0 for _, colon, weight in pairs]
    return _weighted([measure.read(text) for text, *_ in pairs], weights)


def _empirical(arguments: Sequence[str], measure: Measure) -> list[tuple[float, float]]:
    """Return the values of a CSV's only column, or of the one that is named, each as likely as the others."""
    if len(arguments) not in (1, 2):
        raise ValueError("allowed: empirical(FILE.csv), or empirical(FILE.csv, COLUMN)")
    path = Path(arguments[0].strip().strip("'\""))
    rows = [line.split(",") for line in read_text(path).splitlines() if line.strip() and line[0] != "#"]
    column = 0
    if len(arguments) == 2:
        header = [cell.strip() for cell in rows[0]] if rows else []
        if arguments[1].strip() not in header:
            raise ValueError(f"{path} has no column {arguments[1].strip()!r}; it has {', '.join(header)}")
        column, rows = header.index(arguments[1].strip()), rows[1:]
    elif rows and len(rows[0]) > 1:
        raise ValueError(f"{path} has {len(rows[0])} columns: name one, as in empirical(FILE.csv, COLUMN)")
    elif rows and rows[0][0].strip()[:1].isalpha():
        rows = rows[1:]  # the only column's name
    if not rows:
        raise ValueError(f"{path} holds no values")
    return _weighted([_cell(row, column, measure, path) for row in rows], [1.0] * len(rows))


def _cell(row: Sequence[str], column: int, measure: Measure, path: Path) -> float:
    if column >= len(row):
        raise ValueError(f"{path}: a row has {len(row)} cells, not {column + 1}")
    try:
        return measure.read(row[column])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _weighted(values: Sequence[float], weights: Sequence[float]) -> list[tuple[float, float]]:
    if not all(isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError("weights must be above 0")
    total, summed = sum(weights), dict[float, float]()
    for value, weight in zip(values, weights, strict=True):
        summed[value] = summed.get(value, 0.0) + weight / total
    return sorted(summed.items())


def _listed(weighted: Sequence[tuple[float, float]], measure: Measure) -> Callable[[float], float]:
    for value, _ in weighted:
        if not measure.low <= value <= measure.high:
            raise ValueError(f"{value:g} is not allowed: {measure.low:g} to {measure.high:g}")
    sums = [*accumulate(share for _, share in weighted)]
    return lambda uniform: next(
        (value for (value, _), total in zip(weighted, sums, strict=True) if uniform < total), weighted[-1][0]
    )


_FAMILIES: Mapping[str, _Family] = {
    "normal": _Family(("mean", "deviation"), 2, _normal, bounds=True),
    "lognormal": _Family(("median", "sigma of the logarithm"), 1, _lognormal, bounds=True),
    "uniform": _Family(("least", "most"), 2, _uniform),
    "exponential": _Family(("mean",), 1, _exponential),
    "weibull": _Family(("scale", "shape"), 1, _weibull),
    "poisson": _Family(("mean",), 0, _poisson),
    "binomial": _Family(("parts", "probability"), 0, _binomial),
}
_LISTS: Mapping[str, Callable[[Sequence[str], Measure], list[tuple[float, float]]]] = {
    "choice": _choice,
    "empirical": _empirical,
}
