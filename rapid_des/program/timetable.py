"""R6: how far work gets at a rate that changes by a timetable and with contention; shared by every engine.

Plain integer loops over flat arrays, so that the compiled engine compiles this very function.
"""

from __future__ import annotations

from typing import Any

FULL_RATE = 1 << 20
"""Rate 1 of a timetable: rates are integers in this unit."""
ALONE = 1 << 12
"""The share of its server's rate that an uncontended visit has: shares are integers in this unit."""
FOREVER = 1 << 62
"""A time later than any simulation reaches."""


def advance(time: Any, rate: Any, start: int, work: int) -> int:
    """Return the least tick by which `work` picoseconds at rate 1, begun at `start`, are done.

    `time` ascends; from time[i] on the server works at rate[i] / `FULL_RATE`. Work that stays closed at
    rate 0 for ever finishes at FOREVER.

    >>> advance([100], [FULL_RATE // 2], 90, 20)
    120
    >>> advance([100, 200], [0, FULL_RATE], 90, 20)
    210
    >>> advance([10**17], [0], 90, 20)
    110
    """
    return finish_of((time, rate), start, (work, 0), ALONE)


def finish_of(table: Any, start: int, left: Any, share: int) -> int:
    """Return the least tick by which work is done that is resumed at `start`; see `advance`.

    `table` is (time, rate), `left` ticks of work and parts of one in 1 / `FULL_RATE`. The server works at
    `share` / `ALONE` of its rate.

    >>> finish_of(([], []), 90, (20, 0), ALONE // 2), finish_of(([100], [FULL_RATE // 2]), 90, (20, 0), 1024)
    (130, 240)
    """
    time, rate = table
    ticks, parts = left  # no product of a 64-bit time overflows
    now = start
    passed = steps_until(time, start)
    speed = shared(rate[passed - 1] if passed > 0 else FULL_RATE, share)
    for index in range(passed, len(time)):
        gone = time[index] - now
        if ticks_for(ticks, parts, speed) <= gone:
            break
        ticks, parts = without(ticks, parts, gone, speed)
        now = time[index]
        speed = shared(rate[index], share)
    return min(now + ticks_for(ticks, parts, speed), FOREVER)


def left_after(table: Any, start: int, end: int, left: Any, share: int) -> tuple[int, int]:
    """Return what is left at `end`, not after the finish, of work resumed at `start`; see `finish_of`.

    >>> left_after(([], []), 90, 100, (20, 0), ALONE // 4) == (17, FULL_RATE // 2)
    True
    """
    time, rate = table
    ticks, parts = left
    now = start
    passed = steps_until(time, start)
    speed = shared(rate[passed - 1] if passed > 0 else FULL_RATE, share)
    for index in range(passed, len(time)):
        if time[index] >= end:
            break
        ticks, parts = without(ticks, parts, time[index] - now, speed)
        now = time[index]
        speed = shared(rate[index], share)
    return without(ticks, parts, end - now, speed)


def left_at(table: Any, start: int, moment: int, work: int) -> int:
    """Return the ticks of work that are left at a moment, rounded up, of work begun at `start`.

    >>> left_at(([], []), 90, 100, 20), left_at(([95], [FULL_RATE // 2]), 90, 100, 20)
    (10, 13)
    >>> left_at(([], []), 90, 80, 20), left_at(([], []), 90, 200, 20)
    (20, 0)
    """
    if work == 0 or moment <= start:
        return work
    ticks, parts = left_after(table, start, moment, (work, 0), ALONE)
    return max(0, ticks + (1 if parts > 0 else 0))


def shared(speed: int, share: int) -> int:
    """Return a rate beside others: above 0 if it was, at least 1 / `FULL_RATE`.

    >>> shared(FULL_RATE, 1024) == FULL_RATE // 4, shared(1, 1), shared(0, ALONE)
    (True, 1, 0)
    """
    return (speed * share + ALONE - 1) // ALONE


def without(ticks: int, parts: int, gone: int, speed: int) -> tuple[int, int]:
    """Return the work that is left after `gone` ticks at a rate."""
    parts -= gone % FULL_RATE * speed
    ticks -= gone // FULL_RATE * speed - parts // FULL_RATE
    return ticks, parts % FULL_RATE


def ticks_for(left: int, parts: int, speed: int) -> int:
    """Return how long left + parts / `FULL_RATE` picoseconds of work take at a rate, at most FOREVER.

    >>> ticks_for(20, 1, FULL_RATE // 2), ticks_for(FOREVER >> 20, 0, 1) == FOREVER, ticks_for(0, 0, 0)
    (41, True, 0)
    """
    if left == 0 and parts == 0:
        return 0
    if speed == 0 or left // speed >= FOREVER // FULL_RATE:
        return FOREVER
    return left // speed * FULL_RATE + (left % speed * FULL_RATE + parts + speed - 1) // speed


def lag_at(time: Any, lag: Any, moment: int) -> int:
    """Return the extra lag of a hop whose service starts at `moment`.

    >>> lag_at([100, 200], [7, 0], 150)
    7
    """
    passed = steps_until(time, moment)
    return int(lag[passed - 1]) if passed > 0 else 0


def hop_times(service: Any, table: Any, start: int) -> tuple[int, int, int]:
    """Return when a link is free again, when the next hop is ready, and when the message has arrived.

    `service` is (occupancy, head, lag) of the hop at rate 1, `table` the link's timetable as (time, rate,
    lag), of no steps if it has none; the message has arrived if this is its only hop (see `tail_crosses`).

    >>> hop_times((500, 64, 7), ([], [], []), 1000)
    (1500, 1071, 1507)
    >>> hop_times((500, 64, 7), ([1100], [FULL_RATE // 2], [3]), 1000)
    (1900, 1071, 1907)
    """
    occupancy, head, lag = service
    time, rate, extra = table
    if len(time) == 0:
        return start + occupancy, start + head + lag, start + occupancy + lag
    lag += lag_at(time, extra, start)
    free = advance(time, rate, start, occupancy)
    return free, advance(time, rate, start, head) + lag, free + lag


def tail_crosses(tail: Any, table: Any, start: int, free: int, before: int) -> int:
    """Return when the last byte of a message has crossed a hop, which after the last one is its arrival.

    `tail` is (across, along) of the hop as `TailTable` has them; its service began at `start` and ended at
    `free`; the last byte had crossed the hop before at `before`, 0 if there is none.

    >>> tail_crosses((7, 71), ([], [], []), 1000, 1500, 1200)
    1507
    >>> tail_crosses((7, 71), ([900], [FULL_RATE], [3]), 1000, 1500, 9000)
    9074
    """
    across, along = tail
    time, _, extra = table
    return int(max(free + across, before + along)) + lag_at(time, extra, start)


def rate_at(time: Any, rate: Any, moment: int) -> int:
    """Return the rate, in 1 / `FULL_RATE`, at a moment.

    >>> rate_at([100, 200], [2048, 0], 199)
    2048
    """
    passed = steps_until(time, moment)
    return int(rate[passed - 1]) if passed > 0 else FULL_RATE


def steps_until(time: Any, moment: int) -> int:
    """Return how many steps lie at or before a time; a binary search, as a flapping link has many steps.

    >>> steps_until([100, 200], 199), steps_until([100, 200], 200)
    (1, 2)
    """
    low, high = 0, len(time)
    while low < high:
        middle = (low + high) // 2
        if time[middle] <= moment:
            low = middle + 1
        else:
            high = middle
    return low


def work_done(time: Any, rate: Any, start: int, end: int) -> int:
    """Return the work done from `start` to `end`, in picoseconds at rate 1 / `FULL_RATE`.

    >>> work_done([100], [FULL_RATE // 2], 90, 110) / FULL_RATE
    15.0
    """
    done, now, speed = 0, start, rate_at(time, rate, start)
    for index in range(steps_until(time, start), len(time)):
        if time[index] >= end:
            break
        done += (time[index] - now) * speed
        now, speed = time[index], rate[index]
    return done + (end - now) * speed
