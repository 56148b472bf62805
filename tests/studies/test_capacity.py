"""Capacity of servers: the highest rate that keeps limits, and the fleet for a load."""

import json
from typing import Any

import numpy as np
import pytest

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError, InfeasibleJobError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.report.charts.servers import capacity_charts
from rapid_des.report.pictures.charts import draw_charts
from rapid_des.report.tables import text
from rapid_des.serving.energy import served_energy
from rapid_des.serving.server import serve
from rapid_des.serving.slo import Slo
from rapid_des.simulation import simulate
from rapid_des.studies.attainment import Trial, highest_rate, long_run
from rapid_des.studies.capacity import (
    ServerLoad,
    all_layouts,
    capacity,
    fleets,
    with_splits,
)
from rapid_des.studies.capacity_report import capacity_report
from rapid_des.studies.load_curve import LoadPoint, curve, front
from rapid_des.units import PS_PER_S
from rapid_des.values import replace
from tests.cli.shell import call, refused

SMALL = {"model.layers": 2, "inference.prompt_length": 64, "inference.output_length": 32}

CACHE = BoundedCache()
"""What the servers of several tests have in common."""


@pytest.fixture(scope="module")
def job():
    return load_job("llama2_7b_inference", settings=SMALL)


@pytest.fixture(scope="module")
def node():
    return load_machine("dgx_a100")


def test_limits_are_kept_below_the_capacity_s_interval_and_broken_above(job, node):
    alone = serve(job, node, arrivals="clients count=1", requests=5, cache=CACHE)
    demand = ServerLoad(Slo("", {"e2e": 6 * int(alone.e2e.max()) // 5}), requests=200)
    found = capacity(job, node, demand, cache=CACHE)
    low, high = found.interval
    assert found.broken == "e2e" and 0 < low < found.rate < high <= found.full and found.rate < found.above
    plain = found.as_json()
    assert plain["rate_interval_per_s"] == [low, high]
    for rate, keeps in ((0.8 * low, True), (1.1 * high, False)):
        result = serve(job, node, arrivals=f"poisson rate={rate:.6g}/s", requests=600, seed=7, cache=CACHE)
        assert ((long_run(result, demand.slo) <= 1).mean() >= 0.99) == keeps
    fleet = found.fleet(10 * found.rate, None)
    assert fleet["gpus_interval"][0] <= fleet["gpus"] == 20 <= fleet["gpus_interval"][1]


class Queue:
    """A queue of 1,000 services a second: as many results of serving as a trial looks at."""

    def __init__(self, equal, rate, count, seed):
        random = np.random.default_rng(seed)
        between, service = random.exponential(1 / rate, count), random.exponential(1e-3, count)
        service = np.full(count, 1e-3) if equal else service
        arrival, work = np.cumsum(between), np.cumsum(service)
        # Lindley: who comes begins when the last one ends, or at once
        finish = work + np.maximum.accumulate(arrival - work + service)
        self.e2e, self.requests = (finish - arrival) * PS_PER_S, {"arrival": arrival * PS_PER_S}
        self.inside, self.elapsed = float(self.e2e.sum()), finish[-1] * PS_PER_S

    def used_by(self, result):
        """Return which part of 20 services each request takes."""
        return result.e2e / (20e-3 * PS_PER_S)


@pytest.mark.parametrize(
    ("equal", "truth"),
    [
        # M/M/1: a time in the system exceeds t with exp(-(mu - lambda) t), so 1 % of 20 services at
        (False, 1000 - np.log(100) / 20e-3),
        # M/D/1: of the tail's leading term (Cramer, Lundberg); 8 million services at it have 1.02 %
        (True, 885.6),
    ],
)
def test_intervals_hold_the_rate_of_a_queue_nine_times_of_ten(equal, truth):
    held, rates = 0, []
    for seed in range(1000, 1040):  # the width was not set on these

        def tried(rate, lengths, seed=seed):
            queue: Any = Queue(equal, rate, 1000 * lengths, seed)
            return Trial.of(rate, queue, queue, 0.99)

        found = highest_rate(tried, 1000.0)
        held += found.low <= truth <= found.high
        rates.append(found.rate)
    assert held >= 36 and np.median(rates) == pytest.approx(truth, rel=0.03)


def test_a_short_run_that_breaks_no_limit_is_not_believed():
    # the queue is too long within 60 services only after more requests than a short run has
    found = highest_rate(
        lambda rate, lengths: Trial(rate, 1.0, 0.1 if lengths > 1 and rate > 900 else -0.1, 0.1), 1000.0
    )
    assert found.above is not None and 0 < found.low < found.rate < found.high <= 1000


def test_limits_that_nothing_breaks_leave_the_full_rate(job, node):
    found = capacity(job, node, ServerLoad(Slo.parse("e2e=1h"), requests=50), cache=CACHE)
    assert (
        found.rate == found.full
        and found.broken == ""
        and found.interval[0] <= found.rate <= found.interval[1]
    )


def test_limits_that_a_request_alone_breaks_leave_nothing(job, node):
    found = capacity(job, node, ServerLoad(Slo.parse("ttft=1ns tpot=1s"), requests=20), cache=CACHE)
    assert (found.rate, found.broken, found.fleet(10, 1)) == (0, "ttft", {})


def test_a_fleet_has_whole_replicas_and_costs_what_its_gpus_do(job, node):
    demand = ServerLoad(Slo.parse("e2e=1h"), requests=50)
    found = fleets(job, node, demand, (), load=1e4, price=3.0, cache=CACHE)
    (row,) = found.rows
    fleet = row.fleet(found.load, found.price)
    assert (fleet["replicas"] - 1) * row.rate < 1e4 <= fleet["replicas"] * row.rate
    assert fleet["cost_per_hour"] == 3.0 * 2 * fleet["replicas"]
    # 10,000 requests a second of 32 tokens each, an hour
    assert fleet["cost_per_million_tokens"] == pytest.approx(fleet["cost_per_hour"] / (1e4 * 32 * 3600) * 1e6)


def test_a_fleet_of_one_is_a_gpu(job, node):
    demand = ServerLoad(Slo.parse("e2e=1h"), requests=20)
    lines = text(
        capacity_report(fleets(job, node, demand, ("tp=1",), load=1e-3, cache=CACHE), demand, "title")
    )
    assert "1 GPU" in list(lines)[-1]


def test_front_ends_limit_a_replica_and_a_stated_number_of_them_the_fleet(node):
    # 64 tokens of 10 ms each: a front end takes at most 1.56 requests/s
    slow = load_job("llama2_7b_inference", settings=SMALL | {"host.prompt_token": "10 ms"})
    demand = ServerLoad(Slo.parse("ttft=3s"), requests=60)
    found = capacity(slow, node, demand, cache=CACHE)
    assert found.full == pytest.approx(1.5625, rel=1e-3)
    assert found.rate < found.full and found.broken == "ttft (queue at front ends)"
    three = load_job(slow, settings={"serving.front_ends": 3})
    with pytest.raises(ConfigError, match="front_ends: 3 take at most 4.69 requests/s.*50/s; it needs 33"):
        fleets(three, node, demand, (), load=50)


def test_a_limit_of_no_time_is_refused():
    with pytest.raises(ConfigError, match="--slo 'ttft=0s': ttft: 0s: no request takes no time"):
        Slo.parse("ttft=0s")


def test_layouts_that_can_not_be_are_named_with_the_reason(job, node):
    demand = ServerLoad(Slo.parse("e2e=1h"), requests=20)
    found = fleets(job, node, demand, ("tp=2", "tp=3", "tp=8 pp=2"), cache=CACHE)
    assert [row.name for row in found.rows] == ["tp=2"]
    assert [text for text, _ in found.refused] == ["tp=3", "tp=8 pp=2"]
    assert found.refused[1][1] == "needs 16 GPUs, DGX A100 has 8"
    with pytest.raises(InfeasibleJobError, match="tp=3"):
        fleets(job, node, demand, ("tp=3",))
    with pytest.raises(ConfigError, match="dp goes with ep"):
        fleets(job, node, demand, ("tp=2 dp=2",))
    with pytest.raises(ConfigError, match="go together"):
        fleets(job, node, demand, ("tp=2 prefill=1",))
    with pytest.raises(ConfigError, match="'tp' is not one of tp="):
        fleets(job, node, demand, ("tp",))
    assert all_layouts(node)[:3] == ("tp=1", "tp=1 pp=2", "tp=1 pp=4")


def test_more_requests_at_a_time_serve_each_slower_and_the_gpu_better(job, node, tmp_path):
    points = curve(job, node, ServerLoad(Slo.parse("e2e=1h")), cache=CACHE)
    assert [point.concurrency for point in points] == [1, 4, 16, 64, 256]
    users = [point.tokens_per_user for point in points]
    assert users == sorted(users, reverse=True)
    assert points[-1].tokens_per_gpu > 5 * points[0].tokens_per_gpu
    pytest.importorskip("matplotlib")
    plain = {
        name: [point.as_json() for point in some]
        for name, some in (("points", points), ("front", front(points)))
    }
    draw_charts(capacity_charts(plain), tmp_path / "front.png", title="served")
    assert (tmp_path / "front.png").stat().st_size > 10_000


def test_the_front_leaves_out_what_another_beats_in_both():
    shown = ("a", 1, 10, 1), ("a", 4, 8, 3), ("b", 1, 7, 2), ("b", 4, 2, 9)
    best = front([LoadPoint(*each) for each in shown])
    assert [(point.layout, point.concurrency) for point in best] == [("b", 4), ("a", 4), ("a", 1)]


def test_the_command_prints_a_row_a_layout(monkeypatch):
    monkeypatch.setattr("rapid_des.studies.capacity.BoundedCache", lambda: CACHE)
    settings = [word for key, value in SMALL.items() for word in ("--set", f"job.{key}={value}")]
    words = ["capacity", "llama2_7b_inference", "--on", "dgx_a100", "--slo", "e2e=1h", "--requests", "20"]
    words += settings
    answer = call(*words, "--load", "100/s", "--price", "2", "--json")
    assert answer.code == 0, answer.err
    (row,) = json.loads(answer.out)["rows"]
    assert row["layout"] == {"tp": 2} and row["fleet"]["gpus"] % 2 == 0
    assert "tp=2" in call(*words).out
    assert "--load" in refused(call(*words, "--load", "much"))
    assert "more than 0" in refused(call(*words, "--load", "0/s"))
    assert "says nothing" in refused(call(*words, "--layout", " "))
    assert "state --layout" in refused(call(*words, "--splits", "2"))
    # a GPU's tokens of an hour cost 2
    assert row["cost_per_million_tokens"] * row["output_tokens_per_s_per_gpu"] * 3600 == pytest.approx(2e6)
    assert row["as_good_as_first"] and len(row["fleet"]["gpus_interval"]) == 2
    assert row["energy"]["joules_per_output_token"] > 0
    assert "ttfx" in refused(call("capacity", "llama2_7b_inference", "--on", "dgx_a100", "--slo", "ttfx=1s"))


def test_the_rate_of_a_model_is_found_without_a_job_file():
    words = (
        "capacity",
        "llama3_2_1b",
        "--on",
        "dgx_a100",
        "--slo",
        "e2e=1h",
        "--prompt",
        "100",
        "--output",
        "2",
    )
    answer = call(*words, "--requests", "10", "--json")
    (row,) = answer.json["rows"]
    assert row["gpus"] == 1 and row["rate_per_s"] > 0 and " serves it; tokens of prompts: " in answer.err


def test_prompts_on_replicas_of_their_own_are_a_layout(job, node):
    demand = ServerLoad(Slo.parse("tpot=30ms ttft=1s"), requests=40)
    found = fleets(job, node, demand, with_splits(["tp=2"], 2), load=100.0, price=1.0, cache=CACHE)
    assert {row.name: row.gpus for row in found.rows} == {"tp=2": 2, "tp=2 prefill=1 decode=1": 4}
    of_split = next(row for row in found.rows if "decode=1" in row.name)
    assert of_split.at.as_json()["transfer_s"]["mean"] > 0 and of_split.rate > 0
    printed = "\n".join(text(capacity_report(found, demand, "job")))
    assert "tp=2 prefill=1 decode=1" in printed and "J/token" in printed


def test_layouts_whose_intervals_meet_are_not_told_apart(job, node):
    demand = ServerLoad(Slo.parse("e2e=1h"), requests=40)
    found = fleets(job, node, demand, ("tp=1", "tp=8"), load=1e4, cache=CACHE)
    first, last = found.rows
    apart = replace(last, interval=(last.rate * 0.9, last.rate * 1.1))
    near = replace(last, interval=(1e-3, first.rate * 8))
    for other, as_good in ((apart, False), (near, True)):
        rows = replace(found, rows=(first, other))
        assert rows.as_good(other) == as_good
        lines = "\n".join(text(capacity_report(rows, ServerLoad(Slo.parse("e2e=1h")), "title")))
        assert ("tp=8 ~" in lines and "may be as good" in lines) == as_good


def test_an_interrupt_leaves_the_layouts_that_are_done(job, node):
    told = []

    def stop(text):
        told.append(text)
        if text == "layout 2 of 2":
            raise KeyboardInterrupt

    demand = ServerLoad(Slo.parse("e2e=1h"), requests=20)
    with pytest.raises(KeyboardInterrupt):
        fleets(job, node, demand, ("tp=2",), on_progress=lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    found = fleets(job, node, demand, ("tp=2", "tp=1"), cache=CACHE, on_progress=stop)
    assert [row.name for row in found.rows] == ["tp=2"] and found.interrupted
    assert "limits kept at" in told[-2]  # what is known of the rate while the next is tried


def test_a_served_batch_takes_the_energy_of_the_static_run(job, node):
    # 16 requests at once: a prefill and 31 decode steps, as a static batch of 16
    result = serve(job, node, arrivals="clients count=16", requests=16, cache=CACHE)
    static = load_job(job, settings={"inference.batch": 16, "inference.decode_steps": "all"})
    run = simulate(static, node, mode="analytical", cache=CACHE).figures.energy
    found = served_energy(result, job, node, cache=CACHE)
    assert found.kernels_j == pytest.approx(run.arithmetic_j + run.memory_j, rel=0.03)
    assert found.idle_j == pytest.approx(run.idle_j, rel=0.2)  # the server's host waits too


def test_a_served_batch_sends_the_bits_of_the_static_run(job, node):
    stated = {"fabric.0.energy": "{pj_per_bit: 5, idle_pj_per_bit: 10}", "host_power": "1 kW"}
    machine = load_machine(node, settings=stated)
    result = serve(job, machine, arrivals="clients count=16", requests=16, cache=CACHE)
    static = load_job(job, settings={"inference.batch": 16, "inference.decode_steps": "all"})
    run = simulate(static, machine, mode="analytical", cache=CACHE).figures.energy.network
    found = served_energy(result, job, machine, cache=CACHE)
    assert found.network.by_part["links"] == pytest.approx(run.by_part["links"], rel=0.05)
    assert found.joules == pytest.approx(sum(found.as_json()["joules_by_part"].values()))
    assert found.network.hosts_j == pytest.approx(1000 * result.gpu_seconds / 8)


def test_replicas_for_prompts_may_have_a_tp_of_their_own(job, node):
    text = "tp=2 prefill=2 decode=1 prefill_tp=1"
    demand = ServerLoad(Slo.parse("ttft=10s"), requests=20)
    plan = fleets(job, node, demand, [text, "tp=4 prefill=1 decode=2 prefill_tp=1"], cache=CACHE)
    (apart,) = plan.rows
    assert (apart.name, apart.gpus) == (text, 4) and apart.rate > 0
    # one GPU for prompts, then two replicas of four that begin at a multiple of four
    assert plan.refused == (("tp=4 prefill=1 decode=2 prefill_tp=1", "needs 12 GPUs, DGX A100 has 8"),)
