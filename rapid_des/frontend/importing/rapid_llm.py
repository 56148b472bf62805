"""The two files of a RAPID-LLM run, hardware and model, to a job, a machine and a device file.

Keys are those of its `configs/` of 2026 (`network.dimensions`). Its sizes count in powers of 1,024. Shares
that it multiplies kernels by (`util`, `overlap`) are left out and named: they fall out of the simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rapid_des.config import to_yaml
from rapid_des.config.documents import load_document
from rapid_des.errors import ConfigError
from rapid_des.frontend.importing.bounds import bounded
from rapid_des.frontend.importing.keys import ImportedJob, Tree, imported, sparse
from rapid_des.frontend.importing.rapid_hardware import Section, device_of, known, machine_of

FORMATS = {0.5: "fp4", 1: "fp8", 2: "bf16", 4: "fp32"}
"""What stands for bytes a value."""


@dataclass(frozen=True)
class ImportedFiles:
    """A run of RAPID-LLM: its job, and the machine and device files that go with it."""

    job: ImportedJob
    machine: Tree
    device: Tree
    source: str

    def files(self, name: str) -> dict[str, str]:
        """Return the texts of the three files by their names, which begin with `name`."""
        machine = self.machine | {"device": f"{name}_device.yaml"}
        head = f"# from {self.source}\n"
        return {
            f"{name}_job.yaml": self.job.as_yaml(),
            f"{name}_machine.yaml": head + to_yaml(machine),
            f"{name}_device.yaml": head + to_yaml(self.device),
        }


def import_rapid_llm(hardware: str | Path, model: str | Path) -> ImportedFiles:
    """Return what the two files describe; a `ConfigError` names what is missing, unknown or does not fit."""
    machine_file, model_file = Path(hardware), Path(model)
    hard = Section(bounded(load_document(machine_file).tree, machine_file), str(machine_file))
    soft = Section(bounded(load_document(model_file).tree, model_file), str(model_file)).section(
        "model_param"
    )
    notes: list[str] = []
    split = _degrees(hard, training=_training(soft))
    job = _job(hard, soft, split, notes)
    device = device_of(hard, notes)
    machine = machine_of(hard, split, notes)
    return ImportedFiles(imported(job, model_file, "RAPID-LLM", notes), machine, device, machine_file.name)


def _training(soft: Section) -> bool:
    mode = soft.get("mode", str, "LLM")
    if mode != "LLM" or str(soft.tree.get("model_type", "")).startswith("vit"):
        problem = f"mode {mode}, {soft.tree.get('model_type')}: only decoders are read (mode LLM)"
        raise ConfigError(problem, file=soft.file, key="model_param.mode")
    return soft.choice("run_type", {"training": True, "inference": False})


def _degrees(hard: Section, *, training: bool) -> dict[str, int]:
    """Return the degree of each axis, and `mb`, the micro-batches."""
    keys = hard.section("parallelism")
    split = {axis: keys.count(axis, 1, least=1) for axis in ("tp", "cp", "mb")}
    split["pp"] = keys.count("pp", keys.count("lp", 1, least=1), least=1)
    inner = keys.section("train" if training else "inference", optional=True)
    split["dp"] = inner.count("dp" if training else "replica_count", 1, least=1)
    split["ep"] = inner.count("ep" if training else "moe_dp", 1, least=1)
    return split


def _job(hard: Section, soft: Section, split: dict[str, int], notes: list[str]) -> Tree:
    keys, software = hard.section("parallelism"), hard.section("sw_param")
    training = _training(soft)
    experts = _experts_of(soft)
    parallelism: Tree = {axis: split[axis] for axis in ("tp", "cp", "pp")}
    parallelism["dp"] = split["dp"] * split["ep"]
    parallelism["order"] = ["tp", "cp", "ep", "pp", "dp"]
    if experts:
        whole = keys.section("train", optional=True).flag("tp_ep", default=True)
        parallelism |= {"ep": split["ep"], "etp": split["tp"] if whole else 1}
    if training and split["tp"] > 1 and keys.flag("tp_sp", default=False):
        parallelism["sequence_parallel"] = True
    flash = soft.section("attention").flag("use_flashattention", default=False)
    job: Tree = {
        "model": _model(soft),
        "phase": "training" if training else "inference",
        "software": {"name": "as RAPID-LLM: no library", "communication": {}, "defaults": {}},
        "parallelism": parallelism,
        "precision": _precision(software.section("precision"), training=training),
        "attention": "flash" if flash else "unfused",
    }
    notes.append(
        "links move collectives at their own rates, as in RAPID-LLM; `software: megatron-2025` brings NCCL"
    )
    reserve = software.quantity("const_mem_offset", 0)
    if reserve:
        job["memory_reserve"] = f"{int(reserve)} B"
    if training:
        return job | {"training": _step(software, soft, split)}
    return job | {"inference": _requests(soft)}


def _step(software: Section, soft: Section, split: dict[str, int]) -> Tree:
    batch = soft.count("global_batch_size", soft.count("batch_size", 1))
    passes = split["mb"] * soft.count("gradient_accumulation_steps", 1)
    share = split["dp"] * split["ep"] * passes
    if batch % share:
        problem = f"global_batch_size {batch} does not divide by dp · ep · mb · accumulation = {share}"
        raise ConfigError(problem, file=soft.file, key="model_param.global_batch_size")
    stage = software.count("dp_zero_stage", 0)
    each = software.choice("dp_microbatch", {"every_mb": True, "last_mb": False}, "every_mb")
    return {
        "global_batch": batch,
        "micro_batch": batch // share,
        "sequence_length": soft.count("seq_len"),
        "schedule": "gpipe",
        "recompute": "full" if software.flag("full_recomputation", default=False) else "none",
        "zero_stage": stage,
        "reduce_each_micro_batch": each or stage == 3,
    }


def _requests(soft: Section) -> Tree:
    length, decoded = soft.count("seq_len"), soft.count("decode_len", 0)
    if not 0 < decoded < length:
        problem = f"{decoded} of seq_len {length} positions; allowed: 1 to {length - 1}"
        raise ConfigError(problem, file=soft.file, key="model_param.decode_len")
    batch = soft.count("batch_size", soft.count("global_batch_size", 1))
    return {"batch": batch, "prompt_length": length - decoded, "output_length": decoded}


def _precision(keys: Section, *, training: bool) -> Tree:
    usual = _format(keys, "tensor_format", "bf16")
    names = {
        "gradients": "gradients",
        "gradient_reduce": "grad_communication",
        "optimizer": "optimizer_states",
    }
    if not training:
        return {"activations": usual, "kv_cache": _format(keys, "kv_cache", usual)}
    tree = {name: _format(keys, key, usual) for name, key in names.items()}
    return {"activations": usual, **tree, "master_weights": _format(keys, "master_parameters", usual)}


def _format(keys: Section, key: str, usual: str | None) -> str | None:
    value = keys.tree.get(key, "as_tensor_format")
    if value == "as_tensor_format":
        return usual
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return None if value == 0 else known(FORMATS, float(value), keys, key)
    return str(value).replace("mxfp4", "fp4").replace("int4", "fp4")


def _experts_of(soft: Section) -> int:
    """Return how many routed experts a layer has; 0: it is dense."""
    count = soft.section("moe", optional=True).count("num_experts", soft.count("num_experts", 1))
    return count if count > 1 else 0


def _model(soft: Section) -> Tree:
    llama = soft.get("model_type", str, "gpt") != "gpt"
    layers, width = soft.count("num_layers"), soft.count("intermediate_size")
    dense = {"activation": "swiglu" if llama else "gelu", "hidden": width}
    model: Tree = {
        "hidden": soft.count("hidden_dim"),
        "layers": layers,
        "attention": _attention(soft.section("attention")),
        "feed_forward": dense,
        "norm": "rms_norm" if llama else "layer_norm",
        "position": "rope" if llama else "learned",
        "vocabulary": soft.count("vocab_size"),
        "max_positions": soft.count("seq_len"),
        "tied_embeddings": soft.flag("tied_embeddings", default=True),
    }
    return model | _experts(soft.section("moe", optional=True), dense, layers) if _experts_of(soft) else model


def _attention(keys: Section) -> Tree:
    kind = keys.choice("attention_type", {name: name for name in ("mha", "gqa", "mla")})
    heads = keys.count("num_heads")
    if kind == "mla":
        return sparse(
            kind="latent_attention",
            heads=heads,
            kv_rank=keys.count("kv_lora_rank"),
            q_rank=keys.count("q_lora_rank", 0) or None,
            head_dim=keys.count("qk_nope_head_dim"),
            rope_dim=keys.count("qk_rope_head_dim"),
            value_dim=keys.count("v_head_dim"),
        )
    shared = keys.count("kv_heads", heads) if kind == "gqa" else heads
    return sparse(heads=heads, kv_heads=shared, head_dim=keys.count("head_dim", 0) or None)


def _experts(keys: Section, dense: Tree, layers: int) -> Tree:
    width = keys.count("moe_intermediate_size", dense["hidden"])
    routed = {
        "kind": "experts",
        "experts": keys.count("num_experts"),
        "topk": keys.count("top_k", 1),
        "hidden": width,
        "activation": dense["activation"],
        "shared_hidden": width * keys.count("n_shared_experts", 0),
    }
    first, every = keys.count("first_k_dense_replace", 0), keys.count("moe_layer_freq", 1)
    if every == 1:
        return {"feed_forward": routed} | (
            {"exceptions": [{"stop": first, "feed_forward": dense}]} if 0 < first < layers else {}
        )
    return {"exceptions": [{"start": first, "every": every, "feed_forward": routed}]}
