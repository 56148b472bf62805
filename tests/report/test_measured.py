"""Which devices stand against measurements: the list in the wheel is that of `validation/data`."""

import csv
import gzip
import io
import json
from pathlib import Path

import pytest

import rapid_des as rd
from rapid_des.config.documents import load_document
from rapid_des.config.specs import preset_folder
from rapid_des.device import load_device
from rapid_des.report.evidence import measured_topics
from rapid_des.report.measured import GEMM_DTYPES, JOBS, MEASURED
from tests.cli.shell import call
from validation.jobs.rows import MeasuredJob
from validation.measurements import CHECKOUT_DATA, PRESETS, DataFolder
from validation.operators.gemm import measured_gemms
from validation.training import bridge, dgxc, mlperf, published, small

TOPICS = {
    "attention_": "attention",
    "custom_allreduce_": "collectives",
    "gemm_": "gemm",
    "layer_ops_": "layers",
    "mla_": "attention",
    "moe_aic": "experts",
    "moe_alltoall_": "collectives",
    "nccl_samples": "",  # of the second seed: times to run with, of which nothing is scored
    "nccl_": "collectives",
    "network_vidur": "collectives",
    "operator_samples": "layers",
    "ops_llmcompass": "layers",
    "sustained_": "gemm",
}


def preset_of(gpu):
    plain = gpu.split(" (")[0].removesuffix("-NVL72")
    return PRESETS.get(gpu) or PRESETS.get(plain)


def devices_in_the_data():
    """Return the topics that have rows, by the name of the device."""
    found: dict[str, set[str]] = {}
    for path in sorted(Path(CHECKOUT_DATA).glob("*/*.csv.gz")):
        topic = next((topic for start, topic in TOPICS.items() if path.name.startswith(start)), None)
        if not topic:
            continue
        rows = csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode()))
        for preset in {preset_of(gpu) for gpu in {row["gpu"] for row in rows}} - {None}:
            found.setdefault(load_device(preset).spec.name, set()).add(topic)
    return found


def test_the_list_of_the_wheel_is_that_of_the_measurements():
    assert {name: set(topics) for name, (_, topics) in MEASURED.items()} == devices_in_the_data()


def test_the_dtypes_of_the_wheel_are_those_of_measured_gemms():
    found: dict[str, set[str]] = {}
    names = {gpu: load_device(preset).spec.name for gpu, preset in PRESETS.items()}
    for _, row in measured_gemms(DataFolder(CHECKOUT_DATA, split=True)):
        name = names.get(row.gpu)
        if name is not None and "gemm" in MEASURED[name][1] and not row.unsupported:
            found.setdefault(name, set()).add(row.gemm.dtype)
    assert {name: set(dtypes) for name, dtypes in GEMM_DTYPES.items()} == found


def test_matrix_products_in_a_dtype_that_nobody_measured_are_named():
    words = ["operator", "gemm", "4096", "4096", "4096", "--device"]
    assert "validated against measurements of attention" in call(*words, "b200", "--dtype", "fp8").out
    assert "; matrix products in bf16 are not validated" in call(*words, "b200").out
    assert "not validated: there are no measurements of this device" in call(*words, "mi300x").out


def test_a_device_under_other_conditions_is_still_the_one_that_was_measured():
    device = load_device("a100_sxm_80gb").under(clock="sustained", l2="warm")
    assert "gemm" in measured_topics(device, "bf16")


@pytest.mark.parametrize(
    "device",
    [load_device("h100_case_a"), load_device("tpu_v5p"), load_device("h100_sxm", settings=[("sms", "100")])],
    ids=lambda device: device.spec.name,
)
def test_a_device_without_measurements_or_with_other_numbers_is_not_validated(device):
    assert measured_topics(device, "bf16") == ()


def test_a_run_says_with_what_it_was_priced():
    plain = call("run", "llama2_7b_train", "--on", "dgx_a100", "--json").json["priced_with"]
    assert plain["device"] == "A100-SXM4-80GB"
    assert (plain["clock"], plain["clock_hz"], plain["launch"]) == ("sustained", 1.25e9, "graph")
    assert (plain["library"], plain["operators"]) == ("cublas", "native")
    assert plain["collectives"] == {"default": "nccl"}
    assert "gemm" in plain["validated"]


def test_a_run_on_a_device_that_nobody_measured_says_so():
    words = ["run", "llama2_7b_train", "--on", "dgx_a100", "--set"]
    assert "not validated:" not in call(*words, "device.conditions.l2=warm").out
    assert "not validated:" in call(*words, "machine.device=h100_case_a").out


def test_every_report_says_of_which_devices_there_are_no_measurements(tmp_path):
    word = "not validated: there are no measurements of A100-SXM4-80GB as stated here"
    other = ["--set", "device.hbm.bandwidth=2.1TB/s"]
    asked = ["llama2_7b_train", "--on", "dgx_a100", "--set", "job.model.layers=4"]
    few = ["--vary", "tp=1", "--vary", "pp=1", "--vary", "cp=1", "--vary", "micro_batch=2", "--workers", "1"]
    fault = ["--fault", "link=gpu0-switch0 bandwidth=0.5"]
    axes = {"tp": [2], "dp": [4], "pp": [1]}
    study = {"job": "llama2_7b_train", "on": "dgx_a100", "axes": axes, "mode": "analytical"}
    study["set"] = {"device.hbm.bandwidth": "2.1 TB/s", "job.model.layers": 4}
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(study))
    for words in (
        ["plan", *asked, *few, "--top", "1", "--mode", "analytical"],
        ["faults", "run", *asked, *fault, "--mode", "analytical"],
        [
            "compare",
            f"{' '.join([*asked, *other])} --mode analytical",
            f"{' '.join(asked)} --mode analytical",
        ],
        ["sweep", str(path), "--workers", "1"],
    ):
        stated = other if words[0] not in ("compare", "sweep") else []
        out = call(*words, *stated).out
        assert word in out, words[0]
        assert words[0] != "plan" or "a quarter more of one part changes the first by: arithmetic -1" in out


def test_a_serving_run_names_how_decode_steps_are_launched():
    short = [("model.layers", "2"), ("inference.output_length", "4")]
    machine, eager = rd.load_machine("dgx_a100"), ("inference.cuda_graphs", "false")

    def said(*settings):
        job = rd.load_job("llama2_7b_inference", settings=[*settings, *short])
        return rd.simulate(job, machine, mode="analytical").as_json()["priced_with"]

    assert said(eager, ("host", "null"))["launch"] == "graph, decode eager"
    assert [said(*settings)["host"]["captured"] for settings in ([], [eager])] == ["decode", "nothing"]


def test_a_replay_names_its_collectives_only():
    plain = call("replay", "all_reduce_4", "--on", "dgx_a100", "--json").json["priced_with"]
    (served,) = plain.pop("served")
    assert plain == {"collectives": {"default": "nccl"}}
    # of 1 MiB a rank sends 2 * 3 / 4, and reads, adds to or copies, and writes that: 4.5 MiB of HBM
    assert served == {
        "operation": "all_reduce",
        "ranks": 4,
        "size_bytes": 2**20,
        "algorithm": "nccl ring",
        "protocol": "ll",
        "channels": 24,
        "hbm_bytes": 9 * 2**19,
    }


def test_a_run_says_what_its_messages_take():
    words = ["run", "llama2_7b_train", "--on", "dgx_a100", "--json"]
    sends = [row for row in call(*words).json["priced_with"]["served"] if row["operation"] == "send"]
    assert [(row["algorithm"], row["ranks"]) for row in sends] == [("nccl direct", 2)]
    assert all(row["channels"] > 0 and row["hbm_bytes"] == 2 * row["size_bytes"] for row in sends)


LISTED = "machine.collectives={default: ring, all_reduce: {algorithm: [nvls, ring], chunks: 4}}"
FABRIC = """machine.fabric=[
  {name: a, shape: switch, size: 4, bandwidth: 300 GB/s, latency: 1 us},
  {name: b, shape: ring, size: 2, bandwidth: 25 GB/s, latency: 1 us}]"""


@pytest.mark.parametrize("mode", ["flattened", "analytical"])
def test_a_run_says_what_each_group_got_of_a_list_of_algorithms(mode):
    # Tensor-parallel pairs lie within the switch; those of the gradient norm span no whole dimensions.
    words = ["run", "llama2_7b_train", "--on", "dgx_a100", "--set", FABRIC, "--set", LISTED, "--mode", mode]
    plain = call(*words, "--json").json["priced_with"]
    assert plain["collectives"]["all_reduce"] == "nvls/ring"
    assert {(row["operation"], row["ranks"], row["algorithm"]) for row in plain["served"]} >= {
        ("all_reduce", 2, "nvls"),
        ("all_gather", 2, "ring"),
    }
    fact = {
        "flattened": "all_reduce of 2 ranks by nvls, all_reduce of 4 ranks by nvls/ring",
        "analytical": "all_reduce of 2 ranks by nvls (4 B to 528 KiB), ring (4 B)",
    }
    assert f"collectives in fact: {fact[mode]}\n" in call(*words).out


def test_what_a_default_does_not_do_is_named_with_what_does():
    words = ["run", "llama2_7b_train", "--on", "dgx_a100"]
    default = "machine.collectives.default=recursive_doubling"
    fact = "collectives in fact: all_gather of 2 ranks by ring, reduce_scatter of 2 ranks by ring\n"
    assert fact in call(*words, "--set", default).out
    assert "in fact" not in call(*words).out


def jobs_of(data):
    """Yield the software and the device of every whole job that the data hold, as far as readers say."""
    for provider in (published, dgxc, mlperf, bridge, small):
        rows = [row for topic in provider.topics(data) if topic.shares is None for row in topic.rows.args[1]]
        for case in {case for row in rows if isinstance(row, MeasuredJob) for case in row.cases[:1]}:
            software = json.loads(case.job)["software"]
            yield software["name"] if isinstance(software, dict) else name_of(software), case.place


def name_of(software):
    """The name of a profile that ships."""
    return load_document(preset_folder("software") / f"{software}.yaml").tree["name"]


def test_jobs_of_the_wheel_are_those_of_measured_jobs():
    found: dict[str, set[str]] = {}
    for name, place in set(jobs_of(DataFolder(CHECKOUT_DATA, split=True))):
        machine = rd.load_machine(place.machine, settings=place.settings[-1:])
        found.setdefault(name, set()).add(machine.device.spec.name)
    assert {name: devices for name, devices in JOBS.items() if name in found} == {
        name: tuple(sorted(devices)) for name, devices in found.items()
    }


def test_software_without_measured_jobs_is_named():
    said = call("run", "llama2_7b_train", "--on", "dgx_a100", "--set", "job.software=torchtitan").out
    assert "; jobs of torchtitan are not validated on A100-SXM4-80GB" in said
    assert "not validated" not in call("run", "llama2_7b_train", "--on", "dgx_h100").out
