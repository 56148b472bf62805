"""Rollouts: what travels between two layouts, and what a step of generation and training is made of."""

import json

import pytest

from rapid_des.errors import ConfigError, InputError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.network.faults import parse_fault
from rapid_des.serving.resharding import ReshardingTraffic, as_traces, reshard
from rapid_des.serving.rollout import load_rollout, simulate_rollout
from rapid_des.simulation import replay
from tests.cli.shell import call, refused
from tests.program.machines import machine, ring

TRAINING = {
    "model": "llama2_7b",
    "phase": "training",
    "parallelism": {},
    "training": {"global_batch": 8, "micro_batch": 1, "sequence_length": 512},
}
SERVING = {
    "model": "llama2_7b",
    "phase": "inference",
    "parallelism": {"tp": 2, "dp": 2},
    "inference": {"batch": 1, "prompt_length": 64, "output_length": 8},
}
LAYERS = {"model.layers": 4}
WHOLE = 2 * (4 * (4 * 4096**2 + 3 * 4096 * 11008) + 2 * 32000 * 4096)
"""Bytes of the matrices of four layers, embedding and head; norms are 74 KB besides."""


def moved(split, serving=None, **training):
    settings = {f"parallelism.{axis}": size for axis, size in split.items()} | LAYERS
    settings |= {f"training.{key}": value for key, value in training.items()}
    trainer = load_job(TRAINING, settings=settings)
    server = load_job(SERVING, settings=LAYERS | (serving or {}))
    return reshard(trainer, server, load_machine("dgx_h100"))


def total(transfers):
    return transfers.total + sum(transfers.within.values())


@pytest.mark.parametrize(
    ("split", "training"),
    [
        ({"tp": 4}, {}),
        ({"pp": 4}, {}),
        ({"tp": 2, "pp": 2}, {}),
        ({"dp": 4}, {"zero_stage": 3}),
        ({"dp": 3}, {"zero_stage": 3, "global_batch": 9}),
        ({"tp": 2, "pp": 2, "dp": 2}, {"schedule": "1f1b"}),
        ({"pp": 2, "chunks": 2}, {"schedule": "interleaved_1f1b"}),
        ({"pp": 2}, {"schedule": "dualpipe"}),
    ],
)
def test_every_server_gpu_gets_its_half_of_the_model(split, training):
    got = dict.fromkeys(range(4), 0)
    transfers = moved(split, **training)
    for (_, gpu), size in transfers.between.items():
        got[gpu] += size
    for gpu, size in transfers.within.items():
        got[gpu] += size
    for size in got.values():  # of tp 2, in two replicas
        assert WHOLE / 2 < size < WHOLE / 2 + 2**18


def test_who_has_the_servers_layout_moves_nothing_between_gpus():
    assert moved({"tp": 2, "dp": 2}).between == {}


def test_what_is_split_over_replicas_is_there_for_those_whose_half_it_is():
    # Of quarters 0 … 3, GPUs 0 and 2 need 0 and 1, GPUs 1 and 3 the others: 0 and 3 have one of theirs.
    transfers = moved({"dp": 4}, zero_stage=3)
    assert sorted(transfers.within) == [0, 3]
    assert sum(transfers.within.values()) == pytest.approx(2 * WHOLE / 4, rel=1e-4)


def test_replicas_share_the_sending():
    # The server stands behind four replicas: each of these sends a quarter of what it needs.
    trainer = load_job(TRAINING, settings={"parallelism.dp": 4} | LAYERS)
    server = load_job(SERVING, settings=LAYERS)
    transfers = reshard(trainer, server, load_machine("dgx_h100"), first=4)
    assert transfers.within == {}
    sent = dict.fromkeys(range(4), 0)
    for (gpu, _), size in transfers.between.items():
        sent[gpu] += size
    assert max(sent.values()) < 1.1 * min(sent.values())


def test_routed_experts_travel_to_the_ranks_that_serve_them():
    # Four ranks train a quarter of the experts each, with dense weights whole; two serve half of them.
    split = {"parallelism.dp": 4, "parallelism.ep": 4}
    trainer = load_job(TRAINING | {"model": "mixtral_8x7b"}, settings=split | {"model.layers": 2})
    settings = {"parallelism.tp": 1, "parallelism.dp": 2, "parallelism.ep": 2, "model.layers": 2}
    server = load_job(SERVING | {"model": "mixtral_8x7b"}, settings=settings)
    transfers = reshard(trainer, server, load_machine("dgx_h100"))
    quarter = 2 * 2 * 2 * 3 * 4096 * 14336  # bytes of two experts in both layers
    # GPU 0 has experts 0 and 1 and lacks 2 and 3; GPU 1, which has these, serves 4 to 7.
    assert {pair: round(size / quarter, 3) for pair, size in transfers.between.items()} == {
        (1, 0): 1.0, (2, 1): 1.0, (3, 1): 1.0,
    }  # fmt: skip


def test_a_message_alone_takes_its_bytes_over_the_bandwidth():
    # 1 MB over one hop of 1 GB/s and 100 ns, beside a copy of 2 MB that a memory of 1 GB/s reads and writes.
    transfers = ReshardingTraffic({(0, 1): 1_000_000}, {1: 2_000_000})
    result = replay(as_traces(transfers, 5, 10**9), machine(ring(5)))
    assert int(result.finish[0]) == pytest.approx(1_000.1e6, rel=1e-3)
    assert int(result.finish[1]) == 4_000 * 10**6


STEP = {
    "training": TRAINING | {"parallelism": {"dp": 4}},
    "serving": SERVING,
    "prompts": 4,
    "samples": 2,
    "prompt": "64",
    "output": "uniform low=8 high=64",
}
SETTINGS = {"training.model.layers": 2, "serving.model.layers": 2}


def test_a_step_is_generation_training_and_the_way_of_the_weights():
    result = simulate_rollout(
        load_rollout(STEP, settings=SETTINGS), load_machine("dgx_h100"), mode="analytical"
    )
    assert list(result.breakdown) == ["generation", "training", "resharding"]
    assert result.step_time == result.generation.elapsed + result.training.step_time + result.resharding
    assert result.tokens == 8 * 64 + int(result.generation.requests["output"].sum())
    # At most 8 times 128 tokens fill two sequences of 512; four replicas need four.
    assert result.sequences == 4
    assert json.loads(json.dumps(result.as_json()))["breakdown_s"].keys() == result.breakdown.keys()


def test_a_server_of_its_own_generates_beside_training():
    apart = STEP | {"placement": "apart", "overlap": "one_step"}
    result = simulate_rollout(
        load_rollout(apart, settings=SETTINGS), load_machine("dgx_h100"), mode="analytical"
    )
    longer = max(result.generation.elapsed, result.training.step_time)
    assert result.step_time == longer + result.resharding
    assert result.rollout.gpus == 8 and result.transfers.within == {}


def test_a_slow_gpu_slows_whom_it_serves():
    apart = load_rollout(
        STEP | {"placement": "apart", "output": 8}, settings=SETTINGS
    )  # GPUs 4 to 7 generate

    def parts(*faults):
        slowed = load_machine("dgx_h100").with_faults(map(parse_fault, faults))
        return simulate_rollout(apart, slowed).breakdown

    healthy, trainer, server = parts(), parts("gpu=0 compute=0.5"), parts("gpu=6 compute=0.5")
    assert trainer["training"] > healthy["training"] and trainer["generation"] == healthy["generation"]
    assert server["generation"] > healthy["generation"] and server["training"] == healthy["training"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"overlap": "one_step"}, "placement apart"),
        ({"serving": SERVING | {"model": "llama3_1_8b"}}, "which is not the"),
        ({"serving": STEP["training"]}, "this needs inference"),
        ({"prompts": 0}, "prompts"),
        ({"output": "abc"}, "output 'abc': kind: 'abc' is not one of fixed"),
        ({"samples_": 2}, "samples_"),
    ],
)
def test_files_that_make_no_sense_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        load_rollout(STEP | change)


def test_a_machine_that_is_too_small_and_answers_that_are_too_long_are_refused():
    large = load_rollout(STEP | {"placement": "apart"}, settings=SETTINGS | {"serving.parallelism.dp": 4})
    with pytest.raises(InputError, match="needs 12 GPUs, DGX H100 has 8"):
        simulate_rollout(large, load_machine("dgx_h100"))
    longer = load_rollout(STEP | {"output": "500"}, settings=SETTINGS)
    with pytest.raises(ConfigError, match="has 564 tokens, sequences of the training job 512"):
        simulate_rollout(longer, load_machine("dgx_h100"))


def test_the_command_prints_the_parts():
    answer = call("rollout", "llama3_1_8b_grpo", "--on", "dgx_h100", "--mode", "analytical",
                  "--set", "job.prompts=4", "--set", "job.training.model.layers=2",
                  "--set", "job.serving.model.layers=2")  # fmt: skip
    assert answer.code == 0, answer.err
    assert "resharding" in answer.out and "8 train, 8 serve" in answer.out
    assert "no rollout file 'nothing'" in refused(call("rollout", "nothing", "--on", "dgx_h100"))
