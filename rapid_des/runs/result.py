"""The result of a run's replications: figures with intervals, incidents, and rows of them."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import inf, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from msgspec import Struct

from rapid_des.report.tables import Part, Report
from rapid_des.report.writing import write_text
from rapid_des.runs.checkpoints import CheckpointCost
from rapid_des.runs.clock import Replication, RunPlan
from rapid_des.studies.draw_statistics import student
from rapid_des.units import PS_PER_S, Duration, seconds


class MeanInterval(Struct, frozen=True):
    """The mean of a figure over replications, with its confidence interval at 95 %."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanInterval:
        """Return the estimate of a sample by Student's t; of one value the interval is not known.

        >>> MeanInterval.of([1.0, 2.0, 3.0]).mean
        2.0
        """
        mean = fmean(values)
        half = student(len(values) - 1) * stdev(values) / sqrt(len(values)) if len(values) > 1 else inf
        return cls(mean, mean - half, mean + half)

    def as_json(self) -> dict[str, float | None]:
        """Return plain data for JSON; null: not known."""
        known = self.high < inf
        return {"mean": self.mean, "low": self.low if known else None, "high": self.high if known else None}


class GoodputResult(Report, Struct, frozen=True, dict=True):
    """The replications of a run and what follows from them.

    >>> import rapid_des as rd
    >>> job, machine = rd.load_job("llama2_7b_train"), rd.load_machine("dgx_a100")
    >>> result = rd.goodput(job, machine, "llama3_h100", days=3, replications=4, mode="analytical")
    >>> result.figures["goodput"].mean > 0.8, sorted(result.as_json()["goodput"])
    (True, ['high', 'low', 'mean'])
    """

    gpus: int
    tokens_per_step: int
    step_mfu: float
    """The model FLOPs utilization of a step without failures."""
    plan: RunPlan
    checkpoint: CheckpointCost | None
    replications: tuple[Replication, ...]
    seed: int

    @property
    def step_time(self) -> Duration:
        """The duration of a step without failures."""
        return Duration(self.plan.course.step)

    @cached_property
    def figures(self) -> dict[str, MeanInterval]:
        """Estimates by name: the goodput (useful time over wall time) and what is made of it."""
        useful = [each.times["steps"] / each.wall for each in self.replications]
        rates = [
            each.steps * self.tokens_per_step * 86_400 / seconds(each.wall) for each in self.replications
        ]
        samples: dict[str, list[float]] = {
            "goodput": useful,
            "ettr": useful,
            "mfu": [share * self.step_mfu for share in useful],
            "tokens_per_day": rates,
            "wall_s": [seconds(each.wall) for each in self.replications],
            "steps": [float(each.steps) for each in self.replications],
            "incidents": [float(len(each.incidents)) for each in self.replications],
            "nodes_in_repair": [each.nodes_out for each in self.replications],
        }
        return {name: MeanInterval.of(values) for name, values in samples.items()}

    def report(self) -> Iterator[Part]:
        """Yield the report that `rapid-des goodput` prints."""
        from rapid_des.report.goodput_text import goodput_report

        return goodput_report(self.as_json(), f"{self.gpus:,} GPUs")

    def gain(self, other: GoodputResult) -> MeanInterval:
        """Return by how much the goodput of another result is larger, replication by replication.

        Runs of equal numbers have the same failures, so that the interval is that of the difference alone.
        """
        pairs = zip(self.replications, other.replications, strict=True)
        return MeanInterval.of(
            [theirs.times["steps"] / theirs.wall - mine.times["steps"] / mine.wall for mine, theirs in pairs]
        )

    def time_by_cause(self) -> dict[str, int]:
        """Return the picoseconds of all replications by cause; they add up to all wall time."""
        return {cause: self._total(lambda each, cause=cause: each.times[cause]) for cause in self.plan.causes}

    def _total(self, figure: Callable[..., int]) -> int:
        return sum(map(figure, self.replications))

    def incidents_by_class(self) -> dict[str, float]:
        """Return the mean number of incidents of a replication by class."""
        counts = Counter(incident.name for each in self.replications for incident in each.incidents)
        return {each.name: counts[each.name] / len(self.replications) for each in self.plan.treatments}

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds, means over the replications."""
        figures, count = self.figures, len(self.replications)
        exact = self.time_by_cause()
        plain: dict[str, Any] = {
            name: figures[name].as_json() for name in ("goodput", "ettr", "mfu", "tokens_per_day")
        }
        return plain | {
            "wall_s": figures["wall_s"].mean,
            "wall_interval_s": figures["wall_s"].as_json(),
            "time_s": {cause: total / count / PS_PER_S for cause, total in exact.items()},
            "incidents": self.incidents_by_class(),
            "incidents_total": figures["incidents"].as_json(),
            "steps": figures["steps"].mean,
            "step_time_s": seconds(self.step_time),
            "gpus": self.gpus,
            "tokens_per_step": self.tokens_per_step,
            "checkpoint": self._checkpoint_json(),
            "nodes_in_repair": {
                **figures["nodes_in_repair"].as_json(),
                "most": max(each.most_out for each in self.replications),
            },
            "replications": count,
            "seed": self.seed,
        }

    def _checkpoint_json(self) -> dict[str, float] | None:
        if self.checkpoint is None:
            return None
        course = self.plan.course
        return {
            "bytes": self.checkpoint.size,
            "stall_s": seconds(self.checkpoint.stall),
            "write_s": seconds(self.checkpoint.write),
            "steps_between": course.every,
            "interval_s": seconds(course.every * course.step),
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each incident of each replication; times in seconds."""
        causes = [cause for cause in self.plan.causes if cause not in ("steps", "checkpoints")]
        for each in self.replications:
            for number, incident in enumerate(each.incidents):
                yield {
                    "replication": each.number,
                    "incident": number,
                    "at_s": seconds(incident.at),
                    "class": incident.name,
                    "part": incident.part,
                    "cost_s": seconds(sum(incident.times.values())),
                } | {f"{cause}_s": seconds(incident.times.get(cause, 0)) for cause in causes}

    def write_rows(self, path: str | Path) -> None:
        """Write the incident log as CSV."""
        text = io.StringIO()
        causes = [cause for cause in self.plan.causes if cause not in ("steps", "checkpoints")]
        named = (
            "replication",
            "incident",
            "at_s",
            "class",
            "part",
            "cost_s",
            *(f"{cause}_s" for cause in causes),
        )
        writer = csv.DictWriter(text, named, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        write_text(Path(path), text.getvalue())
