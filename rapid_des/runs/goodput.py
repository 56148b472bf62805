"""The goodput of a training run: replications of the run clock around one simulated step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import CannotFinishError, InputError
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.runs.checkpoints import CheckpointCost, checkpoint_cost, steps_between
from rapid_des.runs.clock import Replication, replicate
from rapid_des.runs.failures import FailingParts, failures
from rapid_des.runs.laws import Log
from rapid_des.runs.loading import (
    Reliability,
    fleets,
    load_reliability,
    slow_classes,
    tiers,
    tolerated,
    treatments,
)
from rapid_des.runs.result import GoodputResult
from rapid_des.runs.steps import SimulatedSteps
from rapid_des.runs.stretch import CheckpointLevel, TrainingStretch
from rapid_des.runs.times import Time, constant
from rapid_des.runs.treatment import RunPlan, Treatment
from rapid_des.simulation import FINEST, require_kind, simulate
from rapid_des.units import PS_PER_S, PS_PER_US, LongDuration, ceil_divide

_PS_PER_DAY = 86_400 * PS_PER_S
_LARGE = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_MOST_STEPS = 10**12
_MOST_FAILURES = 10**7
"""The failures of all replications together: minutes, and a gigabyte."""


class Length(Struct, frozen=True):
    """How long a run is: a time in picoseconds, or a number of steps."""

    horizon: int | None = None
    steps: int | None = None

    @classmethod
    def parse(
        cls, job: Job, *, days: float | str | None, steps: int | None, tokens: int | str | None
    ) -> Length:
        """Return the length that exactly one of three figures states; `InputError` says what is allowed."""
        stated = {"days": days, "steps": steps, "tokens": tokens}
        names = [name for name, value in stated.items() if value is not None]
        if len(names) != 1:
            raise InputError(f"{' and '.join(names) or 'none'} of days, steps and tokens: state exactly one")
        number = _number(names[0], str(stated[names[0]]))
        if days is not None:
            return cls(horizon=max(1, int(number * _PS_PER_DAY)))
        count = int(number) if steps is not None else ceil_divide(int(number), job.tokens)
        if not 1 <= count <= _MOST_STEPS or (steps is not None and count != number):
            raise InputError(
                f"{names[0]}: {stated[names[0]]!r}; allowed: a whole number of 1 to {_MOST_STEPS:,} steps"
            )
        return cls(steps=count)


def _number(name: str, text: str) -> Decimal:
    digits, suffix = (text[:-1], text[-1]) if text[-1:].isalpha() else (text, "")
    try:
        number = Decimal(digits) * _LARGE[suffix.upper()] if name == "tokens" else Decimal(text)
        if not 0 < number < 10**18:
            raise InputError(f"{name}: {text!r}; allowed: a number above 0")
    except (InvalidOperation, KeyError):
        example = "15T, 300B or 1e12" if name == "tokens" else "54"
        raise InputError(f"{name}: {text!r} is no number; allowed: such as {example}") from None
    return number


def goodput(  # noqa: PLR0913 - options by name
    job: Job,
    machine: Machine,
    reliability: str | Path | Mapping[str, Any] | Reliability,
    *,
    days: float | str | None = None,
    steps: int | None = None,
    tokens: int | str | None = None,
    replications: int = 100,
    seed: int = 0,
    mode: str = FINEST,
    first: int = 0,
    cache: BoundedCache | None = None,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> GoodputResult:
    """Predict a run of `days`, `steps` or `tokens` in which parts of the machine fail.

    The duration of a step is that of `simulate` in a mode. Replication n draws from the seed and n alone:
    `first=n, replications=1` plays it by itself. Equal seeds have equal failures, whatever else differs.
    Raises `ConfigError` for what does not fit the job or the machine, `CannotFinishError` for a run that
    never progresses.

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> wanted, loaded = load_job("llama2_7b_train"), load_machine("dgx_a100")
    >>> result = goodput(wanted, loaded, "llama3_h100", days=7, replications=3, mode="analytical")
    >>> all(sum(each.times.values()) == each.wall for each in result.replications)
    True
    """
    require_kind(job, Job, "load_job")
    require_kind(machine, Machine, "load_machine")
    if job.spec.phase != "training":
        raise InputError(f"{job.file}: phase: {job.spec.phase!r} has no steps; allowed: training")
    if not 1 <= replications <= 10**6:
        raise InputError(f"replications: {replications}; allowed: 1 to 1,000,000")
    length = Length.parse(job, days=days, steps=steps, tokens=tokens)
    stated = load_reliability(reliability)
    parts = fleets(stated, job, machine)
    step = simulate(job, machine, mode=mode, cache=cache)
    assert step.figures is not None, "jobs have figures"
    plan, cost = run_plan(stated, (job, machine), int(step.step_time), length)
    if slow := slow_classes(stated, machine, per_node(machine)):
        plan = structs.replace(plan, steps=SimulatedSteps(job, machine, slow, mode))
    _require_progress(stated, plan, parts)
    _require_bounded(plan, parts, replications)
    found = list[Replication]()
    for number in range(first, first + replications):
        found.append(replicate(plan, failures(parts, seed=seed, replication=number), number))
        on_progress(len(found), replications)
    return GoodputResult(job.gpus, job.tokens, step.figures.mfu, plan, cost, tuple(found), seed)


def run_plan(
    reliability: Reliability, where: tuple[Job, Machine], step: int, length: Length
) -> tuple[RunPlan, CheckpointCost | None]:
    """Return the run as its clock needs it, and what its checkpoints cost."""
    job, machine = where
    _require_nodes(reliability, job, machine)
    cost, levels = None, tuple[CheckpointLevel, ...]()
    treated = treatments(reliability, machine, gpus_per_node=per_node(machine))
    if reliability.spec.checkpoint is not None:
        cost = checkpoint_cost(reliability, job)
        rate = failure_rate(fleets(reliability, job, machine), treated)
        every = steps_between(reliability, cost, step, rate)
        loaded = None if cost.load is None else constant(cost.load)
        levels = (CheckpointLevel(every, cost.stall, cost.write, load=loaded),)
    spares = reliability.spec.spares
    plan = RunPlan(
        TrainingStretch(step, levels, length.steps),
        length.horizon,
        treated,
        _phases(reliability, job),
        tiers(reliability),
        retire_after=None if spares is None else spares.retire_after,
        nodes=ceil_divide(job.gpus, per_node(machine)),
        tolerated=tolerated(reliability),
    )
    return plan, cost


def per_node(machine: Machine) -> int:
    """Return the number of GPUs of a node; a machine that states none is one node."""
    return machine.spec.gpus_per_node or machine.fabric.gpus


def failure_rate(parts: Sequence[FailingParts], treated: Sequence[Treatment] = ()) -> float:
    """Return the number of failures a picosecond of all parts together, by their means.

    With treatments only of those that lose work.
    """
    rates = [0.0 if isinstance(fleet.law, Log) else fleet.parts / fleet.mean for fleet in parts]
    lost = [each.effect not in ("slows", "pauses") for each in treated] or [True] * len(rates)
    return sum(rate for rate, loses in zip(rates, lost, strict=True) if loses) / PS_PER_US


def _require_nodes(reliability: Reliability, job: Job, machine: Machine) -> None:
    gpus_per_node = per_node(machine)
    spares, nodes = reliability.spec.spares, machine.fabric.gpus // gpus_per_node
    if spares is None:
        return
    used, waiting = ceil_divide(job.gpus, gpus_per_node), spares.hot + spares.warm + spares.cold
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
    rate = failure_rate(parts, plan.treatments)
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


def _require_bounded(plan: RunPlan, parts: Sequence[FailingParts], replications: int) -> None:
    """Refuse runs with more failures than can be played, given how long they last at least."""
    least = plan.horizon or (plan.course.last or 0) * plan.course.step
    expected = failure_rate(parts) * least * replications
    if expected > _MOST_FAILURES:
        each = f"{replications:,} runs of {LongDuration(least // PS_PER_US)}"
        raise InputError(
            f"{each} have about {expected:,.0f} failures; allowed: {_MOST_FAILURES:,} (a shorter run, or "
            "fewer replications)"
        )
