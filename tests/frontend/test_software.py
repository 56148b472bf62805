"""Software profiles: what a job does by default, and whose kernels and libraries it runs."""

import pytest

from rapid_des.chakra import read_set, write_set
from rapid_des.config import preset_names
from rapid_des.device import Attention
from rapid_des.device.pricing import estimate
from rapid_des.errors import ConfigError, TraceError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.pricing import as_used, price
from rapid_des.program.collectives.library import libraries_of
from rapid_des.values import replace

TRAINING, SERVING = "llama2_7b_train", "llama2_7b_inference"


@pytest.mark.parametrize("name", preset_names("software"))
@pytest.mark.parametrize("job", [TRAINING, SERVING])
def test_every_profile_fits_every_job(name, job):
    load_job(job, settings={"software": name})


@pytest.mark.parametrize(("job", "usual"), [(TRAINING, "Megatron-LM 2025"), (SERVING, "vLLM 0.x")])
def test_a_job_that_names_no_software_has_the_usual_one(job, usual):
    assert load_job(job).software.name == usual


def test_what_a_job_states_goes_before_its_software():
    profile = {"name": "mine", "defaults": {"fusion": "eager", "precision": {"gradients": "bf16"}}}
    job = load_job(TRAINING, settings={"software": profile, "precision": {"gradient_reduce": "bf16"}})
    assert (job.spec.fusion, job.spec.precision.gradients) == ("eager", "bf16")
    stated = load_job(TRAINING, settings={"software": profile, "fusion": "megatron"})
    assert stated.spec.fusion == "megatron"


def test_a_job_is_the_same_from_its_own_file(tmp_path):
    profile = {"name": "mine", "defaults": {"precision": {"gradients": "bf16"}}}
    job = load_job(TRAINING, settings={"software": profile, "precision.gradients": "fp32"})
    file = tmp_path / "job.yaml"
    file.write_text(job.as_yaml())
    assert load_job(file) == job and load_job(file).spec.precision.gradients == "fp32"


@pytest.mark.parametrize(
    ("software", "problem"),
    [
        ("megatron", "did you mean 'megatron-2025'"),
        ({"name": "x", "defalts": {}}, "software: unknown key 'defalts'"),
        ({"name": "x", "defaults": {"fusion": "none"}}, "so the defaults of software 'x' have it"),
        (
            {"name": "x", "defaults": {"training": {"zero": 1}}},
            "unknown key 'zero'.*defaults of software 'x'",
        ),
    ],
)
def test_a_wrong_profile_is_refused_by_name(software, problem):
    with pytest.raises(ConfigError, match=problem):
        load_job(TRAINING, settings={"software": software})


def test_kernels_are_the_softwares():
    machine = load_machine("dgx_h100")
    used = [as_used(job, machine, machine.device).conditions for job in map(load_job, (TRAINING, SERVING))]
    assert [one.library for one in used] == [machine.device.conditions.library, "vllm"]
    assert [one.clock for one in used] == ["sustained", "sustained"]
    decoding = as_used(load_job(SERVING), machine, machine.device, decoding=True)
    assert (decoding.conditions.library, decoding.conditions.clock) == ("vllm", "boost")


def test_attention_kernels_may_be_others_than_the_librarys():
    device = load_machine("dgx_h100").device.under(library="vllm", attention="trtllm")
    assert device.constants("attention", "bf16") == device.under(library="trtllm").constants(
        "attention", "bf16"
    )
    assert device.constants("vector") == device.under(attention="vllm").constants("vector")


def test_a_machine_serves_what_was_measured_on_it():
    machine = load_machine("dgx_a100")
    trace = price(load_job(SERVING), machine).traces
    served = libraries_of(trace, machine)
    assert served.tp.kernels == "a100" and served.default.constants == "a100_nvswitch"
    assert not libraries_of(trace, load_machine("torus_2d_a100")).stated()


def test_a_trace_on_disk_names_its_libraries(tmp_path):
    machine = load_machine("dgx_a100")
    trace = price(load_job(SERVING), machine).traces
    write_set(trace, tmp_path, "step")
    read = read_set(tmp_path / "step")
    assert libraries_of(read, machine) == libraries_of(trace, machine)
    with pytest.raises(TraceError, match="metadata rapid_libraries"):
        libraries_of(replace(read, libraries="?"), machine)


def test_unknown_kernels_are_refused_where_they_would_run():
    job = load_job(TRAINING, settings={"software": {"name": "x", "attention": "flash-9"}})
    with pytest.raises(ConfigError, match="conditions.attention: 'flash-9' is no library"):
        price(job, load_machine("dgx_h100"))


def test_an_older_attention_kernel_takes_longer():
    device = load_machine("dgx_h100").device
    core = Attention(1, 16384, 16384, heads=16, kv_heads=16, head_dim=128, causal=False)
    found = [estimate(core, device.under(attention=f"flash-{version}")) for version in (1, 2, 3)]
    rates = [one.flops / one.duration for one in found]
    # The first as on an A100 (142 of 312 TFLOP/s), on 617: its instructions reach 62.4 to 62.9 % of the peak.
    assert rates == pytest.approx([290, 370, 698], rel=0.01)
