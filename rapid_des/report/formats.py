"""Values as text in reports; `shown` formats a value by the unit in its key."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rapid_des.units import PS_PER_S, Size, time_text

_GIB = 2**30
_HEADINGS = {"id": "point", "tokens_per_s": "tokens/s", "tokens_per_gpu_s": "tokens/s/GPU"}
_HEADINGS |= {"mfu": "MFU", "gpus": "GPUs"}
_UNITS = ("_s", "_ps", "_bytes", "_j")


def heading(key: str) -> str:
    """Return the title of a column.

    >>> heading("step_time_s"), heading("tp"), heading("mfu")
    ('step time', 'tp', 'MFU')
    """
    unit = next((unit for unit in _UNITS if key.endswith(unit)), "")
    return _HEADINGS.get(key) or key.removesuffix(unit).replace("_", " ")


def shown(key: str, value: Any) -> str:
    """Return a value as text, by the unit in its key.

    >>> shown("step_time_s", 0.0015), shown("mfu", 0.5), shown("memory_bytes", 2**30), shown("mfu", None)
    ('1.5 ms', '50.0%', '1 GiB', '-')
    """
    if value is None or isinstance(value, str):
        return "-" if value is None else value
    if key == "mfu":
        return f"{value:.1%}"
    if key.startswith("tokens_per"):
        return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"
    if key.endswith(_UNITS):
        return _with_unit(key, value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _with_unit(key: str, value: float) -> str:
    if key.endswith("_bytes"):
        return f"{value / _GIB:.4g} GiB" if value >= _GIB else str(Size(round(value)))
    if key.endswith("_j"):
        return f"{value / 1000:.4g} kJ"
    return time_text(round(value) if key.endswith("_ps") else round(value * PS_PER_S))


def counted(number: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "file"), counted(2000, "file")
    ('1 file', '2,000 files')
    """
    return f"{number:,} {noun}" + "s" * (number != 1)


def seconds_text(seconds: float | None) -> str:
    """Return a time in seconds as people write it.

    >>> seconds_text(0.0015), seconds_text(None)
    ('1.5 ms', '–')
    """
    return "–" if seconds is None else time_text(round(seconds * PS_PER_S))


def added_text(picoseconds: int) -> str:
    """Return a difference of times with its sign.

    >>> added_text(1_500_000)
    '+1.5 us'
    """
    return ("+" if picoseconds > 0 else "") + time_text(picoseconds)


def change_text(after: float, before: float) -> str:
    """Return by how many percent a time is longer than another one.

    >>> change_text(3, 2)
    '+50.00%'
    """
    return f"{after / max(before, 1e-12) - 1:+.2%}"


def names_text(names: Sequence[str], most: int = 8) -> str:
    """Return the first names, and how many more there are.

    >>> names_text(["a", "b", "c"], 2)
    'a, b, … 1 more'
    """
    more = f", … {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def spans(numbers: Sequence[int]) -> str:
    """Return numbers as text, with runs of consecutive ones as ranges.

    >>> spans((2, 0, 1, 5))
    '0-2 5'
    """
    runs = groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(members) for _, members in runs)]
    return " ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ends)
