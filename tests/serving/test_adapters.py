"""Requests that name adapters, and sessions that leave for the host: what runs together, what it costs."""

from typing import Any

import numpy as np
import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.frontend.servers import LoraSpec
from rapid_des.machine import load_machine
from rapid_des.serving.adapters import Lora
from rapid_des.serving.policies import POLICIES
from rapid_des.serving.server import serve
from tests.serving.test_queues import SERVICE, Affine, from_columns, served


class Fake:
    """Adapters that take 3 ms to load and a millisecond each an iteration."""

    def __init__(self, slots):
        self.slots, self.load = slots, 3 * SERVICE

    def time(self, tokens, adapters):
        return SERVICE * adapters


def test_an_adapter_is_loaded_once_while_it_has_a_place():
    # an iteration: 1 ms and 1 ms for the adapter; the first request loads it, the second finds it
    work = from_columns([0, 100, 200], [1] * 3, [2] * 3, adapter=[4, 4, 5])
    fleet, result = served(work, 0, lora=Fake(1))
    assert (result.e2e / SERVICE).tolist() == [3 + 2 + 2, 2 + 2, 3 + 2 + 2]
    assert fleet.members[0].adapters.slots.loads == 2


def test_requests_of_more_adapters_than_places_wait_and_others_pass_them():
    work = from_columns([0] * 4, [1] * 4, [5] * 4, adapter=[0, 1, 2, 0])
    _, result = served(work, 0, lora=Fake(2))
    started = result.requests["started"] / SERVICE
    assert started[0] == started[1] == started[3] == 0  # the last is of the first one's adapter
    assert started[2] >= result.requests["finished"][[0, 1]].min() / SERVICE


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("slots", [1, 3])
def test_with_adapters_and_a_host_cache_everybody_is_served_and_nothing_is_lost(policy, slots):
    random, count = np.random.default_rng(7), 150
    marks = {"adapter": random.integers(0, 6, count), "session": random.integers(0, 12, count)}
    arrival, prompt = np.cumsum(random.integers(1, 60, count)), random.integers(20, 300, count)
    work = from_columns(arrival, prompt, random.integers(1, 60, count), **marks)
    fleet, result = served(
        work, 0, lora=Fake(slots), policy=policy, pages=60, host_pages=100, fetch=10**5,
        costs=Affine(token=10**6, key=10**4),
    )  # fmt: skip
    (replica,) = fleet.members
    assert len(result) == count and replica.sizes == (0, 0, 0)
    assert not replica.adapters.slots.running and not replica.adapters.slots.decoding
    assert result.loads[0]["pages"].max() <= 60


def test_steps_that_pass_at_once_are_those_that_are_waited_for_with_adapters():
    outcomes = []
    for stepwise in (False, True):
        random = np.random.default_rng(9)
        arrival, lengths = np.cumsum(random.integers(1, 30, 120)), random.integers(1, 80, (2, 120))
        marks = {"adapter": random.integers(0, 5, 120), "session": random.integers(0, 9, 120)}
        work = from_columns(arrival, *lengths, **marks)
        _, result = served(
            work, 0, lora=Fake(2), pages=40, host_pages=50, fetch=10**6,
            costs=Affine(token=10**6, key=10**4), stepwise=stepwise,
        )  # fmt: skip
        outcomes.append({name: column.tolist() for name, column in result.requests.items()})
    assert outcomes[0] == outcomes[1]


def test_sessions_that_left_for_the_host_come_back_instead_of_being_computed():
    costs = Affine(base=0, token=SERVICE)
    # as without a host's cache, but session 3 comes back: 80 tokens at a tenth of a millisecond each
    work = from_columns([0, 10_000, 20_000], [80, 200, 200], [10, 1, 1], session=[3, 4, 3])
    for pages, expected in ((0, 200 * SERVICE), (20, 120 * SERVICE + 80 * SERVICE // 10)):
        _, result = served(work, 0, costs=costs, pages=15, host_pages=pages, fetch=SERVICE // 10)
        assert result.ttft[2] == expected


def lora(**keys):
    return LoraSpec(**({"adapters": 8, "rank": 16, "max_loras": 8} | keys))


def test_adapters_have_the_bytes_of_their_factors_and_cost_more_the_more_there_are():
    job, machine = load_job("llama2_7b_inference", settings={"parallelism.tp": 1}), load_machine("dgx_h100")
    own = Lora(job, machine, lora(matrices=("attention.qkv", "attention.output")))
    # 32 layers: (4096 + 12288) · 16 and (4096 + 4096) · 16 parameters of two bytes
    assert own.bytes == 32 * 2 * 16 * (4096 + 12288 + 4096 + 4096)
    assert own.load == pytest.approx(own.bytes / int(machine.device.spec.host.from_host) * 1e12, rel=1e-6)
    times = [own.time(64, adapters) for adapters in (1, 8, 64)]
    assert times == sorted(times) and times[0] > 0
    assert own.time(4096, 8) > own.time(64, 8)


def test_a_server_with_adapters_is_slower_and_has_fewer_pages():
    bare = {"model.layers": 4, "serving.sessions": 3}
    of_lora = {"adapters": 64, "rank": 64, "max_loras": 4, "popularity": 1.0}
    asked: dict[str, Any] = {"arrivals": "clients count=16", "requests": 32, "prompt": "64", "output": "8"}
    results = [
        serve(load_job("llama2_7b_inference", settings=bare | more), load_machine("dgx_h100"), **asked)
        for more in ({}, {"serving.lora": of_lora, "serving.host_cache": "8 GB"})
    ]
    assert results[1].tpot.mean() > 1.1 * results[0].tpot.mean()
    assert results[1].pages[0] < results[0].pages[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"serving.lora": {"adapters": 2, "rank": 8, "matrices": ["ffn.up"]}}, "no matrix of these layers"),
        ({"serving.host_cache": "8 GB"}, "idle sessions"),
        ({"serving.lora": {"adapters": 2, "rank": 0}}, "rank"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        job = load_job("llama2_7b_inference", settings=settings)
        serve(job, load_machine("dgx_h100"), arrivals="clients count=1", requests=1)
