"""Rows of training as a user states them who has read the table and no recipe behind it.

Sources of `published_training.csv` that nothing here knows are scored so, as `training/SOURCE`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from rapid_des.config import preset_names
from rapid_des.values import replace
from validation.jobs.cases import Case, Place
from validation.jobs.decoders import Dimensions, Experts, Tree, printed, training_flops
from validation.jobs.models import STYLE_STARTS, Decoder, Models, models_of, spelled
from validation.jobs.origins import SERVERS, SOFTWARE, Profile, place
from validation.jobs.rows import MeasuredJob, job_topics, read_rows
from validation.jobs.training_trees import Batch, Layout, training_job
from validation.measurements import DataFolder, Record, UnsupportedRow
from validation.scoring import Topic
from validation.training import runs

FILE = "training_e2e/published_training.csv"
READ_ELSEWHERE = {
    "korthikanti22", "sc21", "mt-nlg", "megascale", "llm-foundry", "torchtitan", "llama3", "nemo",
    "megatron-bridge",
}  # fmt: skip
"""Sources of the file with readers of their own."""
_BF16_SUMS = {"precision": {"gradient_reduce": "bf16"}}
"""fms-fsdp's policies/mixed_precision.py."""
_EAGER = {"fusion": "eager"}
_COMPILED_DDP = {"fusion": "torch_compile", "attention": "flash", "vocabulary_multiple": 1}
"""nanoGPT as of 2 February 2023, which pads no vocabulary."""
_AUTOMODEL = {"routing": {"dispatcher": "deepep"}, **_BF16_SUMS}
"""Its components/moe/parallelizer.py: experts apart from FSDP, sums in bf16."""
_FUSED = {"fusion": "megatron", "cross_entropy": "online"}
"""TinyLlama's README: norm, rotation, SwiGLU and cross-entropy in one kernel each."""
_FRAMEWORKS: Mapping[str, str | tuple[str, Mapping[str, Any]]] = {
    "fms-fsdp": ("fsdp", _BF16_SUMS),
    "gpt-neox": "megatron-deepspeed",
    "megatron-deepspeed 0.11": ("megatron-deepspeed", {"attention": "flash"}),
    "deepspeed+megatron": "megatron-deepspeed",
    "megatron-deepspeed": "megatron-deepspeed",
    "deepspeed": "deepspeed",
    "torchtitan, eager": ("torchtitan", _EAGER),
    "torchtitan": "torchtitan",
    "olmo-core": "torchtitan",
    "automodel": ("torchtitan", _AUTOMODEL),
    "lit-gpt": ("fsdp", _FUSED),
    "internevo": "megatron-2025",
    "nanogpt": ("torch-eager", _COMPILED_DDP),
    "composer": "llm-foundry",
    "foundry": "llm-foundry",
    "nanotron": "nanotron",
    "megatron-lm 2021": "megatron-2021",
    "megatron-lm 2022": "megatron-2022",
    "megatron": "megatron-2025",
    "nemo": "megatron-2025",
    "fsdp": "fsdp",
    "ddp": "torch-eager",
}
"""Profiles by what a framework's text holds, the first that does; with them what a job of it has besides."""
_GPUS: Mapping[str, str] = {
    "a100": "A100-SXM4-80GB", "a10080gb": "A100-SXM4-80GB", "a10040gb": "A100-SXM4-40GB",
    "dgxa100": "A100-SXM4-80GB", "a100sxm": "A100-SXM4-80GB", "a100sxm80gb": "A100-SXM4-80GB",
    "a100pcie": "A100-PCIE-80GB",
    "h100": "H100-SXM-80GB", "h10080gb": "H100-SXM-80GB", "dgxh100": "H100-SXM-80GB",
    "h100sxm": "H100-SXM-80GB", "h100sxm5": "H100-SXM-80GB", "h100sxm580gb": "H100-SXM-80GB",
    "h200": "H200-SXM-141GB", "dgxh200": "H200-SXM-141GB", "h200sxm": "H200-SXM-141GB",
    "b200": "B200-SXM", "dgxb200": "B200-SXM", "b300": "B300-SXM", "dgxb300": "B300-SXM",
    "gb200": "GB200-NVL72", "dgxgb200": "GB200-NVL72", "gb300": "GB300-NVL72", "dgxgb300": "GB300-NVL72",
}  # fmt: skip
"""By a name's letters and digits."""
_NETWORK = re.compile(r"\((\d+) Gb/s a node\)")
_BF16_ALONE = dict.fromkeys(("gradients", "gradient_reduce", "master_weights", "optimizer"), "bf16")
_FORMATS: Mapping[str, Mapping[str, str]] = {
    "pure bf16": _BF16_ALONE,
    "nvfp4": {"gemm": "fp4"},
    "fp4": {"gemm": "fp4"},
    "fp8": {"gemm": "fp8"},
    "bf16": {},
    "bfloat16": {},
    "fp16": {"activations": "fp16"},
    "fp32": {"activations": "fp32"},
    "tf32": {"activations": "fp32"},
}
_TOPIC = re.compile(r"[^a-z0-9.-]+")


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `training/SOURCE` of every source of the file that has no reader of its own."""
    return job_topics(measured_rows(data), runs(), unit="s", split=data.split)


def measured_rows(data: DataFolder) -> Iterator[MeasuredJob]:
    """Yield the rows of those sources as measured jobs."""
    records = [record for record in data.read(FILE) if record["source"] not in READ_ELSEWHERE]
    return read_rows(records, partial(_measured, models_of(data)), _named)


def _named(record: Record) -> tuple[str, str]:
    return f"training/{_TOPIC.sub('-', record['source'].lower()) or 'unnamed'}", record["case_id"]


def _measured(models: Models, record: Record) -> MeasuredJob:
    topic, case_id = _named(record)
    measured = step_time(record)
    profile, keys = profile_of(record["framework"])
    case, basis = plain_case(models, record, profile, keys)
    alike = f"{record['gpu']} {record['precision']}"
    return MeasuredJob(topic, case_id, measured, cases=(case,), basis=basis, alike=alike)


def alone_of(data: DataFolder, software: str) -> Callable[[Record], Case]:
    """Return what makes a row of a source the job of its columns alone, on a profile of `SOFTWARE`."""
    models, profile = models_of(data), SOFTWARE[software]
    return lambda record: plain_case(models, record, profile)[0]


def step_time(record: Record) -> float:
    """Return a row's seconds a step, from its rate where no time is printed."""
    if record["iter_time_s"] not in ("", "0"):
        return record.time("iter_time_s")
    tokens = record.count("gbs") * record.count("seq")
    return tokens / (record.time("tokens_per_s_per_gpu") * record.count("n_gpus"))


def plain_case(
    models: Models, record: Record, software: Profile, keys: Mapping[str, Any] | None = None
) -> tuple[Case, float]:
    """Return the job that a row's columns say on a software's profile, and the model's FLOPs a GPU.

    `keys` are further keys of the job, by what is known of its framework.
    """
    decoder, length = _decoder(models, record), record.count("seq")
    layout, batch = _layout(decoder, record), Batch(record.count("gbs"), record.count("mbs"), length)
    more = {"training": _training(record), "precision": _precision(record["precision"])}
    if record.get("copies"):
        more["parallelism"] = {"dp_replicate": record.count("copies")}
    known = dict(keys or {})
    more = {**known, **more, "precision": {**more["precision"], **known.get("precision", {})}}
    where = _place(record["gpu"], layout.gpus)
    case = Case.of(training_job(decoder.tree(length), layout, batch, software, more), where)
    size, gated = decoder.size, decoder.style.gated
    flops = training_flops(size, gated=gated, sequence=length, sequences=batch.sequences)
    return case, flops / layout.gpus


def _training(record: Record) -> Tree:
    stated = record.get("recompute")
    training: Tree = {"recompute": stated} if stated in ("selective", "full", "alternate") else {}
    if record.get("fsdp", "") not in ("", "none", "0", "0.0"):
        # FSDP2 in a pipeline (`reshard_after_forward=not pp_enabled`): gathered and summed once a step
        staged = {} if record["pp"] in ("", "1") else {"reshard": False, "reduce_each_micro_batch": False}
        return training | {"zero_stage": 3} | staged
    if record.get("zero"):
        return training | {"zero_stage": record.count("zero")}
    return training


def _place(gpu: str, gpus: int) -> Place:
    """Return where a row ran, on the network that it prints behind its GPU, if any."""
    where, stated = place(gpu_of(gpu), gpus), _NETWORK.search(gpu)
    if stated is None or gpus <= where.node:
        return where
    rail = f"{float(stated[1]) / 8 / where.node:g} GB/s"
    return replace(where, settings=(*where.settings, ("fabric.1.bandwidth", rail)))


def profile_of(framework: str) -> tuple[str, Mapping[str, Any]]:
    """Return the software profile that a framework's name means, and what its jobs have besides.

    >>> profile_of("Composer FSDP (flash-attn)"), profile_of("NeMo 25.04")
    (('llm-foundry', {}), ('megatron-2025', {}))
    """
    text = framework.lower()
    if text in preset_names("software"):
        return text, {}
    for part, profile in _FRAMEWORKS.items():
        if part in text:
            return (profile, {}) if isinstance(profile, str) else profile
    raise UnsupportedRow(f"no software profile of {framework[:60]!r}")


def gpu_of(name: str) -> str:
    """Return the GPU that `SERVERS` lists for a name, without what stands in brackets behind it.

    >>> gpu_of("DGX-H100 (8x400G)"), gpu_of("A100-SXM4-80GB (Selene)")
    ('H100-SXM-80GB', 'A100-SXM4-80GB')
    """
    short = name.split(" (", maxsplit=1)[0].strip()
    known = {**_GPUS, **{spelled(each): each for each in SERVERS}}
    for text in (spelled(short), spelled(short.removeprefix("NVIDIA ")), spelled(short.split(" ")[0])):
        if text in known:
            return known[text]
    raise UnsupportedRow(f"no machine file of {name[:60]}")


def _precision(text: str) -> Mapping[str, str]:
    lowered = text.lower()
    for part, formats in _FORMATS.items():
        if part in lowered:
            return formats
    raise UnsupportedRow(f"number format {text[:60]!r}" if text else "the precision is not printed")


def _decoder(models: Models, record: Record) -> Decoder:
    """Return the model in the dimensions that the row prints, else as its name is known."""
    if not record["layers"] or not record["hidden"]:
        return models[record["model"]]
    size = printed(record)
    for start, style in STYLE_STARTS.items():
        if spelled(record["model"]).startswith(start):
            return Decoder(style, _with_experts(models, record, size))
    decoder = models[record["model"]]
    return Decoder(decoder.style, _with_experts(models, record, size))


def _with_experts(models: Models, record: Record, size: Dimensions) -> Dimensions:
    """Return a row's dimensions with the experts of its model, whose columns `published_training` lacks."""
    if record["ep"] in ("", "1", "1.0"):
        return size
    experts: Experts | None = models[record["model"]].size.experts
    return size if experts is None else models[record["model"]].size


def _layout(decoder: Decoder, record: Record) -> Layout:
    tp, pp, cp, ep = (record.count(axis) if record[axis] else 1 for axis in ("tp", "pp", "cp", "ep"))
    gpus = record.count("n_gpus")
    if gpus % (tp * pp * cp):
        raise UnsupportedRow("the layout does not divide the GPUs")
    chunks = record.count("vpp") if record["vpp"] and pp > 1 else 1
    stated = {"True": True, "False": False}.get(record.get("seq_parallel", ""), tp > 1)
    layers, parts = decoder.size.layers, pp * chunks
    return Layout(
        tp=tp, pp=pp, dp=gpus // (tp * pp * cp), cp=cp, ep=ep, chunks=chunks, sequence_parallel=stated,
        etp=1 if decoder.size.experts else 0,
        layers=_spread(layers, parts),
    )  # fmt: skip


def _spread(layers: int, parts: int) -> str | tuple[int, ...]:
    """Return how parts of stages get layers: evenly, with both ends as layers, or the first ones more."""
    if layers % parts == 0:
        return "even"
    if (layers + 2) % parts == 0:
        return "endpoints"
    return tuple(layers // parts + (place < layers % parts) for place in range(parts))
