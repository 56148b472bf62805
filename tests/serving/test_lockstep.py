"""Replicas that share experts step together: what an iteration costs them, who waits for whom."""

import numpy as np
import pytest

from rapid_des.bounded_cache import BoundedCache
from rapid_des.frontend import load_job
from rapid_des.frontend.inference import one_pass
from rapid_des.frontend.operations import RequestGroup
from rapid_des.machine import load_machine
from rapid_des.serving.batch import Batch
from rapid_des.serving.costs import PassCosts
from rapid_des.serving.half_batches import costs_of
from rapid_des.serving.outages import events, parse_outage
from rapid_des.serving.server import serve
from rapid_des.simulation import simulate
from tests.serving.test_queues import SERVICE, Affine, from_columns, served

JOB = {
    "model": "qwen3_30b_a3b",
    "phase": "inference",
    "software": "vllm-0.12",
    "parallelism": {"dp": 4, "ep": 4},
    "inference": {"batch": 1, "prompt_length": 8, "output_length": 2},
}


@pytest.fixture(scope="module")
def costs():
    return PassCosts(load_job(JOB), load_machine("dgx_h100"), BoundedCache())


class Slowest(Affine):
    """An iteration takes what the replica with most to do takes."""

    def together(self, batches):
        return max(self.time(batch) for batch in batches if batch.tokens)

    def ends_together(self, decoding):
        return np.max([self.ends(*each) for each in decoding], axis=0)


BATCHES = [
    Batch(64, 64 * 1024),
    Batch(32, 32 * 700, (RequestGroup(1, 1024),)),
    Batch(chunks=(RequestGroup(1, 2048),)),
]


@pytest.mark.parametrize("batch", BATCHES)
def test_like_batches_cost_what_a_static_pass_of_all_of_them_does(costs, batch):
    run = simulate(one_pass(costs._job, batch.groups()), costs._machine, mode="hierarchical")
    assert costs.together([batch] * 4) == costs.time(batch) == pytest.approx(int(run.step_time), rel=0.01)


def test_decode_steps_of_all_take_as_long_as_one_by_one(costs):
    lengths = {48: 48 * 900, 64: 64 * 512, 8: 8 * 3000}
    each = [
        costs.together([Batch(count, keys + count * step) for count, keys in lengths.items()])
        for step in range(50)
    ]
    at_once = costs.ends_together([(count, keys + count * np.arange(50)) for count, keys in lengths.items()])
    assert (at_once == np.cumsum(each)).all()


def test_experts_compute_the_tokens_of_all_and_attention_those_of_the_longest(costs):
    prompt, few = Batch(chunks=(RequestGroup(1, 4096),)), Batch(8, 8 * 512)
    alone, mixed, alike = (
        costs.together([prompt, *others]) for others in ([Batch()] * 3, [few] * 3, [prompt] * 3)
    )
    assert alone < mixed < alike  # a quarter of the experts' work, a little more, all of it
    assert alone > costs.together([few] * 4)


def test_who_decodes_waits_for_a_prompt_of_another():
    # a prompt of 100 tokens at one replica holds up the tokens of the other: 11 ms, not 1
    work = from_columns([0, 50], [1, 100], [200, 2])
    apart = served(work, 0, costs=Slowest(token=10**8), replicas=2)[1]
    joined = served(work, 0, costs=Slowest(token=10**8), replicas=2, together=2)[1]
    late = joined.requests["finished"] - apart.requests["finished"]
    assert late[0] == 10 * SERVICE and 0 <= late[1] <= SERVICE


def test_alike_replicas_answer_together_as_they_do_apart():
    work = from_columns(np.repeat(np.arange(50) * 20, 2), [40] * 100, [30] * 100)
    apart, joined = (
        served(work, 0, costs=Slowest(token=10**7, key=10**4), replicas=2, together=together)[1]
        for together in (1, 2)
    )
    assert all((apart.requests[name] == joined.requests[name]).all() for name in apart.requests)


def test_steps_that_pass_at_once_are_those_that_are_waited_for():
    both = [
        served("poisson rate=300/s", 300, "uniform low=100 high=300", "uniform low=2 high=90", replicas=4,
               together=4, pages=60, costs=Slowest(token=10**6, key=10**4), stepwise=stepwise)[1].requests
        for stepwise in (False, True)
    ]  # fmt: skip
    assert both[0]["preemptions"].sum() > 0
    assert all((both[0][name] == both[1][name]).all() for name in both[0])


def test_all_stop_with_one_of_them_and_come_back():
    work = from_columns(np.arange(200) * 10, [20] * 200, [30] * 200)
    stated = [parse_outage("replica=1 at=0.5005s down=0.4s")]
    fleet, result = served(work, 0, costs=Slowest(), replicas=4, together=2, outages=events(stated, 4, 0))
    assert [stop[0] for stop in result.stops] == [0, 1] and len(result) == 200
    out = (result.requests["arrival"] > 0.51 * 10**12) & (result.requests["arrival"] < 0.89 * 10**12)
    assert set(result.requests["replica"][out].tolist()) == {2, 3}
    assert (result.requests["retries"] > 0).any()
    assert [member.sizes for member in fleet.members] == [(0, 0, 0)] * 4


def test_a_server_of_such_replicas_conserves_its_requests():
    job = load_job(JOB, settings={"model.layers": 2})
    result = serve(job, load_machine("dgx_h100"), arrivals="poisson rate=50/s", requests=60, prompt="500",
                   output="uniform low=2 high=40")  # fmt: skip
    assert len(result) == 60 and result.gpus == 4


DEEPEP = {"routing.dispatcher": "deepep", "model.layers": 12}
UNLIKE = {
    # prompts that DeepEP's normal kernels carry are sorted by expert, steps that decode are not
    "deepep": (DEEPEP, "hierarchical"),
    # prompts expand the latent, steps that decode absorb: a mix does both
    "latent attention": ({"model": "deepseek_v2_lite"}, "hierarchical"),
    "half-batches": (DEEPEP | {"inference.two_batches": {"prefill": 2, "decode": 2}}, "flattened"),
}


@pytest.mark.parametrize(("settings", "mode"), UNLIKE.values(), ids=UNLIKE)
def test_prompts_that_are_computed_otherwise_than_answers_cost_what_static_passes_do(settings, mode):
    own = costs_of(load_job(JOB, settings=settings), load_machine("dgx_h100"), BoundedCache())
    for batch in BATCHES:
        run = simulate(one_pass(own._job, batch.groups()), own._machine, mode=mode)
        # 1.75 % where GPU and host wait for each other in turn
        assert own.together([batch] * 4) == own.time(batch) == pytest.approx(int(run.step_time), rel=0.02)
    # one decodes more requests than half-batches need while another has a prompt
    prompt, decodes = BATCHES[2], Batch(64, 64 * 900)
    mixed = own.together([prompt, decodes, Batch(), Batch()])
    assert mixed >= max(own.together([batch, Batch(), Batch(), Batch()]) for batch in (prompt, decodes))
