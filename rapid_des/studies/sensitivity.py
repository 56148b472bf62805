"""Elasticities of a step: by how much of itself it changes for each part that a constant changes.

Constants are the rates, times and clocks that a machine, its device, the job's host and the constants of a
communication library state. Those that stand for one thing move together: peaks of all formats; SMs with the
peaks and bandwidths that all of them have. One that a step does not depend on is idle, not 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import to_tree, to_yaml
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.network.collectives.libraries.nccl_fabric import load_fabric
from rapid_des.studies.executors import Done, Executor, InProcess
from rapid_des.studies.points import Point, evaluate
from rapid_des.units import Duration, seconds

Settings = tuple[tuple[str, str], ...]
Told = Callable[[str, int, int], None]
_RATE, _TIME = re.compile(r"[\d.e+]+ ?\w+/s$"), re.compile(r"[\d.e+-]+ ?[num]?s$")
_CLOCK = re.compile(r"[\d.e+]+ ?\w*Hz$")
_TOGETHER = ("device.tensor_peak", "device.vector_peak")
_LIBRARY = "machine.collectives.measured.nccl"
_CONSTANTS = ("device.family.constants", "device.constants")
_SCALE = 1.25
"""How much faster all is for the sum rule."""


@dataclass(frozen=True)
class Knob:
    """Constants that move together."""

    name: str
    kind: str
    """`rate`, `time`, `clock` or `number`."""
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Elasticity:
    """What one knob does to the step."""

    knob: str
    kind: str
    value: float
    """d ln step / d ln knob, by central differences."""
    lower: Duration
    """The step with the knob a bit lower."""
    higher: Duration

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "knob": self.knob,
            "kind": self.kind,
            "elasticity": self.value,
            "lower_s": seconds(self.lower),
            "higher_s": seconds(self.higher),
        }


@dataclass(frozen=True)
class Sensitivity:
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


@dataclass(frozen=True)
class How:
    """How knobs are moved.

    >>> How().mode
    'analytical'
    """

    mode: str = "analytical"
    change: float = 0.02
    constants: bool = False
    """Whether the constants of kernels are moved too, one by one."""
    told: Told = lambda _what, _done, _all: None


def sensitivity(
    job: Job,
    machine: Machine,
    how: How = How(),  # noqa: B008 - frozen
    executor: Executor | None = None,
) -> Sensitivity:
    """Return the elasticities of a job's step in what a machine, its device and the job's host state.

    Raises what `simulate` raises for the job as it is.
    """
    cache = BoundedCache(1 << 28)
    base = evaluate(Point(job, machine, mode=how.mode), cache)
    every = knobs(job, machine)
    moved = [knob for knob in every if how.constants or not knob.name.startswith(_CONSTANTS)]
    with TemporaryDirectory() as folder, executor or nullcontext(InProcess(cache)) as crew:
        library = _Library(machine, Path(folder))
        low, high = 1 - how.change, 1 + how.change
        changes = [library.settings(knob, factor) for knob in moved for factor in (low, high)]
        changes.append(library.all_faster(every))
        points = [Point(job, machine, change, mode=how.mode) for change in changes]
        outcomes: dict[int, Any] = {}
        for place, outcome in crew.map(evaluate, points):
            outcomes[place] = outcome
            how.told("moving knobs", len(outcomes), len(points))
    steps = [_step(outcomes[place]) for place in range(len(points))]
    scaled = None if isinstance(steps[-1], str) else steps[-1] * _SCALE / base.step_time
    effects = _Effects(base.step_time)
    for knob, lower, higher in zip(moved, steps[0::2], steps[1::2], strict=False):
        effects.add(knob, lower, higher, _ratio(knob, machine, how.change))
    rows = sorted(effects.rows, key=lambda row: (-abs(row.value), row.knob))
    return Sensitivity(
        base.step_time, how.mode, how.change, tuple(rows), tuple(effects.idle), effects.refused, scaled
    )


@dataclass
class _Effects:
    step: int
    rows: list[Elasticity] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def add(self, knob: Knob, lower: int | str, higher: int | str, ratio: float) -> None:
        """Take the steps of a knob moved down and up, or why it can not be."""
        if isinstance(lower, str) or isinstance(higher, str):
            self.refused[knob.name] = lower if isinstance(lower, str) else str(higher)
        elif lower == higher == self.step:
            self.idle.append(knob.name)
        else:
            value = math.log(higher / lower) / ratio
            self.rows.append(Elasticity(knob.name, knob.kind, value, Duration(lower), Duration(higher)))


def _step(outcome: Any) -> int | str:
    return int(outcome.value.step_time) if isinstance(outcome, Done) else str(outcome.text)


def knobs(job: Job, machine: Machine) -> list[Knob]:
    """Return what can be moved of a job on a machine, what stands for one thing together."""
    leaves = dict(_stated(job, machine))
    grouped: dict[str, tuple[str, list[str]]] = {}
    for key, kind in leaves.items():
        together = next((name for name in _TOGETHER if key.startswith(f"{name}.")), key)
        if key.startswith("device.clock.sustained"):
            together = "device.clock.sustained"
        grouped.setdefault(together, (kind, []))[1].append(key)
    every = [Knob(name, kind, tuple(keys)) for name, (kind, keys) in grouped.items()]
    return [*every, Knob("device.sms", "number", ("device.sms",)), *_library_knobs(machine)]


def _library_knobs(machine: Machine) -> list[Knob]:
    if not isinstance(machine.spec.collectives.measured.nccl, str):
        return []
    return [Knob(f"{_LIBRARY}: its {kind}s", kind, (_LIBRARY,)) for kind in ("rate", "time")]


def _stated(job: Job, machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield every rate, time and clock by its key, and which it is."""
    of_machine = {
        name: value for name, value in to_tree(machine.as_spec(), "machine").items() if name != "device"
    }
    device = to_tree(machine.device.as_spec(), "device")
    left_out = ("name", "kind", "energy", "power", "idle_power", "conditions")
    trees = {
        "machine": {name: value for name, value in of_machine.items() if name != "device"},
        "device": {name: value for name, value in device.items() if name not in left_out},
    }
    if job.spec.host is not None:
        trees["job"] = {"host": to_tree(job.spec.host, "job")}
    for root, tree in trees.items():
        for key, value in _leaves(tree, root):
            kind = _kind(key, value)
            if kind and key != "device.clock.sustained_within":
                yield key, kind


def _kind(key: str, value: Any) -> str:
    """Return what a value is; empty: neither a rate nor a time."""
    if isinstance(value, str):
        kinds = {"rate": _RATE, "time": _TIME, "clock": _CLOCK}
        return next((kind for kind, pattern in kinds.items() if pattern.match(value)), "")
    if not isinstance(value, float) or not key.startswith(_CONSTANTS):
        return "number" if key == "machine.host_speed" else ""
    if key.endswith(("_us", "_ns")):
        return "time" if value else ""
    return "rate" if key.endswith("_gbps") else ""


def _leaves(tree: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _leaves(value, f"{key}.{name}")
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from _leaves(value, f"{key}.{number}")
    else:
        yield key, tree


class _Library:
    """Copies of a machine's file of NCCL's constants, whose rates or times are scaled."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine, self._folder, self._known = machine, folder, dict[tuple[float, float], Path]()
        named = machine.spec.collectives.measured.nccl
        self._tree = None if not isinstance(named, str) else to_tree(load_fabric(named), "fabric")

    def settings(self, knob: Knob, factor: float) -> Settings:
        """Return the settings that move a knob by a factor."""
        if knob.name == "device.sms":
            return (("device.sms", str(_sms(self._machine, factor))),)
        if knob.keys == (_LIBRARY,):
            return ((_LIBRARY, str(self._scaled({knob.kind: factor}))),)
        return tuple((key, f"{factor}x") for key in knob.keys)

    def all_faster(self, every: Sequence[Knob]) -> Settings:
        """Return the settings with which all takes as many times less."""
        factors = {"rate": _SCALE, "clock": _SCALE, "time": 1 / _SCALE}
        applicable = [setting for knob in every if knob.kind in factors and knob.keys != (_LIBRARY,)
               for setting in self.settings(knob, factors[knob.kind])]  # fmt: skip
        return (*applicable, *(() if self._tree is None else ((_LIBRARY, str(self._scaled(factors))),)))

    def _scaled(self, factors: Mapping[str, float]) -> Path:
        key = (factors.get("rate", 1.0), factors.get("time", 1.0))
        if key not in self._known:
            path = self._folder / f"{len(self._known)}.yaml"
            path.write_text(to_yaml(_scaled(self._tree, factors)), encoding="utf-8")
            self._known[key] = path
        return self._known[key]


def _scaled(tree: Any, factors: Mapping[str, float]) -> Any:
    if isinstance(tree, dict):
        return {name: _scaled(value, factors) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_scaled(value, factors) for value in tree]
    kind = _kind("", tree)
    if not kind or kind not in factors:
        return tree
    number, unit = re.fullmatch(r"([\d.e+-]+) ?(\S+)", tree).groups()  # type: ignore[union-attr]
    return f"{float(number) * factors[kind]!r} {unit}"


def _sms(machine: Machine, factor: float) -> int:
    count = machine.device.spec.sms
    return max(round(count * factor), 1) if factor > 1 else min(round(count * factor), count - 1) or 1


def _ratio(knob: Knob, machine: Machine, change: float) -> float:
    """Return by how much the logarithm of a knob differs between both runs."""
    if knob.name == "device.sms":
        return math.log(_sms(machine, 1 + change) / _sms(machine, 1 - change))
    return math.log((1 + change) / (1 - change))
