"""Job files: presets load, settings reach job and model, what is not divisible names both numbers."""

import pickle

import numpy as np
import pytest

from rapid_des.config import json_schema, preset_names
from rapid_des.errors import ConfigError
from rapid_des.frontend import JobSpec, build, load_job, memory
from rapid_des.frontend.groups import ZERO_STAGES, RankLayout
from rapid_des.frontend.schedules import SCHEDULES


@pytest.mark.parametrize("name", preset_names("job"))
def test_every_preset_loads(name):
    job = load_job(name)
    assert sum(job.layers) == job.model.spec.layers
    assert len(job.layers) == job.parts


def test_profiles_of_other_devices_have_their_own_caches_and_kernels():
    jobs = {name: load_job("llama3_1_70b_serve", settings={"software": name}) for name in
            ("vllm-0.12", "vllm-rocm", "sglang-rocm", "jetstream", "deepseek")}  # fmt: skip
    pools = {name: job.spec.memory.kv_pool for name, job in jobs.items()}
    assert pools["vllm-rocm"] == pools["vllm-0.12"]
    pages = {name: pool.page for name, pool in pools.items() if pool is not None}
    assert pages["sglang-rocm"] == 1 and pages["jetstream"] == 2048
    assert [jobs[name].software.kernels for name in ("vllm-rocm", "jetstream")] == ["rocblas", "xla"]
    assert jobs["deepseek"].software.attention == "flash-mla"


def test_llama_405b_ends_hold_one_layer_less():
    # 126 layers + embedding + head = 128 = 16 stages of 8.
    assert load_job("llama3_1_405b_train_16384").layers == (7, *[8] * 14, 7)


def test_the_file_format_has_a_schema_whose_choices_are_what_is_registered():
    training = json_schema(JobSpec)["$defs"]["TrainingSpec"]["properties"]
    assert training["micro_batch"]["minimum"] == 1
    assert training["schedule"]["anyOf"][0]["enum"] == sorted(SCHEDULES)
    assert (training["zero_stage"]["minimum"], training["zero_stage"]["maximum"]) == (0, max(ZERO_STAGES))


def test_settings_reach_the_job_and_the_model(tiny):
    job = tiny(("training.micro_batch", "2"), ("model.layers", "6"), ("parallelism.pp", "3"))
    assert (job.micro_batches, job.layers) == (4, (2, 2, 2))


def test_the_vocabulary_is_padded_to_a_multiple_times_tp():
    # 50257 to the next multiple of 128·8 = 1024: 50 · 1024.
    assert load_job("gpt3_175b_train").vocabulary == 51200


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"parallelism.tp": "3"}, "parallelism.tp: 4 attention heads are not divisible by tp 3"),
        ({"parallelism.pp": "3"}, "parallelism.pp: layers 4 do not divide by pp 3"),
        ({"parallelism.dp": "3"}, "global_batch 8 is not divisible by micro_batch 1 · dp 3 = 3"),
        (
            {"parallelism.cp": "2", "training.sequence_length": "34"},
            "parallelism.cp: sequence_length 34 is not divisible by two pieces for each of cp 2: 4",
        ),
        (
            {"parallelism.cp": "2", "parallelism.cp_kind": "ring", "attention": "unfused"},
            "cp_kind ring joins partial results by what flash attention keeps of each row",
        ),
        ({"parallelism.ep": "2"}, "parallelism.ep: expert parallelism (ep 2)"),
        ({"parallelism.layers": "[1, 2]", "parallelism.pp": "2"}, "sum to 3, tiny.model has 4"),
        ({"parallelism.layers": "[1, 3]"}, "2 parts are listed for pp 1 = 1"),
        ({"parallelism.layers": "endpoints", "parallelism.pp": "4"}, "layers 4 + 2 (embedding and head)"),
        ({"parallelism.order": "[tp, dp]"}, "must name each of tp, cp, ep, dp, pp once"),
        ({"parallelism.sequence_parallel": "true"}, "splits over tp, and tp is 1"),
        ({"parallelism.chunks": "2"}, "2 chunks need schedule interleaved_1f1b or breadth_first, it is 1f1b"),
        ({"training.schedule": "interleaved_1f1b"}, "pp and chunks of at least 2, they are 1 and 1"),
        ({"training.schedule": "zigzag"}, "'zigzag' is not one of 1f1b, breadth_first, dualpipe"),
        ({"training.sequence_length": "256"}, "256 positions, tiny.model has max_positions 128"),
        ({"training.overlap_parameters": "true"}, "only with zero_stage 1 or 2, it is 0"),
        ({"model.vocabulary": "255", "parallelism.tp": "2"}, "vocabulary 255 is not divisible by tp 2"),
        ({"phase": "inference"}, "the section 'inference' must be there"),
        ({"precision.kv_cache": "fp8"}, "for inference"),
        ({"serving": "{policy: vllm_v1}"}, "the section 'serving' would never be read"),
        ({"training.micro_bach": "1"}, "did you mean 'micro_batch'"),
        ({"model.hiden": "1"}, "did you mean 'hidden'"),
        ({"parallelism.dp": "10000000"}, "10000000 GPUs; at most 4194304"),
        ({"training.global_batch": "900000000"}, "900000000 passes of 4 layers are about 144000000000 nodes"),
        ({"training.global_batch": "1000000000000"}, "training.global_batch"),
        ({"model.exceptions": "[{start: 1}]"}, "one states neither attention nor feed_forward"),
        ({"model": "llama9"}, "no model file 'llama9'"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(tiny, settings, said):
    with pytest.raises(ConfigError) as refused:
        tiny(*settings.items())
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"parallelism.tp": "2", "parallelism.sequence_parallel": "true"}, "the model is dense"),
        ({"inference.output_length": "200"}, "216 positions, tiny.model has max_positions 128"),
        ({"inference.decode_steps": "9"}, "9 steps cannot be taken from the 4 there are"),
        ({"inference.micro_batch": "3"}, "batch 2 is not divisible by micro_batch 3"),
        ({"precision.recipe": "delayed"}, "precision.recipe: it is for training; phase is inference"),
        ({"precision.parameter_gather": "bf16"}, "precision.parameter_gather: it is for training"),
    ],
)
def test_a_service_that_does_not_fit_together_is_refused(tiny_service, settings, said):
    with pytest.raises(ConfigError) as refused:
        tiny_service(*settings.items())
    assert said in str(refused.value)


def used(job, prices):
    """Ask a job for everything that it derives once."""
    build(job, prices)
    memory(job)
    return job


def test_a_job_is_a_value_before_and_after_use(tiny, prices):
    settings = [("parallelism.pp", "2"), ("parallelism.dp", "2"), ("precision.master_weights", "null")]
    job, other = tiny(*settings), used(tiny(*settings), prices)
    assert job == other
    assert hash(job) == hash(other)
    for copy in (pickle.loads(pickle.dumps(job)), pickle.loads(pickle.dumps(other))):
        assert copy == job
        assert hash(copy) == hash(job)
        assert copy.stage_orders == job.stage_orders
        np.testing.assert_array_equal(copy.layout.coordinates("pp"), job.layout.coordinates("pp"))
    assert tiny(*settings[:2]) != job


def test_where_a_job_was_read_from_is_not_what_it_is(tiny, tmp_path):
    (tmp_path / "other.yaml").write_text((tmp_path / "job.yaml").read_text())
    other = load_job(tmp_path / "other.yaml")
    assert (other.name, other) == ("other", tiny())


def test_a_job_file_may_hold_its_model(tiny, tmp_path):
    job = tiny(("model.layers", "6"))
    model = (tmp_path / "tiny.model.yaml").read_text().replace("layers: 4", "layers: 5")
    inner = "\n".join(f"  {line}" for line in model.splitlines())
    rest = (tmp_path / "job.yaml").read_text().replace("model: tiny.model.yaml", "")
    (tmp_path / "alone.yaml").write_text(f"model:\n{inner}\n{rest}")
    assert load_job(tmp_path / "alone.yaml", settings=[("model.layers", "6")]) == job
    assert load_job(tmp_path / "alone.yaml").model.spec.layers == 5


@pytest.mark.parametrize("name", preset_names("job"))
def test_a_jobs_own_file_loads_to_an_equal_job(name, tmp_path):
    unset = [
        ("precision.master_weights", "null"),
        ("memory_reserve", "1.3 GiB"),
        ("model.max_positions", "8192"),
    ]
    for settings in ([], unset):
        job = load_job(name, settings=settings)
        path = tmp_path / "again.yaml"
        path.write_text(job.as_yaml())
        again = load_job(path)
        assert (again, hash(again)) == (job, hash(job))
        assert again.spec.precision.master_weights == job.spec.precision.master_weights


def test_a_trace_travels(tiny, prices):
    trace = build(tiny(("parallelism.pp", "2")), prices)
    copy = pickle.loads(pickle.dumps(trace))
    assert copy.traces.ranks[1].nodes.duration.tolist() == trace.tables[1].duration.tolist()
    assert (copy.job, copy.segments) == (trace.job, trace.segments)


#   pp 0            pp 1
#   dp 0   dp 1     dp 0   dp 1
#   0 1    2 3      4 5    6 7     tp innermost
LAYOUT = RankLayout(("tp", "cp", "ep", "dp", "pp"), (2, 1, 1, 2, 2))


def test_groups_differ_only_along_their_axis():
    assert LAYOUT.groups(("tp",)) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert LAYOUT.groups(("dp", "cp")) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert LAYOUT.groups(("tp", "pp")) == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert LAYOUT.groups(("tp", "dp", "pp")) == (tuple(range(8)),)


def test_the_order_decides_who_is_a_neighbour():
    outer_tp = RankLayout(("dp", "pp", "tp"), (2, 2, 2))
    assert outer_tp.groups(("tp",)) == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_coordinates_and_groups_of_a_rank():
    assert LAYOUT.coordinates("pp").tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert LAYOUT.coordinates("dp").tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


def test_every_rank_is_in_the_group_of_its_number():
    for axes in (("tp",), ("dp", "cp"), ("tp", "pp"), ("tp", "dp", "pp")):
        groups, numbers = LAYOUT.groups(axes), LAYOUT.group_numbers(axes).tolist()
        assert all(rank in groups[numbers[rank]] for rank in range(LAYOUT.ranks))


def test_a_vocabulary_whose_products_are_not_aligned_is_said(tiny, prices):
    (note,) = build(tiny(("model.vocabulary", "260")), prices).notes
    assert "260, is not a multiple of 8" in note and "vocabulary_multiple" in note
    assert build(tiny(("model.vocabulary", "260"), ("vocabulary_multiple", "64")), prices).notes == ()
