"""Step times that papers and repositories print: `training_e2e/published_training.csv`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from validation.jobs.cases import Case
from validation.jobs.decoders import GPT, MPT, Style, Tree, decoder, printed, training_flops
from validation.jobs.origins import SOFTWARE, lacking, place
from validation.jobs.rows import MeasuredJob, job_topics, read_rows
from validation.jobs.training_trees import (
    HALF,
    Batch,
    Layout,
    precision,
    training_job,
)
from validation.measurements import DataFolder, Record, UnsupportedRow
from validation.scoring import Topic
from validation.training import runs
from validation.training.plain import FILE, alone_of

_TABLE_1: Mapping[int, tuple[int, int]] = {
    24: (16, 1), 30: (16, 1), 36: (16, 1), 40: (8, 1), 48: (4, 1),
    60: (2, 3), 80: (2, 2), 96: (1, 2), 105: (1, 3), 128: (1, 1),
}  # fmt: skip
"""By layers: micro-batch and chunks of a stage in SC'21's Table 1 (Megatron-LM, examples/sc21)."""
_TORCH_DDP: Mapping[str, Any] = {"overlap_gradients": True, "bucket_parameters": 13_107_200}
"""`DDP=torch` in the same script, of rows without stages: buckets of 25 MiB beside the backward."""


@dataclass(frozen=True)
class Source:
    """How rows of one source are read."""

    software: str
    topic: Callable[[Record], str]
    jobs: Mapping[str, Any]
    style: Style = GPT


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `training/SET` for every set of the file that is scored."""
    for rows in measured_rows(data):
        yield from job_topics(rows, runs(), unit="s", split=data.split)


def measured_rows(data: DataFolder) -> Iterator[Iterator[MeasuredJob]]:
    """Yield the rows of each source that is read here as measured jobs."""
    records = data.read(FILE)
    for name, source in SOURCES.items():
        mine = [record for record in records if record["source"] == name]
        yield read_rows(mine, _measured, _topic_and_case, alone_of(data, source.software))


def _topic_and_case(record: Record) -> tuple[str, str]:
    return SOURCES[record["source"]].topic(record), record["case_id"]


def _measured(record: Record) -> MeasuredJob:
    source = SOURCES[record["source"]]
    topic, case_id = _topic_and_case(record)
    if not record["iter_time_s"] or not record.number("iter_time_s"):
        raise UnsupportedRow("no step time is printed")
    measured = record.time("iter_time_s")
    cases, basis = _cases(record, source), _basis(record, source)
    return MeasuredJob(
        topic, case_id, measured, cases=cases, basis=basis, alike=f"{topic} {record['precision']}"
    )


def _cases(record: Record, source: Source) -> tuple[Case, ...]:
    """Return what a row may have been: one job, or those among which the source took the best."""
    if "excluded" in source.topic(record):
        raise UnsupportedRow("a layer and no step")
    missing = lacking(_needs(record))
    if missing:
        raise UnsupportedRow(missing)
    where = place(_gpu(record), record.count("n_gpus"))
    return (Case.of(_tree(record, source, _layout(record), _batch(record)), where),)


def _batch(record: Record) -> Batch:
    size = record.count("mbs") if record["mbs"] else _table_1(record)[0]
    return Batch(record.count("gbs"), size, record.count("seq"))


def _table_1(record: Record) -> tuple[int, int]:
    layers = record.count("layers")
    if record["source"] != "sc21" or layers not in _TABLE_1:
        raise UnsupportedRow("the micro-batch is not printed")
    return _TABLE_1[layers]


def _tree(record: Record, source: Source, layout: Layout, batch: Batch) -> Tree:
    sharding = _sharding(record)
    software = SOFTWARE["sc21-zero" if sharding and source.software == "sc21" else source.software]
    if source.software == "sc21" and not record["mbs"] and layout.pp == 1:
        sharding = _TORCH_DDP
    recompute = record["recompute"] if record["recompute"] in _RECOMPUTE else "none"
    spelled = precision(record["precision"], source.jobs)
    wide = {"gradient_reduce": "fp32"} if record["precision"].startswith("amp") else {}
    more = {
        **source.jobs,
        "training": {"recompute": recompute, **sharding, **_of_release(record)},
        "precision": {**spelled, **wide},
    }
    model = decoder(source.style, printed(record), positions=batch.length)
    return training_job(model, layout, batch, software, more)


def _of_release(record: Record) -> Mapping[str, Any]:
    """Return what another PyTorch ran: LLM Foundry's pure bf16 rows are of 1.13, the rest of a 2.1 nightly.

    The images stand in its `benchmarking/h100new.md` (a branch) and as `submit_benchmarks.py`'s default.
    """
    old = record["source"] == "llm-foundry" and record["precision"] == "bf16"
    return {"recompute_early_stop": False} if old else {}


_RECOMPUTE = ("none", "selective", "full")


def _layout(record: Record) -> Layout:
    chunks = record.count("vpp") if record["vpp"] else 1
    if "interleaved" in record["framework"]:
        chunks = _table_1(record)[1]
    return Layout(
        tp=record.count("tp"),
        pp=record.count("pp"),
        dp=record.count("dp"),
        cp=record.count("cp"),
        chunks=chunks,
        sequence_parallel=record["seq_parallel"] == "True",
    )


def _needs(record: Record) -> set[str]:
    return {"megascale"} if record["framework"] == "MegaScale" else set()


def _sharding(record: Record) -> Mapping[str, Any]:
    """Return the keys of `training` that say how parameters are split over replicas; none if whole."""
    if record["fsdp"] in ("", "none", "0"):
        return {}
    return {"zero_stage": 3, "reshard": record["fsdp"] != "SHARD_GRAD_OP"}


def _gpu(record: Record) -> str:
    """Return a GPU's name without what stands in brackets behind it."""
    name = record["gpu"].split(" ")[0]
    return {"a100_80gb": "A100-SXM4-80GB", "a100_40gb": "A100-SXM4-40GB", "h100_80gb": "H100-SXM-80GB"}.get(
        name, name
    )


def _basis(record: Record, source: Source) -> float:
    """Return the model's FLOPs a GPU, with a second forward where all is recomputed."""
    flops = training_flops(
        printed(record),
        gated=source.style.gated,
        sequence=record.count("seq"),
        sequences=record.count("gbs"),
    )
    return flops * (4 / 3 if record["recompute"] == "full" else 1) / record.count("n_gpus")


def _named(name: str) -> Callable[[Record], str]:
    return lambda _: f"training/{name}"


def _korthikanti(record: Record) -> str:
    layer = record["case_id"].startswith("korthikanti-t4")
    return "training/korthikanti/excluded-one-layer" if layer else "training/korthikanti"


SOURCES: Mapping[str, Source] = {
    "korthikanti22": Source("korthikanti", _korthikanti, HALF),
    "sc21": Source("sc21", _named("sc21"), HALF),
    "mt-nlg": Source("mt-nlg", _named("mt-nlg"), {}),
    "megascale": Source("megascale", _named("megascale"), {}),
    "llm-foundry": Source(
        "llm-foundry",
        lambda record: f"training/llm-foundry/{record['gpu'].split(' ')[0]}",
        {"precision": {"gradient_reduce": "bf16"}},  # column MP Mode: PURE, where precision is no amp
        MPT,
    ),
}
"""By the file's column `source`."""
