"""R6 in 64 bits: the sums of `advance` against fractions of any size."""

from fractions import Fraction
from math import ceil

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rapid_des.program.timetable import FOREVER, FULL_RATE, advance

MOMENTS = st.integers(0, 2**61)
TABLES = st.dictionaries(MOMENTS, st.integers(0, FULL_RATE), max_size=4).map(lambda one: sorted(one.items()))


def by_fractions(table, start, work):
    left, now, speed = Fraction(work), start, 1
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
    columns = [np.array([row[side] for row in table], np.int64).tolist() for side in (0, 1)]
    assert advance(*columns, start, work) == by_fractions(table, start, work)
    wide = [np.array(column, np.int64) for column in columns]
    with np.errstate(over="raise"):
        assert advance(*wide, np.int64(start), np.int64(work)) == by_fractions(table, start, work)
