"""A torchtitan configuration (TOML) to a job file.

Sections and defaults are those of torchtitan's `JobConfig` of 2025, with the names of 2024 beside them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from rapid_des.config.documents import read_text
from rapid_des.config.texts import parse_toml
from rapid_des.errors import ConfigError
from rapid_des.importers import GPUS, Importer, Option
from rapid_des.importers.keys import ImportedJob, Keys, Outcomes, Tree, bounded, imported, replicas, sparse

DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
CONVERTERS = {
    "float8": "current", "quantize.linear.float8": "current", "mx": "mxfp8", "quantize.linear.mx": "mxfp8",
}  # fmt: skip
"""The scaling recipe of each converter of a model's matrices."""
WIDE = ("output", "router.gate")


def of(keys: Keys, name: str) -> Keys:
    """Return a section, which may be left out."""
    return keys.section(name, optional=True)


def precision_of(keys: Keys) -> Tree:
    """Return the keys of a job's precision."""
    training = of(keys, "training")
    stored = training.choice("dtype", DTYPES, "float32")
    compute = training.choice("mixed_precision_param", DTYPES, "bfloat16")
    recipe = _recipe(keys)
    linear = of(of(keys, "quantize"), "linear")
    travels = False
    for section in (of(keys, "float8"), of(linear, "float8")):
        if recipe == "current":
            _check_float8(section)
            travels |= section.flag("enable_fsdp_float8_all_gather", default=False)
        section.ignore("no converter is float8", *section.unread())
    for section in (of(keys, "mx"), of(linear, "mx")):
        if recipe == "mxfp8":
            section.choice("recipe_name", dict.fromkeys(("mxfp8", "mxfp8_cublas")), "mxfp8")
            section.overrule("kernels of MXFP8 are cuBLAS's", "recipe_name", "mxfp8_dim1_cast_kernel_choice")
            _check_filter(section)
        section.ignore("no converter is mx", *section.unread())
    of(keys, "quantize").ignore("experts multiply in the format of the other matrices", "grouped_mm")
    return sparse(
        activations=compute,
        gemm=recipe and "fp8",
        recipe=recipe,
        parameter_gather="fp8" if travels else None,
        gradients=stored,
        gradient_reduce=training.choice("mixed_precision_reduce", DTYPES, "float32"),
        optimizer=stored,
    ) | {"master_weights": None if stored == compute else stored}


def _recipe(keys: Keys) -> str | None:
    """Return the scaling recipe of a converted model's matrices; None: they are not converted."""
    model = of(keys, "model")
    names = model.get("converters", list, [])
    plain = [str(name) for name in names if not str(name).startswith("quantize.grouped_mm.")]
    unknown = [name for name in plain if name not in CONVERTERS]
    recipes = {CONVERTERS[name] for name in plain if name in CONVERTERS}
    if unknown or len(recipes) > 1 or (names and not recipes):
        allowed = f"one of {', '.join(CONVERTERS)}, and quantize.grouped_mm beside it"
        raise model.error(f"{names!r} is not understood; allowed: {allowed}", "converters")
    return next(iter(recipes), None)


def _check_float8(section: Keys) -> None:
    section.choice("recipe_name", dict.fromkeys((None, "tensorwise", "rowwise")))
    section.choice("emulate", {False: None}, default=False)
    section.overrule("scales of tensors and of rows are found by reading them once more", "recipe_name")
    reason = "scales are found as weights are cast, before they are gathered"
    section.ignore(reason, "precompute_float8_dynamic_scale_for_fsdp")
    _check_filter(section)


def _check_filter(section: Keys) -> None:
    """Refuse matrices that stay wide, but for those that do so here in any case."""
    names = section.get("filter_fqns", list, [])
    strange = [name for name in names if name not in WIDE]
    if strange:
        raise section.error(f"{strange[0]!r} stays wide; allowed: {', '.join(WIDE)}", "filter_fqns")
    section.overrule("the head and the router stay wide in any case", "filter_fqns")


MODELS: Mapping[tuple[str, str], str] = {
    ("llama3", "8B"): "llama3_1_8b",
    ("llama3", "70B"): "llama3_1_70b",
    ("llama3", "405B"): "llama3_1_405b",
    ("deepseek_v3", "16B"): "deepseek_v2_lite",
    ("deepseek_v3", "671B"): "deepseek_v3",
    ("qwen3", "30B-A3B"): "qwen3_30b_a3b",
    ("qwen3", "235B-A22B"): "qwen3_235b_a22b",
}
"""Model files by name and flavor."""
_DATA = "it says which data is read, and how"
_LOGS = "it is of logs, checks and traces"
_GARBAGE = "it collects garbage of Python"
SECTIONS: Mapping[str, Iterable[str]] = {
    "it is of files that keep a state": ("checkpoint",),
    "it is how processes find each other": ("comm",),
    "it names things": ("job",),
    "it is a rate": ("lr_scheduler",),
    _LOGS: ("debug", "memory_estimation", "metrics", "profiling"),
    "steps of validation are no steps of training": ("validation",),
}
"""Sections that have no effect, by the reason."""
IGNORED: Mapping[str, Iterable[str]] = {
    _DATA: ("dataset", "dataset_path", "dataloader", "hf_assets_path", "tokenizer_path"),
    _LOGS: ("deterministic", "print_after_conversion", "enable_compiled_autograd",
            "debug_moe_force_load_balance"),
    _GARBAGE: ("gc_debug", "gc_freq"),
    "it seeds a draw": ("seed", "preserve_rng_state", "determinism_check", "debug"),
    "it says how long a run goes on": ("steps", "warmup_steps"),
    "it says of which norm there is one": ("norm_type",),
    "compiled kernels are those of Inductor": ("backend",),
}  # fmt: skip
"""Keys of other sections that have no effect, by the reason."""
SCHEDULES = {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved_1f1b", "loopedbfs": "breadth_first",
    "zbvzerobubble": "zb_v", "dualpipev": "dualpipe_v",
}  # fmt: skip
ROTATIONS = {"allgather": "all_gather", "alltoall": "ring"}
_NO_PIPELINE = "pipeline_parallel_degree is 1"


def import_torchtitan(
    path: str | Path, *, gpus: int | None = None, model: str | None = None, ignore: Iterable[str] = ()
) -> ImportedJob:
    """Return the job of a TOML file.

    `gpus` is needed where the degree of sharding is left to the number of ranks; `model` is a model file in
    the place of the flavor; keys to `ignore` (`training.mine`) change nothing, as whoever names them knows.
    A `ConfigError` names what is missing, unknown or does not fit.
    """
    file = Path(path)
    tree = bounded(parse_toml(read_text(file), file), file)
    outcomes = Outcomes(asked=frozenset(ignore))
    keys = Keys(tree, str(file), outcomes=outcomes)
    job = _job(keys, gpus, model)
    for reason, names in SECTIONS.items():
        keys.ignore(reason, *names)
    keys.ignore_known(IGNORED)
    keys.finish()
    return imported(job, file, "torchtitan", outcomes)


def _job(keys: Keys, gpus: int | None, model: str | None) -> Tree:
    _check(keys)
    parallelism = _parallelism(of(keys, "parallelism"), gpus)
    compiled = _compiled(keys)
    job = {
        "model": _model(of(keys, "model"), model),
        "phase": "training",
        "software": "torchtitan",
        "fusion": "torch_compile" if "model" in compiled else "eager",
        "cross_entropy": "one_pass" if "loss" in compiled else "torch",
        "parallelism": parallelism,
        "precision": precision_of(keys),
        "training": _training(keys, parallelism),
    }
    return job | _routing(of(keys, "parallelism"), parallelism)


def _check(keys: Keys) -> None:
    """Refuse what would change a step and has no counterpart."""
    of(keys, "training").choice("enable_cpu_offload", {False: None}, default=False)
    optimizer = of(keys, "optimizer")
    optimizer.choice("name", {"Adam": None, "AdamW": None}, "AdamW")
    optimizer.choice("early_step_in_backward", {False: None}, default=False)
    optimizer.ignore("the optimizer is one kernel here", "implementation")
    optimizer.ignore("it is a rate or scale", "lr", "beta1", "beta2", "eps", "weight_decay")
    tolerance = of(keys, "fault_tolerance")
    tolerance.choice("enable", {False: None}, default=False)
    tolerance.ignore("fault_tolerance.enable is false", *tolerance.unread())
    for name in ("custom_import", "custom_args_module"):
        of(keys, "experimental").choice(name, {"": None}, "")


def _compiled(keys: Keys) -> Collection[str]:
    """Return what is compiled."""
    compiling, training = of(keys, "compile"), of(keys, "training")
    if "enable" in compiling:
        compiled = compiling.flag("enable", default=False)
    else:
        compiled = training.flag("compile", default=False)  # its name of 2024
    if not compiled:
        compiling.ignore("compile.enable is false", "components", "backend")
        return ()
    components: Collection[str] = compiling.get("components", list, ["model", "loss"])
    return components


def _model(keys: Keys, given: str | None) -> str:
    if given is not None:
        keys.ignore("--model says it", "name", "flavor")
        return given
    name, flavor = keys.get("name", str, "llama3"), keys.get("flavor", str, "debugmodel")
    if (name, flavor) not in MODELS:
        known = ", ".join(" ".join(pair) for pair in MODELS)
        raise keys.error(
            f"{name} {flavor} has no model file; known: {known}; give --model FILE", "name, flavor"
        )
    return MODELS[name, flavor]


def _parallelism(keys: Keys, gpus: int | None) -> Tree:
    degrees = {
        short: keys.count(f"{name}_parallel_degree", 1)
        for short, name in {"tp": "tensor", "cp": "context", "pp": "pipeline"}.items()
    }
    copies, shards = (
        keys.count(f"data_parallel_{kind}_degree", usual, least=-1)
        for kind, usual in (("replicate", 1), ("shard", -1))
    )
    if shards < 0:
        if gpus is None:
            problem = "data_parallel_shard_degree is what is left of the ranks; give --gpus N"
            raise ConfigError(problem, file=keys.file, key="parallelism")
        shards = replicas(gpus, {**degrees, "data_parallel_replicate_degree": copies}, keys.file)
    split: Tree = {**degrees, "dp": copies * shards}
    if copies > 1 and shards > 1:
        split["dp_replicate"] = copies
    if degrees["cp"] > 1:
        split["cp_kind"] = keys.choice("context_parallel_rotate_method", ROTATIONS, "allgather")
    keys.ignore("context_parallel_degree is 1", "context_parallel_rotate_method")
    expert = keys.count("expert_parallel_degree", 1)
    if expert > 1:
        split |= {"ep": expert, "etp": keys.count("expert_tensor_parallel_degree", 1)}
    keys.ignore("expert_parallel_degree is 1", "expert_tensor_parallel_degree")
    if degrees["tp"] > 1:
        split["sequence_parallel"] = True
        keys.choice("disable_loss_parallel", {False: None}, default=False)
    keys.ignore("tensor_parallel_degree is 1", "disable_loss_parallel", "enable_async_tensor_parallel")
    return split


def _routing(keys: Keys, split: Tree) -> Tree:
    """Return how tokens travel to experts, if experts are split over ranks."""
    if "ep" not in split:
        keys.ignore("expert_parallel_degree is 1", "expert_parallel_comm_backend")
        return {}
    dispatchers = {"standard": "all_to_all", "deepep": "deepep", "hybridep": "hybridep"}
    chosen = keys.choice("expert_parallel_comm_backend", dispatchers, "standard")
    return {} if chosen == "all_to_all" else {"routing": {"dispatcher": chosen}}


def _training(keys: Keys, split: Tree) -> Tree:
    training, parallel = of(keys, "training"), of(keys, "parallelism")
    local = training.count("local_batch_size" if "local_batch_size" in training else "batch_size", 8)
    batch = training.count("global_batch_size", -1, least=-1)
    micro = parallel.count("pipeline_parallel_microbatch_size", 1) if split["pp"] > 1 else local
    sharded = parallel.count("data_parallel_shard_degree", -1, least=-1) != 1
    stage = 3 if split["dp"] * split["cp"] > 1 and sharded else 0
    if batch >= 0 and split["pp"] > 1:
        training.overrule(
            "global_batch_size and pipeline_parallel_microbatch_size say it", "local_batch_size"
        )
    tree: Tree = {
        "global_batch": local * split["dp"] if batch < 0 else batch,
        "micro_batch": micro,
        "sequence_length": training.count("seq_len", 2048),
        **_recompute(of(keys, "activation_checkpoint"), of(keys, "model").get("name", str, "llama3")),
        "zero_stage": stage,
        "overlap_tp": "none",
    }
    if split["tp"] > 1 and parallel.flag("enable_async_tensor_parallel", default=False):
        tree["overlap_tp"] = "ring"
    if split["pp"] > 1:
        _add_schedule(tree, parallel, split)
    parallel.ignore(_NO_PIPELINE, *(key for key in parallel.unread() if key.startswith("pipeline_parallel_")))
    parallel.ignore(_NO_PIPELINE, *({"module_fqns_per_model_part"} if split["pp"] == 1 else ()))
    if stage == 3:
        known = {"default": split["pp"] == 1, "always": True, "never": False}
        tree["reshard"] = parallel.choice("fsdp_reshard_after_forward", known, "default")
    parallel.ignore("parameters are not sharded", "fsdp_reshard_after_forward")
    if training.get("max_norm", float, 1.0) <= 0:
        tree["gradient_norm"] = False
    training.overrule("that gradients are clipped counts, at what norm does not", "max_norm")
    return tree


def _add_schedule(tree: Tree, keys: Keys, split: Tree) -> None:
    name = keys.get("pipeline_parallel_schedule", str, "1F1B")
    schedule = SCHEDULES.get(name.lower())
    if schedule is None:
        known = ", ".join(SCHEDULES)
        raise keys.error(f"{name!r} is not understood; allowed: {known}", "pipeline_parallel_schedule")
    tree["schedule"] = schedule
    if schedule in {"interleaved_1f1b", "breadth_first"}:
        split["chunks"] = 2
        keys.notes.append(
            "two model chunks a rank: what torchtitan takes where layers a stage are not stated"
        )
    keys.choice("pipeline_parallel_layers_per_stage", {None: None})
    keys.choice("pipeline_parallel_schedule_csv", {None: None, "": None})
    keys.choice("pipeline_parallel_first_stage_less_layers", {0: None, None: None})
    keys.choice("pipeline_parallel_last_stage_less_layers", {0: None, None: None})
    if keys.value("module_fqns_per_model_part", []):
        raise keys.error("modules by name are not read; allowed: none", "module_fqns_per_model_part")
    if schedule == "dualpipe_v" and "ep" in split:
        keys.choice("pipeline_parallel_expert_parallel_overlap", {True: None}, default=True)
    keys.ignore("only DualPipeV with experts reads it", "pipeline_parallel_expert_parallel_overlap")


def _recompute(keys: Keys, model: str) -> Tree:
    mode = keys.choice("mode", {name: name for name in ("selective", "full", "none")}, "selective")
    keys.ignore("mode is not memory_budget", "memory_budget", "visualize_memory_budget_pareto")
    if mode != "selective":
        keys.ignore(
            "mode is not selective", "selective_ac_option", "per_op_sac_force_recompute_mm_shapes_by_fqns"
        )
    if mode == "full" and keys.flag("early_stop", default=False):
        return {"recompute": mode, "recompute_early_stop": True}
    keys.ignore("mode is not full", "early_stop")
    if mode != "selective":
        return {"recompute": mode}
    option = str(keys.get("selective_ac_option", object, "2"))
    if option == "op" and model == "llama3":  # without experts and latent attention
        keys.ignore("it is of routers", "per_op_sac_force_recompute_mm_shapes_by_fqns")
        return {"recompute": "alternate"}
    rule = "every second product" if option == "op" else f"{option} layers of which one is recomputed"
    said = f"selective ({rule}) has no rule here, so nothing is recomputed"
    keys.notes.append(f"activation_checkpoint: {said}")
    keys.overrule(said, "mode", "selective_ac_option")
    keys.ignore(said, "per_op_sac_force_recompute_mm_shapes_by_fqns")
    return {"recompute": "none"}


IMPORTER = Importer(
    "Read a TOML configuration of torchtitan.",
    match=lambda path: path.suffix == ".toml",
    load=import_torchtitan,
    writes="job",
    options=(GPUS, Option("model", "A model file, in the place of the flavor.")),
)
