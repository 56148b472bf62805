"""Replicas of several stages: as many batches at a time, in step where there is one, nothing lost."""

import numpy as np
import pytest

from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.serving.engine import Engine
from rapid_des.serving.engines import iteration_costs
from rapid_des.serving.fleet import Fleet
from rapid_des.serving.policies import POLICIES
from rapid_des.serving.result import ServeResult
from rapid_des.serving.routers import ROUTERS
from rapid_des.serving.server import serve
from rapid_des.serving.workload import draw, parse_arrivals, parse_lengths

SERVICE, HALVES = 10**9, (0.5, 0.5)
ENGINE = {"pages": 10**6, "page_size": 16, "max_batched_tokens": 8192, "max_sequences": 256}


class Constant:
    """Every iteration takes a millisecond."""

    def time(self, batch):
        return SERVICE

    def ends(self, decodes, keys):
        return SERVICE * np.arange(1, len(keys) + 1)


class PerRequest(Constant):
    """Iterations take as long as they have requests."""

    def time(self, batch):
        return SERVICE * batch.sampled

    def ends(self, decodes, keys):
        return decodes * super().ends(decodes, keys)


def served(arrivals, count, prompt="1", output="1", policy="vllm_v1", **engine):
    lengths = parse_lengths(prompt, "p"), parse_lengths(output, "o")
    work = draw(parse_arrivals(arrivals), lengths, count, 1)
    made = Engine(policy=POLICIES[policy], **{"costs": Constant()} | ENGINE | engine)
    fleet = Fleet(made, work, ROUTERS["round_robin"])
    assert fleet.run()
    return fleet, ServeResult.of(fleet, name="test", gpus=1)


def test_requests_that_begin_together_stay_in_one_batch():
    # As in vLLM: whoever is free is in the next batch, so one cohort leaves the other stage idle.
    for shares in ((1.0,), HALVES):
        _, result = served("clients count=8", 80, output="10", shares=shares)
        assert result.throughput["requests_per_s"] == pytest.approx(800)
        assert (result.e2e == 10 * SERVICE).all()


def test_two_cohorts_keep_two_stages_busy():
    # A pass takes 8 prompts and 16 clients come at once: two passes, whose requests then decode by turns.
    # One stage: 16 tokens in 16 ms. Two: 8 tokens in 8 ms of each of two, of which a stage takes half.
    engine = {"costs": PerRequest(), "max_batched_tokens": 512}
    rates = [
        served("clients count=16", 800, "64", "10", shares=shares, **engine)[1].throughput["requests_per_s"]
        for shares in ((1.0,), HALVES)
    ]
    assert rates == pytest.approx([100, 200], rel=0.02)


def test_a_lone_request_takes_what_the_stages_take_one_after_the_other():
    one, two = (
        served("constant rate=1/s", 5, "300", "7", shares=shares, max_batched_tokens=1024)[1]
        for shares in ((1.0,), HALVES)
    )
    assert (one.ttft == two.ttft).all()
    assert (one.e2e == two.e2e).all()


def test_chunks_of_one_prompt_follow_one_another_through_the_stages():
    # Four chunks of a millisecond: alone 4 ms, through two halves (4 + 1) halves of one.
    _, result = served("constant rate=1/s", 1, "400", "1", shares=HALVES, max_batched_tokens=100)
    assert result.ttft.tolist() == [5 * SERVICE // 2]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("pages", "swap", "order"), [(20, 0, "fcfs"), (20, 10**5, "fair"), (60, 0, "fair")])
def test_nothing_is_lost_in_a_pipeline(policy, pages, swap, order):
    lengths = "uniform low=1 high=120", "uniform low=1 high=120"
    asked = {"policy": policy, "pages": pages, "swap": swap, "order": order, "shares": (0.4, 0.35, 0.25)}
    fleet, result = served("poisson rate=200/s", 60, *lengths, **asked)
    assert len(result) == 60
    assert fleet.members[0].sizes == (0, 0, 0)
    load = result.loads[0]
    assert load["pages"].max() <= pages
    assert (load["began"][1:] >= (load["began"] + load["duration"])[:-1]).all()
    out, again = result.requests["output"], int(result.requests["preemptions"].sum())
    assert out.sum() - len(out) - again <= load["decodes"].sum() <= out.sum() - len(out)


def test_a_replica_of_stages_that_stops_gives_all_its_requests_back():
    fleet, _ = served("clients count=4", 8, output="10", shares=HALVES)
    (replica,) = fleet.members
    requests = [fleet.workload.request(number, 0) for number in range(3)]
    for request in requests:
        replica.submit(request)
    fleet.env.run(until=fleet.env.now + SERVICE // 2)
    assert replica.outstanding == 3
    assert set(replica.stop()) == set(requests)
    assert replica.sizes == (0, 0, 0)


def test_iterations_of_a_pipeline_are_those_of_static_runs_and_shared_by_its_stages():
    settings = {"parallelism.pp": 2, "parallelism.tp": 1, "model.layers": 4}
    job, machine = load_job("llama2_7b_inference", settings=settings), load_machine("dgx_a100")
    first, last = iteration_costs(job, machine, None).shares
    assert first < 0.5 < last  # the head is on the last one
    assert first + last == pytest.approx(1)
    few, many = (
        serve(job, machine, arrivals=f"clients count={count}", requests=64, prompt="2048", output="16")
        for count in (1, 32)
    )
    assert many.throughput["requests_per_s"] > 2 * few.throughput["requests_per_s"]
