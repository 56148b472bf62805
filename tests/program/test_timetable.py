"""R6 in 64 bits: the sums of `advance` against fractions of any size."""

from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rapid_des.program.timetable import FOREVER, FULL_RATE, advance

MOMENTS = st.integers(0, 2**61)
TABLES = st.dictionaries(MOMENTS, st.integers(0, FULL_RATE), max_size=4).map(lambda one: sorted(one.items()))


def by_fractions(table, start, work):
    left, now, speed = Fraction(work), start, Fraction(1)
    for moment, rate in table:
        if moment <= now:
            speed = Fraction(rate, FULL_RATE)
            continue
        if left == 0 or (speed and left / speed <= moment - now):
            break
        left -= (moment - now) * speed
        now, speed = moment, Fraction(rate, FULL_RATE)
    if left == 0:
        return now
    return min(now + ceil(left / speed), FOREVER) if speed else FOREVER


@given(TABLES, MOMENTS, st.integers(0, 2**61))
def test_work_of_any_length_ends_when_fractions_say(table, start, work):
    times, rates = ([row[side] for row in table] for side in (0, 1))
    assert advance(times, rates, start, work) == by_fractions(table, start, work)
    with np.errstate(over="raise"):
        wide: Any = np.array(times, np.int64), np.array(rates, np.int64), np.int64(start), np.int64(work)
        assert advance(*wide) == by_fractions(table, start, work)
