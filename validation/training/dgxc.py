"""NVIDIA's weak and strong scaling tables: `training_e2e/dgxc_scaling.csv`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rapid_des.values import replace
from validation.jobs.cases import Case
from validation.jobs.decoders import (
    GPT,
    LLAMA,
    NEMOTRON,
    Dimensions,
    Experts,
    Style,
    decoder,
    printed,
    training_flops,
)
from validation.jobs.origins import SOFTWARE, lacking, place, with_attention
from validation.jobs.rows import MeasuredJob, job_topics, read_rows, slope_topic
from validation.jobs.training_trees import (
    MEGATRON_2025_JOB,
    Batch,
    Layout,
    precision,
    training_job,
    with_facts,
)
from validation.measurements import DataFolder, Record, UnsupportedRow
from validation.scoring import Topic
from validation.training import runs
from validation.training.plain import alone_of


@dataclass(frozen=True)
class Recipe:
    """What a recipe says of its job beyond the table's columns."""

    job: Mapping[str, Any]
    flash_2: bool = False
    """Whether attention is FlashAttention 2's, not cuDNN's."""


FILE = "training_e2e/dgxc_scaling.csv"
_STYLES = {"Llama": LLAMA, "GPT3": GPT, "Nemotron": NEMOTRON, "Grok": LLAMA}
_CHUNKS_OF_RELEASE = {("GPT3-175B", "25.03"): 12, ("GPT3-175B", "25.04"): 6}
"""Where the column is blank, as the README of the row's release prints it."""

_NARROW: Mapping[str, Any] = {"gradients": "bf16", "gradient_reduce": "bf16"}
_NARROW_TOO: Mapping[str, Any] = {**_NARROW, "parameter_gather": "fp8"}
_GPT3 = Recipe({"precision": _NARROW_TOO, "training": {"dropout": True}}, flash_2=True)
_RECIPES: Mapping[tuple[str, str], Recipe] = {
    ("Grok1-314B", "25.03"): Recipe({"precision": _NARROW}, flash_2=True),
    ("GPT3-175B", "25.03"): _GPT3,
    ("GPT3-175B", "25.04"): _GPT3,
    ("Nemotron4-340B", "25.03"): Recipe(
        {"precision": _NARROW_TOO, "training": {"recompute": "selective"}}, flash_2=True
    ),
}
"""What recipes of a model and release print besides their tables: `NVTE_FUSED_ATTN=0`, which leaves
FlashAttention 2 to Transformer Engine 1, in grok1/, nemotron/ and nemo_megatron/configure.sh;
`grad_sync_dtype`, `fp8_params`, `hidden_dropout` and `activations_checkpoint_granularity` in the YAML beside
them (@741c886, @143b90d, @8f5cbb3)."""


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `training/dgxc/GPU/PRECISION` and `training/dgxc-slope`."""
    records = data.read(FILE)
    rows = list(measured_rows(data))
    yield from job_topics(rows, runs(), unit="s", split=data.split)
    if rows:
        yield slope_topic("training/dgxc-slope", _ladders(records, rows), runs())


def measured_rows(data: DataFolder) -> Iterator[MeasuredJob]:
    """Yield the rows of the tables as measured jobs."""
    return read_rows(data.read(FILE), _measured, _named, alone_of(data, "dgxc"))


def _ladders(records: Sequence[Record], rows: Sequence[MeasuredJob]) -> list[list[tuple[float, MeasuredJob]]]:
    """Return runs of one model and release on ever more GPUs; proxies of other depths are no rungs."""
    ladders: dict[tuple[str, ...], list[tuple[float, MeasuredJob]]] = defaultdict(list)
    first: dict[tuple[str, ...], int] = {}
    sized = [(record, row) for record, row in zip(records, rows, strict=True) if record["n_gpus"]]
    for record, row in sorted(sized, key=lambda pair: pair[0].count("n_gpus")):
        key = (row.case_id, record["version"], record["scaling"], record["layers"])
        gpus = record.count("n_gpus")
        first.setdefault(key, gpus)
        ladders[key].append((first[key] / gpus if record["scaling"] == "strong" else 1.0, row))
    return [ladder for ladder in ladders.values() if len(ladder) > 1]


def _named(record: Record) -> tuple[str, str]:
    return f"training/dgxc/{_gpu(record)}/{record['precision']}", record["case_id"]


def _measured(record: Record) -> MeasuredJob:
    topic, case_id = _named(record)
    measured, case, basis = record.time("step_time_s"), _case(record), _basis(record)
    return MeasuredJob(topic, case_id, measured, cases=(case,), basis=basis, alike=topic)


def _case(record: Record) -> Case:
    missing = lacking(_needs(record))
    if missing:
        raise UnsupportedRow(missing)
    recipe = _RECIPES.get((record["model"], record["version"]), Recipe({}))
    software = with_attention("megatron-2025", "flash-2") if recipe.flash_2 else SOFTWARE["dgxc"]
    where = place(_gpu(record), record.count("n_gpus"))
    model = decoder(_style(record), _size(record), positions=record.count("seq"))
    batch = Batch(record.count("gbs"), record.count("mbs"), record.count("seq"))
    usual = with_facts(MEGATRON_2025_JOB, recipe.job)
    more = {**usual, "precision": precision(record["precision"], usual)}
    return Case.of(training_job(model, _layout(record), batch, software, more), where)


def _layout(record: Record) -> Layout:
    chunks = record.count("vpp") if record["vpp"] else 1
    chunks = _CHUNKS_OF_RELEASE.get((record["model"], record["version"]), chunks)
    chunks = chunks if record.count("pp") > 1 else 1
    etp = 1 if record["notes"] == "ETP=1" else 0
    return Layout.of_record(record, record.count("layers"), chunks=chunks, etp=etp)


def _needs(record: Record) -> set[str]:
    """Return what a row needs."""
    needs = set()
    if record["fsdp"] or "FSDP" in record["framework"]:
        needs.add("jax")
    return needs


def _size(record: Record) -> Dimensions:
    """Return a row's dimensions; Grok-1's experts as its release states them (8, of which 2 are active)."""
    size = printed(record)
    return replace(size, experts=Experts(8, 2, size.ffn)) if record["ep"] else size


def _style(record: Record) -> Style:
    for start, style in _STYLES.items():
        if record["model"].startswith(start):
            return style
    raise UnsupportedRow(f"the architecture of {record['model']} is not printed")


def _gpu(record: Record) -> str:
    return record["gpu"].split(" (")[0]


def _basis(record: Record) -> float:
    flops = training_flops(
        _size(record),
        gated=_style(record).gated,
        sequence=record.count("seq"),
        sequences=record.count("gbs"),
    )
    return flops / record.count("n_gpus")
