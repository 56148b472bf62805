"""Megatron-Bridge's performance tables, rows of `training_e2e/published_training.csv`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from rapid_des.units import ceil_divide
from rapid_des.values import replace
from validation.jobs.cases import Case
from validation.jobs.decoders import Dimensions, Tree, training_flops
from validation.jobs.models import Decoder, Models, models_of
from validation.jobs.origins import SOFTWARE, place, with_fused_experts
from validation.jobs.rows import MeasuredJob, job_topics, read_rows
from validation.jobs.training_trees import (
    MEGATRON_2025_JOB,
    Batch,
    Layout,
    training_job,
)
from validation.measurements import DataFolder, Names, Record, UnsupportedRow
from validation.scoring import Topic
from validation.training import runs
from validation.training.plain import FILE, alone_of

_FORMATS: Mapping[str, Mapping[str, str]] = Names("number format", {
    "FP8": {"gemm": "fp8", "recipe": "current", "parameter_gather": "fp8"},
    "MXFP8": {"gemm": "fp8", "recipe": "mxfp8", "parameter_gather": "fp8"},
    "NVFP4": {"gemm": "fp4", "recipe": "nvfp4"},
    "BF16": {},
})  # fmt: skip
_ALIASES = {"FP8-CS": "FP8", "FP8-CS (FP8-MX)": "FP8", "FP8-MX": "MXFP8"}
"""Of a row with both in turn the first stands outside brackets."""
_GPUS: Mapping[str, str] = Names(
    "GPU",
    {
        "DGX-H100": "H100-SXM-80GB",
        "DGX-B200": "B200-SXM",
        "DGX-B300": "B300-SXM",
        "DGX-GB200": "GB200-NVL72",
        "DGX-GB300": "GB300-NVL72",
    },
)


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `training/megatron-bridge/GPU/dense|moe`; releases of one configuration are one case."""
    records = [_as_recipe(record) for record in data.read(FILE) if record["source"] == "megatron-bridge"]
    rows = read_rows(records, partial(_measured, models_of(data)), _named, alone_of(data, "megatron-bridge"))
    return job_topics(rows, runs(), unit="s", split=data.split)


def _named(record: Record) -> tuple[str, str]:
    kind = "dense" if record["model"].startswith("LLAMA") else "moe"
    return f"training/megatron-bridge/{record['gpu']}/{kind}", record["case_id"]


def _measured(models: Models, record: Record) -> MeasuredJob:
    topic, case_id = _named(record)
    measured = record.time("iter_time_s")
    decoder = models[_name(record)]
    case, basis = _case(decoder, record), _basis(decoder.size, record)
    alike = f"{record['gpu']} {record['precision']}"
    return MeasuredJob(topic, case_id, measured, cases=(case,), basis=basis, alike=alike)


def _case(decoder: Decoder, record: Record) -> Case:
    if not record["precision"]:
        raise UnsupportedRow("the precision is not printed")
    layout, software = _layout(decoder, record), SOFTWARE["megatron-bridge"]
    mixture = decoder.size.experts is not None
    if mixture and _whole_iterations(record):
        software = with_fused_experts(str(software))
    length = record.count("seq")
    batch = Batch(record.count("gbs"), record.count("mbs"), length)
    where = place(_GPUS[record["gpu"]], layout.gpus)
    more = _as_run(record, layout, mixture=mixture)
    return Case.of(training_job(_model(decoder, record), layout, batch, software, more), where)


def _model(decoder: Decoder, record: Record) -> Tree:
    """Return what a job's key `model` holds; without the further prediction where a row says so."""
    tree = decoder.tree(record.count("seq"))
    return {**tree, "predictions": 0} if "w/o MTP" in record["model"] else tree


def _as_run(record: Record, layout: Layout, *, mixture: bool) -> Tree:
    """Return what the recipes of scripts/performance say beside the table (NVIDIA-NeMo/Megatron-Bridge).

    utils/precision.py and configs/*/*_llm_*.py: number formats, `grad_reduce_in_fp32 = False`, user buffers
    where tensor-parallel messages overlap (not in fp4); utils/overrides.py: Transformer Engine's loss;
    configs/*/*_workload_base_configs.py: CUDA graphs (of whole iterations for 8B; of the MLPs in fine-tuning,
    which count as whole); recipes/llama/llama3.py: rank 16, all four matrices.
    """
    name, gpu = record["precision"], record["gpu"]
    formats = _FORMATS[_ALIASES.get(name, name)]
    training: Tree = {"zero_stage": 3} if _sharded(record) else dict(MEGATRON_2025_JOB["training"])
    routed = _mixture_as_run(record, layout) if mixture else {}
    if "/LoRA/" in record["case_id"]:
        training |= {"adapters": {"rank": 16}}
    elif layout.tp > 1 and name != "NVFP4" and not routed:
        training |= {"overlap_tp": "userbuffers"}
    graphs = gpu != "DGX-H100" and (
        record["model"] == "LLAMA3_8B" or "/Pre-Training/" not in record["case_id"]
    )
    return {
        "precision": {**formats, "gradients": "bf16", "gradient_reduce": "bf16"},
        "cross_entropy": "online",
        **({"host": None} if graphs else {}),
        **routed,
        "training": {**training, **routed.get("training", {})},
    }


_HYBRID_ON_8 = (26, 2)
"""The release from which Hybrid-EP serves NVLink domains of eight (Megatron-Bridge, issue 1731)."""
_WHOLE_ITERATIONS = (26, 6)
"""The release from which MXFP8 is captured with whole iterations, and batches run in pairs.

`_enable_hybridep_full_iteration_mxfp8`, with NVTE_CUTEDSL_FUSED_GROUPED_MLP: grouped products in one kernel
with activation and casts."""


def _whole_iterations(record: Record) -> bool:
    """Return whether a mixture of experts is captured whole; its experts' kernels are joined then, too."""
    return record["precision"] == "MXFP8" and _release(record) >= _WHOLE_ITERATIONS


def _mixture_as_run(record: Record, layout: Layout) -> Tree:
    """Return the same for Qwen3's mixtures of experts.

    scripts/performance/configs/qwen and src/megatron/bridge/perf_recipes/qwen, `common.py` too: exchanges by
    Hybrid-EP but for pipelines on H100, which take NCCL's and run batches in pairs, if they interleave; from
    26.06 on MXFP8 in graphs of whole iterations whose batches run in pairs. None of them overlaps tp.
    """
    gpu, release = record["gpu"], _release(record)
    if gpu == "DGX-H100" and not layout.tp == layout.pp == 1:
        pairs = layout.chunks > 1 and record["model"].startswith("Qwen3_235B")
        return {"training": {"overlap_batches": pairs}}
    far = gpu.startswith("DGX-G")
    job: Tree = {"routing": {"dispatcher": "hybridep" if far or release >= _HYBRID_ON_8 else "deepep"}}
    if _whole_iterations(record):
        return {**job, "training": {"overlap_batches": True}, "host": None}
    return job


def _release(record: Record) -> tuple[int, ...]:
    """Return the release of a row by its name, `mbridge/26.04.01/…`."""
    try:
        return tuple(int(part) for part in record["case_id"].split("/")[1].split("."))
    except (IndexError, ValueError):
        raise UnsupportedRow("the release is not printed") from None


def _sharded(record: Record) -> bool:
    """Return whether Megatron FSDP splits the parameters, over all replicas."""
    return record["fsdp"].split(" ")[0] not in ("", "0")


_RECIPE_70B: Mapping[str, str] = {"pp": "4", "vpp": "5", "dp": "16", "mbs": "1"}
_MISPRINTED = {
    f"mbridge/26.02.01/Pre-Training/DGX-GB300/LLAMA3_70B/{name}/64gpu" for name in ("MXFP8", "NVFP4")
}
"""Rows whose printed columns contradict the recipe, and the same rows of the releases before and after.

`LLAMA3_70B_PRETRAIN_CONFIG_GB300_FP8_MX` and `_NVFP4`: four stages of five chunks. As printed the one in
four bits is 70B whole on each GPU, which does not fit.
"""


def _as_recipe(record: Record) -> Record:
    return Record({**record, **_RECIPE_70B}, record.where) if record["case_id"] in _MISPRINTED else record


def _layout(decoder: Decoder, record: Record) -> Layout:
    size = decoder.size
    chunks = record.count("vpp") if record["vpp"] and record.count("pp") > 1 else 1
    layout = Layout.of_record(record, size.layers, chunks=chunks, etp=1 if size.experts else 0)
    if record["model"].startswith("DeepSeek") and layout.layers == "endpoints":
        return replace(layout, layers=_rest_last(size.layers, layout.pp * chunks))
    return layout


def _rest_last(layers: int, pieces: int) -> tuple[int, ...]:
    """Return alike pieces but for the last, which gets the rest beside the head.

    `set_deepseek_v3_pipeline_model_parallel_layout` (src/megatron/bridge/recipes/deepseek/deepseek_v3.py).

    >>> _rest_last(61, 16)[-2:]
    (4, 1)
    """
    each = ceil_divide(layers, pieces)
    return (each,) * (pieces - 1) + (layers - each * (pieces - 1),)


def _name(record: Record) -> str:
    return record["model"].split(" (")[0]


def _basis(size: Dimensions, record: Record) -> float:
    sequence = record.count("seq")
    flops = training_flops(size, gated=True, sequence=sequence, sequences=record.count("gbs"))
    return flops / record.count("n_gpus")
