"""R6: the rate of a link or stream follows a timetable."""

import numpy as np
import pytest

from rapid_des.program.program import Timetable
from rapid_des.program.timetable import FULL_RATE
from tests.semantics.sketch import Sketch


def with_link(timetable, *, size=500):
    """A message over a link that follows a timetable."""
    sketch = Sketch()
    source, sink = sketch.rank(), sketch.rank()
    link, template = sketch.link(lag=7), sketch.message(size)
    send, receive = sketch.meet((source, sink), {template: {(0, 1): [link]}})
    source.member(send, template)
    sink.member(receive, template)
    columns = (np.array(column, np.int64) for column in zip(*timetable, strict=True))
    return sketch.program(link_timetables={link: Timetable(*columns)})


@pytest.mark.parametrize(
    ("timetable", "finish"),
    [
        # half the rate from the beginning
        ([(0, FULL_RATE // 2, 0)], 1_000_000 + 7),
        # 100 us done, the other 400 us at a quarter of the rate
        ([(100_000, FULL_RATE // 4, 0)], 100_000 + 1_600_000 + 7),
        # closed from 100 us to 350 us
        ([(100_000, 0, 0), (350_000, FULL_RATE, 0)], 750_000 + 7),
        # flapping: closed for half of each of the first 400 us
        ([(0, 0, 0), (100_000, FULL_RATE, 0), (200_000, 0, 0), (300_000, FULL_RATE, 0)], 700_000 + 7),
        # the extra lag of the moment at which service starts
        ([(0, FULL_RATE, 55), (1, FULL_RATE, 0)], 500_000 + 7 + 55),
        ([(0, FULL_RATE, 0), (1, FULL_RATE, 55)], 500_000 + 7),
        # a rate of 3 / FULL_RATE: the least tick by which the work is done
        ([(0, 3, 0)], -(-500_000 * FULL_RATE // 3) + 7),
        # nothing happens before the step of a far day
        ([(3_600 * 10**12, 0, 0)], 500_000 + 7),
    ],
)
def test_a_link_follows_its_timetable(run, timetable, finish):
    records = run(with_link(timetable))
    assert records.finish.tolist() == [finish, finish]
    assert records.link_busy.sum() == finish - 7 - (55 if timetable[0][2] else 0)


def test_a_link_that_closes_for_ever_is_never_passed(run):
    assert run(with_link([(100_000, 0, 0)])).finish.tolist() == [-1, -1]


def test_a_stream_follows_its_timetable(run):
    sketch = Sketch()
    rank = sketch.rank()
    first = rank.compute(100)
    rank.compute(100, after=[first])
    columns = (np.array(column, np.int64) for column in ([50, 200], [FULL_RATE // 2, 0], [0, 0]))
    program = sketch.program(visit_timetables=dict.fromkeys([(0, 0), (0, 1)], Timetable(*columns)))
    # 50 at full rate, 50 at half: 150; then 50 ps at half rate are 25 of 100 when the GPU stops
    assert run(program).finish.tolist() == [150, -1]


def test_an_hour_of_work_at_a_changing_rate_does_not_overflow(run):
    second = 10**12
    sketch = Sketch()
    sketch.rank().compute(3600 * second)
    columns = (np.array(column, np.int64) for column in ([1000 * second], [FULL_RATE // 2], [0]))
    program = sketch.program(visit_timetables={(0, 0): Timetable(*columns)})
    assert run(program).finish.tolist() == [(1000 + 2 * 2600) * second]


def test_visits_of_one_stream_may_slow_by_rates_of_their_own(run):
    sketch = Sketch()
    rank = sketch.rank()
    first = rank.compute(100)
    second = rank.compute(100, after=[first])
    rank.compute(100, after=[second])
    time, lag = np.array([150]), np.zeros(1, np.int64)
    rates = {(0, 1): FULL_RATE // 2, (0, 2): FULL_RATE // 4}
    tables = {visit: Timetable(time, np.array([rate]), lag) for visit, rate in rates.items()}
    # the first has none; 50 of the second at full rate, 50 at half: 250; the third at a quarter
    assert run(sketch.program(visit_timetables=tables)).finish.tolist() == [100, 250, 650]
