"""`rapid-des run` and back: what the JSON holds, every preset, traces that replay to the same picosecond."""

import json
import os
import random
import subprocess
import sys
from typing import Any

import pytest

import rapid_des as rd
from rapid_des.chakra.files import varint
from rapid_des.config import preset_names
from tests.cli.shell import ROOT, call

A100_MACHINES = [
    name for name in preset_names("machine") if rd.load_machine(name).spec.device.startswith("a100")
]


def seconds_agree(parts, total):
    return abs(sum(parts.values()) - total) <= 1e-12 * max(total, 1) * len(parts)


@pytest.mark.parametrize("name", preset_names("job"))
def test_every_preset_job_loads(name):
    assert rd.load_job(name).name == name


@pytest.mark.parametrize("name", preset_names("device"))
def test_every_preset_device_prices_a_gemm(name):
    answer = call("operator", "gemm", 1024, 1024, 1024, "--device", name, "--json")
    assert answer.code == 0, answer.err


@pytest.mark.parametrize("name", preset_names("model"))
def test_every_preset_model_runs(name):
    words = ["run", "llama2_7b_inference", "--on", "dgx_h100_superpod_32", "--json"]
    sizes: dict[str, Any] = {
        "inference.prompt_length": 16,
        "inference.output_length": 2,
        "parallelism.tp": 4 if name == "gpt2" else 8,  # of 12 heads
        "parallelism.pp": 1,
    }
    sizes |= {"model": name, "vocabulary_multiple": 128, "memory_reserve": "0 B"}
    settings = [f"--set=job.{key}={value}" for key, value in sizes.items()]
    answer = call(*words, *settings, "--set=device.hbm.capacity=4 TB")
    assert answer.code == 0, answer.err
    assert answer.json["tokens_per_s"] > 0


@pytest.mark.parametrize("job", ["llama2_7b_train", "llama2_7b_inference"])
@pytest.mark.parametrize("machine", A100_MACHINES)
def test_llama_2_7b_runs_on_every_a100_machine(machine, job):
    batch = "training.global_batch=16" if job.endswith("train") else "inference.output_length=4"
    answer = call("run", job, "--on", machine, "--set=job.model.layers=2", f"--set=job.{batch}", "--json")
    gpus = rd.load_machine(machine).fabric.gpus
    if gpus < 8 and job == "llama2_7b_train":
        assert f"= 8 GPUs, the machine has {gpus}" in answer.err
        return
    assert answer.code == 0, answer.err
    plain = answer.json
    assert seconds_agree(plain["breakdown_s"], plain["step_time_s"])
    assert 0 < plain["mfu"] < 1
    assert 0 < plain["memory_bytes"] < plain["memory_capacity_bytes"]


def test_the_json_of_a_training_step_has_what_scripts_read():
    plain = call("run", "llama2_7b_train", "--on", "dgx_a100", "--json").json
    assert (plain["mode"], plain["gpus"]) == ("flattened", 8)
    assert plain["engine"] in {"simpy", "compiled"}
    # 32 sequences of 4,096 tokens a step
    assert plain["tokens_per_s"] == pytest.approx(32 * 4096 / plain["step_time_s"])
    assert set(plain["breakdown_s"]) >= {"compute", "tp", "dp", "pp", "bubble", "idle"}


def test_the_text_of_a_training_step_says_where_the_time_goes():
    text = call("run", "llama2_7b_train", "--on", "dgx_a100").out
    for words in ("step time", "tokens/s", "MFU", "memory", "bound by", "bubble", "exposed tp communication"):
        assert words in text


@pytest.mark.parametrize("job", ["llama2_7b_train", "llama2_7b_inference"])
def test_written_traces_replay_to_the_same_picosecond(tmp_path, job):
    on = ("--on", "dgx_a100", "--json")
    settings = ["--set=job.model.layers=4"]
    settings += ["--set=job.inference.output_length=8"] if job.endswith("inference") else []
    prefix = call("trace", "write", job, *on, "-o", tmp_path, *settings).json["prefix"]
    replayed, run = call("replay", prefix, *on).json, call("run", job, *on, *settings).json
    assert replayed["step_time_ps"] == run["step_time_ps"]
    assert replayed["critical_rank"] == run["critical_rank"]


def test_every_mode_but_the_flattened_one_says_what_it_leaves_out_or_why_it_refuses():
    modes = call("run", "llama3_1_70b_train_64", "--on", "dgx_h100_x8", "--compare-modes", "--json").json
    assert set(modes) == {"flattened", "hierarchical", "hybrid", "analytical"}
    for name in ("hierarchical", "hybrid", "analytical"):
        notes, refusal = modes[name].get("notes", []), modes[name].get("refused", "")
        assert any(f"mode {name}" in note for note in notes) or "--mode flattened" in refusal


def digits(plain):
    return {key: value for key, value in plain.items() if key not in {"simulation_wall_s", "engine"}}


def test_hash_seed_and_repetition_change_no_digit():
    answers = set()
    for seed in ("0", "12345"):
        command = [
            sys.executable,
            str(ROOT / "cli.py"),
            "run",
            "llama2_7b_train",
            "--on",
            "torus_2d_a100",
            "--set=job.model.layers=4",
            "--json",
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONHASHSEED": seed}
        )
        answers.add(json.dumps(digits(json.loads(done.stdout))))
    assert len(answers) == 1


def frames(content):
    place = 0
    while place < len(content):
        size, shift = 0, 0
        while True:
            byte = content[place]
            size |= (byte & 127) << shift
            place, shift = place + 1, shift + 7
            if byte < 128:
                break
        yield content[place : place + size]
        place += size


def test_the_order_of_nodes_in_a_foreign_file_changes_no_digit(tmp_path):
    paths = sorted((ROOT / "workloads" / "traces").glob("*_4.*.et"))
    shuffled = tmp_path / "shuffled"
    shuffled.mkdir()
    for path in paths:
        head, *nodes = frames(path.read_bytes())
        random.Random(7).shuffle(nodes)
        content = b"".join(varint(len(frame)) + frame for frame in (head, *nodes))
        (shuffled / path.name).write_bytes(content)
    on = ("--on", "dgx_a100", "--json")
    before = call("replay", ROOT / "workloads" / "traces" / "all_reduce_4", *on).json
    assert digits(call("replay", shuffled, *on).json) == digits(before)
