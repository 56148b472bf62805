import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.errors import TopologyError
from rapid_des.network.fluid import (
    NEVER,
    Fluid,
    begin_flow,
    end_flow,
    new_fluid,
    remaining,
    set_capacity,
    set_route,
    settle,
)
from rapid_des.network.fluid.state import MOST_BANDWIDTH, RATIO_ONE, SCALE, drain_time, drained

GB = 10**9
HALF = RATIO_ONE // 2
"""An acknowledgement ratio of one half."""


def network(capacities: list[int], routes: list[tuple[int, ...]], *, slots: int = 0) -> Fluid:
    fluid = new_fluid(np.array(capacities, dtype=np.int64), flows=max(slots, len(routes)), hops=8)
    for flow, route in enumerate(routes):
        set_route(fluid, flow, route, ())
    return fluid


def rates(fluid: Fluid) -> list[float]:
    return [rate / SCALE for rate in fluid.rate.tolist()]


def start_all(fluid: Fluid, flows: int, size: int = 1000) -> None:
    for flow in range(flows):
        begin_flow(fluid, flow, size, 0, 0)
    settle(fluid, 0)


def test_a_lone_flow_gets_its_slowest_link_and_leaves_at_the_tick_its_last_byte_is_out() -> None:
    fluid = network([5 * GB, 3 * GB, 4 * GB], [(0, 1, 2)])
    start_all(fluid, 1, size=1000)
    assert rates(fluid) == [3 * GB]
    # 1,000 bytes at 3 GB/s: 333,333.33 ps.
    assert fluid.finish[0] == 333_334


def test_flows_on_one_link_share_it_and_what_one_leaves_the_others_take() -> None:
    fluid = network([4 * GB], [(0,), (0,)])
    begin_flow(fluid, 0, 1000, 0, 0)
    begin_flow(fluid, 1, 3000, 0, 0)
    assert settle(fluid, 0) == 2
    # 1,000 bytes at 2 GB/s; then the other's 2,000 bytes at 4 GB/s.
    assert fluid.finish[0] == 500_000
    end_flow(fluid, 0)
    assert settle(fluid, 500_000) == 1
    assert fluid.finish[1] == 500_000 + 500_000


def test_thousands_of_flows_on_the_fastest_link_do_not_overflow() -> None:
    fluid = network([MOST_BANDWIDTH], [(0,)] * 5000)
    start_all(fluid, 5000, size=10**12)
    assert set(rates(fluid)) == {MOST_BANDWIDTH / 5000}
    # 10**12 bytes at 2 * 10**10 a second.
    assert set(fluid.finish.tolist()) == {50 * 10**12}


def test_a_bandwidth_beyond_the_arithmetic_is_refused_by_link() -> None:
    with pytest.raises(TopologyError, match="link 1: bandwidth: 100000000000001 bytes/s"):
        network([GB, MOST_BANDWIDTH + 1], [])


def test_the_parking_lot_is_max_min_fair() -> None:
    # Link 0 (6) carries 0 1 2, link 1 (5) carries 0 3, link 2 (10) carries 3 4: 2 2 2, then 3, then 7.
    fluid = network([6 * GB, 5 * GB, 10 * GB], [(0, 1), (0,), (0,), (1, 2), (2,)])
    start_all(fluid, 5)
    assert rates(fluid) == [2 * GB, 2 * GB, 2 * GB, 3 * GB, 7 * GB]


def test_a_flow_held_back_elsewhere_leaves_its_share_to_the_others() -> None:
    # Flow 0 cannot use more than 1 of the shared 9.
    fluid = network([1 * GB, 9 * GB], [(0, 1), (1,), (1,)])
    start_all(fluid, 3)
    assert rates(fluid) == [1 * GB, 4 * GB, 4 * GB]


def test_only_flows_connected_to_a_change_are_solved_again() -> None:
    fluid = network([GB, GB], [(0,), (0,), (1,)])
    start_all(fluid, 3)
    end_flow(fluid, 0)
    assert settle(fluid, 10) == 1
    assert fluid.changed[0] == 1
    assert fluid.since[2] == 0


@pytest.mark.parametrize("ratio", [HALF, 2 * HALF, 5 * HALF, 10**9])
def test_flows_against_each_other_share_with_heavy_acknowledgements_at_once(ratio: int) -> None:
    # A full-duplex pair of 3 GB/s: r + ratio x r = 3, both ways; alone, the link back is the limit.
    fluid = network([3 * GB, 3 * GB], [], slots=2)
    set_route(fluid, 0, (0,), (1,))
    set_route(fluid, 1, (1,), (0,))
    begin_flow(fluid, 0, 1000, ratio, 0)
    begin_flow(fluid, 1, 1000, ratio, 0)
    settle(fluid, 0)
    assert rates(fluid) == pytest.approx([3 * GB / (1 + ratio / RATIO_ONE)] * 2, rel=1e-3)
    end_flow(fluid, 1)
    settle(fluid, 0)
    assert rates(fluid) == pytest.approx([3 * GB / max(1, ratio / RATIO_ONE), 0], rel=1e-3)


def test_light_acknowledgements_go_first_on_the_way_back() -> None:
    # Flow 0's acknowledgements, a sixteenth of 8 GB/s, go before the two flows on the link back.
    fluid = network([8 * GB, 8 * GB, 99 * GB], [], slots=3)
    routes = ((0,), (1,)), ((1,), (2,)), ((1,), (2,))
    for flow, (route, back) in enumerate(routes):
        set_route(fluid, flow, route, back)
        begin_flow(fluid, flow, 1000, RATIO_ONE // 16 if flow == 0 else 0, 0)
    settle(fluid, 0)
    assert rates(fluid) == pytest.approx([8 * GB, 3.75 * GB, 3.75 * GB])


def test_a_small_acknowledgement_load_converges_at_once() -> None:
    # 1 / 64 of the other direction's load: r = C / (1 + 1 / 64).
    fluid = network([GB, GB], [], slots=2)
    set_route(fluid, 0, (0,), (1,))
    set_route(fluid, 1, (1,), (0,))
    begin_flow(fluid, 0, 1000, 1024, 0)
    begin_flow(fluid, 1, 1000, 1024, 0)
    settle(fluid, 0)
    assert rates(fluid) == pytest.approx([GB * 64 / 65] * 2, rel=1e-6)


def test_a_link_that_changes_rate_changes_its_flows_and_keeps_what_was_sent() -> None:
    fluid = network([4 * GB], [(0,)])
    start_all(fluid, 1, size=4000)
    set_capacity(fluid, 0, 2 * GB)
    settle(fluid, 250_000)
    # 1,000 bytes went out in the first 250 ns; 3,000 are left at 2 GB/s.
    assert remaining(fluid, 0, 250_000) == (3000 * SCALE, 0)
    assert fluid.finish[0] == 250_000 + 1_500_000


def test_a_dead_link_stops_its_flows_until_it_is_back() -> None:
    fluid = network([4 * GB, GB], [(0,), (0, 1)])
    start_all(fluid, 2, size=4000)
    set_capacity(fluid, 0, 0)
    settle(fluid, 100)
    assert fluid.finish.tolist() == [NEVER, NEVER]
    set_capacity(fluid, 0, 4 * GB)
    settle(fluid, 1100)
    assert rates(fluid) == [3 * GB, GB]
    # It stood still for 1,000 ps.
    assert fluid.finish[1] == 4_000_000 + 1000


@given(
    left=st.integers(0, 2**40 * SCALE),
    fraction=st.integers(0, 10**12 - 1),
    rate=st.integers(1, MOST_BANDWIDTH * SCALE),
)
def test_drain_time_is_exact(left: int, fraction: int, rate: int) -> None:
    exact = -(-(left * 10**12 + fraction) // rate)
    assert drain_time(left, fraction, rate) == (exact if left // rate <= 4 * 10**6 else NEVER)


@given(
    left=st.integers(0, 2**40 * SCALE),
    rate=st.integers(0, MOST_BANDWIDTH * SCALE),
    share=st.fractions(0, Fraction(1)),
)
def test_drained_work_is_exact(left: int, rate: int, share: Fraction) -> None:
    time = int(drain_time(left, 0, rate) * share) if rate > 0 and left // rate < 4 * 10**6 else 0
    whole, fraction = drained(left, 0, rate, time)
    assert whole * 10**12 + fraction == max(0, left * 10**12 - rate * time)


@st.composite
def systems(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, ...]]]:
    capacities = draw(st.lists(st.integers(1, 50).map(lambda rate: rate * GB), min_size=1, max_size=8))
    links = st.integers(0, len(capacities) - 1)
    routes = st.lists(links, min_size=1, max_size=4, unique=True).map(tuple)
    return capacities, draw(st.lists(routes, min_size=1, max_size=12))


@given(systems())
def test_every_flow_has_a_full_link_on_which_nobody_gets_more(
    system: tuple[list[int], list[tuple[int, ...]]],
) -> None:
    """The definition of max-min fairness, up to the rounding of one unit a flow."""
    capacities, routes = system
    fluid = network(capacities, routes)
    start_all(fluid, len(routes))
    rate = fluid.rate.tolist()
    on_link = [
        [flow for flow, route in enumerate(routes) if link in route] for link in range(len(capacities))
    ]
    loads = [sum(rate[flow] for flow in flows) for flows in on_link]
    slack = len(routes)
    assert all(load <= capacity * SCALE for load, capacity in zip(loads, capacities, strict=True))
    for flow, route in enumerate(routes):
        assert any(
            loads[link] >= capacities[link] * SCALE - slack
            and all(rate[other] <= rate[flow] + slack for other in on_link[link])
            for link in route
        )


@settings(max_examples=50)
@given(systems(), st.randoms(use_true_random=False))
def test_local_solving_has_the_bits_of_solving_everything(
    system: tuple[list[int], list[tuple[int, ...]]], chance: random.Random
) -> None:
    capacities, routes = system
    fluid = network(capacities, routes)
    active: set[int] = set()
    for now in range(20):
        flow = chance.randrange(len(routes))
        if flow in active:
            end_flow(fluid, flow)
        else:
            set_route(fluid, flow, routes[flow], ())
            begin_flow(fluid, flow, 10**9, 0, now)
        active ^= {flow}
        settle(fluid, now)
        fresh = network(capacities, routes)
        for other in sorted(active, reverse=True):
            begin_flow(fresh, other, 10**9, 0, now)
        settle(fresh, now)
        assert fluid.rate.tolist() == fresh.rate.tolist()


@st.composite
def answered(draw: st.DrawFn) -> tuple[list[int], list[tuple[tuple[int, ...], tuple[int, ...], int]]]:
    """Full-duplex links 2i, 2i + 1 of any rates; flows along some, back along their twins, of any ratio."""
    capacities = draw(st.lists(st.integers(1, 200).map(lambda rate: rate * GB), min_size=2, max_size=8))
    capacities += capacities[:1] * (len(capacities) % 2)
    links = st.integers(0, len(capacities) - 1)
    routes = st.lists(links, min_size=1, max_size=3, unique_by=lambda link: link // 2).map(tuple)
    ratios = st.sampled_from([0, 700, HALF // 4, HALF, RATIO_ONE, 3 * RATIO_ONE, 10**7])
    flows = draw(st.lists(st.tuples(routes, ratios), min_size=1, max_size=12))
    return capacities, [(route, tuple(link ^ 1 for link in route), ratio) for route, ratio in flows]


@given(answered())
def test_acknowledgements_of_any_size_overload_no_link_and_starve_no_flow(
    system: tuple[list[int], list[tuple[tuple[int, ...], tuple[int, ...], int]]],
) -> None:
    capacities, flows = system
    fluid = network(capacities, [], slots=len(flows))
    for flow, (route, back, ratio) in enumerate(flows):
        set_route(fluid, flow, route, back)
        begin_flow(fluid, flow, 10**6, ratio, 0)
    settle(fluid, 0)
    rate = fluid.rate.tolist()
    load = [0.0] * len(capacities)
    for flow, (route, back, ratio) in enumerate(flows):
        for link in route:
            load[link] += rate[flow]
        for link in back:
            load[link] += rate[flow] * ratio / RATIO_ONE
    assert all(used <= 1.01 * SCALE * most for used, most in zip(load, capacities, strict=True))
    for flow, (route, back, ratio) in enumerate(flows):
        least = min(capacities[link] for link in route)
        answers = min(capacities[link] for link in back) * RATIO_ONE / ratio if ratio else least
        # Half of a link is kept for data; the rest is shared by at most all flows and their answers.
        weights = sum(1 + other / RATIO_ONE for _, _, other in flows)
        assert rate[flow] >= SCALE * min(least, answers, GB / 2) / weights / 2
