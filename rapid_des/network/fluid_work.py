"""Exact integer arithmetic of work drained at a rate, within 64 bits, for Python and numba alike.

A rate is in 1/16 byte a second, work in 1/16 byte (`left`) and, for what is below, in 1e-12 of that
(`fraction`): a rate times picoseconds is then a whole number, so nothing is ever lost to rounding.
"""

from __future__ import annotations

from rapid_des.compiling import compilable

SCALE = 16
"""Work units a byte, and rate units a byte a second."""
MOST_BANDWIDTH = 10**14
"""Bytes a second that the arithmetic holds, with 5,000 flows on one link; at a thousandth, with 5 million."""
NEVER = 2**63 - 1

_FRACTION_ONE = 10**12
_HALF = 10**6
_MOST_SECONDS = 4 * 10**6


@compilable
def drain_time(left: int, fraction: int, rate: int) -> int:
    """Return the least picoseconds by which `rate` has drained the work; NEVER at rate 0 or past 46 days.

    >>> drain_time(3 * SCALE, 0, 2 * SCALE)
    1500000000000
    """
    if rate == 0 or left // rate > _MOST_SECONDS:
        return NEVER
    picoseconds, rest, power = left // rate, left % rate, _FRACTION_ONE
    for _ in range(6):
        power //= 100
        rest = rest * 100 + fraction // power % 100
        picoseconds = picoseconds * 100 + rest // rate
        rest %= rate
    return picoseconds + (1 if rest > 0 else 0)


@compilable
def drained(left: int, fraction: int, rate: int, elapsed: int) -> tuple[int, int]:
    """Return the work that is left after `elapsed` picoseconds, none below zero.

    >>> drained(3 * SCALE, 0, 2 * SCALE, 750_000_000_000)
    (24, 0)
    """
    rate_high, rate_low = rate // _HALF, rate % _HALF
    time_high, time_low = elapsed // _HALF, elapsed % _HALF
    middle = rate_high * time_low + rate_low * time_high
    small = (middle % _HALF) * _HALF + rate_low * time_low
    whole = rate_high * time_high + middle // _HALF + small // _FRACTION_ONE
    fraction -= small % _FRACTION_ONE
    if fraction < 0:
        fraction += _FRACTION_ONE
        whole += 1
    if whole > left:
        return 0, 0
    return left - whole, fraction


@compilable
def portion(rate: int, ratio: int) -> int:
    """Return `ratio` / 65,536 of a rate, rounded down: the load of a flow's acknowledgements."""
    return (rate // 256) * ratio // 256
