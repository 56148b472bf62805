"""What a run's clock needs, from a job, a machine and a reliability file."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import CannotFinishError, InputError
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.report.result import Result
from rapid_des.runs.checkpoints import checkpoint_costs, checkpoint_levels
from rapid_des.runs.failures import FailingParts
from rapid_des.runs.laws import Log
from rapid_des.runs.length import Length
from rapid_des.runs.loading import (
    Reliability,
    fleets,
    gpus_of_node,
    slow_classes,
    spares_unit,
    tiers,
    tolerated,
    treatments,
)
from rapid_des.runs.planned import PlannedRun
from rapid_des.runs.policies import POLICIES, ReplicaPlaces
from rapid_des.runs.steps import ConstantStep, SimulatedSteps, StepTimes, with_fewer_replicas
from rapid_des.runs.stretch import EVERYTHING, NODE, PROCESSES, TrainingStretch
from rapid_des.runs.times import Time
from rapid_des.runs.treatment import RunPlan, Treatment
from rapid_des.simulation import simulate
from rapid_des.units import PS_PER_US, LongDuration, ceil_divide

_MOST_FAILURES = 10**7
"""The failures of all replications together: minutes, and a gigabyte."""


class HealthyStep(Struct, frozen=True):
    """The step of a job without failures."""

    duration: int
    """The duration in picoseconds."""
    mfu: float
    """The model FLOPs utilization."""

    @classmethod
    def of(cls, result: Result) -> HealthyStep:
        """Return the step of a job's result."""
        assert result.figures is not None, "jobs have figures"
        return cls(int(result.step_time), result.figures.mfu)


class Subject:
    """A job on a machine, with the steps that were simulated so far."""

    def __init__(
        self,
        job: Job,
        machine: Machine,
        mode: str,
        cache: BoundedCache | None = None,
        healthy: HealthyStep | None = None,
    ) -> None:
        self.job, self.machine, self.mode = job, machine, mode
        self._cache = BoundedCache() if cache is None else cache
        self._steps = dict[tuple[Machine, Job], int]()
        self.healthy = healthy or HealthyStep.of(simulate(job, machine, mode=mode, cache=self._cache))
        self.mfu = self.healthy.mfu
        self.step = self._steps[machine, job] = self.healthy.duration

    def step_on(self, machine: Machine, job: Job | None = None) -> int:
        """Return the picoseconds of a step on a machine, such as one with faults, or of another job."""
        key = machine, self.job if job is None else job
        if key not in self._steps:
            result = simulate(key[1], machine, mode=self.mode, cache=self._cache)
            self._steps[key] = int(result.step_time)
        return self._steps[key]


def planned(subject: Subject, reliability: Reliability, length: Length) -> PlannedRun:
    """Return the run of a job; `ConfigError` for what does not fit the job or the machine."""
    job, machine = subject.job, subject.machine
    parts, treated = fleets(reliability, job.gpus, machine), treatments(reliability, machine)
    costs = checkpoint_costs(reliability, job, machine, subject.step_on)
    levels = checkpoint_levels(reliability, costs, subject.step, _rates(parts, treated))
    spares = reliability.spec.spares
    plan = RunPlan(
        TrainingStretch(subject.step, levels, length.steps),
        length.horizon,
        treated,
        _phases(reliability, job),
        tiers(reliability),
        spares_unit(reliability, machine),
        retire_after=None if spares is None else spares.retire_after,
        crews=reliability.spec.repair_crews,
        nodes=ceil_divide(job.gpus, gpus_of_node(machine)),
        steps=_steps(subject, reliability),
        policy=reliability.spec.policy,
        replicas=_replicas(reliability, job, machine),
        batch=reliability.spec.batch,
        shares=_shares(reliability, job, length),
        tolerated=tolerated(reliability),
    )
    _require_nodes(reliability, plan, machine)
    _require_progress(reliability, plan, parts)
    return PlannedRun(plan, costs, parts)


def _steps(subject: Subject, reliability: Reliability) -> StepTimes:
    """Return what steps take while parts are slow or missing."""
    slow, spec = slow_classes(reliability, subject.machine), reliability.spec
    if not slow and not POLICIES[spec.policy].shrinks:
        return ConstantStep()
    return SimulatedSteps(
        subject.job,
        subject.machine,
        slow,
        subject.step_on,
        together=spec.together,
        smaller=spec.batch == "smaller",
    )


def _shares(reliability: Reliability, job: Job, length: Length) -> int | None:
    """Return the shares of the batch, one for each replica, that make the stated tokens, if steps differ."""
    if length.tokens is None or reliability.spec.batch == "keep":
        return None
    return ceil_divide(length.tokens * job.spec.parallelism.dp, job.tokens)


def _replicas(reliability: Reliability, job: Job, machine: Machine) -> ReplicaPlaces:
    """Return where the replicas stand, if the policy needs to know; refuse a job that has only one."""
    policy, count = reliability.spec.policy, job.spec.parallelism.dp
    redundancy = reliability.spec.redundancy
    if policy not in ("replica", "shrink", "redundant"):
        return ReplicaPlaces()
    if count == 1:
        reliability.refuse("policy", f"{policy} needs replicas, the job has dp 1; allowed: restart, in_place")
    if redundancy is not None and redundancy > count:
        reliability.refuse("redundancy", f"the job has {count} replicas; allowed: 2 to {count}")
    if policy in ("replica", "redundant") and job.training.zero_stage:
        problem = (
            f"{policy} needs replicas with the whole state, the job has zero_stage {job.training.zero_stage}"
        )
        reliability.refuse("policy", f"{problem}; allowed: restart, in_place, shrink")
    if POLICIES[policy].shrinks:
        try:
            with_fewer_replicas(job, 1, smaller=reliability.spec.batch == "smaller")
        except InputError as error:
            reliability.refuse("policy", f"the job cannot shrink: {error}")
    gpus, replica = gpus_of_node(machine), job.layout.coordinates("dp").tolist()
    places = range(0, job.gpus, gpus)
    of_place = tuple(frozenset(replica[place : place + gpus]) for place in places)
    return ReplicaPlaces(count, of_place, redundancy or 1)


def _rates(parts: Sequence[FailingParts], treated: Sequence[Treatment]) -> tuple[float, float, float]:
    """Return the failures a picosecond that lose work: those that replace no node, one, and more."""
    rates = [0.0, 0.0, 0.0]
    for fleet, treatment in zip(parts, treated, strict=True):
        if treatment.effect not in ("slows", "pauses"):
            needed = (PROCESSES, NODE, EVERYTHING)[min(treatment.nodes, 2)]
            rates[needed] += failure_rate([fleet])
    return rates[0], rates[1], rates[2]


def failure_rate(parts: Sequence[FailingParts]) -> float:
    """Return the number of failures a picosecond of all parts together, by their means."""
    return sum(fleet.parts / fleet.mean for fleet in parts if not isinstance(fleet.law, Log)) / PS_PER_US


def _require_nodes(reliability: Reliability, plan: RunPlan, machine: Machine) -> None:
    nodes = machine.fabric.gpus // gpus_of_node(machine)
    used, waiting = plan.nodes, plan.spares
    if used + waiting > max(nodes, used):
        problem = f"{waiting} spare nodes and {used} of the job, {machine.name} has {nodes}"
        reliability.refuse("spares", f"{problem}; allowed: up to {max(nodes - used, 0)}")


def _phases(reliability: Reliability, job: Job) -> dict[str, Time]:
    """Return the stated phases of a restart by name, without those that take no time."""
    restart = reliability.spec.restart
    texts = {name: str(getattr(restart, name)) for name in ("allocate", "image", "start", "communicators")}
    phases = {name: reliability.time(f"restart.{name}", text) for name, text in texts.items()}
    if each := int(restart.communicators_per_gpu or 0) * job.gpus:
        fixed = phases["communicators"].quantile
        phases["communicators"] = Time("", lambda uniform: fixed(uniform) + each)
    if restart.load is not None:
        phases["load"] = reliability.time("restart.load", restart.load)
    phases["warm_up"] = reliability.time("restart.warm_up", restart.warm_up)
    return {name: time for name, time in phases.items() if time.mean > 0}


def _require_progress(reliability: Reliability, plan: RunPlan, parts: Sequence[FailingParts]) -> None:
    """Raise `CannotFinishError` where failures come faster than restarts end."""
    rate = sum(_rates(parts, plan.treatments))
    loads = [
        level.load.mean for level in plan.course.levels[-1:] if level.load and "load" not in plan.restart
    ]
    restart = sum(time.mean for time in plan.restart.values()) + sum(loads)
    if rate * restart >= 1:
        between = LongDuration(round(1 / rate / PS_PER_US))
        takes = LongDuration(round(restart / PS_PER_US))
        raise CannotFinishError(
            f"{reliability.file}: the run does not progress: the mean time between failures is {between}, "
            f"a restart takes {takes}"
        )


def require_bounded(plan: RunPlan, parts: Sequence[FailingParts], replications: int) -> None:
    """Refuse runs with more failures than can be played, given how long they last at least."""
    least = plan.horizon or (plan.course.last or 0) * plan.course.step
    starts = [(fleet, 1 / (1 - fleet.follow)) for fleet in parts]
    expected = sum(failure_rate([fleet]) * each for fleet, each in starts) * least * replications
    if expected > _MOST_FAILURES:
        each = f"{replications:,} runs of {LongDuration(least // PS_PER_US)}"
        raise InputError(
            f"{each} have about {expected:,.0f} failures; allowed: {_MOST_FAILURES:,} (a shorter run, or "
            "fewer replications)"
        )
