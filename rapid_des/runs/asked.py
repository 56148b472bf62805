"""A run with failures that is asked of every point of a study.

All points meet the same failures: their figures differ by the points, hardly by the draws.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import to_tree
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.report.result import Result
from rapid_des.report.run_figures import RUN_FIGURES
from rapid_des.runs.goodput import Replications, play, requested
from rapid_des.runs.loading import Reliability
from rapid_des.runs.planning import HealthyStep, Subject

REPLICATIONS = 20
"""The number of runs for each point. The goodput of Llama 3's 54 days on 16,384 GPUs is known within 0.44 %
by these; differences of points are known better, as all meet the same failures."""


class AskedRun(Struct, frozen=True):
    """A run of some days in which parts of the machine fail."""

    reliability: Reliability
    days: float

    def figures(self, job: Job, machine: Machine, healthy: Result, cache: BoundedCache) -> dict[str, float]:
        """Return the figures of a job's run, given its step without failures."""
        run = requested(job, machine, self.reliability, days=self.days, mode=healthy.mode)
        step = HealthyStep.of(healthy)
        cache.get_or_make(run.step_key, lambda: Subject(job, machine, run.mode, cache, step))
        found = play(run, Replications(REPLICATIONS), cache=cache).figures
        return {name: found[name].mean for name in RUN_FIGURES}

    def content(self) -> Any:
        """Return what the figures depend on besides the job and the machine, as plain data."""
        return to_tree(self.reliability.spec, "reliability"), self.days
