"""Tables of torchtitan and Llama 3, which print rates and no times, and of NeMo: `published_training.csv`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from rapid_des.values import replace
from validation.jobs.cases import Case
from validation.jobs.decoders import Dimensions, training_flops
from validation.jobs.models import Models, models_of
from validation.jobs.origins import SOFTWARE, place
from validation.jobs.rows import MeasuredJob, Named, job_topics, most_reserved_gib, read_rows
from validation.jobs.training_trees import MEGATRON_2025_JOB, Batch, Layout, training_job
from validation.measurements import DataFolder, Names, Record, UnsupportedRow
from validation.scoring import Topic
from validation.training import runs
from validation.training.plain import FILE, alone_of, gpu_of

_TITAN_FORMATS: Mapping[str, Mapping[str, str]] = {
    "bf16": {},
    "fp8": {"gemm": "fp8", "recipe": "current", "parameter_gather": "fp8"},
    "fp8-tensorwise": {"gemm": "fp8", "recipe": "current", "parameter_gather": "fp8"},
}
"""`float8` with `enable_fsdp_float8_all_gather`: scales of whole tensors, found as they are (torchao)."""
_LLAMA_3_CHUNKS = 8
"""Chunks of a stage of Llama 3 405B."""
_PEAK = re.compile(r"\bmem ([\d.]+) GiB")
_NEMO_GPUS: Mapping[str, str] = Names("GPU", {"DGX-B200": "B200-SXM", "DGX-GB200": "GB200-NVL72"})


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `training/torchtitan`, `training/llama3` and `training/nemo/GPU`."""
    records, models = data.read(FILE), models_of(data)
    for source, (read, named) in _READERS.items():
        mine = [record for record in records if record["source"] == source]
        rows = read_rows(mine, partial(read, models), named, alone_of(data, source))
        yield from job_topics(rows, runs(), unit="s", split=data.split)


def memory_topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `memory/torchtitan`, the peaks that PyTorch held, which the tables' notes have.

    Of pipelines they are "the maximum across all GPUs" (benchmarks/llama3_h100_202412_torchtitan.md, note 1).
    """
    records = [record for record in data.read(FILE) if _PEAK.search(record["notes"])]
    read = partial(_titan_peak, models_of(data))
    rows = read_rows(records, read, lambda record: ("memory/torchtitan", record["case_id"]))
    yield from job_topics(rows, runs(), unit="GiB", split=data.split)


def _titan_peak(models: Models, record: Record) -> MeasuredJob:
    """Return the peak of a row."""
    stated = _PEAK.search(record["notes"])
    assert stated is not None, "rows without were left out"
    case = replace(_titan_case(models, record), only_memory=True)
    return MeasuredJob("memory/torchtitan", record["case_id"], float(stated[1]), most_reserved_gib, (case,))


def _titan(models: Models, record: Record) -> MeasuredJob:
    """Return a row of torchtitan's benchmarks."""
    tokens = record.count("gbs") * record.count("seq")
    measured = tokens / (record.time("tokens_per_s_per_gpu") * record.count("n_gpus"))
    case, alike = _titan_case(models, record), record["precision"][:3]
    basis = _basis(record, models[record["model"]].size)
    return MeasuredJob(
        "training/torchtitan", record["case_id"], measured, cases=(case,), basis=basis, alike=alike
    )


def _titan_case(models: Models, record: Record) -> Case:
    """Return the job of a row.

    Selective recomputation is by operator (`selective_ac_option = "op"` of its llama3_8b.toml). Where no
    micro-batch is printed, pipelines pass as many as stages (`pipeline_parallel_microbatches`).
    Parameters are not resharded after forwards in pipelines (`fsdp_reshard_after_forward: default`).
    Pipelines of 2024-12 are 1F1B with asynchronous tp, as the titles of their tables say, but for one row.
    """
    if record["precision"] not in _TITAN_FORMATS:
        raise UnsupportedRow("a scale for each row")
    tp, pp, dp = (record.count(axis) for axis in ("tp", "pp", "dp"))
    layout = Layout(
        tp=tp, pp=pp, dp=dp, cp=record.count("cp"), sequence_parallel=True,
        chunks=2 if record["case_id"].endswith("Interleaved-1F1B") else 1,
        layers="even" if pp == 1 else "endpoints",
    )  # fmt: skip
    sequences, length = record.count("gbs"), record.count("seq")
    batch = Batch(sequences, record.count("mbs") if record["mbs"] else sequences // dp // pp, length)
    training: dict[str, Any] = {"recompute": "full" if record["recompute"] == "full AC" else "alternate"}
    if pp > 1:
        training |= {"reshard": False, "reduce_each_micro_batch": False}
    more: dict[str, Any] = {"training": training, "precision": _TITAN_FORMATS[record["precision"]]}
    if record["case_id"].endswith("asyncTP") or (pp > 1 and tp > 1):
        training |= {"overlap_tp": "ring"}
    if record["case_id"] == "torchtitan/8b-8gpu-fsdp":  # the only row without torch.compile
        more |= {"fusion": "eager"}
    if (
        "2025-06" in record["case_id"] or "h200" in record["case_id"]
    ):  # the loss is compiled since pull request 1033
        more |= {"cross_entropy": "one_pass"}
    model = models[record["model"]].tree(length)
    where = place(gpu_of(record["gpu"]), layout.gpus)
    return Case.of(training_job(model, layout, batch, SOFTWARE["torchtitan"], more), where)


def _llama_3(models: Models, record: Record) -> Iterator[MeasuredJob]:
    """Yield a row of Llama 3 405B (Grattafiori et al. 2024, Table 4) in each reading.

    What its TFLOP/s count is not printed: attention between all positions, as Chowdhery et al. 2022 (MFU)
    count it, or as far as it is causal; nor how often gradients, which FSDP splits (section 3.3.2), are
    summed to their parts: after each micro-batch, or after the last. A chunk is a layer: with one taken off
    the first stage, its first chunk has only the embedding (the same section).
    """
    decoder, sequences, length = models[record["model"]], record.count("gbs"), record.count("seq")
    size = decoder.size
    causal, tokens = _basis(record, size), length * sequences / record.count("n_gpus")
    for flops in (causal, causal + 6 * size.layers * size.hidden * length * tokens):
        measured = flops / (1e12 * record.time("tflops_per_gpu"))
        for each in (True, False):
            layout = Layout(
                tp=record.count("tp"), pp=record.count("pp"), dp=record.count("dp"), cp=record.count("cp"),
                chunks=_LLAMA_3_CHUNKS, sequence_parallel=True, layers="endpoints",
            )  # fmt: skip
            batch = Batch(sequences, 1, length)
            split = {"training": {"zero_stage": 2, "reduce_each_micro_batch": each}}
            tree = training_job(decoder.tree(length), layout, batch, SOFTWARE["llama3"], split)
            case = Case.of(tree, place("H100-SXM-80GB", layout.gpus))
            yield MeasuredJob("training/llama3", record["case_id"], measured, cases=(case,), basis=causal)


def _basis(record: Record, size: Dimensions) -> float:
    """Return the model's FLOPs a GPU, attention as far as causal."""
    sequence, sequences = record.count("seq"), record.count("gbs")
    return training_flops(size, gated=True, sequence=sequence, sequences=sequences) / record.count("n_gpus")


def _nemo(models: Models, record: Record) -> MeasuredJob:
    """Return a row of NeMo 25.02's and 25.04's performance summary: fp8 with delayed scaling."""
    topic, case_id = _of_gpu(record)
    measured = record.time("iter_time_s")
    case, basis = _nemo_case(models, record)
    return MeasuredJob(topic, case_id, measured, cases=(case,), basis=basis, alike=record["gpu"])


def _of_gpu(record: Record) -> tuple[str, str]:
    return f"training/nemo/{record['gpu']}", record["case_id"]


def _nemo_case(models: Models, record: Record) -> tuple[Case, float]:
    """Return the job of a row, and the model's FLOPs a GPU."""
    decoder = models[record["model"]]
    style, size = decoder.style, decoder.size
    tp, pp, dp, cp = (record.count(axis) for axis in ("tp", "pp", "dp", "cp"))
    chunks, length = record.count("vpp") if pp > 1 else 1, record.count("seq")
    layout = Layout(
        tp=tp, pp=pp, dp=dp, cp=cp, ep=record.count("ep"), etp=1 if size.experts else 0, chunks=chunks,
        sequence_parallel=True, layers="even" if size.layers % (pp * chunks) == 0 else "endpoints",
    )  # fmt: skip
    training = {"zero_stage": 3} if record["fsdp"] == "1" else MEGATRON_2025_JOB["training"]
    precision = {"gemm": "fp8", "gradient_reduce": "bf16", "parameter_gather": "fp8"}
    more = {"training": training, "precision": precision}
    batch = Batch(record.count("gbs"), record.count("mbs"), length)
    where = place(_NEMO_GPUS[record["gpu"]], layout.gpus)
    case = Case.of(training_job(decoder.tree(length), layout, batch, SOFTWARE["nemo"], more), where)
    sequences = record.count("gbs")
    flops = training_flops(size, gated=style.gated, sequence=length, sequences=sequences) / layout.gpus
    return case, flops


_READERS: Mapping[str, tuple[Callable[[Models, Record], Any], Named]] = {
    "torchtitan": (_titan, lambda record: ("training/torchtitan", record["case_id"])),
    "llama3": (_llama_3, lambda record: ("training/llama3", record["case_id"])),
    "nemo": (_nemo, _of_gpu),
}
"""By source: what reads a row, and the topic and case of one that is not supported."""
