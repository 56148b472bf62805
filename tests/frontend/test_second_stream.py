"""Shared experts on a second stream of kernels: which passes, beside what, and what it is worth."""

import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.frontend.inference import pass_lists, passes
from rapid_des.frontend.parts import ModelSection
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate

BLOCK = ModelSection("block", 0)
MODEL = (
    ("model.feed_forward", "{kind: experts, experts: 8, topk: 2, hidden: 32, shared_hidden: 64}"),
    ("software", "vllm-0.x"),
)
GATHERS = (("parallelism.dp", "2"), ("parallelism.ep", "2"), ("routing.dispatcher", "all_gather"))


def layers(job):
    """The first layer's list in the prefill (32 tokens) and in a decode step (2)."""
    return [pass_lists(job, each)[BLOCK] for each in passes(job)[:2]]


def aside(operations):
    return [operation.name for operation in operations if operation.aside]


@pytest.mark.parametrize(
    ("where", "expected"),
    [("never", (0, 0)), ("decode", (0, 1)), ("2", (0, 1)), ("32", (1, 1)), ("1", (0, 0))],
)
def test_which_passes_have_it(tiny_service, where, expected):
    lists = layers(tiny_service(*MODEL, ("inference.shared_stream", where)))
    assert tuple(int(bool(aside(operations))) for operations in lists) == expected


def test_shared_experts_begin_with_the_router_and_the_sum_waits_for_both(tiny_service):
    split = ("parallelism.tp", "2"), ("parallelism.ep", "2"), ("parallelism.etp", "1")
    _, decode = layers(tiny_service(*MODEL, *split, ("inference.shared_stream", "decode")))
    place = {operation.name: number for number, operation in enumerate(decode)}
    names = aside(decode)
    assert names[0] == "ffn.shared.in"
    assert names[-1] == "ffn.shared.out"
    assert decode[place["ffn.shared.in"]].after == decode[place["ffn.router"]].after
    assert set(decode[place["ffn.reduce"]].after) == {place["ffn.unpermute"], place["ffn.shared.out"]}


def test_where_tokens_are_gathered_they_run_beside_the_products(tiny_service):
    _, decode = layers(tiny_service(*MODEL, *GATHERS, ("inference.shared_stream", "decode")))
    place = {operation.name: number for number, operation in enumerate(decode)}
    gathered = place["ffn.dispatch.gather"]
    assert decode[place["ffn.shared.in"]].after == (gathered,) or place["ffn.shared.in"] > gathered
    assert place["ffn.shared.out"] in decode[place["ffn.unpermute"]].after


def test_a_dispatcher_that_sends_once_leaves_them_in_line(tiny_service):
    once = (*GATHERS[:2], ("routing.dispatcher", "deepep"), ("inference.shared_stream", "decode"))
    assert not aside(layers(tiny_service(*MODEL, *once))[1])


def test_profiles_say_which_engines_have_one():
    stated = {
        name: load_job(
            {"model": "deepseek_v3", "phase": "inference", "software": name,
             "inference": {"batch": 1, "prompt_length": 8, "output_length": 2}}
        ).inference.shared_stream
        for name in ("vllm-0.x", "vllm-0.12", "sglang", "trtllm-1", "trtllm-0.9")
    }  # fmt: skip
    assert stated == {
        "vllm-0.x": "never", "vllm-0.12": 256, "sglang": "decode", "trtllm-1": "decode", "trtllm-0.9": "never"
    }  # fmt: skip


@pytest.mark.parametrize("value", ["0", "-1", "prefill"])
def test_what_is_neither_a_number_of_tokens_nor_decode_is_refused(tiny_service, value):
    with pytest.raises(ConfigError, match="shared_stream"):
        tiny_service(*MODEL, ("inference.shared_stream", value))


def deepseek(stream, **layout):
    """A decode step of 32 requests of DeepSeek-V3 in fp8 on eight B200."""
    return load_job({
        "model": "deepseek_v3", "phase": "inference", "software": "vllm-0.12",
        "parallelism": {"ep": 8, "etp": 1, **layout}, "precision": {"gemm": "fp8"},
        "inference": {"requests": [{"count": 32, "prompt_length": 1025, "cached": 1024, "output_length": 2}],
                      "shared_stream": stream},
    })  # fmt: skip


def test_deepseeks_tokens_gain_what_vllm_measured():
    # vLLM's pull request 26440: DeepSeek-R1 in fp8 on 8 B200, 32 requests, 23.35 to 22.09 ms a token: 5.4 %
    machine = load_machine("hgx_b200")
    without, beside = (int(simulate(deepseek(stream, tp=8), machine).step_time) for stream in ("never", 256))
    assert 1 - beside / without == pytest.approx(1 - 22.09 / 23.35, abs=0.015)


@pytest.mark.parametrize("layout", [{"tp": 8}, {"dp": 8}])
def test_engines_and_modes_agree(layout):
    job = load_job(deepseek("decode", **layout), settings={"model.layers": "8"})
    machine = load_machine("hgx_b200")
    simpy, compiled = (
        int(simulate(job, machine, mode="flattened", engine=engine).step_time)
        for engine in ("simpy", "compiled")
    )
    assert simpy == compiled
    apart = simulate(job, machine, mode="hierarchical")
    assert int(apart.step_time) == pytest.approx(simpy, rel=1e-3)
    assert sum(apart.breakdown.values()) == int(apart.step_time)
