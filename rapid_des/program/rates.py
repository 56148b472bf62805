"""R14: which parts are marked, and at what rate the messages of a pair of GPUs are then sent (DCQCN).

    part ──► queue: marked ──► receiver: at most one notice an interval ──► sender: the pair's rate is cut
                                                 timers and bytes raise it again, towards a target, then that

A pair's state is a row of integers, by the columns below; rates are in 1 / `FULL_RATE` of its first link's,
probabilities and alpha in 1 / `ONE`. Nothing but a notice is an event: timers are worked off when somebody
asks. The functions are shared by every engine, so plain integers.

Zhu et al., Congestion control for large-scale RDMA deployments, SIGCOMM 2015, Section 3 and Figure 7.
"""

from __future__ import annotations

from typing import Any

from rapid_des.program.timetable import FULL_RATE

BITS = 24
ONE = 1 << BITS
LONGEST = 1 << 38
"""Upper limit of thresholds in picoseconds, so that no product reaches 2**63."""
UNUSED = 32 - BITS
"""Number of bits of a draw that are not used."""
_MOST_TICKS = 1 << 41

COLUMNS = 18
CAP, LEAST, STEP, LEAP, CURRENT, TARGET, ALPHA, CUT_AT, SINCE = range(9)
"""Line rate, least rate, additive and hyper increase; current and target rate; alpha and when it was last
raised, which is the last cut; since when the timer runs."""
TIMES, STAGES, SENT, FRESH, FRESH_AT, NOTICED_AT, CUTS, HELD, SLOWEST = range(9, COLUMNS)
"""Stages of timer and byte counter since the last cut; bytes since the last stage, and of those that started
at `FRESH_AT`, which count from the next instant on; when the receiver last sent a notice. What comes of it:
cuts, picoseconds by which parts went later, the least rate."""
GAIN, ALPHA_TIMER, TIMER, BYTES, FAST, CLAMPS, INTERVAL, MOST, SEED = range(9)
"""Columns of `RateTable.control`: alpha's gain, its timer, the timer and bytes of a stage (bytes 0: no such
counter), stages of fast recovery, whether every cut moves the target, the interval of notices; the
probability of a mark at the upper threshold, and the seed of draws."""


def power(part: int, times: int) -> int:
    """Return a fraction in 1 / `ONE` raised to a power.

    >>> power(ONE // 2, 3) == ONE // 8, power(0, 0) == ONE
    (True, True)
    """
    result = ONE
    while times > 0:
        if times & 1:
            result = result * part >> BITS
        part = part * part >> BITS
        times >>= 1
    return result


def chance(waiting: int, thresholds: tuple[int, int], most: int, packets: int) -> int:
    """Return the probability that a part is marked: that any of its packets is, by what waits.

    `thresholds` and what waits are picoseconds of the link; a lower one below 0: it marks nothing.

    >>> chance(30, (20, 60), ONE // 2, 1) == ONE // 8, chance(60, (20, 60), ONE // 2, 1) == ONE
    (True, True)
    """
    first, full = thresholds
    if first < 0 or waiting < first:
        return 0
    if waiting >= full:
        return ONE
    return ONE - power(ONE - most * (waiting - first) // (full - first), packets)


def which(part: int, place: int) -> int:
    """Return the purpose of a draw: a part at one of its hops."""
    return part * 256 + place


def notifies(row: Any, control: Any, now: int) -> bool:
    """Return whether the receiver of a marked part sends a notice, and record that it did."""
    if row[NOTICED_AT] >= 0 and now - row[NOTICED_AT] < control[INTERVAL]:
        return False
    row[NOTICED_AT] = now
    return True


def lasts(service: int, rate: int) -> int:
    """Return the duration of a part at a rate, given its service time at full rate.

    >>> lasts(1000, FULL_RATE), lasts(1001, FULL_RATE // 2), lasts(10, FULL_RATE // 3)
    (1000, 2002, 31)
    """
    whole = min(service // rate, _MOST_TICKS) * FULL_RATE
    return whole + (service % rate * FULL_RATE + rate - 1) // rate


def paced(row: Any, control: Any, now: int, part: tuple[int, int]) -> int:
    """Count a part (bytes, service time) that is handed over; return its duration at the pair's rate."""
    size, service = part
    advance(row, control, now)
    row[FRESH] += size
    row[FRESH_AT] = now
    return lasts(service, row[CURRENT])


def cut(row: Any, control: Any, now: int) -> None:
    """Cut the sender's rate, as a notice arrives."""
    advance(row, control, now)
    released, alpha = row[CURRENT] == row[CAP], ONE
    if not released:
        quiet = (now - row[CUT_AT]) // control[ALPHA_TIMER]
        alpha = row[ALPHA] * power(ONE - control[GAIN], quiet) >> BITS
    if released or control[CLAMPS] or row[TIMES] > 0:
        row[TARGET] = row[CURRENT]
    row[CURRENT] = max(row[LEAST], row[CURRENT] - (row[CURRENT] * alpha >> BITS + 1))
    row[ALPHA] = alpha + ((ONE - alpha) * control[GAIN] >> BITS)
    row[CUT_AT] = row[SINCE] = now
    row[TIMES] = row[STAGES] = row[SENT] = row[FRESH] = 0
    row[CUTS] += 1
    row[SLOWEST] = min(row[SLOWEST], row[CURRENT])


def advance(row: Any, control: Any, now: int) -> None:
    """Let a rate rise by the bytes of earlier instants, and by the timer until now."""
    if row[FRESH_AT] < now:
        row[SENT] += row[FRESH]
        row[FRESH] = 0
        while 0 < control[BYTES] <= row[SENT] and row[CURRENT] < row[CAP]:
            row[SENT] -= control[BYTES]
            row[STAGES] += 1
            rise(row, control)
    while row[SINCE] + control[TIMER] <= now and row[CURRENT] < row[CAP]:
        row[SINCE] += control[TIMER]
        row[TIMES] += 1
        rise(row, control)


def rise(row: Any, control: Any) -> None:
    """Raise a rate by one stage, half of what it lacks to its target; this rises after fast recovery.

    A rate that is back at the line's is let go of: it starts as a new one, with the next notice.
    """
    if max(row[TIMES], row[STAGES]) > control[FAST]:
        hyper = min(row[TIMES], row[STAGES]) > control[FAST]
        row[TARGET] = min(row[CAP], row[TARGET] + (row[LEAP] if hyper else row[STEP]))
    row[CURRENT] = (row[CURRENT] + row[TARGET] + 1) >> 1
