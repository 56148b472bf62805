"""Timed faults become timetables: (time ps, rate in 1 / RATE_ONE, added latency ps)."""

from fractions import Fraction

import pytest

from rapid_des.errors import TopologyError
from rapid_des.network.build import build
from rapid_des.network.faults import (
    GpuFactors,
    apply_static,
    dead_at,
    gpu_timetables,
    link_timetables,
    parse_fault,
    placed_in_time,
)
from rapid_des.network.faults.timing import RATE_ONE
from tests.network.fabrics import INNER, dimension

RING = build("ring", [dimension(shape="ring", size=4)], INNER).fabric
LINK = RING.link(0, 1)
MS = 10**9


def tables(*texts, horizon=10 * MS):
    return link_timetables(RING, [parse_fault(text) for text in texts], horizon)


def test_a_window_derates_and_ends():
    assert tables("link=0>1 bandwidth=0.25 latency=2us from=1ms until=3ms") == {
        LINK: ((0, RATE_ONE, 0), (1 * MS, RATE_ONE // 4, 2_000_000), (3 * MS, RATE_ONE, 0))
    }


def test_overlapping_faults_multiply_while_both_last():
    table = tables(
        "link=0>1 bandwidth=0.5 from=1ms", "link=0>1 bandwidth=0.5 latency=1us from=2ms until=4ms"
    )[LINK]
    assert table == (
        (0, RATE_ONE, 0),
        (MS, RATE_ONE // 2, 0),
        (2 * MS, RATE_ONE // 4, 1_000_000),
        (4 * MS, RATE_ONE // 2, 0),
    )


def test_down_is_rate_zero_and_hits_both_directions():
    found = tables("link=0-1 down=true until=2ms")
    assert found == dict.fromkeys(sorted([LINK, RING.link(1, 0)]), ((0, 0, 0), (2 * MS, RATE_ONE, 0)))


def test_links_are_dead_from_the_tick_they_go_down_to_the_tick_they_come_back():
    found = tables("link=0>1 down=true from=1ms until=2ms", "link=1>2 bandwidth=0.1")
    assert [dead_at(found, time) for time in (0, MS - 1, MS, 2 * MS - 1, 2 * MS)] == [
        frozenset(), frozenset(), {LINK}, {LINK}, frozenset(),
    ]  # fmt: skip


def test_a_flap_repeats_up_to_the_horizon_or_its_end():
    down = [(1, 0), (2, RATE_ONE), (4, 0), (5, RATE_ONE), (7, 0), (8, RATE_ONE)]
    expected = ((0, RATE_ONE, 0), *((time * MS, rate, 0) for time, rate in down))
    assert tables("link=0>1 down=true from=1ms every=3ms for=1ms until=9ms")[LINK] == expected
    assert tables("link=0>1 down=true from=1ms every=3ms for=1ms", horizon=9 * MS)[LINK] == expected


def test_jitter_draws_a_latency_a_period_that_depends_on_seed_and_link_alone():
    table = tables("link=0-1 jitter=1us jitter_every=1ms seed=3")
    assert set(table) == {LINK, RING.link(1, 0)}
    times, rates, latencies = zip(*table[LINK], strict=True)
    assert times == tuple(k * MS for k in range(11))
    assert set(rates) == {RATE_ONE}
    assert len(set(latencies)) > 8
    assert all(0 <= latency <= 1_000_000 for latency in latencies)
    longer = tables("link=0-1 jitter=1us jitter_every=1ms seed=3", horizon=20 * MS)
    assert longer[LINK][:10] == table[LINK][:10]
    assert table[LINK] != table[RING.link(1, 0)]


def test_steps_and_progress_are_placed_by_the_healthy_run():
    faults = [
        parse_fault("link=0>1 down=true from_step=2 until_step=3"),
        parse_fault("gpu=1 compute=0.5 from_progress=0.5"),
    ]
    with pytest.raises(TopologyError, match="placed in time first"):
        link_timetables(RING, faults, 10 * MS)
    placed = placed_in_time(faults, step_time=2 * MS, steps=4)
    link = (0, RATE_ONE, 0), (4 * MS, 0, 0), (6 * MS, RATE_ONE, 0)
    gpu = (0, GpuFactors.whole()), (4 * MS, GpuFactors(Fraction(1, 2), Fraction(1)))
    assert link_timetables(RING, placed, 10 * MS) == {LINK: link}
    assert gpu_timetables(RING, placed, 10 * MS) == {1: gpu}


def test_too_many_changes_are_refused():
    for words in ("down=true every=2ps for=1ps", "jitter=1us jitter_every=1ps seed=0"):
        with pytest.raises(TopologyError, match="more than 1000000"):
            tables(f"link=0>1 {words}")


def test_constant_faults_are_no_timetables_and_timed_ones_leave_the_fabric():
    assert tables("link=0>1 bandwidth=0.5") == {}
    after, dead = apply_static(RING, [parse_fault("link=0>1 down=true from=1ms")])
    assert (after.bandwidth == RING.bandwidth).all()
    assert not dead


@pytest.mark.parametrize("rate", ["0.0001", "0.003", "0.3", "0.999"])
def test_timed_rates_are_those_of_the_constant_form(rate):
    fault = f"link=0>1 bandwidth={rate}"
    constant, _ = apply_static(RING, [parse_fault(fault)])
    timed = tables(f"{fault} from=1ms")[LINK][1][1] / RATE_ONE
    assert timed == pytest.approx(constant.bandwidth[LINK] / RING.bandwidth[LINK], rel=0.005)


@pytest.mark.parametrize("texts", [["link=0>1 bandwidth=1e-9"], ["link=0>1 bandwidth=0.005"] * 3])
def test_rates_that_a_timetable_can_not_hold_are_refused(texts):
    with pytest.raises(TopologyError, match=r"timed faults leave gpu0>gpu1 .*; allowed: 0\.0001 and more"):
        tables(*(f"{text} from=1ms" for text in texts))


@pytest.mark.parametrize("times", ["", " from=1ms"])
def test_latencies_whose_sum_could_wrap_are_refused(times):
    faults = [parse_fault(f"link=0>1 latency=9223372036854775807ps{times}")]
    with pytest.raises(TopologyError, match="gpu0>gpu1: latency: .*; allowed: 0 to 3600 s"):
        if times:
            link_timetables(RING, faults, 10 * MS)
        else:
            apply_static(RING, faults)


TENANT = "link=0>1 load=0.3"


def test_steady_loads_of_other_tenants_add_up_and_leave_the_rest():
    after, _ = apply_static(RING, [parse_fault(TENANT), parse_fault("link=0>1 load=0.2")])
    assert after.bandwidth[LINK] * 2 == RING.bandwidth[LINK]
    assert tables(f"{TENANT} from=1ms", "link=0>1 load=0.2 from=1ms")[LINK][1] == (MS, RATE_ONE // 2, 0)


def test_tenants_that_take_all_of_a_link_are_refused():
    with pytest.raises(TopologyError, match="other tenants take 1.2 of gpu0>gpu1; allowed: below 1 in all"):
        apply_static(RING, [parse_fault("link=0>1 load=0.6")] * 2)


def bursts(peak, seed=1, horizon=1000 * MS):
    """Times and rates of a link of which bursts of 100 us on average take 30 % on average."""
    table = tables(f"{TENANT} burst=100us peak={peak} seed={seed}", horizon=horizon)[LINK]
    return [time for time, _, _ in table], [rate for _, rate, _ in table]


@pytest.mark.parametrize("peak", [0.3, 0.6, 1])
def test_bursts_take_the_stated_load_on_average_and_their_peak_while_they_last(peak):
    time, rate = bursts(peak)
    assert set(rate) <= {RATE_ONE, round(RATE_ONE * (1 - peak))}
    spans = [(later - now, now_at) for now, later, now_at in zip(time, time[1:], rate, strict=False)]
    taken = sum(span * (1 - at / RATE_ONE) for span, at in spans) / sum(span for span, _ in spans)
    # some 3,000 bursts and gaps of a link: their shares scatter by 2 to 3 %
    assert taken == pytest.approx(0.3, rel=0.08)
    if peak > 0.3:
        lengths = [span for span, at in spans if at < RATE_ONE]
        assert sum(lengths) / len(lengths) == pytest.approx(MS / 10, rel=0.08)
        # of an exponential distribution e^-1 last longer than the mean
        assert sum(span > MS / 10 for span in lengths) / len(lengths) == pytest.approx(0.368, abs=0.03)


def test_bursts_are_those_of_their_seed_and_link_and_go_on_the_same_beyond_the_horizon():
    assert bursts(1) == bursts(1) != bursts(1, seed=2)
    short, long = bursts(1, horizon=10 * MS)[0], bursts(1)[0]
    assert short[:-1] == long[: len(short) - 1]
    both = tables("link=0-1 load=0.3 burst=100us peak=1 seed=1")
    assert both[LINK] != both[RING.link(1, 0)]


def test_bursts_that_are_too_many_to_be_laid_out_are_refused():
    with pytest.raises(
        TopologyError, match="burst: 1 ns makes 30000000 bursts in 100 ms .*; allowed: 2000000"
    ):
        tables("link=0>1 load=0.3 burst=1ns peak=1 seed=1", horizon=100 * MS)
