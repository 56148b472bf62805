"""Elasticities of a step: its relative change over the relative change of a constant.

Constants are what a machine, its device, the job's host and the files of communication libraries state
(`rapid_des.studies.parameters`). A constant that the step does not depend on is reported as idle, not as 0; a
constant whose range allows one direction only is changed in that direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct, field

from rapid_des.bounded_cache import BoundedCache
from rapid_des.executors import Done, Executor, InProcess
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.studies.parameters import SCALE, Parameter, ParameterScaler, grouped_by_library, parameters_of
from rapid_des.studies.points import Point, evaluate
from rapid_des.units import Duration, seconds

OnProgress = Callable[[str, int, int], None]


class Elasticity(Struct, frozen=True):
    """The effect of one parameter on the step."""

    parameter: str
    kind: str
    value: float
    """d ln step / d ln parameter, by central differences."""
    lower: Duration | None
    """The step time with the lower value, in picoseconds; None if that value is not allowed."""
    higher: Duration | None

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "knob": self.parameter,
            "kind": self.kind,
            "elasticity": self.value,
            "lower_s": None if self.lower is None else seconds(self.lower),
            "higher_s": None if self.higher is None else seconds(self.higher),
        }


class Sensitivity(Struct, frozen=True):
    """The elasticities of a step, the strongest first; `sensitivity` makes one."""

    step_time: Duration
    mode: str
    change: float
    """The relative change of each parameter, up and down."""
    rows: tuple[Elasticity, ...]
    idle: tuple[str, ...]
    """Parameters that do not affect this step."""
    refused: Mapping[str, str]
    """Parameters that cannot be changed by this amount, and why."""
    scaled: float | None
    """The step time with everything `SCALE` times as fast, times `SCALE`, over the step time: 1 if nothing
    else takes time."""

    @property
    def sums(self) -> dict[str, float]:
        """The sum of elasticities by kind."""
        kinds = dict.fromkeys(row.kind for row in self.rows)
        return {kind: sum(row.value for row in self.rows if row.kind == kind) for kind in kinds}

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "step_time_s": seconds(self.step_time),
            "mode": self.mode,
            "change": self.change,
            "rows": [row.as_json() for row in self.rows],
            "sums": self.sums,
            "scaled": self.scaled,
            "idle": list(self.idle),
            "refused": dict(self.refused),
        }


class SensitivityOptions(Struct, frozen=True):
    """How parameters are changed.

    >>> SensitivityOptions().mode
    'analytical'
    """

    mode: str = "analytical"
    change: float = 0.02
    constants: bool = False
    """Whether the constants of kernels and of libraries are changed too, one by one."""
    on_progress: OnProgress = lambda _what, _done, _all: None


MACHINE_PARTS: Mapping[str, tuple[str, ...]] = {
    "arithmetic": ("device.clock", "device.tensor_peak", "device.vector_peak", "device.registers",
                   "device.shared", "device.l2."),
    "memory": ("device.hbm",),
    "links, their libraries": ("machine.",),
    "launches, the host": ("device.launch", "device.host", "job.host"),
}  # fmt: skip
"""The parts of a machine, and the beginnings of the names of their parameters."""


class PartSpeedup(Struct, frozen=True):
    """The step time if one part of the machine is `SCALE` times as fast."""

    part: str
    step_time: Duration | None
    """The step time in picoseconds; None if the part cannot be made faster."""
    change: float | None
    """The relative change of the step time."""
    refused: str = ""
    """Why the part cannot be made faster."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        step = None if self.step_time is None else seconds(self.step_time)
        return {"part": self.part, "step_time_s": step, "change": self.change, "refused": self.refused}


def part_speedups(job: Job, machine: Machine, executor: Executor | None) -> list[PartSpeedup]:
    """Return how much shorter a step is if each of `MACHINE_PARTS` is faster, by closed forms.

    It takes one simulation a part; `sensitivity` takes two a parameter. The list is empty if the job itself
    cannot be simulated.

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> faster = part_speedups(load_job("llama2_7b_train"), load_machine("dgx_a100"), None)
    >>> min(faster, key=lambda sped_up: sped_up.step_time).part
    'arithmetic'
    """
    cache, every = BoundedCache(1 << 28), grouped_by_library(parameters_of(job, machine))
    with TemporaryDirectory() as folder, executor or nullcontext(InProcess(cache)) as crew:
        mover = ParameterScaler(machine, Path(folder))
        parts = [
            [parameter for parameter in every if parameter.name.startswith(names)]
            for names in MACHINE_PARTS.values()
        ]
        changes = [(), *map(mover.all_faster, parts)]
        points = [Point(job, machine, change, mode="analytical", allow_oom=True) for change in changes]
        outcomes = dict(crew.map(evaluate, points))
    base, *steps = (_step(outcomes[place]) for place in range(len(points)))
    if isinstance(base, str):
        return []
    return [
        PartSpeedup(part, None, None, step)
        if isinstance(step, str)
        else PartSpeedup(part, Duration(step), step / base - 1)
        for part, step in zip(MACHINE_PARTS, steps, strict=True)
    ]


def sensitivity(
    job: Job,
    machine: Machine,
    how: SensitivityOptions,  # noqa: B008 - frozen
    executor: Executor | None = None,
) -> Sensitivity:
    """Return the elasticities of a job's step in what a machine, its device and the job's host state.

    Raises what `simulate` raises for the job as it is.
    """
    cache = BoundedCache(1 << 28)
    base = evaluate(Point(job, machine, mode=how.mode), cache)
    every = parameters_of(job, machine)
    moved = every if how.constants else grouped_by_library(every)
    with TemporaryDirectory() as folder, executor or nullcontext(InProcess(cache)) as crew:
        mover, ends = ParameterScaler(machine, Path(folder)), (1 - how.change, 1 + how.change)
        changes = [mover.settings(parameter, factor) for parameter in moved for factor in ends]
        changes.append(mover.all_faster(every))
        points = [Point(job, machine, change, mode=how.mode) for change in changes]
        outcomes: dict[int, Any] = {}
        for place, outcome in crew.map(evaluate, points):
            outcomes[place] = outcome
            how.on_progress("changing parameters", len(outcomes), len(points))
    steps = [_step(outcomes[place]) for place in range(len(points))]
    scaled = None if isinstance(steps[-1], str) else steps[-1] * SCALE / base.step_time
    effects = _Effects(base.step_time, ends)
    for parameter, lower, higher in zip(moved, steps[0::2], steps[1::2], strict=False):
        effects.add(parameter, lower, higher)
    rows = sorted(effects.rows, key=lambda row: (-abs(row.value), row.parameter))
    return Sensitivity(
        base.step_time, how.mode, how.change, tuple(rows), tuple(effects.idle), effects.refused, scaled
    )


class _Effects(Struct):
    step: int
    ends: tuple[float, float]
    """The lower and the higher factor by which parameters are multiplied."""
    rows: list[Elasticity] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def add(self, parameter: Parameter, lower: int | str, higher: int | str) -> None:
        """Record the step times with a lower and a higher value, or errors; one time is enough."""
        steps = {
            parameter.at(factor): step for factor, step in zip(self.ends, (lower, higher), strict=True)
            if not isinstance(step, str)
        }  # fmt: skip
        if not steps:
            self.refused[parameter.name] = str(lower)
            return
        if set(steps.values()) == {self.step}:
            self.idle.append(parameter.name)
            return
        (low, first), (high, last) = sorted((steps if len(steps) > 1 else {**steps, 1.0: self.step}).items())
        value = math.log(last / first) / math.log(high / low)
        found = [None if isinstance(step, str) else Duration(step) for step in (lower, higher)]
        self.rows.append(Elasticity(parameter.name, parameter.kind, value, *found))


def _step(outcome: Any) -> int | str:
    return int(outcome.value.step_time) if isinstance(outcome, Done) else str(outcome.text)
