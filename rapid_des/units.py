"""Quantities: text with a unit to exact integers, and back.

Inside the library a time is integer picoseconds, a size integer bytes and a rate integer units a second.
This module alone converts. Prefixes are decimal (GB = 10**9 bytes) unless spelled binary (GiB = 2**30 bytes);
`b` is a bit, `B` a byte. Durations, and sizes given in bits, round up; a bare number is refused.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import ClassVar, Self

PS_PER_NS = 1_000
PS_PER_US = 1_000_000
PS_PER_MS = 1_000_000_000
PS_PER_S = 1_000_000_000_000

_NUMBER = re.compile(
    r"\s*([+-]?(?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*(.*?)\s*\Z", re.DOTALL
)
_LONGEST = 100
"""The most characters of a quantity's text."""
_INT64_MAX = 2**63 - 1
_DECIMAL_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY_PREFIXES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}


def _byte_units(suffix: str = "") -> dict[str, Decimal]:
    prefixes = {**_DECIMAL_PREFIXES, **_BINARY_PREFIXES}
    units = {f"{prefix}B{suffix}": Decimal(factor) for prefix, factor in prefixes.items()}
    return units | {f"{prefix}b{suffix}": Decimal(factor) / 8 for prefix, factor in prefixes.items()}


class Quantity(int):
    """A non-negative integer in one base unit that is written with a unit.

    >>> Duration.parse("1.2 us"), Size.parse("80 GiB"), Bandwidth.parse("400 Gb/s")
    (Duration('1.2 us'), Size('80 GiB'), Bandwidth('50 GB/s'))
    """

    units: ClassVar[dict[str, Decimal]] = {}
    example: ClassVar[str] = ""
    shown: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def parse(cls, text: object) -> Self:
        """Return the quantity that `text` names; `ValueError` says which units are allowed."""
        match = _NUMBER.match(text) if isinstance(text, str) and len(text) <= _LONGEST else None
        if match is None:
            shown = repr(text) if len(repr(text)) <= _LONGEST else f"{repr(text)[:60]}…"
            raise ValueError(f"{shown} is not a quantity such as {cls.example!r}")
        number, unit = match.groups()
        if unit not in cls.units:
            said = f"unit {unit!r}" if unit else "no unit"
            raise ValueError(f"{text!r} has {said}; allowed: {', '.join(cls.units)} (as in {cls.example!r})")
        exact = Decimal(number.replace("_", "")) * cls.units[unit]
        if exact < 0 or exact > _INT64_MAX:
            raise ValueError(f"{text!r} is out of range; allowed: 0 to 2**63-1 in the base unit")
        return cls(exact.to_integral_value(rounding=ROUND_CEILING))

    def __str__(self) -> str:
        """Return an exact spelling if one has at most six digits, else four digits of the largest unit.

        >>> str(Duration(2_698_514_613_504)), str(Duration(1_200_000)), str(Size(80 * 2**30))
        ('2.699 s', '1.2 us', '80 GiB')
        >>> str(Duration(17_940_123_456_789_012))
        '17940 s'
        """
        values = {name: Decimal(int(self)) / self.units[name] for name in self.shown}
        for name, value in values.items():
            if value >= 1 and len(value.normalize().as_tuple().digits) <= 6:
                return f"{value.normalize():f} {name}"
        for name, value in values.items():
            if value >= 1:
                return f"{float(value):.4g} {name}" if value < 9999.5 else f"{float(value):.0f} {name}"
        return f"{int(self)} {self.shown[-1]}"

    def exact(self) -> str:
        """Return a spelling that parses to this very value.

        >>> Bandwidth(3_350_000_000_001).exact(), Bandwidth(3_350_000_000_000).exact()
        ('3350000000001 B/s', '3.35 TB/s')
        """
        spelled = str(self)
        return spelled if type(self).parse(spelled) == self else f"{int(self)} {self.shown[-1]}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class Duration(Quantity):
    """A time in picoseconds.

    >>> Duration.parse("1.5 ms"), int(Duration.parse("1.5 ms"))
    (Duration('1.5 ms'), 1500000000)
    """

    units: ClassVar = {
        "ps": Decimal(1),
        "ns": Decimal(PS_PER_NS),
        "us": Decimal(PS_PER_US),
        "µs": Decimal(PS_PER_US),
        "ms": Decimal(PS_PER_MS),
        "s": Decimal(PS_PER_S),
        "min": Decimal(60 * PS_PER_S),
        "h": Decimal(3600 * PS_PER_S),
    }
    example: ClassVar = "1.2 us"
    shown: ClassVar = ("s", "ms", "us", "ns", "ps")

    @property
    def seconds(self) -> float:
        """The time in seconds."""
        return seconds(self)

    def __str__(self) -> str:
        """Return a quantity's spelling; no time is `0 s`.

        >>> str(Duration(0)), str(Duration(1))
        ('0 s', '1 ps')
        """
        return super().__str__() if self else "0 s"


class Size(Quantity):
    """A size in bytes.

    >>> int(Size.parse("4 KiB"))
    4096
    """

    units: ClassVar = _byte_units()
    example: ClassVar = "80 GiB"
    shown: ClassVar = ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "KB", "B")


class Bandwidth(Quantity):
    """A data rate in bytes a second.

    >>> int(Bandwidth.parse("400 Gb/s"))
    50000000000
    """

    units: ClassVar = _byte_units("/s") | {
        f"{prefix}bps": Decimal(factor) / 8 for prefix, factor in _DECIMAL_PREFIXES.items()
    }
    example: ClassVar = "450 GB/s"
    shown: ClassVar = ("TB/s", "GB/s", "MB/s", "KB/s", "B/s")


class FlopRate(Quantity):
    """An arithmetic rate in operations a second (a fused multiply-add counts two)."""

    units: ClassVar = {
        f"{prefix}{name}/s": Decimal(factor)
        for name in ("FLOP", "OP")
        for prefix, factor in _DECIMAL_PREFIXES.items()
    }
    example: ClassVar = "312 TFLOP/s"
    shown: ClassVar = ("PFLOP/s", "TFLOP/s", "GFLOP/s", "MFLOP/s", "FLOP/s")


class Frequency(Quantity):
    """A clock rate in hertz."""

    units: ClassVar = {f"{prefix}Hz": Decimal(factor) for prefix, factor in _DECIMAL_PREFIXES.items()}
    example: ClassVar = "1.41 GHz"
    shown: ClassVar = ("GHz", "MHz", "kHz", "Hz")


class Power(Quantity):
    """A power in milliwatts."""

    units: ClassVar = {"mW": Decimal(1), "W": Decimal(1000), "kW": Decimal(10**6)}
    example: ClassVar = "400 W"
    shown: ClassVar = ("kW", "W", "mW")

    @property
    def watts(self) -> float:
        """The power in watts."""
        return int(self) / 1000


class EventRate(Quantity):
    """How often something happens, in times a thousand hours.

    >>> EventRate.parse("4/s"), EventRate.parse("240/min") == EventRate.parse("4/s")
    (EventRate('4 /s'), True)
    """

    units: ClassVar = {"/s": Decimal(3_600_000), "/min": Decimal(60_000), "/h": Decimal(1_000)}
    example: ClassVar = "4/s"
    shown: ClassVar = ("/s", "/h")

    @property
    def per_second(self) -> float:
        """Return how often a second."""
        return self / 3_600_000


class LongDuration(Quantity):
    """A time in microseconds: for times between failures, which pass what picoseconds hold.

    >>> LongDuration.parse("54 d"), LongDuration.parse("50000 h").picoseconds
    (LongDuration('54 d'), 180000000000000000000)
    """

    units: ClassVar = {
        "us": Decimal(1),
        "ms": Decimal(1000),
        "s": Decimal(10**6),
        "min": Decimal(60 * 10**6),
        "h": Decimal(3600 * 10**6),
        "d": Decimal(24 * 3600 * 10**6),
        "y": Decimal(8760 * 3600 * 10**6),
    }
    example: ClassVar = "5 min"
    shown: ClassVar = ("d", "h", "min", "s", "ms", "us")

    @property
    def picoseconds(self) -> int:
        """The time in picoseconds."""
        return int(self) * PS_PER_US

    def __str__(self) -> str:
        """Return a quantity's spelling; no time is `0 s`."""
        return super().__str__() if self else "0 s"


class FailureRate(Quantity):
    """How often a part fails, in failures in 10**15 hours; a FIT is one failure in 10**9 hours.

    >>> FailureRate.parse("500 FIT").mean_time
    LongDuration('2000000 h')
    """

    units: ClassVar = {
        "FIT": Decimal(10**6),
        "/h": Decimal(10**15),
        "/d": Decimal(10**15) / 24,
        "/y": Decimal(10**15) / 8760,
        "uFIT": Decimal(1),
    }
    example: ClassVar = "6.5e-3 /d"
    shown: ClassVar = ("/h", "FIT", "uFIT")

    @property
    def mean_time(self) -> LongDuration:
        """The mean time between failures of a part whose rate is above 0."""
        return LongDuration(round(Decimal(10**15) * LongDuration.units["h"] / int(self)))


_WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,18})\Z")


def whole_number(text: str, least: int = 0, most: int = _INT64_MAX) -> int:
    """Return the whole number that ASCII digits without leading zeros state; `ValueError` says the range.

    >>> whole_number("17"), whole_number("-5", least=-8)
    (17, -5)
    """
    number = int(text) if _WHOLE.match(text) else None
    if number is None or not least <= number <= most:
        shown = text if len(text) <= _LONGEST else f"{text[:60]}…"
        raise ValueError(f"{shown!r} is no whole number; allowed: {least} to {most}")
    return number


def seconds(picoseconds: int) -> float:
    """Return a time in seconds, for people and for JSON.

    >>> seconds(1_500_000_000)
    0.0015
    """
    return picoseconds / PS_PER_S


def time_text(picoseconds: int) -> str:
    """Return a time or a difference of times as people write it.

    >>> time_text(0), time_text(-1_500_000)
    ('0', '-1.5 us')
    """
    if picoseconds == 0:
        return "0"
    return f"{'-' if picoseconds < 0 else ''}{Duration(abs(picoseconds))}"


def serialization_time(size: int, bandwidth: int) -> int:
    """Return the picoseconds, rounded up, that `size` bytes take at `bandwidth` bytes/s.

    >>> serialization_time(4096, 50_000_000_000)
    81920
    """
    return -(-size * PS_PER_S // bandwidth)


def ceil_divide(numerator: int, denominator: int) -> int:
    """Return `numerator / denominator` rounded up.

    >>> ceil_divide(7, 2)
    4
    """
    return -(-numerator // denominator)
