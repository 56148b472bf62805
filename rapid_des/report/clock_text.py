"""The clock that a device runs at, as reports name it."""

from __future__ import annotations

from rapid_des.device.device import Device
from rapid_des.device.spec import Clock


def clock_text(device: Device) -> str:
    """Return the clock in use as reports name it, the sustained one with where it is from.

    >>> from rapid_des.device import load_device
    >>> clock_text(load_device("h100_sxm").under(clock="sustained"))
    'sustained clock 1.36 GHz (measured, within 3%; fp8 1.28 GHz)'
    """
    clock = device.spec.clock
    if device.conditions.clock == "boost":
        return f"boost clock {clock.boost}"
    return f"sustained clock {sustained_text(clock)}"


def sustained_text(clock: Clock) -> str:
    """Return a sustained clock, where it is from, how far off it may be, and those of other dtypes."""
    within = "" if clock.sustained_within is None else f", within {clock.sustained_within:.0%}"
    by_dtype = "".join(f"; {dtype} {own}" for dtype, own in clock.sustained_by_dtype.items())
    return f"{clock.sustained} ({clock.sustained_from}{within}{by_dtype})"
