"""A torchtitan configuration (TOML) to a job file.

Sections and defaults are those of torchtitan's `JobConfig` of 2025, with the names of 2024 beside them. What
is not read of the sections that shape a step is named in the notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rapid_des.config.documents import parse_toml, read_text
from rapid_des.errors import ConfigError
from rapid_des.frontend.importing.bounds import bounded
from rapid_des.frontend.importing.keys import ImportedJob, Keys, Tree, imported, replicas, sparse

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
SHAPING = ("model", "training", "parallelism", "activation_checkpoint", "compile", "float8", "quantize", "mx")
"""Sections that say something of a step."""
OTHERS = frozenset((
    "checkpoint", "comm", "debug", "deepep", "experimental", "fault_tolerance", "job", "lr_scheduler",
    "memory_estimation", "metrics", "optimizer", "profiling", "validation",
))  # fmt: skip
"""Sections of logs, checkpoints and rates."""
WITHOUT_MEANING = frozenset((
    "components", "dataset", "dataset_path", "debug_moe_force_load_balance", "deterministic",
    "disable_loss_parallel", "enable_compiled_autograd", "filter_fqns", "gc_debug", "gc_freq",
    "hf_assets_path", "norm_type", "precompute_float8_dynamic_scale_for_fsdp", "print_after_conversion",
    "seed", "steps", "tokenizer_path", "warmup_steps",
))  # fmt: skip
SCHEDULES = {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved_1f1b", "loopedbfs": "breadth_first",
    "zbvzerobubble": "zb_v", "dualpipev": "dualpipe_v",
}  # fmt: skip
ROTATIONS = {"allgather": "all_gather", "alltoall": "ring"}
DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}


def import_torchtitan(path: str | Path, *, gpus: int | None = None, model: str | None = None) -> ImportedJob:
    """Return the job of a TOML file.

    `gpus` is needed where the degree of sharding is left to the number of ranks; `model` is a model file in
    the place of the flavor. A `ConfigError` names what is missing, unknown or does not fit.
    """
    file = Path(path)
    tree = bounded(parse_toml(read_text(file), file), file)
    sections = {name: Keys(_section(tree, name, str(file)), str(file)) for name in SHAPING}
    notes: list[str] = []
    job = _job(sections, gpus, model, notes)
    left = [
        f"{name}.{key}"
        for name, section in sections.items()
        for key in sorted(section.unread() - WITHOUT_MEANING)
        if section.tree[key] not in (False, None, "", [], {})
    ]
    left += sorted(tree.keys() - set(SHAPING) - OTHERS)
    optimizer = _section(tree, "optimizer", str(file)).get("name", "AdamW")
    if optimizer not in ("Adam", "AdamW"):
        notes.append(f"optimizer.name {optimizer}: the job's optimizer stays AdamW")
    if left:
        notes.append(f"left out: {', '.join(left)}")
    return imported(job, file, "torchtitan", notes)


def _section(tree: Mapping[str, Any], name: str, file: str) -> Tree:
    section = tree.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(f"{section!r} is no table", file=file, key=name)
    return section


def _job(sections: Mapping[str, Keys], gpus: int | None, model: str | None, notes: list[str]) -> Tree:
    training, compiling = sections["training"], sections["compile"]
    parallelism = _parallelism(sections["parallelism"], gpus)
    compiled = compiling.flag("enable", default=training.flag("compile", default=False))
    return {
        "model": model or _model(sections["model"]),
        "phase": "training",
        "software": "torchtitan",
        "fusion": "torch_compile" if compiled else "eager",
        "parallelism": parallelism,
        "precision": _precision(sections),
        "training": _training(sections, parallelism, notes),
    }


def _model(keys: Keys) -> str:
    name, flavor = keys.get("name", str, "llama3"), keys.get("flavor", str, "debugmodel")
    if (name, flavor) not in MODELS:
        known = ", ".join(" ".join(pair) for pair in MODELS)
        problem = f"{name} {flavor} has no model file; known: {known}; give --model FILE"
        raise ConfigError(problem, file=keys.file, key="model.flavor")
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
    expert = keys.count("expert_parallel_degree", 1)
    if expert > 1:
        split |= {"ep": expert, "etp": keys.count("expert_tensor_parallel_degree", 1)}
    if degrees["tp"] > 1:
        split["sequence_parallel"] = True
    return split


def _precision(sections: Mapping[str, Keys]) -> Tree:
    training, model = sections["training"], sections["model"]
    stored = training.choice("dtype", DTYPES, "float32")
    compute = training.choice("mixed_precision_param", DTYPES, "bfloat16")
    converters = " ".join(map(str, model.get("converters", list, [])))
    eight, recipe = "float8" in converters or "quantize" in converters, "current"
    sections["float8"].ignore("recipe_name")
    travels = sections["float8"].flag("enable_fsdp_float8_all_gather", default=False)
    if "mx" in converters.split() or "quantize.linear.mx" in converters:
        eight, recipe, travels = True, "mxfp8", False
    return sparse(
        activations=compute,
        gemm="fp8" if eight else None,
        recipe=recipe if eight else None,
        parameter_gather="fp8" if eight and travels else None,
        gradients=stored,
        gradient_reduce=training.choice("mixed_precision_reduce", DTYPES, "float32"),
        optimizer=stored,
    ) | {"master_weights": None if stored == compute else stored}


def _training(sections: Mapping[str, Keys], split: Tree, notes: list[str]) -> Tree:
    training, parallel = sections["training"], sections["parallelism"]
    local = training.count("local_batch_size", training.count("batch_size", 8))
    batch = training.count("global_batch_size", -1, least=-1)
    micro = parallel.count("pipeline_parallel_microbatch_size", 1) if split["pp"] > 1 else local
    stage = (
        3
        if split["dp"] * split["cp"] > 1 and parallel.count("data_parallel_shard_degree", -1, least=-1) != 1
        else 0
    )
    tree: Tree = {
        "global_batch": local * split["dp"] if batch < 0 else batch,
        "micro_batch": micro,
        "sequence_length": training.count("seq_len", 2048),
        "recompute": _recompute(sections["activation_checkpoint"], notes),
        "zero_stage": stage,
        "overlap_tp": "ring" if parallel.flag("enable_async_tensor_parallel", default=False) else "none",
    }
    if split["pp"] > 1:
        _add_schedule(tree, parallel, split, notes)
    if stage == 3:
        known = {"default": split["pp"] == 1, "always": True, "never": False}
        tree["reshard"] = parallel.choice("fsdp_reshard_after_forward", known, "default")
    if training.get("max_norm", float, 1.0) <= 0:
        tree["gradient_norm"] = False
    return tree


def _add_schedule(tree: Tree, keys: Keys, split: Tree, notes: list[str]) -> None:
    name = keys.get("pipeline_parallel_schedule", str, "1F1B")
    schedule = SCHEDULES.get(name.lower())
    if schedule is None:
        known = ", ".join(SCHEDULES)
        problem = f"{name!r} is not understood; allowed: {known}"
        raise ConfigError(problem, file=keys.file, key="parallelism.pipeline_parallel_schedule")
    tree["schedule"] = schedule
    if schedule in {"interleaved_1f1b", "breadth_first"}:
        split["chunks"] = 2
        notes.append("two model chunks a rank: what torchtitan takes where layers a stage are not stated")


def _recompute(keys: Keys, notes: list[str]) -> str:
    mode = keys.choice("mode", {name: name for name in ("selective", "full", "none")}, "selective")
    option = str(keys.get("selective_ac_option", object, "2"))
    if mode == "selective":
        rule = "every second product" if option == "op" else f"{option} layers of which one is recomputed"
        notes.append(f"activation_checkpoint selective ({rule}): no such rule here, so nothing is recomputed")
        return "none"
    return mode
