"""Elasticities of a step: by how much of itself it changes for each part that a constant changes.

Constants are what a machine, its device, the job's host and the files of communication libraries state
(`rapid_des.studies.parameters`). One that a step does not depend on is idle, not 0; one that its range lets
move in one direction only is moved in that direction.
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
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.studies.executors import Done, Executor, InProcess
from rapid_des.studies.parameters import SCALE, Knob, Mover, knobs, together
from rapid_des.studies.points import Point, evaluate
from rapid_des.units import Duration, seconds

OnProgress = Callable[[str, int, int], None]


class Elasticity(Struct, frozen=True):
    """What one knob does to the step."""

    knob: str
    kind: str
    value: float
    """d ln step / d ln knob, by central differences."""
    lower: Duration | None
    """The step with the knob a bit lower; None where it can not be."""
    higher: Duration | None

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "knob": self.knob,
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
    """By which part of itself each knob was moved, up and down."""
    rows: tuple[Elasticity, ...]
    idle: tuple[str, ...]
    """Knobs on which nothing in this step depends."""
    refused: Mapping[str, str]
    """Knobs that can not be moved so, and why."""
    scaled: float | None
    """The step with all rates and clocks so many times as high and all times as short, times that, over the
    step: 1 if nothing else takes time."""

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
    """How knobs are moved.

    >>> SensitivityOptions().mode
    'analytical'
    """

    mode: str = "analytical"
    change: float = 0.02
    constants: bool = False
    """Whether the constants of kernels and of libraries are moved too, one by one."""
    on_progress: OnProgress = lambda _what, _done, _all: None


PARTS: Mapping[str, tuple[str, ...]] = {
    "arithmetic": ("device.clock", "device.tensor_peak", "device.vector_peak", "device.registers",
                   "device.shared", "device.l2."),
    "memory": ("device.hbm",),
    "links, their libraries": ("machine.",),
    "launches, the host": ("device.launch", "device.host", "job.host"),
}  # fmt: skip
"""What a step leans on, by what the names of its knobs begin with."""


class Leaning(Struct, frozen=True):
    """What a step takes if one part of the machine is `SCALE` times as fast."""

    part: str
    step_time: Duration | None
    """None where the part can not be faster."""
    change: float | None
    """Of the step, as a part of it."""
    refused: str = ""
    """Why it can not."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        step = None if self.step_time is None else seconds(self.step_time)
        return {"part": self.part, "step_time_s": step, "change": self.change, "refused": self.refused}


def leanings(job: Job, machine: Machine, executor: Executor | None = None) -> list[Leaning]:
    """Return how much shorter a step by closed forms is with each of `PARTS` faster: rates, clocks and times.

    A few simulations, where `sensitivity` needs two a knob. An empty list where not even the base runs.

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> faster = leanings(load_job("llama2_7b_train"), load_machine("dgx_a100"))
    >>> min(faster, key=lambda leaning: leaning.step_time).part
    'arithmetic'
    """
    cache, every = BoundedCache(1 << 28), together(knobs(job, machine))
    with TemporaryDirectory() as folder, executor or nullcontext(InProcess(cache)) as crew:
        mover = Mover(machine, Path(folder))
        parts = [[knob for knob in every if knob.name.startswith(names)] for names in PARTS.values()]
        changes = [(), *map(mover.all_faster, parts)]
        points = [Point(job, machine, change, mode="analytical", allow_oom=True) for change in changes]
        outcomes = dict(crew.map(evaluate, points))
    base, *steps = (_step(outcomes[place]) for place in range(len(points)))
    if isinstance(base, str):
        return []
    return [
        Leaning(part, None, None, step)
        if isinstance(step, str)
        else Leaning(part, Duration(step), step / base - 1)
        for part, step in zip(PARTS, steps, strict=True)
    ]


def sensitivity(
    job: Job,
    machine: Machine,
    how: SensitivityOptions = SensitivityOptions(),  # noqa: B008 - frozen
    executor: Executor | None = None,
) -> Sensitivity:
    """Return the elasticities of a job's step in what a machine, its device and the job's host state.

    Raises what `simulate` raises for the job as it is.
    """
    cache = BoundedCache(1 << 28)
    base = evaluate(Point(job, machine, mode=how.mode), cache)
    every = knobs(job, machine)
    moved = every if how.constants else together(every)
    with TemporaryDirectory() as folder, executor or nullcontext(InProcess(cache)) as crew:
        mover, ends = Mover(machine, Path(folder)), (1 - how.change, 1 + how.change)
        changes = [mover.settings(knob, factor) for knob in moved for factor in ends]
        changes.append(mover.all_faster(every))
        points = [Point(job, machine, change, mode=how.mode) for change in changes]
        outcomes: dict[int, Any] = {}
        for place, outcome in crew.map(evaluate, points):
            outcomes[place] = outcome
            how.on_progress("moving knobs", len(outcomes), len(points))
    steps = [_step(outcomes[place]) for place in range(len(points))]
    scaled = None if isinstance(steps[-1], str) else steps[-1] * SCALE / base.step_time
    effects = _Effects(base.step_time, ends)
    for knob, lower, higher in zip(moved, steps[0::2], steps[1::2], strict=False):
        effects.add(knob, lower, higher)
    rows = sorted(effects.rows, key=lambda row: (-abs(row.value), row.knob))
    return Sensitivity(
        base.step_time, how.mode, how.change, tuple(rows), tuple(effects.idle), effects.refused, scaled
    )


class _Effects(Struct):
    step: int
    ends: tuple[float, float]
    """What knobs are multiplied by."""
    rows: list[Elasticity] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def add(self, knob: Knob, lower: int | str, higher: int | str) -> None:
        """Take the steps of a knob moved down and up, or why it can not be; one way is enough."""
        steps = {
            knob.at(factor): step for factor, step in zip(self.ends, (lower, higher), strict=True)
            if not isinstance(step, str)
        }  # fmt: skip
        if not steps:
            self.refused[knob.name] = str(lower)
            return
        if set(steps.values()) == {self.step}:
            self.idle.append(knob.name)
            return
        (low, first), (high, last) = sorted((steps if len(steps) > 1 else {**steps, 1.0: self.step}).items())
        value = math.log(last / first) / math.log(high / low)
        found = [None if isinstance(step, str) else Duration(step) for step in (lower, higher)]
        self.rows.append(Elasticity(knob.name, knob.kind, value, *found))


def _step(outcome: Any) -> int | str:
    return int(outcome.value.step_time) if isinstance(outcome, Done) else str(outcome.text)
