"""Replicas of two layouts: which GPUs they have, who sends keys and values to whom, what is refused."""

from typing import Any

import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.serving.energy import served_energy
from rapid_des.serving.pools import pools_of, server_gpus
from rapid_des.serving.server import serve

TOKENS = 1024
ASKED: dict[str, Any] = {"arrivals": "poisson rate=20/s", "requests": 40, "prompt": "1024", "output": "32"}


def job(of_prompts, name="llama3_1_70b_serve", **settings):
    stated = {"model.layers": 4, "serving.prefill_parallelism": of_prompts}
    return load_job(name, settings=stated | {f"parallelism.{key}": value for key, value in settings.items()})


def sent(one, source, into):
    prompting, answering = pools_of(one)
    return list(prompting.messages(answering, source, into, TOKENS))


@pytest.mark.parametrize(("prompts", "answers"), [(8, 8), (4, 8), (8, 2), (2, 4)])
def test_every_gpu_gets_its_whole_part_from_those_that_have_it(prompts, answers):
    one = job({"tp": prompts, "dp": 2}, tp=answers, dp=2)
    prompting, answering = pools_of(one)
    messages = sent(one, 1, 1)
    got: dict[int, int] = {}
    for sender, receiver, size in messages:
        assert prompting.each <= sender < prompting.end  # the second replica of those
        got[receiver] = got.get(receiver, 0) + size
        if answers <= prompts:  # whose heads are at the same place
            place, share = receiver - answering.first - answers, prompts // answers
            assert (sender - prompting.each) // share == place
    first = answering.first + answers
    assert got == dict.fromkeys(range(first, first + answers), answering.held(TOKENS))


def test_latents_that_all_ranks_hold_come_from_one_of_them():
    one = load_job("deepseek_v3_decode", settings={
        "model.layers": 4, "parallelism": {"tp": 8, "ep": 8, "etp": 1},
        "serving.prefill_parallelism": {"dp": 4, "ep": 4},
    })  # fmt: skip
    messages = sent(one, 2, 0)
    assert [(sender, receiver) for sender, receiver, _ in messages] == [(2, 8 + gpu) for gpu in range(8)]
    assert server_gpus(one) == 16  # the second worker begins at a node of its own


def test_a_layout_that_is_alike_gives_what_replicas_of_one_job_do():
    machine = load_machine("dgx_h100_x8")
    apart = job({"tp": 8, "dp": 1}, tp=8, dp=1)
    alike = load_job("llama3_1_70b_serve", settings={
        "model.layers": 4, "parallelism": {"tp": 8, "dp": 2}, "serving.prefill_replicas": 1})  # fmt: skip
    found = [serve(each, machine, **ASKED) for each in (apart, alike)]
    assert all((found[0].requests[name] == found[1].requests[name]).all() for name in found[0].requests)
    assert found[0].gpus == found[1].gpus == 16
    assert served_energy(found[0], apart, machine) == served_energy(found[1], alike, machine)


def test_more_gpus_for_prompts_shorten_the_first_token_alone():
    machine = load_machine("dgx_h100_x8")
    few, many = (serve(job({"tp": tp}, tp=4), machine, **ASKED) for tp in (1, 8))
    assert many.prefill.mean() < few.prefill.mean() / 3
    assert many.tpot.mean() == pytest.approx(few.tpot.mean(), rel=0.1)
    assert (few.gpus, many.gpus) == (8, 12)


@pytest.mark.parametrize(
    ("of_prompts", "settings", "words"),
    [
        ({"tp": 16}, {"tp": 8}, "take 24 GPUs, the machine has 8"),
        ({"tp": 3}, {"tp": 4}, "prefill_parallelism"),
        ({"tp": 4}, {"tp": 1, "pp": 4}, "pp 4 and cp 1 must be 1"),
        ({"tp": 4, "ep": 2}, {"tp": 4}, "prefill_parallelism"),
        ({"pp": 2}, {"tp": 4}, "prefill_parallelism"),
    ],
)
def test_what_can_not_be_is_refused(of_prompts, settings, words):
    with pytest.raises(ConfigError) as refusal:
        serve(job(of_prompts, **settings), load_machine("dgx_h100"), **ASKED)
    assert words in str(refusal.value)


def test_replicas_are_counted_once():
    with pytest.raises(ConfigError, match="state no prefill_replicas"):
        pools_of(load_job(job({"tp": 4}, tp=4, dp=2), settings={"serving.prefill_replicas": 1}))


ONE_TOKEN = {"batch": 1, "prompt_length": 1024, "output_length": 1, "decode_steps": "all"}


def test_prompts_of_replicas_that_answer_are_not_split():
    settings = {"parallelism": {"tp": 2, "cp": 4}, "inference": ONE_TOKEN}
    with pytest.raises(ConfigError) as refusal:
        serve(load_job("llama3_1_70b_serve", settings=settings), load_machine("dgx_h100"), **ASKED)
    assert refusal.value.key == "parallelism.cp"
