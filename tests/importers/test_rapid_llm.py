"""The hardware and model files of RAPID-LLM to a job, a machine and a device that run."""

import copy
import json

import pytest
import yaml

import rapid_des as rd
from rapid_des.errors import ConfigError
from rapid_des.importers.rapid_llm import import_rapid_llm

HARDWARE = yaml.safe_load("""
metadata: {display_name: mine}
sw_param:
  full_recomputation: true
  kernel_launch_overhead: 9.0e-6
  dp_zero_stage: 1
  precision: {tensor_format: bf16, kv_cache: as_tensor_format, parameters: as_tensor_format, gradients: fp32,
              grad_communication: as_tensor_format, optimizer_states: 4, stats: fp32, master_parameters: 0.0}
  h2d_bandwidth: -1
  const_mem_offset: 1 GB
  dp_microbatch: last_mb
  grad_acc_overhead: 0.0001
tech_param:
  core: {operating_frequency: 1.41e+9, num_bundles: 108, nominal_flop_rate_per_mcu: 512,
         nominal_energy_per_flop: 1.8e-13, num_mcu_per_bundle: 4, FMA_d1: 8, FMA_d2: 4, dataflow: best,
         util: 0.85}
  DRAM: {size: 80 GB, bandwidth: 1986 GB, dynamic_energy_per_bit: 4.5e-12, latency: 100.0e-9, util: 1}
  SRAM-L2: {size: 40 MB, bandwidth: 7050 GB, dynamic_energy_per_bit: 130.0e-15, latency: 0, util: 1}
  SRAM-L1: {size: 20736 KB, bandwidth: 18 TB, dynamic_energy_per_bit: 130.0e-15, latency: 0, util: 1}
  SRAM-R: {size: 27 MB, bandwidth: 122 TB, dynamic_energy_per_bit: 110.0e-15, latency: 0, util: 1}
memory_hierarchy:
  l0: {type: SRAM-R, scope: mcu}
  l1: {type: SRAM-L1, scope: mcu-bundle}
  l2: {type: SRAM-L2, scope: global}
  l3: {type: DRAM, scope: global}
parallelism: {auto: false, tp: 2, tp_sp: true, cp: 2, pp: 2, mb: 2, train: {dp: 2, ep: 1, tp_ep: true},
              inference: {replica_count: 2, moe_dp: 1}}
network:
  dimensions:
    - id: dim0
      label: torus
      size: auto
      parallelisms: [tp, cp, ep]
      topology: {type: Torus2D, bandwidth: 100 GB, latency: 5.0e-6, energy_per_bit: 8.0e-12, util: 1.0,
                 optimize_2dmap: false}
      collective_override: {}
    - id: dim1
      label: ring
      size: auto
      parallelisms: [pp, dp]
      topology: {type: Ring, bandwidth: 200 Gb, latency: 5.0e-6, energy_per_bit: 8.0e-12, util: 0.5}
      collective_override: {}
    - id: dim2
      label: unused
      size: auto
      parallelisms: []
      topology: {type: Ring, bandwidth: 25 GB, latency: 5.0e-6, energy_per_bit: 8.0e-12, util: 1.0}
  overlap: {tp_overlap: 0.5, tp_sp_overlap: 0.6, cp_overlap: 0.0}
  faulty_links: [[0, 1, 0.5]]
execution_backend:
  model: astra
  astra:
    backend: astra
    mode: full_astrasim_hierarchical
    collectives: {all_reduce: ring, all_gather: auto, reduce_scatter: auto, all_to_all: auto}
    sys_options: {endpoint_delay: 5, active_chunks_per_dimension: 32, preferred_dataset_splits: 4}
inference: {kvcache_type: hbm_only}
""")
MODEL = yaml.safe_load("""
model_param:
  mode: LLM
  run_type: training
  model_type: llama
  tied_embeddings: false
  global_batch_size: 8
  gradient_accumulation_steps: 1
  seq_len: 256
  decode_len: 56
  hidden_dim: 256
  num_layers: 4
  intermediate_size: 512
  vocab_size: 1000
  attention: {attention_type: gqa, num_heads: 4, kv_heads: 2, use_flashattention: true,
              attention_tile_size: 128}
  moe: {num_experts: 1, top_k: 1, moe_intermediate_size: 512, n_shared_experts: 0, moe_layer_freq: 1,
        first_k_dense_replace: 0}
""")
EXPERTS = {"num_experts": 8, "top_k": 2, "moe_intermediate_size": 128, "expert_imbalance_factor": 1.0}
SUPERPOD = {
    "type": "SuperPOD", "superpod_variant": "h100", "leaf_size": 2, "leaf_switches_per_su": 8,
    "spine_switches_per_su": 4, "bandwidth": ["50 GB", "100 GB"], "latency": 5e-6, "util": 1.0,
}  # fmt: skip
GIB = 1024**3


def with_keys(tree, **changes):
    """Return a tree with values at paths, whose keys two underscores join; numbers are places in lists."""
    tree = copy.deepcopy(tree)
    for path, value in changes.items():
        *steps, last = path.split("__")
        holder = tree
        for step in steps:
            holder = holder[int(step) if step.isdecimal() else step]
        if value is None:
            del holder[last]
        else:
            holder[last] = value
    return tree


def hardware(**changes):
    return with_keys(HARDWARE, **changes)


def model(**changes):
    return with_keys(MODEL, **{f"model_param__{path}": value for path, value in changes.items()})


@pytest.fixture
def imported(tmp_path):
    def read(hard=HARDWARE, soft=MODEL, **options):
        (tmp_path / "hw.yaml").write_text(json.dumps(hard))
        (tmp_path / "model.yaml").write_text(json.dumps(soft))
        return import_rapid_llm(tmp_path / "hw.yaml", tmp_path / "model.yaml", **options)

    return read


def reasons(run):
    return {each.key: each.reason for each in run.job.ignored}


def test_the_files_run(imported, tmp_path):
    for name, text in imported().files("mine").items():
        (tmp_path / name).write_text(text)
    job, machine = rd.load_job(tmp_path / "mine_job.yaml"), rd.load_machine(tmp_path / "mine_machine.yaml")
    assert (job.gpus, machine.fabric.gpus) == (16, 16)
    assert rd.simulate(job, machine).step_time > 0


def test_sizes_count_in_powers_of_1024_and_shares_of_links_hold(imported):
    run = imported()
    torus, ring = run.machine["fabric"]
    assert (torus["size"], torus["bandwidth"]) == ([2, 2], f"{100 * GIB / 1e9:.6g} GB/s")
    assert ring["bandwidth"] == f"{200 / 8 * 0.5 * GIB / 1e9:.6g} GB/s"
    assert run.device["hbm"]["capacity"] == f"{80 * 2**30} B"
    assert run.device["shared"]["capacity"] == f"{20736 * 1024 // 108} B"
    assert (run.device["base"], run.machine["faults"]) == (
        "a100_sxm_80gb",
        [{"link": "0-1", "bandwidth": 0.5}],
    )
    assert run.machine["collectives"] == {"all_reduce": "ring"}


def test_energies_of_flops_and_bits_become_those_of_flops_and_bytes(imported):
    energy = imported().device["energy"]
    # 1.8e-13 J a FLOP; 4.5e-12, 130e-15 J a bit are 36 and 1.04 pJ a byte
    assert (energy["flop_pj"]["bf16"], energy["hbm_pj_per_byte"]) == (0.18, 36.0)
    assert energy["l2_pj_per_byte"] == energy["shared_pj_per_byte"] == 1.04
    bare = imported(hardware(**{"tech_param__SRAM-L2__dynamic_energy_per_bit": None}))
    assert "energy" not in bare.device
    assert reasons(bare)["tech_param.DRAM.dynamic_energy_per_bit"].startswith("energies are stated for some")


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
    assert spec.memory_reserve == GIB


def test_without_full_recomputation_attention_is_recomputed(imported):
    run = imported(hardware(sw_param__full_recomputation=False))
    assert run.job.job.spec.training.recompute == "selective"


def test_formats_that_are_not_stated_are_those_of_its_own_code(imported):
    names = ("gradients", "grad_communication", "optimizer_states", "master_parameters")
    run = imported(hardware(**{f"sw_param__precision__{name}": None for name in names}))
    precision = run.job.job.spec.precision
    assert (precision.gradients, precision.gradient_reduce, precision.optimizer) == ("fp32", "bf16", "fp32")
    assert precision.master_weights is None


def test_what_is_ignored_is_named_with_the_reason(imported):
    left = reasons(imported())
    assert left["tech_param.core.util"] == "kernels of rapid_des have utilisations of their own"
    assert left["network.overlap.tp_overlap"] == "overlap falls out of the simulation"
    assert left["sw_param.grad_acc_overhead"] == "gradient_accumulation_steps is 1"
    assert "crosses the host's link" in left["sw_param.h2d_bandwidth"]
    texts = imported().files("x").values()
    assert all(
        "# ignored, as gradient_accumulation_steps is 1: sw_param.grad_acc_overhead" in text for text in texts
    )


def test_a_key_may_be_ignored_by_name(imported):
    hard = hardware(sw_param__mine={"a": 3})
    with pytest.raises(ConfigError, match=r"not understood: sw_param.mine \(.*--ignore KEY leaves one out"):
        imported(hard)
    assert reasons(imported(hard, ignore=["sw_param.mine"]))["sw_param.mine.a"].startswith("it was asked for")


def test_keys_may_be_set_before_files_are_read(imported):
    settings = {"parallelism.train.dp": 4, "model_param.global_batch_size": 16}
    assert imported(settings=settings).job.job.gpus == 32
    with pytest.raises(ConfigError, match=r"--set parallelism.tp=0: parallelism.tp: 0 is below 1"):
        imported(settings={"parallelism.tp": 0})


EIGHT = {"parallelism__tp": 4, "network__faulty_links": []}


@pytest.mark.parametrize(
    ("size", "kind", "bandwidth", "expected"),
    [
        (["tp", "cp"], "Torus2D", "100 GB", [("torus", [4, 2], 100)]),
        (["cp", "auto"], "Torus2D", "100 GB", [("torus", [2, 4], 100)]),
        ("(auto, 2)", "Mesh2D", "100 GB", [("mesh", [4, 2], 100)]),
        ("auto", "Torus2D", "100 GB", [("torus", [2, 4], 100)]),
        (8, "King-Mesh2D", "100 GB", [("king_mesh", [2, 4], 100)]),
        ([4, 2], "Torus2D", ["100 GB", "50 GB"], [("ring", 4, 100), ("ring", 2, 50)]),
        ([4, 2], "FC-Ring2D", "100 GB", [("fully_connected", 4, 100), ("ring", 2, 100)]),
        ([8, 1], "FC-Ring2D", ["100 GB", "50 GB"], [("fully_connected", 8, 100)]),
        ("auto", "SuperPOD", ["50 GB", "100 GB"], [("switch", 2, 400), ("switch", 4, 1600)]),
    ],
)
def test_dimensions_have_the_sides_and_rates_of_the_file(imported, size, kind, bandwidth, expected):
    # SuperPOD: 8 leaf switches of 50 GB; 4 units of 2 ranks with 4 spine switches each, of 100 GB
    changes = {"network__dimensions__0__topology": SUPERPOD | {"type": kind, "bandwidth": bandwidth}}
    run = imported(hardware(**EIGHT, **changes, network__dimensions__0__size=size))
    found = run.machine["fabric"][:-1]
    assert [(block["shape"], block["size"]) for block in found] == [part[:2] for part in expected]
    rates = [f"{rate * GIB / 1e9:.6g} GB/s" for *_, rate in expected]
    assert [block["bandwidth"] for block in found] == rates


def test_a_grid_that_is_no_square_is_named(imported):
    two = hardware(parallelism__cp=1, network__faulty_links=[])
    assert imported(two).machine["fabric"][0]["size"] == [2]
    assert (
        "network.dimensions.0.size auto: 2 ranks are 1 x 2, the grid closest to a square"
        in imported(two).job.notes
    )


def test_ranks_of_one_unit_of_a_superpod_are_joined_by_its_leaves(imported):
    topology = SUPERPOD | {"leaf_size": 32}
    run = imported(hardware(network__dimensions__1__topology=topology))
    (leaf,) = run.machine["fabric"][1:]
    assert (leaf["shape"], leaf["size"]) == ("switch", 4)
    assert "4 ranks are in one unit" in reasons(run)["network.dimensions.1.topology.leaf_size"]


def test_dimensions_may_state_algorithms_of_their_own(imported):
    changed = hardware(
        network__dimensions__0__collective_override={"all-reduce": "direct", "all_gather": "ring"}
    )
    run = imported(changed)
    assert run.machine["collectives"] == {"all_reduce": ["direct", "ring"], "all_gather": ["ring", "ring"]}
    assert "all_gather auto, beside dimensions that state an algorithm: ring on ring" in run.job.notes


def test_experts_take_ranks_of_their_own(imported):
    soft = model(moe=EXPERTS | {"first_k_dense_replace": 1}, global_batch_size=16)
    run = imported(hardware(parallelism__train__ep=2), soft)
    job = run.job.job
    assert (job.spec.parallelism.dp, job.spec.parallelism.ep, job.gpus) == (4, 2, 32)
    assert [half.parameters.experts > 0 for half in (layer.halves[1] for layer in job.model.pattern)] == [
        False, True, True, True,
    ]  # fmt: skip
    # dim0 holds tp, cp and ep: the ranks of a group of experts are its neighbours, not other stages
    assert job.spec.parallelism.order == ("tp", "cp", "ep", "dp", "pp")
    assert any(note.startswith("replicas (dp) stand inside pp") for note in run.job.notes)


def test_a_hot_expert_gets_so_many_shares_of_the_mean(imported):
    soft = model(moe=EXPERTS | {"expert_imbalance_factor": 3.0}, global_batch_size=16)
    ((hot, *others),) = imported(hardware(), soft).job.tree["routing"]["load"]["counts"]
    # of 8 experts one has 3 of 8 shares, the others 5 / 7 each: 3 / (5 / 7) = 4.2
    assert len(others) == 7 and hot / others[0] == pytest.approx(4.2) and len(set(others)) == 1


def test_in_inference_experts_are_spread_whole(imported):
    soft = model(moe=EXPERTS, run_type="inference")
    split = imported(hardware(parallelism__cp=1, parallelism__tp=4), soft).job.job.spec.parallelism
    assert (split.ep, split.etp, split.tp, split.dp) == (4, 1, 4, 2)
    wider = hardware(parallelism__cp=1, parallelism__inference__moe_dp=2, network__faulty_links=[])
    split = imported(wider, soft).job.job.spec.parallelism
    assert (split.ep, split.etp, split.dp, split.sequence_parallel) == (4, 1, 4, True)


def test_requests_split_their_length(imported):
    hard = hardware(parallelism__cp=1, parallelism__tp=4, sw_param__precision__parameters="fp8")
    spec = imported(hard, model(run_type="inference")).job.job.spec
    assert (spec.inference.prompt_length, spec.inference.output_length) == (200, 56)
    assert (spec.inference.micro_batch, spec.precision.weights) == (4, "fp8")


@pytest.mark.parametrize(("every", "steps"), [(16, 5), (1, 55), (100, 2)])
def test_decode_steps_are_sampled_as_the_file_says(imported, every, steps):
    # of 56 steps: the first, the last, and 16, 32, 48
    soft = model(run_type="inference") | {"inference_param": {"sample_every": every}}
    hard = hardware(parallelism__cp=1, parallelism__tp=4)
    assert imported(hard, soft).job.tree["inference"]["decode_steps"] == steps


def test_decode_steps_that_no_trace_holds_are_sampled(imported):
    soft = model(run_type="inference", num_layers=400, seq_len=20000, decode_len=10000)
    run = imported(hardware(parallelism__cp=1, parallelism__tp=4), soft)
    assert run.job.tree["inference"]["decode_steps"] == 64
    assert "64 of 9999 decode steps are simulated: a trace cannot hold all" in run.job.notes


def test_the_first_stages_have_the_layers_that_are_left_over(imported):
    split = imported(HARDWARE, model(num_layers=5)).job.job.spec.parallelism
    assert split.layers == (3, 2)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"network__dimensions__0__topology__type": "Moebius"}, "topology.type: 'Moebius' is not understood"),
        ({"network__dimensions__0__topology__bandwidth": "100 parsec"}, "'100 parsec' is no quantity"),
        ({"network__dimensions__1__topology__bandwidth": ["1 GB", "2 GB"]}, "holds 2; allowed: one"),
        ({"network__dimensions__0__topology__optimize_2dmap": True}, "optimize_2dmap: True is not underst"),
        ({"network__dimensions__0__parallelisms": ["tp", "xp"]}, "parallelisms: 'xp' is not one of tp, cp"),
        ({"network__dimensions__0__parallelisms": ["tp", "ep"]}, "none holds cp, which has 2 ranks"),
        ({"network__dimensions__2__parallelisms": ["dp"]}, "dimensions: several hold dp; allowed: one"),
        ({"network__dimensions__0__size": [8, 8]}, "[8, 8] does not hold the 4 ranks of tp 2 · cp 2 · ep 1"),
        ({"network__dimensions__1__size": 5}, "5, but pp 2 · dp 2 has 4 ranks; allowed: auto or 4"),
        ({"network__dimensions__1__topology": SUPERPOD | {"leaf_size": 3}}, "leaf_size: 3 does not div"),
        ({"network__dimensions": None}, "network.dimensions: must be a list of dimensions"),
        ({"network__dimensions__1__collective_override": {"all_gather": "mesh2d"}}, "'mesh2d' is not und"),
        ({"network__dimensions__1__collective_override": {"all_gather": "doubleBinaryTree"}}, "does no all"),
        ({"tech_param__core__nominal_flop_rate_per_mcu": 513}, "513 is not understood"),
        ({"network__dimensions__0__parallelisms": 3}, "parallelisms: 3 is no list"),
        ({"parallelism__cp": 0}, "cp: 0 is below 1"),
        ({"parallelism__train__ep": 2}, "ep: 2, but no layer has experts (model_param.moe.num_experts)"),
        ({"sw_param__precision__parameters": "fp8"}, "parameters: 'fp8', but training keeps"),
        ({"sw_param__precision__gradients": "fp12"}, "gradients: 'fp12' is not understood; allowed: mxfp4"),
        ({"network__faulty_links": 3}, "faulty_links: 3 is no list"),
        ({"network__faulty_links": [[0, 1]]}, "[0, 1] is no [source, destination, share]"),
        ({"network__faulty_links": [[0, 1, 2]]}, "[0, 1, 2] is no [source, destination, share]"),
        ({"network__faulty_links": [[0, 15, 0.5]]}, "as a machine file: "),
        ({"memory_hierarchy__l2__scope": "mcu"}, "memory_hierarchy.l2.scope: 'mcu' is not understood"),
        ({"tech_param__DRAM__size": "0 GB"}, "tech_param.DRAM.size: 0 is not above 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_clear_line(imported, changes, problem):
    with pytest.raises(ConfigError) as error:
        imported(hardware(**changes))
    assert problem in str(error.value) and "hw.yaml" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mode": "ViT", "model_type": "vit"}, "mode: 'ViT' of model_type vit; allowed: LLM"),
        ({"mode": "GEMM"}, "mode: 'GEMM', one matrix product, which no job holds; allowed: LLM"),
        ({"disable_embedding_unembedding": True}, "disable_embedding_unembedding: True is not understood"),
        ({"gradient_accumulation_steps": 2}, "grad_acc_overhead: 0.0001: no kernel here has a time"),
        ({"global_batch_size": 9}, "9 is not divisible by dp · ep · mb · gradient_accumulation_steps = 4"),
        ({"num_heads": 3}, "not understood: model_param.num_heads (3)"),
        ({"moe": EXPERTS | {"expert_imbalance_factor": 9}}, "expert_imbalance_factor: 9; allowed: 1 to"),
        ({"run_type": "inference"}, "parallelism.cp: 2 in inference, which RAPID-LLM has not"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_model_is_one_clear_line(imported, changes, problem):
    with pytest.raises(ConfigError) as error:
        imported(HARDWARE, model(**changes))
    assert problem in str(error.value) and "\n" not in str(error.value)


def test_a_prompt_is_more_than_what_is_decoded(imported):
    with pytest.raises(ConfigError, match="decode_len: 256 of seq_len 256 positions; allowed: 1 to 255"):
        imported(hardware(parallelism__cp=1), model(run_type="inference", decode_len=256))


def test_yaml_of_the_three_files_stands_alone(imported):
    texts = imported().files("x")
    assert list(texts) == ["x_job.yaml", "x_machine.yaml", "x_device.yaml"]
    assert yaml.safe_load(texts["x_machine.yaml"])["device"] == "x_device.yaml"


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("parallelism.tp", 2**63, "9223372036854775808 is above 281474976710656"),
        ("parallelism.train.dp", 2**40, "are more than 4194304 ranks"),
        ("parallelism.pp", 8, "8 stages of 4 layers; allowed: a layer each"),
        ("sw_param.const_mem_offset", "1e400", "'1e400' is too large"),
        ("model_param.num_layers", 2**40, "allowed: up to 10,000"),
        ("model_param.moe.num_experts", 2**40, "is above 65536"),
        ("network.dimensions.0.size", "a\n# b: c", "a # b: c, but tp 2 · cp 2 · ep 1 has 4 ranks"),
    ],
)
def test_what_would_fill_memory_is_refused(imported, path, value, problem):
    with pytest.raises(ConfigError) as error:
        imported(settings={path: json.dumps(value)})
    said = str(error.value)
    assert problem in said and "\n" not in said


def test_what_stands_in_a_file_never_leaves_its_comment(imported):
    texts = imported(hardware(metadata={"display_name": "a\ndevice: /dev/zero", "b\nx: 1": "\x00"})).files(
        "x"
    )
    assert all(yaml.safe_load(text).get("x") is None for text in texts.values())
    assert "device: /dev/zero" not in [line for text in texts.values() for line in text.splitlines()]


def test_energy_of_links_is_that_of_a_bit_sent(imported):
    # 8 pJ a bit: a message crosses one link of a torus or ring
    fabric = imported().machine["fabric"]
    assert [dimension["energy"] for dimension in fabric] == [{"pj_per_bit": 8.0}] * len(fabric)
