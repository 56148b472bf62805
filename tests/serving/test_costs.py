"""Iterations cost what simulated static passes of the same batches do."""

import numpy as np
import pytest

from rapid_des.bounded_cache import BoundedCache
from rapid_des.frontend import load_job
from rapid_des.frontend.inference import one_pass
from rapid_des.frontend.operations import RequestGroup
from rapid_des.machine import load_machine
from rapid_des.serving.batch import Batch
from rapid_des.serving.costs import PassCosts
from rapid_des.serving.engines import iteration_costs
from rapid_des.serving.server import serve
from rapid_des.simulation import simulate

JOB = {
    "model": "llama3_1_8b",
    "phase": "inference",
    "parallelism": {"tp": 2},
    "inference": {"batch": 1, "prompt_length": 8, "output_length": 2},
}
SMALL = {
    "model": {"hidden": 256, "layers": 2, "attention": {"heads": 8}, "norm": "rms_norm", "position": "rope",
              "feed_forward": {"activation": "swiglu", "hidden": 512}, "vocabulary": 1024,
              "max_positions": 1024, "tied_embeddings": False},
    "phase": "inference",
    "software": "trtllm-1",
    "host": None,
}  # fmt: skip
PROMPTS = (RequestGroup(1, 1024),)


@pytest.fixture(scope="module")
def costs():
    cache = BoundedCache()
    job, machine = load_job(JOB), load_machine("dgx_h100")
    own = PassCosts(job, machine, cache)

    def ratio(batch):
        run = simulate(one_pass(job, batch.groups()), machine, mode="hierarchical", cache=cache)
        return own.time(batch) / run.step_time

    return own, ratio


@pytest.mark.parametrize("batch", [Batch(1, 512), Batch(16, 16 * 1024), Batch(64, 64 * 1024)])
def test_decode_steps_on_corners_are_exact(costs, batch):
    # counts that are powers of two and lengths with a corner of their own are not interpolated
    assert costs[1](batch) == 1


def test_a_prompt_on_a_corner_is_exact_but_for_the_last_issue(costs):
    # all of a long prompt's kernels are issued in time: only the first one is waited for
    assert costs[1](Batch(chunks=(RequestGroup(1, 8192),))) == pytest.approx(1, abs=1e-6)


def test_servers_that_differ_in_what_iterations_there_are_share_their_costs():
    machine, cache = load_machine("dgx_h100"), BoundedCache()
    other = {"serving.max_batched_tokens": 512, "memory.kv_pool.share": 0.5}
    plain, fewer = load_job(JOB), load_job(JOB, settings=other)
    assert iteration_costs(fewer, machine, cache) is iteration_costs(plain, machine, cache)
    assert iteration_costs(load_job({**JOB, "software": "trtllm-1"}), machine, cache) is not iteration_costs(
        plain, machine, cache
    )


@pytest.mark.parametrize("device", ["dgx_a100", "dgx_h100"])
def test_a_short_prompt_alone_takes_as_long_as_a_static_one(device):
    # its attention was linear from a decode kernel's one token to 64: 8.4 % too short for 17 on an H100
    machine = load_machine(device)
    for tokens in (2, 8, 17, 48, 64):
        stated = {"batch": 1, "prompt_length": tokens, "output_length": 1}
        job = load_job(SMALL | {"inference": stated})
        served = serve(job, machine, requests=1, arrivals="clients count=1")
        assert int(served.ttft[0]) == simulate(job, machine).figures.requests.first_token


def test_other_decode_steps_are_within_a_thousandth(costs):
    random = np.random.default_rng(5)
    for _ in range(12):
        decodes, length = int(random.integers(1, 200)), int(random.integers(50, 4000))
        assert costs[1](Batch(decodes, decodes * length)) == pytest.approx(1, abs=0.001)


def test_mixed_batches_are_within_a_percent(costs):
    random = np.random.default_rng(6)
    for _ in range(12):
        decodes, length = int(random.integers(1, 200)), int(random.integers(50, 4000))
        chunk = RequestGroup(1, int(2 ** random.uniform(5, 13)), int(random.integers(0, 2)) * 500)
        batch = Batch(decodes, decodes * length, (chunk,))
        assert costs[1](batch) == pytest.approx(1, abs=0.01)


def test_prompts_in_pieces_are_within_a_percent_of_static_ones():
    job = load_job(
        JOB | {"host": {"kernel": "60 us", "collective": "60 us", "graph": "15 us", "captured": "decode",
                        "captured_prompts": 512}}
    )  # fmt: skip
    machine, cache = load_machine("dgx_h100"), BoundedCache()
    own = PassCosts(job, machine, cache)
    for tokens in (100, 512, 513, 1000):
        batch = Batch(chunks=(RequestGroup(1, tokens),))
        run = simulate(one_pass(job, batch.groups()), machine, mode="hierarchical", cache=cache)
        assert own.time(batch) / run.step_time == pytest.approx(1, abs=0.01)
    short, long = (own.time(Batch(chunks=(RequestGroup(1, tokens),))) for tokens in (512, 513))
    assert short < long / 2  # 32 layers: 13 launches of kernels each, or one and that of a graph


def test_steps_at_once_take_as_long_as_step_by_step(costs):
    own, _ = costs
    each = [own.time(Batch(37, 37 * (777 + step))) for step in range(300)]
    assert (own.ends(37, 37 * np.arange(777, 777 + 300)) == np.cumsum(each)).all()


def test_steps_at_once_go_on_where_corners_come_to_lie_farther_apart(costs):
    own, _ = costs
    own.ends(17, 17 * np.arange(7940, 7945))
    each = [own.time(Batch(17, 17 * (8192 + step))) for step in range(3)]
    assert own.ends(17, 17 * np.arange(8192, 8195)).tolist() == np.cumsum(each).tolist()
    assert own.ends(17, 17 * np.array([8192])).tolist() == each[:1]
