"""The run clock against closed forms of reliability: spares, scaling, and effective time."""

from itertools import islice, pairwise
from math import exp, factorial
from statistics import fmean, stdev

import pytest
from msgspec import structs

from rapid_des.runs.clock import replicate
from rapid_des.runs.failures import FailingParts, failures
from rapid_des.runs.laws import Exponential
from rapid_des.runs.spares import Tier
from rapid_des.runs.stretch import CheckpointLevel, TrainingStretch
from rapid_des.runs.times import parse_time
from rapid_des.runs.treatment import NOTHING, RunPlan, Treatment

S = 10**12
"""A second in picoseconds."""
HOUR = 3600


def runs(plan, fleet, count):
    return [replicate(plan, failures([fleet], seed=0, replication=n), n) for n in range(count)]


def plan(*, every=60, stall=0, restart="0 s", repair="0 s", tiers=(), nodes=0, days=10):
    treatment = Treatment("node", NOTHING, NOTHING, parse_time(repair), nodes)
    course = TrainingStretch(10 * S, (CheckpointLevel(every, stall * S),))
    levels = tuple(Tier(count, NOTHING) for count in tiers)
    return RunPlan(
        course, days * 24 * HOUR * S, (treatment,), {"start": parse_time(restart)}, levels, nodes=100
    )


def test_nodes_in_repair_are_those_of_a_queue_with_a_server_for_each():
    # 100 nodes that fail once in 1,000 h and are away for 48 h on average: M/G/∞ with a load of 4.8
    fleet = FailingParts("node", 100, Exponential(), 1000 * HOUR * 1e6)
    found = runs(plan(repair="uniform(24 h, 72 h)", nodes=1, tiers=(60,), days=200), fleet, 6)
    assert fmean(each.nodes_out for each in found) == pytest.approx(4.8, rel=0.06)


@pytest.mark.parametrize(("crews", "load"), [(1, 0.6), (3, 2.1)])
def test_repairs_by_few_crews_are_a_queue(crews, load):
    # failures at 1 /h and exponential repairs by c crews: M/M/c, with Erlang's probability of waiting
    fleet = FailingParts("node", 1, Exponential(), HOUR * 1e6)
    queue = plan(repair=f"exponential({load} h)", nodes=1, days=60)
    found = [each.nodes_out for each in runs(structs.replace(queue, crews=crews), fleet, 8)]
    full = load**crews / factorial(crews) * crews / (crews - load)
    waits = full / (sum(load**busy / factorial(busy) for busy in range(crews)) + full)
    error = stdev(found) / len(found) ** 0.5
    assert fmean(found) == pytest.approx(load + waits * load / (crews - load), abs=3 * error)
    assert fmean(found) - load > 5 * error  # more than with a crew for each


def test_a_run_waits_for_a_spare_as_often_as_erlang_says():
    # failures at 0.1 /h, repairs of exactly 20 h (the law does not matter), c spares: an arriving failure
    # finds none with about Erlang's probability of loss, as a run that waits for a node does not fail
    load, spares = 2.0, 4
    fleet = FailingParts("node", 1, Exponential(), 10 * HOUR * 1e6)
    found = runs(plan(repair="20 h", nodes=1, tiers=(spares,), days=300), fleet, 4)
    waited = sum(each.times.get("spare_wait", 0) > 0 for run in found for each in run.incidents)
    total = sum(len(run.incidents) for run in found)
    terms = [load**busy / factorial(busy) for busy in range(spares + 1)]
    assert waited / total == pytest.approx(terms[-1] / sum(terms), rel=0.25)


def test_the_mean_time_between_failures_falls_with_the_number_of_parts():
    counts = {}
    for parts in (10, 40):
        fleet = FailingParts("node", parts, Exponential(), 1000 * HOUR * 1e6)
        counts[parts] = sum(len(each.incidents) for each in runs(plan(days=100), fleet, 10))
    assert counts[10] == pytest.approx(10 * 10 * 2400 / 1000, rel=0.1)
    assert counts[40] == pytest.approx(4 * counts[10], rel=0.15)


def test_replications_do_not_depend_on_their_order():
    fleet, run = FailingParts("node", 10, Exponential(), 100 * HOUR * 1e6), plan(stall=3, restart="300 s")
    forward = runs(run, fleet, 4)
    backward = [replicate(run, failures([fleet], seed=0, replication=n), n) for n in (3, 2, 1, 0)]
    assert forward == backward[::-1]


def test_effective_time_is_metas_closed_form_to_its_order():
    # Kokolis et al. 2025: (1 - λ (u + T/2)) / (1 + w/T) with 256 nodes at 6.5e-3 /d, u = 10 min, T = 1 h
    rate = 256 * 6.5e-3 / 86_400
    fleet = FailingParts("node", 256, Exponential(), 86_400 / 6.5e-3 * 1e6)
    found = runs(plan(every=360, stall=20, restart="600 s", days=54), fleet, 30)
    share = fmean(each.times["steps"] / each.wall for each in found)
    assert share == pytest.approx((1 - rate * (600 + 1800)) / (1 + 20 / 3600), abs=0.003)
    # and the exact expectation: a piece and its checkpoint are tried until no failure meets them
    exact = 3600 / ((exp(rate * 3620) - 1) * exp(rate * 600) / rate)
    assert share == pytest.approx(exact, abs=0.002)


def test_bursts_are_geometric_and_stay_in_their_unit():
    # one in two failures is followed by another: 1 / (1 - 1/2) failures for each that follows none
    within = parse_time("uniform(1 s, 60 s)")
    fleet = FailingParts("gpu", 60, Exponential(), 2000 * HOUR * 1e6, follow=0.5, within=within, unit=8)
    found = [failure for n in range(4) for failure in first(fleet, 400, n)]
    follow = [(before, after) for before, after in pairwise(found) if after.ordinal == 0]
    assert len(found) / (len(found) - len(follow)) == pytest.approx(2, rel=0.1)
    close = [pair for pair in follow if pair[1].at - pair[0].at <= 60 * S]
    assert len(close) > 0.9 * len(follow)  # else another failure came between
    assert all(before.part // 8 == after.part // 8 for before, after in close)
    assert {after.part for _, after in close} == set(range(60))


def first(fleet, count, number):
    return list(islice(failures([fleet], seed=0, replication=number), count))
