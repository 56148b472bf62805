"""What a run of RAPID-LLM does, as a job file: how it is split, its number formats, its step or requests."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from rapid_des.frontend.job_checks import MOST_GPUS, MOST_NODES, NODES_A_LAYER
from rapid_des.importers.keys import Tree, shortened, sparse
from rapid_des.importers.rapid_llm.device import (
    NOT_READ,
    OF_INFERENCE,
    OF_TRAINING,
    Section,
    known,
    load_of,
    model_of,
    sparse_layers,
)
from rapid_des.importers.rapid_llm.network import Split

FORMATS = {"mxfp4": "fp4", "int4": "fp4", "fp8": "fp8", "int8": "fp8", "fp16": "fp16", "bf16": "bf16",
           "fp32": "fp32", "0.5": "fp4", "1": "fp8", "2": "bf16", "4": "fp32",
           "1.0": "fp8", "2.0": "bf16", "4.0": "fp32"}  # fmt: skip
"""Number formats by name, or by bytes per value, which is all that RAPID-LLM uses of them."""
SAMPLED = 64
"""Number of decode steps that are simulated, spread evenly, where a trace cannot hold all."""
_MODES = {"LLM": None, "llm": None}


def is_training(soft: Section) -> bool:
    """Return whether a model file means training; models other than decoders are refused."""
    model = soft.section("model_param")
    mode = model.get("mode", str, "LLM")
    if mode.upper() == "GEMM":
        problem = "'GEMM', one matrix product, which no job holds; allowed: LLM"
        raise model.error(f"{problem} (`rapid_des.device` prices a product)", "mode")
    if mode not in _MODES or str(model.value("model_type", "")).lower().startswith("vit"):
        problem = f"{mode!r} of model_type {model.value('model_type', None)}; allowed: LLM, a decoder of text"
        raise model.error(problem, "mode")
    return model.choice("run_type", {"training": True, "inference": False})


def degrees_of(hard: Section, soft: Section) -> dict[str, int]:
    """Return the ranks of each axis, by RAPID-LLM's names; their product is within a job's limit."""
    degrees = _degrees(hard, soft)
    if prod(degrees.values()) > MOST_GPUS:
        said = " · ".join(f"{axis} {shortened(str(size))}" for axis, size in degrees.items())
        raise hard.section("parallelism").error(f"{said} are more than {MOST_GPUS} ranks")
    return degrees


def _degrees(hard: Section, soft: Section) -> dict[str, int]:
    keys, training = hard.section("parallelism"), is_training(soft)
    degrees = {axis: keys.count(axis, 1, least=1) for axis in ("tp", "cp")}
    degrees["pp"] = keys.count("pp" if "pp" in keys else "lp", 1, least=1)  # lp: its name before 2026
    if training:
        keys.ignore(OF_INFERENCE, "inference")
        inner = keys.section("train", optional=True)
        return degrees | {"dp": inner.count("dp", 1, least=1), "ep": inner.count("ep", 1, least=1)}
    if degrees["cp"] > 1:
        raise keys.error(f"{degrees['cp']} in inference, which RAPID-LLM has not either; allowed: 1", "cp")
    keys.ignore("inference reads parallelism.inference", "train")
    inner = keys.section("inference", optional=True)
    replicas, pool = inner.count("replica_count", 1, least=1), inner.count("moe_dp", 1, least=1)
    return degrees | {"dp": replicas, "ep": pool}


def job_of(hard: Section, soft: Section, split: Split) -> Tree:
    """Return the keys of a job file."""
    model, software = soft.section("model_param"), hard.section("sw_param")
    training = is_training(soft)
    flash = model.section("attention").flag("use_flashattention", default=False)
    hard.notes.append(
        "links move collectives at their own rates, as in RAPID-LLM; `software: megatron-2025` brings NCCL"
    )
    job: Tree = {
        "model": model_of(model),
        "phase": "training" if training else "inference",
        "software": {"name": "as RAPID-LLM: no library", "communication": {}, "defaults": {}},
        "parallelism": _parallelism(hard, model, split, training=training),
        "precision": _precision(software.section("precision"), training=training),
        "attention": "flash" if flash else "unfused",
    }
    if sparse_layers(model):
        load = load_of(model.section("moe"))
        job |= {"routing": {"load": load}} if load else {}
    reserve = software.quantity("const_mem_offset", 0)
    if reserve:
        job["memory_reserve"] = f"{int(reserve)} B"
    reason = "the table of embeddings stands in the GPU's memory, so nothing of it crosses the host's link"
    software.ignore(reason, "h2d_bandwidth")
    if training:
        soft.ignore(OF_INFERENCE, "inference_param")
        return job | {"training": _step(hard, model, split.degrees)}
    return job | {"inference": _requests(hard, soft, split.degrees)}


def _parallelism(hard: Section, model: Section, split: Split, *, training: bool) -> Tree:
    keys, degrees = hard.section("parallelism"), split.degrees
    tree: Tree = {axis: degrees[axis] for axis in ("tp", "cp", "pp")}
    tree["dp"] = degrees["dp"] * degrees["ep"]
    tree["order"] = list(split.order)
    experts = bool(sparse_layers(model))
    if degrees["ep"] > 1:
        if not experts:
            place = ("train", "ep") if training else ("inference", "moe_dp")
            problem = f"{degrees['ep']}, but no layer has experts (model_param.moe.num_experts); allowed: 1"
            raise keys.section(place[0]).error(problem, place[1])
        tree["order"] = _beside_experts(hard, split)
    if degrees["pp"] > model.count("num_layers", least=1):
        problem = f"{degrees['pp']} stages of {model.count('num_layers')} layers; allowed: a layer each"
        raise keys.error(problem, "pp" if "pp" in keys else "lp")
    layers, pp = model.count("num_layers", least=1), degrees["pp"]
    if layers % pp:
        each, rest = divmod(layers, pp)
        tree["layers"] = [each + 1] * rest + [each] * (pp - rest)  # the first stages have one more
    return tree | _experts(hard, degrees, training=training, experts=experts)


def _beside_experts(hard: Section, split: Split) -> list[str]:
    """Return the order of axes in which replicas follow the ranks that experts are spread over.

    Those ranks are replicas of the dense layers here, so both are one axis.
    """
    order = [axis for axis in split.order if axis != "dp"]
    order.insert(order.index("ep") + 1, "dp")
    between = split.order[split.order.index("ep") + 1 : split.order.index("dp")]
    apart = [axis for axis in between if split.degrees[axis] > 1]
    if apart and split.degrees["dp"] > 1:
        hard.notes.append(
            f"replicas (dp) stand inside {', '.join(apart)}, beside the ranks of experts; "
            f"in RAPID-LLM they stand outside"
        )
    return order


def _experts(hard: Section, degrees: Mapping[str, int], *, training: bool, experts: bool) -> Tree:
    """Return the axes over which experts and the tokens of a sequence are split."""
    keys, tp = hard.section("parallelism"), degrees["tp"]
    inner = keys.section("train" if training else "inference", optional=True)
    if not (training and experts and tp > 1):
        inner.ignore("it says whether tp cuts experts, and there are none or tp is 1", "tp_ep")
    if tp == 1:
        keys.ignore("tp is 1", "tp_sp")
    elif not (training or experts):
        keys.ignore("in inference of dense models all tp ranks hold all tokens", "tp_sp")
    if training:
        tree: Tree = {"sequence_parallel": True} if tp > 1 and keys.flag("tp_sp", default=False) else {}
        if not experts:
            return tree
        cut = tp > 1 and inner.flag("tp_ep", default=True)
        return tree | {"ep": degrees["ep"], "etp": tp if cut else 1}
    if not experts:
        return {}
    tree = {"ep": tp * degrees["ep"], "etp": 1}
    splits = tp > 1 and keys.flag("tp_sp", default=False)
    if tp > 1 and degrees["ep"] > 1:
        keys.overrule(
            "where moe_dp is above 1 each tp rank has its part of the tokens, as with tp_sp", "tp_sp"
        )
        splits = True
    return tree | ({"sequence_parallel": True} if splits else {})


def _precision(keys: Section, *, training: bool) -> Tree:
    usual = _format(keys, "tensor_format", "bf16", "bf16")
    keys.ignore("norms keep their statistics in registers", "stats")
    keys.ignore(NOT_READ, "grad_microbatch", "mixed_precision", "param_storage_mode")
    stored = _format(keys, "parameters", usual, usual)
    if training:
        if stored != usual:
            problem = f"{keys.value('parameters')!r}, but training keeps parameters as activations; allowed: "
            raise keys.error(f"{problem}as_tensor_format, or {usual}", "parameters")
        keys.ignore("training caches no keys and values", "kv_cache")
        return {
            "activations": usual,
            "gradients": _format(keys, "gradients", "fp32", usual),
            "gradient_reduce": _format(keys, "grad_communication", usual, usual),
            "optimizer": _format(keys, "optimizer_states", "fp32", usual),
            "master_weights": None
            if _zero(keys.value("master_parameters", 0))
            else _format(keys, "master_parameters", usual, usual),
        }
    reason = "inference has no gradients and no optimizer"
    keys.ignore(reason, "gradients", "grad_communication", "optimizer_states", "master_parameters")
    return sparse(
        activations=usual,
        weights=None if stored == usual else stored,
        kv_cache=_format(keys, "kv_cache", usual, usual),
    )


def _zero(value: object) -> bool:
    return type(value) in (int, float) and value == 0


def _format(keys: Section, key: str, default: str, tensor: str) -> str:
    value = keys.value(key, default)
    if value == "as_tensor_format" and key != "tensor_format":
        return tensor
    return known(FORMATS, value, keys, key)


def _step(hard: Section, model: Section, degrees: Mapping[str, int]) -> Tree:
    keys, software = hard.section("parallelism"), hard.section("sw_param")
    batch, micro_batches = model.count("global_batch_size", least=1), keys.count("mb", 1, least=1)
    steps = model.count("gradient_accumulation_steps", 1, least=1)
    share = degrees["dp"] * degrees["ep"] * micro_batches * steps
    if batch % share:
        problem = f"{batch} is not divisible by dp · ep · mb · gradient_accumulation_steps = {share}"
        raise model.error(problem, "global_batch_size")
    if steps == 1:
        reason = "gradient_accumulation_steps is 1"
        software.ignore(reason, "grad_acc_overhead")
    elif software.quantity("grad_acc_overhead", 0):
        problem = f"{software.value('grad_acc_overhead')}: no kernel here has a time of its own; allowed: 0"
        raise software.error(problem, "grad_acc_overhead")
    model.ignore("training passes whole sequences", "decode_len")
    stage = software.count("dp_zero_stage", 0)
    if stage == 3:
        software.ignore("ZeRO-3 reduces after each micro-batch", "dp_microbatch")
    each = {"every_mb": True, "last_mb": False}
    return {
        "global_batch": batch,
        "micro_batch": batch // share,
        "sequence_length": model.count("seq_len", least=1),
        "schedule": "gpipe",
        "recompute": "full" if software.flag("full_recomputation", default=False) else "selective",
        "zero_stage": stage,
        "reduce_each_micro_batch": stage == 3 or software.choice("dp_microbatch", each, "every_mb"),
    }


def _requests(hard: Section, soft: Section, degrees: Mapping[str, int]) -> Tree:
    model, software = soft.section("model_param"), hard.section("sw_param")
    names = ("full_recomputation", "dp_zero_stage", "dp_microbatch", "grad_acc_overhead")
    software.ignore(OF_TRAINING, *names)
    model.choice("gradient_accumulation_steps", {1: None}, 1)
    length, decoded = model.count("seq_len", least=1), model.count("decode_len", 0)
    if not 0 < decoded < length:
        raise model.error(
            f"{decoded} of seq_len {length} positions; allowed: 1 to {length - 1}", "decode_len"
        )
    batch = model.count("global_batch_size", least=1)
    tree: Tree = {"batch": batch, "prompt_length": length - decoded, "output_length": decoded}
    parts = _micro_batches(hard, batch, degrees["pp"])
    passes = batch // parts.get("micro_batch", batch) * decoded
    nodes = passes * ceil(model.count("num_layers", least=1) / degrees["pp"]) * NODES_A_LAYER
    return tree | parts | _sampled(soft, decoded, fits=nodes <= MOST_NODES)


def _micro_batches(hard: Section, batch: int, pp: int) -> Tree:
    """Return the number of requests of a micro-batch; a batch has `mb` micro-batches."""
    keys = hard.section("parallelism")
    if pp == 1:
        keys.ignore("one stage passes all requests together", "mb")
        return {}
    parts = keys.count("mb", 1, least=1)
    micro_batch = ceil(batch / parts)
    if batch % micro_batch:
        raise keys.error(f"{parts} parts do not divide a batch of {batch} requests", "mb")
    if batch // micro_batch < parts:
        keys.overrule(f"a batch of {batch} requests has {batch // micro_batch} parts", "mb")
    return {"micro_batch": micro_batch} if parts > 1 else {}


def _sampled(soft: Section, decoded: int, *, fits: bool) -> Tree:
    """Return the number of simulated decode steps: as RAPID-LLM samples them, if stated."""
    keys, steps = soft.section("inference_param", optional=True), max(1, decoded - 1)
    every = keys.count("sample_every", -1, least=-1)
    if every == 0:
        raise keys.error("0; allowed: -1, or from 1", "sample_every")
    if every > 0:
        points = {0, decoded - 1, *range(every - 1, decoded, every)}
        return {"decode_steps": min(len(points), steps)}
    if fits:
        return {}
    soft.notes.append(f"{SAMPLED} of {steps} decode steps are simulated: a trace cannot hold all")
    return {"decode_steps": SAMPLED}
