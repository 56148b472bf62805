"""`rapid-des import`: other tools' files to files of rapid_des."""

import json

import pytest

from rapid_des.frontend import load_job
from tests.cli.shell import call, refused

CONFIG = {
    "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512,
}  # fmt: skip


def run(*arguments, kind="hf"):
    return call("import", kind, *arguments)


def test_a_model_file_is_printed_or_written(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    printed = run(tmp_path).out
    assert printed.startswith("# qwen2, ")
    assert "attention: {kind: attention, heads: 4, kv_heads: 4, qkv_bias: true}\n" in printed
    target = tmp_path / "model.yaml"
    assert "parameters" in run(tmp_path / "config.json", "-o", target).out
    assert target.read_text() == printed
    plain = json.loads(run(tmp_path, "--json").out)
    # 2·100·64 tables, 64 for the last norm; a layer has 4·64² + 3·64 of attention, 3·64·128, and two norms.
    assert plain["parameters"] == 2 * 100 * 64 + 64 + 2 * (4 * 64**2 + 3 * 64 + 3 * 64 * 128 + 2 * 64)
    assert (plain["architecture"], plain["model"]["hidden"]) == ("qwen2", 64)


ARGUMENTS = """torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 2 --hidden-size 64 \\
    --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --bf16 \\
    --vocab-size 128 --lr 3"""
CONFIGURATION = """
[model]
flavor = "8B"
[training]
steps = 1
[activation_checkpoint]
mode = "none"
"""


@pytest.mark.parametrize(
    ("kind", "text", "options", "left"),
    [
        ("megatron", ARGUMENTS, (), "ignored, as it is a rate, decay or scale of the optimizer: --lr 3"),
        (
            "torchtitan",
            CONFIGURATION,
            ("--gpus", 4),
            "ignored, as it says how long a run goes on: training.steps 1",
        ),
    ],
)
def test_a_job_file_is_printed_or_written(tmp_path, kind, text, options, left):
    source, target = tmp_path / "theirs", tmp_path / "job.yaml"
    source.write_text(text)
    printed = run(source, *options, kind=kind).out
    assert f"# {left}\n" in printed
    written = run(source, *options, "-o", target, kind=kind)
    assert (written.code, target.read_text()) == (0, printed)
    assert f"note: {left}\n" in written.err and "4 GPUs" in written.out
    again = run(source, *options, "-o", target, kind=kind)
    assert again.code == 2 and "--force" in again.err
    plain = json.loads(run(source, *options, "--json", kind=kind).out)
    (told,) = plain["ignored"]
    assert plain["gpus"] == 4 and f"ignored, as {told['reason']}: {told['key']} {told['value']}" == left
    assert load_job(target).gpus == 4


def test_an_output_that_takes_nothing_is_named(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    answer = refused(call("import", "hf", config, "-o", "/dev/full"))
    assert "/dev/full: cannot be written: No space left on device" in answer


def test_a_variable_needs_a_value(tmp_path):
    (tmp_path / "args").write_text(ARGUMENTS)
    refused = run(tmp_path / "args", "--variable", "TP", kind="megatron")
    assert (refused.code, refused.err.strip()) == (2, "error: --variable TP: must be NAME=VALUE")


def test_files_of_a_foreign_kind_are_refused(tmp_path):
    (tmp_path / "x.yaml").write_text("a: 1\n")
    refused = run(tmp_path / "x.yaml", tmp_path / "x.yaml", "-o", tmp_path, kind="rapid-llm")
    assert refused.code == 2 and "the key 'model_param' is missing" in refused.err
    assert [file.name for file in tmp_path.iterdir()] == ["x.yaml"]
