"""R6: what a rank serves at the same time slows its computing."""

import numpy as np

from rapid_des.program.program import Timetable
from rapid_des.program.timetable import ALONE, FULL_RATE
from rapid_des.values import replace
from tests.semantics.sketch import Sketch

HALF, QUARTER = ALONE // 2, ALONE // 4


def one_rank(*shares):
    sketch = Sketch()
    rank = sketch.rank()
    rank.slows(*shares)
    return sketch, rank


def test_a_visit_is_slowed_while_another_runs(run):
    sketch, rank = one_rank([ALONE, HALF])
    rank.compute(100, slowed=0)
    early = rank.join(30)
    rank.compute(40, server=1, weight=1, after=[early])
    # 30 done alone, then 40 at half the rate are 20, then 50 are left
    assert run(sketch.program()).finish.tolist() == [120, 30, 70]


def test_it_ends_at_the_least_tick_by_which_the_work_is_done(run):
    sketch, rank = one_rank([ALONE, ALONE // 3])
    rank.compute(100, slowed=0)
    rank.compute(1000, server=1, weight=1)
    # 1365 / 4096 of the rate: 100 * 4096 / 1365 = 300.07
    assert run(sketch.program()).finish.tolist() == [301, 1000]


def test_who_is_of_no_kind_is_not_slowed(run):
    sketch, rank = one_rank([ALONE, HALF])
    rank.compute(100)
    rank.compute(1000, server=1, weight=1)
    assert run(sketch.program()).finish.tolist() == [100, 1000]


def test_the_sum_of_the_weights_says_who_runs_beside(run):
    sketch, rank = one_rank([ALONE, HALF, ALONE, QUARTER])
    rank.compute(100, slowed=0)
    rank.compute(60, server=1, weight=1)
    rank.compute(20, server=2, weight=2)
    # both for 20 at a quarter: 5; one for 40 at half: 20; 75 alone
    assert run(sketch.program()).finish.tolist() == [135, 60, 20]


def test_two_that_slow_each_other_do_not_count_themselves(run):
    sketch, rank = one_rank([ALONE, ALONE, HALF], [ALONE, QUARTER, ALONE])
    rank.compute(100, slowed=0, weight=1)
    rank.compute(100, server=1, slowed=1, weight=2)
    # the first at half the rate until 200; the other has done 50 by then
    assert run(sketch.program()).finish.tolist() == [200, 250]


def test_what_changes_at_the_end_does_not_change_the_end(run):
    sketch, rank = one_rank([ALONE, HALF])
    first = rank.compute(100, slowed=0)
    early = rank.join(100)
    rank.compute(50, server=1, weight=1, after=[early])
    rank.compute(100, slowed=0, after=[first])
    # the second begins when the other does: 50 at half the rate are 25
    assert run(sketch.program()).finish.tolist() == [100, 100, 150, 225]


def test_who_stops_and_starts_at_one_instant_changes_nothing(run):
    sketch, rank = one_rank([ALONE, HALF])
    rank.compute(100, slowed=0)
    before = rank.compute(30, server=1, weight=1)
    rank.compute(50, server=1, weight=1, after=[before])
    assert run(sketch.program()).finish.tolist() == [140, 30, 80]


def test_a_member_that_waits_slows_as_one_that_sends(run):
    sketch = Sketch()
    source, sink = sketch.rank(), sketch.rank()
    sink.slows([ALONE, HALF])
    link, template = sketch.link(), sketch.message(10)
    send, receive = sketch.meet((source, sink), {template: {(0, 1): [link]}})
    late = source.compute(20_000)
    source.member(send, template, server=1, after=[late])
    sink.member(receive, template, server=1, weight=1)
    sink.compute(40_000, slowed=0)
    # 20 us until the sender comes and 10 us on the link, at half the rate: 15 of 40
    assert run(sketch.program()).finish.tolist() == [20_000, 30_000, 30_000, 55_000]


def test_a_hold_slows_until_it_is_released(run):
    sketch, rank = one_rank([ALONE, HALF])
    rank.compute(100, slowed=0)
    hold = rank.hold(server=1, weight=1, occurrence=0)
    rank.release(hold, rank.join(60, after=[(hold, 0, "start")]))
    assert run(sketch.program()).finish.tolist() == [130, 60, 60]


def test_ranks_do_not_slow_each_other(run):
    sketch = Sketch()
    first, second = sketch.rank(), sketch.rank()
    first.slows([ALONE, HALF])
    first.compute(100, slowed=0)
    second.compute(100, weight=1)
    assert run(sketch.program()).finish.tolist() == [100, 100]


def test_a_share_is_of_what_the_timetable_leaves(run):
    sketch, rank = one_rank([ALONE, HALF])
    rank.compute(100, slowed=0)
    rank.compute(60, server=1, weight=1)
    table = Timetable(*(np.array(column, np.int64) for column in ([40], [FULL_RATE // 4], [0])))
    program = replace(sketch.program(), visit_timetables={(0, 0): table})
    # 40 at half: 20; 20 at an eighth: 2.5; 77.5 at a quarter: 310
    assert run(program).finish.tolist() == [370, 60]


def test_an_hour_of_work_does_not_overflow(run):
    second = 10**12
    sketch, rank = one_rank([ALONE, HALF])
    rank.compute(3600 * second, slowed=0)
    rank.compute(1000 * second, server=1, weight=1)
    assert run(sketch.program()).finish.tolist() == [4100 * second, 1000 * second]
