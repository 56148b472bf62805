"""R6: how far work gets at a rate that changes by a timetable; shared by every engine.

Plain integer loops over flat arrays, so that the compiled engine compiles this very function.
"""

from __future__ import annotations

from typing import Any

FULL_RATE = 4096
FOREVER = 1 << 62
"""A moment that no simulation reaches."""


def advance(time: Any, rate: Any, start: int, work: int) -> int:
    """Return the least tick by which `work` picoseconds at rate 1, begun at `start`, are done.

    `time` ascends; from time[i] on the server works at rate[i]/4096. Work that stays closed at rate 0 for
    ever finishes at FOREVER.

    >>> advance([100], [2048], 90, 20)
    120
    >>> advance([100, 200], [0, 4096], 90, 20)
    210
    >>> advance([10**17], [0], 90, 20)
    110
    """
    left = work * FULL_RATE
    now = start
    speed = FULL_RATE
    for index in range(len(time)):
        if time[index] <= now:
            speed = rate[index]
            continue
        if left == 0 or (speed > 0 and (left + speed - 1) // speed <= time[index] - now):
            break
        left -= (time[index] - now) * speed  # below `left`, so that no far time overflows
        now = time[index]
        speed = rate[index]
    if left == 0:
        return now
    if speed == 0:
        return FOREVER
    return now + (left + speed - 1) // speed


def lag_at(time: Any, lag: Any, moment: int) -> int:
    """Return the extra lag of a hop whose service starts at `moment`.

    >>> lag_at([100, 200], [7, 0], 150)
    7
    """
    extra = 0
    for index in range(len(time)):
        if time[index] > moment:
            break
        extra = lag[index]
    return extra


def rate_at(time: Any, rate: Any, moment: int) -> int:
    """Return the rate, in 1/4096, at a moment.

    >>> rate_at([100, 200], [2048, 0], 199)
    2048
    """
    speed = FULL_RATE
    for index in range(len(time)):
        if time[index] > moment:
            break
        speed = rate[index]
    return speed


def work_done(time: Any, rate: Any, start: int, end: int) -> int:
    """Return the work done from `start` to `end`, in picoseconds at rate 1/4096.

    >>> work_done([100], [2048], 90, 110) / FULL_RATE
    15.0
    """
    done, now, speed = 0, start, rate_at(time, rate, start)
    for index in range(len(time)):
        if now < time[index] < end:
            done += (time[index] - now) * speed
            now, speed = time[index], rate[index]
    return done + (end - now) * speed
