"""A server under costs that theory knows: queues, Little's law, conservation, determinism."""

import numpy as np
import pytest

from rapid_des.serving.policies import POLICIES
from rapid_des.serving.replica import Engine
from rapid_des.serving.result import ServeResult
from rapid_des.serving.routers import ROUTERS
from rapid_des.serving.server import Fleet
from rapid_des.serving.workload import draw, parse_arrivals, parse_lengths

SERVICE = 10**9
"""A millisecond."""


class Affine:
    """An iteration takes a base, so much a prompt token, and so much a position that decoding sees."""

    def __init__(self, base=SERVICE, token=0, key=0):
        self.base, self.token, self.key = base, token, key

    def time(self, batch):
        prompts = sum(chunk.query_length for chunk in batch.chunks)
        return self.base + self.token * prompts + self.key * batch.keys

    def ends(self, decodes, keys, steps):
        return np.cumsum(self.base + self.key * (keys + decodes * np.arange(steps)))


def served(arrivals, count, prompt="1", output="1", seed=1, policy="vllm_v1", replicas=1, **engine):
    made = {
        "costs": Affine(),
        "pages": 10**6,
        "page_size": 16,
        "max_batched_tokens": 8192,
        "max_sequences": 256,
    } | engine
    work = draw(
        parse_arrivals(arrivals), (parse_lengths(prompt, "p"), parse_lengths(output, "o")), count, seed
    )
    fleet = Fleet(Engine(policy=POLICIES[policy], **made), work, ROUTERS["round_robin"], replicas=replicas)
    assert fleet.run()
    result = ServeResult.of(fleet, name="test", gpus=replicas)
    return fleet, result


def test_single_requests_of_one_iteration_wait_as_in_an_m_d_1_queue():
    # rho = 0.8: the mean wait of M/D/1 is rho / (2 (1 - rho)) services = 2 (Pollaczek and Khinchine)
    _, result = served("poisson rate=800/s", 40_000, max_sequences=1)
    assert result.queue.mean() / SERVICE == pytest.approx(2, rel=0.08)


def test_batches_take_in_who_comes_meanwhile():
    # all who wait are in the next iteration: nobody waits for more than the one that runs
    _, result = served("poisson rate=3000/s", 20_000)
    assert result.queue.max() <= SERVICE
    assert result.queue.mean() / SERVICE == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pages", [10**6, 60])
def test_steps_that_pass_at_once_are_those_that_are_waited_for(pages, policy):
    outcomes = []
    for stepwise in (False, True):
        costs = Affine(token=10**6, key=10**4)
        fleet, result = served(
            "poisson rate=20/s",
            300,
            "lognormal mean=200 cv=0.7 most=500",
            "lognormal mean=60 cv=1 most=400",
            costs=costs,
            policy=policy,
            pages=pages,
            stepwise=stepwise,
        )
        outcomes.append({name: column.tolist() for name, column in result.requests.items()})
        outcomes[-1]["gaps"] = result.gaps.tolist()
    assert outcomes[0] == outcomes[1]
    evicts = policy != "trtllm_guaranteed_no_evict"
    assert (sum(outcomes[0]["preemptions"]) > 0) == (pages == 60 and evicts)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pages", [10**6, 60])
def test_tokens_and_pages_are_conserved(pages, policy):
    fleet, result = served(
        "poisson rate=20/s",
        300,
        "lognormal mean=200 cv=0.7 most=500",
        "lognormal mean=60 cv=1 most=400",
        pages=pages,
        policy=policy,
        costs=Affine(token=10**6),
    )
    (replica,) = fleet.members
    assert replica.sizes == (0, 0, 0)  # nobody waits or runs, no page is held
    out = result.requests["output"]
    load = result.loads[0]
    # of each request the first token comes from its prompt, the others from decode steps, or from a prompt
    # that was computed again
    again = int(result.requests["preemptions"].sum())
    assert out.sum() - len(out) - again <= (load["decodes"] * load["steps"]).sum() <= out.sum() - len(out)
    assert (load["prompt_tokens"].sum() == result.requests["prompt"].sum()) == (again == 0)
    assert load["pages"].max() <= pages


def test_clients_of_a_closed_loop_have_one_request_each():
    # eight clients, ten iterations an answer: all in step, 8 answers each 10 ms
    _, result = served("clients count=8", 800, output="10")
    assert result.throughput["requests_per_s"] == pytest.approx(800)


def test_equal_seeds_give_equal_results_and_more_requests_leave_the_first():
    few, more, other = (
        served("gamma rate=50/s cv=2", count, "uniform low=10 high=90", seed=seed)[1].requests
        for count, seed in ((50, 1), (80, 1), (50, 2))
    )
    assert all((few[name] == more[name][:50]).all() for name in few)
    assert not (few["arrival"] == other["arrival"]).all()
