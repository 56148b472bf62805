"""Training runs with failures: rates from a document predict the share of useful time that it reports.

What a document does not print is a pair of readings, one that is good for the run and one that is bad; the
prediction is the middle of both, and a row says whether the measurement lies between them. Where a document
prints a lower bound, the good reading must reach it. Steps are not simulated here: their duration hardly
changes a share of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from statistics import fmean
from typing import Any

from msgspec import Struct

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
REPLICATIONS = 20
RSC_RATE = "6.5e-3 /d"
"""Failures of a node of RSC-1."""


class Reading(Struct, frozen=True, kw_only=True):
    """What a document prints about a run, and one reading of what it does not print."""

    reference: str | Mapping[str, Any]
    """The reliability file, or the classes of parts that fail."""
    gpus: int
    minutes: float
    """The time between checkpoints."""
    restart: str
    detection: str
    """The time from a failure until its part is known."""
    days: int = 54
    step_s: float = 6.0
    """The duration of a step; 6 s are about that of Llama 3 405B on 16,384 GPUs (Table 4)."""
    stall_s: float = 3.0
    """The time of a checkpoint; 3 s are 14 bytes for each of 405e9 parameters at 2 TB/s."""
    trained: float = 1.0
    """The share of the time between failures that is not evaluation."""


def _bloom(mtbf: str, detection: str) -> Reading:
    """Return a reading of BLOOM's chronicles: all printed but how soon somebody restarts the job."""
    hangs = {"failures": 3, "parts": 1, "period": "108 d"}
    classes = [
        {"name": "GPU", "per": "job", "mtbf": mtbf},
        {"name": "hang", "per": "job", "observed": hangs, "detection": "uniform(6 h, 18 h)"},
    ]
    return Reading(reference={"classes": classes}, gpus=384, minutes=175, restart="10 min",
                   detection=detection, days=108, step_s=105, stall_s=40, trained=0.993)  # fmt: skip


def _megascale(weeks: int, **own: Any) -> Reading:
    """Return a reading of "over 100 recoveries in several weeks"."""
    seen = {"failures": 100, "parts": 1, "period": f"{weeks * 7} d"}
    classes = [{"name": "any", "per": "job", "observed": seen}]
    return Reading(reference={"classes": classes}, gpus=12_288, restart="5 min", days=7 * weeks, **own)


_LLAMA: dict[str, Any] = {"reference": "llama3_h100", "gpus": 16_384}
_RSC: dict[str, Any] = {"reference": {"classes": [{"name": "node", "per": "node", "rate": RSC_RATE}]}}
READINGS: Mapping[str, tuple[Reading, Reading]] = {
    "llama3-405b": (
        Reading(**_LLAMA, minutes=10, restart="5 min", detection="1 min"),
        Reading(**_LLAMA, minutes=60, restart="20 min", detection="10 min"),
    ),
    "meta-rsc": (
        Reading(**_RSC, gpus=2048, minutes=60, restart="5 min", detection="0 s"),
        Reading(**_RSC, gpus=4096, minutes=60, restart="20 min", detection="0 s"),
    ),
    "bloom-176b": (_bloom("7 d", "5 min"), _bloom("84 h", "8 h")),
    "megascale": (
        _megascale(6, minutes=10, detection="5 min", stall_s=2),
        _megascale(3, minutes=20, detection="10 min", stall_s=10),
    ),
}
"""The good and the bad reading of each document. RSC prints 60 minutes and 5 to 20 minutes; Llama 3 prints
neither checkpoints' intervals nor times of restarts; BLOOM prints 1 to 2 failures of GPUs a week, and that a
crash was sometimes not noticed while people slept; MegaScale prints detection and diagnosis within 10
minutes, and that the lost step is reached 15 minutes after a checkpoint was loaded.
"""
_UNSUPPORTED = "the document prints the outcome, but no rate of failures"


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield the useful time of each run in percent, times to failure in hours, and counts of failures."""
    records = data.read(ANSWERS)
    if not records:
        return
    named = {record["case_id"]: record for record in _of(records, ("effective", "ettr_2048"))}
    names = {"llama3-405b": "llama3", "bloom-176b": "bloom", "gemini-google": "gemini"}
    for case, record in named.items():
        name = f"goodput/{names.get(case, case)}"
        yield Topic(name, partial(_useful_times, record), unit="percent", split=False)
    yield Topic("goodput/mttf", lambda: [_mttf(record) for record in _of(records, ("mttf_",))],
                unit="h", split=False)  # fmt: skip
    counted = _of(records, ("gpu_failures_by",))
    yield Topic("goodput/gpu-failures", lambda: [_count(record) for record in counted],
                unit="count", split=False)  # fmt: skip


def _of(records: list[Record], metrics: tuple[str, ...]) -> list[Record]:
    return [record for record in records if record["metric"].startswith(metrics)]


def _useful_times(record: Record) -> list[Row]:
    return [_useful_time(record)]


def _useful_time(record: Record) -> Row:
    """Return the share of useful time, of which some documents print a lower bound."""
    measured = float(record["value"]) * (100 if record["unit"] == "fraction" else 1)
    if record["case_id"] not in READINGS:
        return Row(record["case_id"], measured, None, unsupported=_UNSUPPORTED)
    good, bad = (100 * useful(reading) for reading in READINGS[record["case_id"]])
    bound = "(>" in record["unit"]
    return Row(record["case_id"], measured, (good + bad) / 2, null=100.0,
               covered=measured <= good and (bound or bad <= measured))  # fmt: skip


def _mttf(record: Record) -> Row:
    """Return the mean time to failure of a number of GPUs by the rate of one node."""
    nodes = float(record["gpus"]) / GPUS_PER_NODE
    measured = float(record["value"]) * (24 if record["unit"] == "days" else 1)
    return Row(f"{record['case_id']}/{record['metric']}", measured, 24 / (6.5e-3 * nodes))


def _count(record: Record) -> Row:
    """Return the failures of other GPUs over 55 days by the rates of Llama 3's GPUs."""
    reliability = load_reliability("llama3_h100")
    means = [
        mean_time(reliability, place)
        for place, part in enumerate(reliability.spec.classes)
        if part.per == "gpu"
    ]
    expected = sum(float(record["gpus"]) * 55 * 86_400e6 / int(mean) for mean in means if mean)
    return Row(record["case_id"], float(record["value"]), expected)


def useful(reading: Reading) -> float:
    """Return the mean share of useful time of runs under one reading of a document."""
    own = {"detection": reading.detection, "diagnosis": "0 s"}
    if isinstance(reading.reference, str):
        reliability = load_reliability(reading.reference, settings=tuple(own.items()))
    else:
        reliability = load_reliability({**reading.reference, **own, "repair": "0 s"})
    units = {"gpu": reading.gpus, "node": reading.gpus // GPUS_PER_NODE, "job": 1}
    parts = [
        FailingParts(part.name, units[part.per], part.law, float(mean_time(reliability, place) or 1))
        for place, part in enumerate(reliability.spec.classes)
    ]
    every = int(reading.minutes * 60 // reading.step_s)
    level = CheckpointLevel(every, int(reading.stall_s * PS_PER_S))
    plan = RunPlan(
        TrainingStretch(int(reading.step_s * PS_PER_S), (level,)),
        reading.days * 86_400 * PS_PER_S,
        treatments(reliability, gpus_per_node=GPUS_PER_NODE),
        {"start": reliability.time("restart", reading.restart)},
    )
    runs = (
        replicate(plan, failures(parts, seed=0, replication=number), number) for number in range(REPLICATIONS)
    )
    return reading.trained * fmean(run.times["steps"] / run.wall for run in runs)
