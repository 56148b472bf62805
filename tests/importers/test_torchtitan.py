"""torchtitan's TOML to job files."""

import pytest

from rapid_des.errors import ConfigError
from rapid_des.importers.torchtitan import import_torchtitan

TEXT = """
[job]
description = "a job"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4096
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "none"
[compile]
enable = true
"""


def job_of(tmp_path, text=TEXT, **known):
    file = tmp_path / "train.toml"
    file.write_text(text)
    return import_torchtitan(file, **known)


def test_ranks_that_are_left_share_the_parameters(tmp_path):
    result = job_of(tmp_path, gpus=8)
    spec = result.job.spec
    assert (spec.parallelism.dp, spec.training.zero_stage, spec.training.reshard) == (4, 3, True)
    assert spec.parallelism.sequence_parallel and spec.fusion == "torch_compile"
    assert (spec.training.global_batch, spec.training.micro_batch) == (8, 2)
    assert spec.precision.master_weights == spec.precision.gradient_reduce == "fp32"
    assert not result.notes


def test_a_pipeline_passes_micro_batches_of_the_local_batch(tmp_path):
    text = TEXT.replace("tensor_parallel_degree = 2", "pipeline_parallel_degree = 4")
    job = job_of(tmp_path, text, gpus=8).job
    assert (job.spec.training.micro_batch, job.micro_batches, job.spec.training.reshard) == (1, 2, False)


@pytest.mark.parametrize(
    ("line", "path", "expected"),
    [
        ('dtype = "bfloat16"', "precision.master_weights", None),
        ("global_batch_size = 64", "training.global_batch", 64),
        ("max_norm = 0", "training.gradient_norm", False),
    ],
)
def test_a_key_of_training_becomes_a_key(tmp_path, line, path, expected):
    value = job_of(tmp_path, TEXT.replace("[training]", f"[training]\n{line}"), gpus=8).job.spec
    for name in path.split("."):
        value = getattr(value, name)
    assert value == expected


@pytest.mark.parametrize(("name", "schedule"), [("ZBVZeroBubble", "zb_v"), ("DualPipeV", "dualpipe_v")])
def test_schedules_have_their_names(tmp_path, name, schedule):
    lines = f'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "{name}"'
    text = TEXT.replace("tensor_parallel_degree = 2", lines).replace("size = 2", "size = 8")
    assert job_of(tmp_path, text, gpus=4).job.spec.training.schedule == schedule


def test_converters_make_products_narrow(tmp_path):
    text = TEXT.replace('flavor = "8B"', 'flavor = "8B"\nconverters = ["float8"]')
    precision = job_of(tmp_path, text, gpus=8).job.spec.precision
    assert (precision.gemm, precision.recipe) == ("fp8", "current")


def test_what_is_not_understood_is_named(tmp_path):
    text = TEXT.replace("[compile]", "[compile]\nmine = 3")
    with pytest.raises(ConfigError, match=r"not understood: compile.mine \(3\); --ignore KEY leaves one out"):
        job_of(tmp_path, text, gpus=8)
    (asked,) = (each for each in job_of(tmp_path, text, gpus=8, ignore=["compile.mine"]).ignored
                if each.key == "compile.mine")  # fmt: skip
    assert asked.value == "3"
    strange = TEXT + "\n[sparse_attention]\nblocks = 3\n\n[profiling]\nenable_profiling = true\n"
    with pytest.raises(ConfigError, match="not understood: sparse_attention "):
        job_of(tmp_path, strange, gpus=8)


@pytest.mark.parametrize("name", ['"Muon"', "[1]"])
def test_an_optimizer_that_the_job_does_not_get_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="optimizer.name: .* is not understood; allowed: Adam, AdamW"):
        job_of(tmp_path, TEXT + f"\n[optimizer]\nname = {name}\n", gpus=8)


@pytest.mark.parametrize(
    ("text", "known", "problem"),
    [
        (TEXT, {}, "parallelism: data_parallel_shard_degree is what is left of the ranks; give --gpus N"),
        (TEXT, {"gpus": 3}, "3 GPUs do not divide by tp 2"),
        (TEXT.replace("8B", "9B"), {"gpus": 8}, "llama3 9B has no model file; known: llama3 8B"),
        (TEXT.replace("8B", "9B"), {"gpus": 8, "model": "nothing"}, "nothing"),
        (TEXT.replace("4096", "'long'"), {"gpus": 8}, "'long' is no int"),
        (TEXT + "[", {"gpus": 8}, "not valid TOML"),
        ("training = 3", {"gpus": 8}, "3 is no mapping"),
    ],
)
def test_what_is_missing_or_wrong_is_one_clear_line(tmp_path, text, known, problem):
    with pytest.raises(ConfigError, match=".*") as error:
        job_of(tmp_path, text, **known)
    assert problem in str(error.value) and "train.toml" in str(error.value)


def test_copies_of_what_is_sharded_are_copies(tmp_path):
    lines = "data_parallel_replicate_degree = 2\ncontext_parallel_degree = 2"
    text = TEXT.replace("tensor_parallel_degree = 2", lines)
    split = job_of(tmp_path, text, gpus=16).job.spec.parallelism
    assert (split.cp, split.cp_kind, split.dp, split.dp_replicate) == (2, "all_gather", 8, 2)


def test_parameters_may_be_gathered_in_fp8(tmp_path):
    float8 = '[model]\nconverters = ["float8"]\n'
    text = TEXT.replace("[model]\n", float8) + "[float8]\nenable_fsdp_float8_all_gather = true\n"
    assert job_of(tmp_path, text, gpus=8).job.spec.precision.parameter_gather == "fp8"


def test_asynchronous_tensor_parallelism_cuts_products_into_pieces(tmp_path):
    lines = "tensor_parallel_degree = 2\nenable_async_tensor_parallel = true"
    job = job_of(tmp_path, TEXT.replace("tensor_parallel_degree = 2", lines), gpus=8).job
    assert job.spec.training.overlap_tp == "ring"
