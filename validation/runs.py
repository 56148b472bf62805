"""Training runs with failures: rates from a document predict the share of useful time that it reports.

What a document does not print is a pair of readings, one that is good for the run and one that is bad; the
prediction is the middle of both, and a row says whether the measurement lies between them. Steps are not
simulated here: their duration hardly changes a share of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from rapid_des.runs.clock import replicate
from rapid_des.runs.failures import FailingParts, failures
from rapid_des.runs.loading import load_reliability, mean_time, treatments
from rapid_des.runs.stretch import CheckpointLevel, TrainingStretch
from rapid_des.runs.treatment import RunPlan
from rapid_des.units import PS_PER_S
from validation.measurements import DataFolder, Record
from validation.scoring import Row, Topic

ANSWERS = "reliability/rates_and_mttf.csv"
GPUS_PER_NODE = 8
DAYS = 54
REPLICATIONS = 20
STEP_S = 6
"""Duration of a step in seconds, about that of Llama 3 405B on 16,384 GPUs (Table 4)."""
STALL_S = 3
"""Time of a checkpoint in seconds: 14 bytes for each of 405e9 parameters at 2 TB/s."""
READINGS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama3-405b": (
        {"minutes": 10, "restart": "5 min", "detection": "1 min"},
        {"minutes": 60, "restart": "20 min", "detection": "10 min"},
    ),
    "meta-rsc": (
        {"minutes": 60, "restart": "5 min", "detection": "0 s"},
        {"minutes": 60, "restart": "20 min", "detection": "0 s"},
    ),
}
"""The good and the bad reading of each document: minutes between checkpoints, restart, detection. RSC prints
60 minutes and 5 to 20 minutes; Llama 3 prints none, MegaScale detection within 10 minutes.
"""
RSC_RATE = "6.5e-3 /d"
"""Failures of a node of RSC-1."""


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `goodput/llama3`, `goodput/meta-rsc` in percent of the time, and `goodput/mttf` in hours."""
    records = data.read(ANSWERS)
    if records:
        yield Topic("goodput/llama3", lambda: [_llama(record) for record in _of(records, "effective")],
                    unit="percent", split=False)  # fmt: skip
        yield Topic("goodput/meta-rsc", lambda: [_rsc(record) for record in _of(records, "ettr_2048")],
                    unit="percent", split=False)  # fmt: skip
        yield Topic("goodput/mttf", lambda: [_mttf(record) for record in _of(records, "mttf_")],
                    unit="h", split=False)  # fmt: skip


def _of(records: list[Record], metric: str) -> list[Record]:
    return [record for record in records if record["metric"].startswith(metric)]


def _llama(record: Record) -> Row:
    """Return the effective training time, of which the document prints a lower bound."""
    good, bad = (useful("llama3_h100", 16_384, reading) for reading in READINGS["llama3-405b"])
    measured = float(record["value"])
    return Row(
        record["case_id"],
        measured,
        50 * (good + bad),
        null=100.0,
        covered=bad * 100 <= measured <= good * 100,
    )


def _rsc(record: Record) -> Row:
    """Return the ETTR of runs on 2,048 to 4,096 GPUs."""
    tree = {
        "classes": [{"name": "node", "per": "node", "rate": RSC_RATE}],
        "diagnosis": "0 s",
        "repair": "0 s",
    }
    (short, quick), (long, slow) = (
        (useful(tree, gpus, reading), gpus)
        for gpus, reading in zip((2048, 4096), READINGS["meta-rsc"], strict=True)
    )
    assert quick < slow, "the larger run has the bad reading"
    measured = 100 * float(record["value"])
    covered = 100 * long <= measured <= 100 * short
    return Row(record["case_id"], measured, 50 * (short + long), null=100.0, covered=covered)


def _mttf(record: Record) -> Row:
    """Return the mean time to failure of a number of GPUs by the rate of one node."""
    nodes = float(record["gpus"]) / GPUS_PER_NODE
    measured = float(record["value"]) * (24 if record["unit"] == "days" else 1)
    return Row(f"{record['case_id']}/{record['metric']}", measured, 24 / (6.5e-3 * nodes))


def useful(reference: str | Mapping[str, Any], gpus: int, reading: Mapping[str, Any]) -> float:
    """Return the mean share of useful time of runs under one reading of a document."""
    own = {"detection": reading["detection"]} | ({"diagnosis": "0 s"} if isinstance(reference, str) else {})
    changed = {**reference, **own} if isinstance(reference, Mapping) else reference
    settings = () if isinstance(reference, Mapping) else tuple(own.items())
    reliability = load_reliability(changed, settings=settings)
    units = {"gpu": gpus, "node": gpus // GPUS_PER_NODE, "job": 1}
    parts = [
        FailingParts(part.name, units[part.per], part.law, float(mean_time(reliability, place) or 1))
        for place, part in enumerate(reliability.spec.classes)
    ]
    every = reading["minutes"] * 60 // STEP_S
    plan = RunPlan(
        TrainingStretch(STEP_S * PS_PER_S, (CheckpointLevel(every, STALL_S * PS_PER_S),)),
        DAYS * 86_400 * PS_PER_S,
        treatments(reliability, gpus_per_node=GPUS_PER_NODE),
        {"start": reliability.time("restart", reading["restart"])},
    )
    runs = (
        replicate(plan, failures(parts, seed=0, replication=number), number) for number in range(REPLICATIONS)
    )
    return fmean(run.times["steps"] / run.wall for run in runs)
