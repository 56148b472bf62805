"""A server that drafts tokens: what a step makes of each request, and what it takes."""

from typing import Any

import numpy as np
import pytest

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.frontend.inference import one_pass
from rapid_des.frontend.operations import RequestGroup
from rapid_des.machine import load_machine
from rapid_des.serving.batch import Batch
from rapid_des.serving.costs import PassCosts
from rapid_des.serving.drafts import Drafts
from rapid_des.serving.policies import POLICIES
from rapid_des.serving.requests import Request
from rapid_des.serving.server import serve
from rapid_des.simulation import simulate
from tests.serving.test_queues import Affine, served

DRAFTS = Drafts((0.8, 0.5))
EAGLE = {"method": "eagle", "tokens": 3, "acceptance": [0.8, 0.7, 0.6]}
JOB = {
    "model": "llama3_1_8b",
    "phase": "inference",
    "parallelism": {"tp": 2},
    "inference": {"batch": 1, "prompt_length": 8, "output_length": 2, "speculative": EAGLE},
}


@pytest.fixture(scope="module")
def ratio():
    cache, job, machine = BoundedCache(), load_job(JOB), load_machine("dgx_h100")
    costs = PassCosts(job, machine, cache)

    def of(batch):
        run = simulate(one_pass(job, batch.groups()), machine, mode="hierarchical", cache=cache)
        return costs.time(batch) / run.step_time

    return of


@pytest.mark.parametrize(("decodes", "length"), [(1, 512), (16, 1024), (64, 1024)])
def test_steps_on_corners_cost_what_static_ones_do(ratio, decodes, length):
    assert ratio(Batch(decodes, decodes * length, checked=4)) == 1


def test_other_steps_are_within_two_thousandths_and_mixed_ones_within_a_percent(ratio):
    random = np.random.default_rng(5)
    for _ in range(2):
        decodes, length = int(random.integers(1, 200)), int(random.integers(50, 4000))
        assert ratio(Batch(decodes, decodes * length, checked=4)) == pytest.approx(1, abs=0.002)
        chunk = RequestGroup(1, int(2 ** random.uniform(5, 13)), int(random.integers(0, 2)) * 500)
        assert ratio(Batch(decodes, decodes * length, (chunk,), 4)) == pytest.approx(1, abs=0.01)


def test_tokens_of_a_step_are_kept_as_often_as_stated():
    # one always, a second with 0.8, a third with 0.8 * 0.5
    made = np.concatenate([np.diff(DRAFTS.made(Request(n, 0, 9, 600)), prepend=0)[:-1] for n in range(100)])
    shares = np.bincount(made) / len(made)
    assert shares == pytest.approx([0, 0.2, 0.4, 0.4], abs=0.015)
    assert DRAFTS.tokens_a_step == pytest.approx(2.2)


def test_draws_follow_from_the_seed_and_the_request_alone():
    one, again, other = (
        served("poisson rate=20/s", count, "9", "90", drafts=Drafts((0.8, 0.5), seed), seed=1, **room)[1]
        for count, seed, room in ((60, 3, {}), (30, 3, {"max_sequences": 1}), (30, 4, {}))
    )
    # an iteration takes a millisecond whoever is in it: the times between first and last token tell the steps
    steps = [(each.e2e - each.ttft)[:30].tolist() for each in (one, again, other)]
    assert steps[0] == steps[1] != steps[2]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pages", [10**6, 60])
def test_steps_that_pass_at_once_are_those_that_are_waited_for(pages, policy):
    outcomes = []
    for stepwise in (False, True):
        fleet, result = served(
            "poisson rate=40/s",
            100,
            "lognormal mean=200 cv=0.7 most=500",
            "lognormal mean=60 cv=1 most=400",
            costs=Affine(token=10**6, key=10**4),
            drafts=DRAFTS,
            policy=policy,
            pages=pages,
            stepwise=stepwise,
            max_sequences=64,
        )
        outcomes.append({name: column.tolist() for name, column in result.requests.items()})
        outcomes[-1]["gaps"] = result.gaps.tolist()
        assert [member._free for member in fleet.members] == [pages]
        assert not any(member._group.stored or member._group.to_come for member in fleet.members)
    assert outcomes[0] == outcomes[1]
    assert (sum(outcomes[0]["preemptions"]) > 0) == (pages == 60 and policy != "trtllm_guaranteed_no_evict")


def test_all_tokens_asked_for_are_made_in_about_as_many_steps_as_expected():
    _, result = served("poisson rate=20/s", 300, "50", "221", drafts=DRAFTS)
    assert result.tokens_a_step == pytest.approx(2.2, rel=0.02)
    # 220 tokens after the first at 2.2 a step of a millisecond
    assert result.tpot.mean() == pytest.approx(10**9 / 2.2, rel=0.02)


def test_drafts_take_tokens_of_the_budget():
    # what requests leave that pass three tokens each is there for prompts
    _, result = served(
        "poisson rate=1000/s", 40, "30", "50", drafts=DRAFTS, max_batched_tokens=15, max_sequences=5
    )
    (busy,) = result.loads
    assert busy["decodes"].max() >= 4
    assert (3 * busy["decodes"] + busy["prompt_tokens"]).max() == 15


def test_an_iteration_that_has_no_room_for_a_request_with_its_drafts_is_refused():
    job = load_job(JOB, settings={"serving.max_batched_tokens": 3})
    with pytest.raises(ConfigError, match="3 tokens of an iteration are fewer than the 4"):
        serve(job, load_machine("dgx_h100"), arrivals="poisson rate=1/s", requests=2)


def test_replicas_that_share_experts_draft_too():
    settings = {"model": "qwen3_30b_a3b", "parallelism": {"dp": 4, "ep": 4}, "software": "vllm-0.12"}
    job, machine = load_job(JOB | settings), load_machine("dgx_h100")
    batch = Batch(16, 16 * 500, checked=4)
    run = simulate(one_pass(job, batch.groups()), machine, mode="hierarchical")
    assert PassCosts(job, machine).together([batch] * 4) == pytest.approx(int(run.step_time), rel=0.001)
    result = serve(job, machine, arrivals="clients count=8", requests=16, output="60")
    assert result.as_json()["tokens_a_step"] == pytest.approx(1 + 0.8 + 0.56 + 0.336, rel=0.1)


def test_drafts_need_pages_but_no_positions_of_the_model():
    # llama2_7b takes 4,096 tokens: an answer may end there, though its last step checks one more
    settings = {"inference.speculative": {"method": "eagle", "tokens": 1, "acceptance": [0.5]}}
    job = load_job("llama2_7b_inference", settings=settings)
    asked: dict[str, Any] = {"arrivals": "clients count=1", "requests": 1, "prompt": "4094"}
    assert len(serve(job, load_machine("dgx_a100"), output="2", **asked)) == 1
    with pytest.raises(ConfigError, match="max_positions 4096"):
        serve(job, load_machine("dgx_a100"), output="3", **asked)
