"""The hardware and model files of RAPID-LLM to a job, a machine and a device that run."""

import pytest
import yaml

import rapid_des as rd
from rapid_des.errors import ConfigError
from rapid_des.frontend.importing import import_rapid_llm

HARDWARE = """
sw_param:
  full_recomputation: true
  kernel_launch_overhead: 9e-6
  dp_zero_stage: 1
  precision: {tensor_format: bf16, gradients: fp32, optimizer_states: 4, master_parameters: 0.0}
  dp_microbatch: last_mb
tech_param:
  core: {operating_frequency: 1.41e9, num_bundles: 108, nominal_flop_rate_per_mcu: 512,
         num_mcu_per_bundle: 4, util: 0.85}
  DRAM: {size: 80 GB, bandwidth: 1986 GB}
  SRAM-L2: {size: 40 MB, bandwidth: 7050 GB}
  SRAM-L1: {size: 20736 KB, bandwidth: 18 TB}
  SRAM-R: {size: 27 MB, bandwidth: 122 TB}
parallelism: {tp: 2, tp_sp: true, cp: 2, lp: 2, mb: 2, train: {dp: 2, ep: 1}, inference: {replica_count: 1}}
network:
  dimensions:
    - label: torus
      size: auto
      parallelisms: [tp, cp]
      topology: {type: Torus2D, bandwidth: 100 GB, latency: 5e-6}
    - {label: ring, size: auto, parallelisms: [lp, dp], topology: {type: Ring, bandwidth: 200 Gb, util: 0.5}}
    - {label: unused, size: auto, parallelisms: [], topology: {type: Ring, bandwidth: 25 GB}}
  overlap: {tp_overlap: 0.5, cp_overlap: 0.0}
  faulty_links: [[0, 1, 0.5]]
execution_backend: {astra: {collectives: {all_reduce: ring, all_gather: mesh2d}}}
"""
MODEL = """
model_param:
  {run_type: training, model_type: llama, tied_embeddings: false, global_batch_size: 8, seq_len: 256,
   decode_len: 56, hidden_dim: 256, num_layers: 4, intermediate_size: 512, vocab_size: 1000,
   attention: {attention_type: gqa, num_heads: 4, kv_heads: 2, use_flashattention: true}}
"""


@pytest.fixture
def imported(tmp_path):
    def read(hardware=HARDWARE, model=MODEL):
        (tmp_path / "hw.yaml").write_text(hardware)
        (tmp_path / "model.yaml").write_text(model)
        return import_rapid_llm(tmp_path / "hw.yaml", tmp_path / "model.yaml")

    return read


def test_the_files_run(imported, tmp_path):
    for name, text in imported().files("mine").items():
        (tmp_path / name).write_text(text)
    job, machine = rd.load_job(tmp_path / "mine_job.yaml"), rd.load_machine(tmp_path / "mine_machine.yaml")
    assert (job.gpus, machine.fabric.gpus) == (16, 16)
    assert rd.simulate(job, machine).step_time > 0


def test_sizes_count_in_powers_of_1024_and_shares_of_links_hold(imported):
    run = imported()
    torus, ring = run.machine["fabric"]
    assert (torus["size"], torus["bandwidth"]) == ([2, 2], f"{100 * 1.024**3:.6g} GB/s")
    assert ring["bandwidth"] == f"{200 / 8 * 0.5 * 1.024**3:.6g} GB/s"
    assert run.device["hbm"]["capacity"] == f"{80 * 2**30} B"
    assert run.device["shared"]["capacity"] == f"{20736 * 1024 // 108} B"
    assert (run.device["base"], run.machine["faults"]) == (
        "a100_sxm_80gb",
        [{"link": "0-1", "bandwidth": 0.5}],
    )
    assert run.machine["collectives"] == {"all_reduce": "ring"}


def test_the_step_is_what_it_would_run(imported):
    spec = imported().job.job.spec
    assert (spec.training.schedule, spec.training.recompute, spec.training.micro_batch) == (
        "gpipe",
        "full",
        2,
    )
    assert (spec.precision.gradients, spec.precision.optimizer, spec.precision.master_weights) == (
        "fp32",
        "fp32",
        None,
    )
    assert spec.parallelism.order == ("tp", "cp", "ep", "pp", "dp")


def test_what_is_left_out_is_named(imported):
    notes = "; ".join(imported().job.notes)
    for part in ("core.util 0.85", "overlap.tp_overlap 0.5", "all_gather mesh2d"):
        assert part in notes
    assert "cp_overlap" not in notes


def test_experts_take_ranks_of_their_own(imported):
    moe = "moe: {num_experts: 8, top_k: 2, moe_intermediate_size: 128, first_k_dense_replace: 1},"
    model = MODEL.replace("attention: {", f"{moe}\n   attention: {{").replace(
        "batch_size: 8", "batch_size: 16"
    )
    job = imported(HARDWARE.replace("ep: 1", "ep: 2"), model).job.job
    assert (job.spec.parallelism.dp, job.spec.parallelism.ep, job.gpus) == (4, 2, 32)
    assert [half.parameters.experts > 0 for half in (layer.halves[1] for layer in job.model.pattern)] == [
        False, True, True, True,
    ]  # fmt: skip


def test_requests_split_their_length(imported):
    job = imported(
        HARDWARE.replace("tp: 2", "tp: 4").replace("cp: 2", "cp: 1"), MODEL.replace("training", "inference")
    ).job.job
    assert (job.inference.prompt_length, job.inference.output_length) == (200, 56)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("type: Torus2D", "type: Moebius", "network.dimensions.0.topology.type: 'moebius' is not understood"),
        ("100 GB,", "100 parsec,", "network.dimensions.0.topology.bandwidth: '100 parsec' is no quantity"),
        ("[tp, cp]", "[tp, xp]", "network.dimensions.0.parallelisms: 'xp' is not one of tp, cp"),
        ("cp: 2", "cp: 3", "6 ranks are no square; allowed: a size [x, auto]"),
        ("  dimensions:", "  other:", "network.dimensions: must be a list of dimensions"),
        ("nominal_flop_rate_per_mcu: 512", "nominal_flop_rate_per_mcu: 513", "513 is not understood"),
        ("[tp, cp]", "3", "parallelisms: 3 is no list"),
        ("cp: 2", "cp: 0", "cp: 0 is below 1"),
        ("[[0, 1, 0.5]]", "3", "faulty_links: 3 is no list"),
        ("[[0, 1, 0.5]]", "[[0, 1]]", "[0, 1] is no [source, destination, share]"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_clear_line(imported, old, new, problem):
    assert old in HARDWARE
    with pytest.raises(ConfigError) as error:
        imported(HARDWARE.replace(old, new))
    assert problem in str(error.value) and "hw.yaml" in str(error.value)


def test_what_is_no_decoder_is_refused(imported):
    with pytest.raises(ConfigError, match="only decoders are read"):
        imported(model=MODEL.replace("model_type: llama", "model_type: vit, mode: VIT"))


def test_yaml_of_the_three_files_stands_alone(imported):
    texts = imported().files("x")
    assert list(texts) == ["x_job.yaml", "x_machine.yaml", "x_device.yaml"]
    assert yaml.safe_load(texts["x_machine.yaml"])["device"] == "x_device.yaml"
