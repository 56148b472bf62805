"""A study file: a job, a machine, axes, and the points: combinations of axes that meet the conditions."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from rapid_des.config import Document, Spec, apply_overrides, decode
from rapid_des.config.documents import load_document
from rapid_des.config.specs import resolve
from rapid_des.errors import ConfigError
from rapid_des.frontend.spec import ParallelismSpec
from rapid_des.report.run_figures import RUN_FIGURES
from rapid_des.report.tables import Table, columns, html
from rapid_des.runs.asked import AskedRun
from rapid_des.runs.loading import load_reliability
from rapid_des.studies.axes import Axis, AxisValue, Reader
from rapid_des.studies.expressions import Expression
from rapid_des.studies.points import FIGURES, Point
from rapid_des.values import replace

Mode = Literal["flattened", "hierarchical", "hybrid", "analytical"]
RESERVED = ("id", "repeat")


class StudySpec(Spec, frozen=True, kw_only=True):
    """The file format of a study."""

    job: str | dict[str, Any]
    """The job file or preset, or what such a file holds; paths start from the study file's folder."""
    on: str | dict[str, Any]
    """The machine file or preset, or what such a file holds."""
    axes: dict[str, Any]
    """The keys that vary and their values. A key is as after --set, a short form (`tp` and other degrees), or
    job, machine, device, model, software, mode, faults. Values are a list, a range {from, to, step | factor |
    count} or {name: value}. Keys separated by commas vary together, row by row; any other name takes
    {name: {key: value}}."""
    where: str | tuple[str, ...] = ()
    """The conditions that combinations must meet, on columns and the job's split: tp*cp*pp*dp == 64."""
    derive: dict[str, str] = {}
    """The keys whose values follow from the combination, as in job.parallelism.sequence_parallel: tp > 1."""
    set: dict[str, Any] = {}
    """The settings of every point: keys as after --set."""
    faults: str | tuple[str, ...] = ()
    """The faults of every point, as --fault takes them."""
    mode: Mode = "flattened"
    """The mode of simulation."""
    engine: Literal["auto", "simpy", "compiled"] = "auto"
    """The engine that runs the simulations."""
    strict: bool = False
    """Whether modes that ignore waiting on shared links are refused."""
    allow_oom: bool = False
    """Whether jobs that do not fit into memory are simulated too."""
    repeat: Annotated[int, Meta(ge=1, le=100_000)] = 1
    """The number of runs of every combination; each run adds one to the seeds of all its faults."""
    objective: str = "step_time_s"
    """The figure by which points are ranked."""
    compare: str = ""
    """The axis whose values are compared: for each, its best point and how much better it is than the first
    value's. Empty: none."""
    reliability: str | dict[str, Any] | None = None
    """The reliability file or preset, or what such a file holds: adds the figures goodput and tokens_per_day,
    of runs in which parts of the machine fail."""
    days: Annotated[float, Meta(gt=0, le=36_500)] = 54
    """The length of such a run in days."""


@dataclass(frozen=True)
class Case:
    """One point of a study: its number from 1, the labels of its columns, and its simulation."""

    id: int
    labels: Mapping[str, Any] = field(hash=False)
    point: Point


@dataclass(frozen=True)
class Study:
    """A study that has been read and checked, but not simulated.

    >>> axes = {"tp": [1, 2, 4, 8], "dp": [1, 2]}
    >>> stated = {"job": "llama2_7b_train", "on": "dgx_a100", "axes": axes, "where": "tp * dp * pp == 8"}
    >>> [case.labels for case in load_study(stated).cases()]
    [{'tp': 2, 'dp': 2}, {'tp': 4, 'dp': 1}]
    """

    name: str
    spec: StudySpec
    job: Document
    machine: Document
    axes: tuple[Axis, ...]
    constant: AxisValue
    """The settings and faults of every point."""
    where: tuple[Expression, ...]
    derived: Mapping[str, Expression] = field(hash=False)
    base: Mapping[str, Any] = field(hash=False)
    """The job's own parallelism, for conditions."""
    reader: Reader
    run: AskedRun | None = None
    """The run with failures that is asked of every point."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose values identify a point."""
        names = tuple(name for axis in self.axes for name in axis.names)
        return (*names, "repeat") if self.spec.repeat > 1 else names

    def _repr_html_(self) -> str:
        """Return the axes for a notebook."""
        rows = [{"axis": ", ".join(axis.names), "values": len(axis.choices)} for axis in self.axes]
        return html([self.name, Table("", columns("axis", "values"), rows)])

    def count(self) -> int:
        """Return the number of points."""
        return sum(self.tallied())

    def tallied(self) -> Iterator[int]:
        """Yield numbers that add up to the number of points: one for each combination, 0 if it is excluded.

        A caller can so count millions beside other work; axes behind the last condition are multiplied.
        """
        last = max((depth for depth, conditions in enumerate(self._conditions) if conditions), default=0)
        each = self.spec.repeat * prod(len(axis.choices) for axis in self.axes[last:])
        return self._tallied(0, last, dict(self.base), each)

    def _tallied(self, depth: int, last: int, values: dict[str, Any], each: int) -> Iterator[int]:
        """Count over the axes from a depth on; `values` of later axes are stale and not read."""
        if not all(condition(values) for condition in self._conditions[depth]):
            yield 0
        elif depth == last:
            yield each
        else:
            for choice in self.axes[depth].choices:
                values.update(choice.labels)
                yield from self._tallied(depth + 1, last, values, each)

    def cases(self) -> Iterator[Case]:
        """Yield every combination that meets the conditions; the last axis varies fastest."""
        numbers = iter(range(1, 1 << 62))
        for choice in self._combined(0, AxisValue()):
            whole = self._point(choice)
            for repetition in range(self.spec.repeat):
                labels = {**choice.labels, "repeat": repetition} if self.spec.repeat > 1 else choice.labels
                yield Case(next(numbers), labels, _moved(whole, repetition))

    def _combined(self, depth: int, chosen: AxisValue) -> Iterator[AxisValue]:
        """Yield choices of all axes from a depth on; conditions are checked once their names have values."""
        values = {**self.base, **chosen.labels}
        if not all(condition(values) for condition in self._conditions[depth]):
            return
        if depth == len(self.axes):
            yield chosen
            return
        for choice in self.axes[depth].choices:
            yield from self._combined(depth + 1, chosen | choice)

    @cached_property
    def _conditions(self) -> list[list[Expression]]:
        """The conditions that can be checked after each number of chosen axes."""
        asked: list[list[Expression]] = [[] for _ in range(len(self.axes) + 1)]
        depth_of = {name: depth for depth, axis in enumerate(self.axes, 1) for name in axis.names}
        for condition in self.where:
            asked[max((depth_of.get(name, 0) for name in condition.names), default=0)].append(condition)
        return asked

    def _point(self, choice: AxisValue) -> Point:
        values = {**self.base, **choice.labels}
        whole = self.constant | choice
        for key, expression in self.derived.items():
            whole |= self.reader.change(key, expression(values), f"derive.{key}")
        return Point(
            job=whole.documents.get("job", self.job),
            machine=whole.documents.get("machine", self.machine),
            settings=whole.settings,
            faults=whole.faults,
            mode=whole.mode or self.spec.mode,
            engine=self.spec.engine,
            strict=self.spec.strict,
            allow_oom=self.spec.allow_oom,
            run=self.run,
        )


def load_study(
    reference: str | Path | Mapping[str, Any] | Study,
    *,
    folder: Path | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Study:
    """Return the checked study of a file, or of a mapping with the content of a file.

    A mapping's references start from `folder` (default: the working directory). `changes` are keys of the
    file with other values. A `ConfigError` names the file, the key, the value and what is allowed.

    >>> load_study("splits_64").columns
    ('tp', 'cp', 'pp', 'dp')
    """
    if isinstance(reference, Study):
        return reference
    document = _opened(reference, folder or Path())
    document = structs.replace(document, tree={**document.tree, **(changes or {})})
    spec = decode(document, StudySpec)
    file, home = str(document.path), document.folder
    reader = Reader(file, home)
    job, machine = reader.document(spec.job, "job", "job"), reader.document(spec.on, "machine", "on")
    axes = reader.axes(spec.axes)
    reader.require_used(spec.set, axes)
    constant = reader.settings(spec.set, "set")
    constant |= AxisValue(faults=tuple(reader.faults(list(_texts(spec.faults)), "faults")))
    study = Study(
        name=document.path.stem,
        spec=spec,
        job=job,
        machine=machine,
        axes=axes,
        constant=constant,
        where=(),
        derived={},
        base=_parallelism(job, constant),
        reader=reader,
        run=_run(spec, reader),
    )
    _check(study)
    return _with_conditions(study)


def _run(spec: StudySpec, reader: Reader) -> AskedRun | None:
    if spec.reliability is None:
        return None
    document = reader.document(spec.reliability, "reliability", "reliability")
    return AskedRun(load_reliability(document), spec.days)


def _with_conditions(study: Study) -> Study:
    spec, file = study.spec, study.reader.file
    fixed = () if "job" in study.columns else tuple(study.base)
    known = tuple(dict.fromkeys((*study.columns, *fixed)))

    def parsed(text: str, key: str) -> Expression:
        return Expression.parse(text, known=known, file=file, key=key)

    where = tuple(parsed(text, f"where[{n}]") for n, text in enumerate(_texts(spec.where)))
    derived = {key: parsed(text, f"derive.{key}") for key, text in spec.derive.items()}
    study = replace(study, where=where, derived=derived)
    if next(study.cases(), None) is None:
        raise ConfigError("no combination of the axes meets all conditions", file=file, key="where")
    return study


def _check(study: Study) -> None:
    """Raise for names and keys of a study that cannot be meant."""
    file, reserved = study.reader.file, {*FIGURES, *RESERVED}
    for name in (name for axis in study.axes for name in axis.names):
        if name in reserved:
            raise ConfigError(f"{name!r} is a column of every result; choose another", file=file, key="axes")
    if not FIGURES.get(study.spec.objective):
        ranked = [name for name, better in FIGURES.items() if better]
        near = difflib.get_close_matches(study.spec.objective, ranked, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        problem = f"{study.spec.objective!r} ranks nothing; {hint}allowed: {', '.join(ranked)}"
        raise ConfigError(problem, file=file, key="objective")
    if study.spec.compare and study.spec.compare not in study.columns:
        allowed = ", ".join(study.columns)
        raise ConfigError(f"{study.spec.compare!r} is no axis; allowed: {allowed}", file=file, key="compare")
    if study.spec.objective in RUN_FIGURES and study.run is None:
        problem = (
            f"{study.spec.objective!r} is of a run with failures; allowed with the key reliability alone"
        )
        raise ConfigError(problem, file=file, key="objective")
    faults = [
        *study.constant.faults,
        *(f for axis in study.axes for choice in axis.choices for f in choice.faults),
    ]
    if study.spec.repeat > 1 and all(fault.seed is None for fault in faults):
        raise ConfigError("nothing here is drawn: no fault of the study has a seed", file=file, key="repeat")


def _parallelism(job: Document, constant: AxisValue) -> dict[str, Any]:
    """Return the parallelism of a job file, with the settings of every point."""
    settings = [(key.removeprefix("job."), text) for key, text in constant.settings if key.startswith(_OWN)]
    tree = apply_overrides(job, settings).tree.get("parallelism", {})
    return structs.asdict(decode(Document(job.path, tree), ParallelismSpec))


_OWN = "job.parallelism."


def _moved(point: Point, repetition: int) -> Point:
    """Return a point with the number of the repetition added to the seeds of its faults."""
    if not repetition:
        return point
    faults = (f if f.seed is None else structs.replace(f, seed=f.seed + repetition) for f in point.faults)
    return replace(point, faults=tuple(faults))


def _opened(reference: str | Path | Mapping[str, Any], folder: Path) -> Document:
    if isinstance(reference, Mapping):
        return Document(folder / "study", dict(reference))
    return load_document(resolve(str(reference), "study", folder=folder))


def _texts(stated: str | tuple[str, ...]) -> tuple[str, ...]:
    return (stated,) if isinstance(stated, str) else stated
