"""R6: how far work gets at a rate that changes by a timetable; shared by every engine.

Plain integer loops over flat arrays, so that the compiled engine compiles this very function.
"""

from __future__ import annotations

from typing import Any

FULL_RATE = 4096


def advance(time: Any, rate: Any, start: int, work: int) -> int:
    """Return the least tick by which `work` picoseconds at rate 1, begun at `start`, are done.

    `time` ascends; from time[i] on the server works at rate[i]/4096. Work that stays closed at rate 0 for
    ever finishes at 2**62, a moment that no simulation reaches.

    >>> advance([100], [2048], 90, 20)
    120
    >>> advance([100, 200], [0, 4096], 90, 20)
    210
    """
    left = work * FULL_RATE
    now = start
    speed = FULL_RATE
    for index in range(len(time)):
        if time[index] <= now:
            speed = rate[index]
            continue
        done = (time[index] - now) * speed
        if done >= left:
            break
        left -= done
        now = time[index]
        speed = rate[index]
    if left == 0:
        return now
    if speed == 0:
        return 1 << 62
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
