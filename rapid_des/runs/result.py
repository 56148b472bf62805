"""The result of a run's replications: figures with intervals, incidents, and rows of them."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from msgspec import Struct

from rapid_des.means import MeanInterval
from rapid_des.report.tables import Part, Report
from rapid_des.report.writing import write_text
from rapid_des.runs.clock import Replication, replicate
from rapid_des.runs.failures import failures
from rapid_des.runs.planned import PlannedRun
from rapid_des.runs.treatment import RunPlan
from rapid_des.units import PS_PER_S, Duration, ceil_divide, seconds

_NO_INCIDENT = ("steps", "checkpoints", "slow_steps")
"""The causes of time that belong to no single incident."""


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
    run: PlannedRun
    replications: tuple[Replication, ...]
    seed: int
    left: int = 0
    """The number of replications that were not played before the run was interrupted."""

    @property
    def plan(self) -> RunPlan:
        """The run as its clock needs it."""
        return self.run.plan

    @property
    def step_time(self) -> Duration:
        """The duration of a step without failures."""
        return Duration(self.plan.course.step)

    @property
    def goodputs(self) -> list[float]:
        """The goodput of each replication."""
        return [each.times["steps"] / each.wall for each in self.replications]

    @property
    def tokens(self) -> list[int]:
        """The number of tokens that the steps of each replication trained."""
        count = self.plan.replicas.count
        shares = (each.steps * count - each.lacking for each in self.replications)
        return [each * self.tokens_per_step // count for each in shares]

    @cached_property
    def figures(self) -> dict[str, MeanInterval]:
        """Estimates by name: the goodput (useful time over wall time) and what is made of it."""
        useful = self.goodputs
        rates = [
            tokens * 86_400 / seconds(each.wall)
            for tokens, each in zip(self.tokens, self.replications, strict=True)
        ]
        samples: dict[str, list[float]] = {
            "goodput": useful,
            "ettr": useful,
            "mfu": [share * self.step_mfu for share in useful],
            "tokens_per_day": rates,
            "wall_s": [seconds(each.wall) for each in self.replications],
            "steps": [float(each.steps) for each in self.replications],
            "incidents": [float(sum(each.counts.values())) for each in self.replications],
            "nodes_in_repair": [each.nodes_out for each in self.replications],
        }
        most = {"goodput": 1.0, "ettr": 1.0, "mfu": self.step_mfu}
        return {
            name: MeanInterval.of(values).within(0.0, most.get(name, inf)) for name, values in samples.items()
        }

    def report(self) -> Iterator[Part]:
        """Yield the report that `rapid-des goodput` prints."""
        from rapid_des.report.goodput_text import goodput_report

        return goodput_report(self.as_json(), f"{self.gpus:,} GPUs")

    def gain(self, other: GoodputResult) -> MeanInterval:
        """Return by how much the goodput of another result is larger, replication by replication.

        Runs of equal numbers have the same failures, so that the interval is that of the difference alone.
        """
        pairs = zip(self.goodputs, other.goodputs, strict=False)
        return MeanInterval.of([theirs - mine for mine, theirs in pairs])

    def time_by_cause(self) -> dict[str, int]:
        """Return the picoseconds of all replications by cause; they add up to all wall time."""
        return {cause: self._total(lambda each, cause=cause: each.times[cause]) for cause in self.plan.causes}

    def _total(self, figure: Callable[..., int]) -> int:
        return sum(map(figure, self.replications))

    def incidents_by_class(self) -> dict[str, float]:
        """Return the mean number of incidents of a replication by class."""
        counts = Counter[str]()
        for each in self.replications:
            counts.update(each.counts)
        return {each.name: counts[each.name] / len(self.replications) for each in self.plan.treatments}

    @property
    def gpus_held(self) -> int:
        """The number of GPUs of the job and of its spare nodes."""
        return self.gpus + self.plan.spares * ceil_divide(self.gpus, self.plan.nodes)

    def as_json(self, price: float | None = None) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds, means over the replications.

        `price` of a GPU and hour adds the cost of a run, spare nodes included.
        """
        figures, count = self.figures, len(self.replications)
        exact, saved = self.time_by_cause(), self._checkpoints_json()
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
            "checkpoint": saved[-1] if saved else None,
            "nearer_checkpoints": saved[:-1],
            "nodes_in_repair": {
                **figures["nodes_in_repair"].as_json(),
                "most": max(each.most_out for each in self.replications),
            },
            "simulations": 1 + len(frozenset().union(*(each.states for each in self.replications))),
            "at_least_s": seconds(self._total(lambda each: each.at_least)) / count,
            "replications": count,
            "nodes_retired": sum(each.retired for each in self.replications) / count,
            **({} if price is None else {"cost": self._cost(price).as_json()}),
            "left": self.left,
            "seed": self.seed,
        }

    def _cost(self, price: float) -> MeanInterval:
        hours = [seconds(each.wall) / 3600 for each in self.replications]
        return MeanInterval.of([price * self.gpus_held * each for each in hours])

    def _checkpoints_json(self) -> list[dict[str, float | str]]:
        return [
            {
                "place": cost.place,
                "bytes": cost.size,
                "stall_s": seconds(cost.stall),
                "write_s": seconds(cost.write),
                "steps_between": level.every,
                "interval_s": seconds(level.every * self.plan.course.step),
            }
            for cost, level in zip(self.run.costs, self.plan.course.levels, strict=True)
        ]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each incident of each replication, which is played again; times in seconds."""
        causes = [cause for cause in self.plan.causes if cause not in _NO_INCIDENT]
        for each in self.replications:
            drawn = failures(self.run.parts, seed=self.seed, replication=each.number)
            for number, incident in enumerate(replicate(self.plan, drawn, each.number).incidents):
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
        causes = [cause for cause in self.plan.causes if cause not in _NO_INCIDENT]
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
