"""The axes of a study file: each key and its values become choices that are combined with other axes."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from typing import Any

from msgspec import Struct

from rapid_des.config import Document, Spec, open_document, resolve
from rapid_des.config.specs import Kind, check_setting
from rapid_des.device.spec import DeviceSpec
from rapid_des.errors import ConfigError
from rapid_des.frontend import JobSpec
from rapid_des.frontend.model_spec import ModelSpec
from rapid_des.frontend.spec import ParallelismSpec
from rapid_des.machine import MachineSpec
from rapid_des.network.faults import Fault, parse_fault
from rapid_des.simulation import MODES

PARALLELISM = tuple(ParallelismSpec.__struct_fields__)
"""Keys that need no path: `tp` is job.parallelism.tp."""
_FILES: Mapping[str, tuple[str, Kind]] = {
    "device": ("machine.device", "device"),
    "software": ("job.software", "software"),
    "model": ("job.model", "model"),
}
"""Short names of keys that name a file."""
_WHOLE: Mapping[str, Kind] = {"job": "job", "machine": "machine"}
_SPECS: Mapping[str, type[Spec]] = {"job": JobSpec, "machine": MachineSpec, "device": DeviceSpec}
_RANGE = frozenset(("from", "to", "step", "factor", "count"))
_QUANTITY = re.compile(r"([0-9.]+)(\s*[A-Za-z].*)\Z")
_FACTOR = re.compile(r"[0-9.]+x\Z")
_MOST = 10_000
"""The largest number of values of one axis."""

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class AxisValue:
    """One value of an axis, or values that belong together: the labels of its columns, and its changes."""

    labels: Mapping[str, Any] = field(default_factory=dict, hash=False)
    settings: Pairs = ()
    """Pairs of a key path from the root and a YAML text."""
    documents: Mapping[str, Document] = field(default_factory=dict, hash=False)
    """The documents that replace the study's `job` or `machine`."""
    faults: tuple[Fault, ...] = ()
    mode: str | None = None

    def __or__(self, other: AxisValue) -> AxisValue:
        return AxisValue(
            {**self.labels, **other.labels},
            (*self.settings, *other.settings),
            {**self.documents, **other.documents},
            (*self.faults, *other.faults),
            other.mode or self.mode,
        )


class Axis(Struct, frozen=True):
    """Keys that vary together: the names of their columns, and the choices."""

    names: tuple[str, ...]
    choices: tuple[AxisValue, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """All that its choices change, each once: key paths from the root, `job`, `machine`, `mode`."""
        each = (
            (*(key for key, _ in choice.settings), *choice.documents, *(["mode"] if choice.mode else ()))
            for choice in self.choices
        )
        return tuple(dict.fromkeys(key for keys in each for key in keys))


class Reader(Struct, frozen=True):
    """Reads the axes of a study file; errors name the file and the key."""

    file: str
    folder: Path

    def axes(self, stated: Mapping[str, Any]) -> tuple[Axis, ...]:
        """Return the axes that a file states, in its order."""
        parts = [part for key in stated for part in _parts_of(key)]
        names = column_names(parts)
        if "" in parts:
            raise self._wrong("axes", "an axis without a name")
        axes = tuple(self._axis(key, value, names) for key, value in stated.items())
        columns = [name for axis in axes for name in axis.names]
        changed = [key for axis in axes for key in axis.keys]
        for varied in (parts, columns, changed):
            twice = next((name for name in varied if varied.count(name) > 1), None)
            if twice is not None:
                raise self._wrong("axes", f"{twice!r} is varied twice")
        for first, second in combinations(axes, 2):
            for key, part in product(second.keys, first.keys):
                if part.startswith(f"{key}."):
                    raise self._wrong("axes", f"{key!r} replaces what {part!r} varies: state it before that")
        return axes

    def require_used(self, stated: Mapping[str, Any], axes: Iterable[Axis]) -> None:
        """Raise for settings that every value of an axis replaces: they would change nothing."""
        for key in stated:
            path = _full(key)
            for axis in axes:
                if all(path in dict(choice.settings) for choice in axis.choices):
                    raise self._wrong(f"set.{key}", f"the axis {', '.join(axis.names)} varies it")

    def settings(self, stated: Mapping[str, Any], place: str) -> AxisValue:
        """Return the changes that a mapping of keys to values makes, without labels."""
        changes = AxisValue()
        for key, value in stated.items():
            changes |= self.change(key, value, f"{place}.{key}")
        return changes

    def _axis(self, key: str, value: Any, names: Mapping[str, str]) -> Axis:
        place, parts = f"axes.{key}", _parts_of(key)
        if isinstance(value, dict) and not value.keys() <= _RANGE:
            choices = self._named(key, value, place)
        else:
            choices = [self._row(parts, row, names, place) for row in self._values(value, place)]
        if not choices:
            raise self._wrong(place, "an axis needs values, here are none")
        labels = [tuple(map(str, choice.labels.values())) for choice in choices]
        twice = next((label for label, count in Counter(labels).items() if count > 1), None)
        if len(labels) > _MOST:
            twice = ()
        if twice is not None:
            problem = f"{', '.join(twice)} stands twice" if twice else f"more than {_MOST} values"
            raise self._wrong(place, problem)
        return Axis(tuple(choices[0].labels), tuple(choices))

    def _row(self, parts: Sequence[str], row: Any, names: Mapping[str, str], place: str) -> AxisValue:
        """Return the choice of one value, or of a list with one for each of several keys."""
        values = row if len(parts) > 1 else [row]
        if not isinstance(values, list) or len(values) != len(parts):
            allowed = f"a list of {len(parts)}, one for each of {', '.join(parts)}"
            raise self._wrong(place, f"{row!r}; allowed: {allowed}")
        choice = AxisValue({names[part]: _label(value) for part, value in zip(parts, values, strict=True)})
        for part, value in zip(parts, values, strict=True):
            choice |= self.change(part, value, place)
        return choice

    def _named(self, key: str, stated: Mapping[str, Any], place: str) -> list[AxisValue]:
        """Return choices that have names: values of a known key, or settings that belong together."""
        bundles = not _is_key(key)
        if bundles and not all(isinstance(value, dict) for value in stated.values()):
            self._check_key(key, place)
            raise self._wrong(place, "each name stands for a mapping of keys and values, {} for none")
        name = key.rpartition(".")[2]
        return [
            AxisValue({name: label})
            | (self.settings(value, f"{place}.{label}") if bundles else self.change(key, value, place))
            for label, value in stated.items()
        ]

    def _values(self, value: Any, place: str) -> list[Any]:
        if isinstance(value, list):
            return value
        if not isinstance(value, dict):
            raise self._wrong(
                place, f"{value!r}; allowed: a list, {{from, to, step | factor | count}}, or names"
            )
        try:
            return list(_range(value))
        except ValueError as error:
            raise self._wrong(place, str(error)) from None

    def change(self, key: str, value: Any, place: str) -> AxisValue:
        """Return the changes that one value of a key makes."""
        if key in _WHOLE:
            source = value if isinstance(value, dict) else str(value)
            return AxisValue(documents={key: self.document(source, _WHOLE[key], place)})
        if key == "faults":
            return AxisValue(faults=tuple(self.faults(value, place)))
        if key == "mode":
            if value not in MODES:
                raise self._wrong(place, f"{value!r} is not one of {', '.join(MODES)}")
            return AxisValue(mode=value)
        if key in _FILES and isinstance(value, str):
            path, kind = _FILES[key]
            return AxisValue(settings=((path, self._located(value, kind, place)),))
        path = _full(key)
        self._check_key(path, place)
        if not (isinstance(value, str) and _FACTOR.match(value)):
            self._check(path, value, place)
        return AxisValue(settings=((path, value if isinstance(value, str) else json.dumps(value)),))

    def faults(self, stated: Any, place: str) -> Iterator[Fault]:
        """Yield the faults of a text, of a list of texts, or none of `none`."""
        for text in stated if isinstance(stated, list) else [stated]:
            if text in (None, "none"):
                continue
            try:
                yield parse_fault(str(text))
            except ConfigError as error:
                raise self._wrong(place, str(error)) from None

    def document(self, source: str | dict[str, Any], kind: Kind, place: str) -> Document:
        """Return the job or the machine that a value stands for; errors inside one name its own file."""
        try:
            return open_document(source, kind, folder=self.folder)
        except ConfigError as error:
            if error.file:
                raise
            raise self._wrong(place, error.message) from None

    def _located(self, reference: str, kind: Kind, place: str) -> str:
        try:
            return str(resolve(reference, kind, folder=self.folder).absolute())
        except ConfigError as error:
            raise self._wrong(place, error.message) from None

    def _check_key(self, key: str, place: str) -> None:
        root = key.partition(".")[0]
        if root not in _SPECS or root == key:
            known = ", ".join(
                (*(f"{spec}.KEY" for spec in _SPECS), *_FILES, *_WHOLE, "faults", "mode", *PARALLELISM)
            )
            raise self._wrong(
                place, f"no key {key!r} to vary; allowed: {known}, or a name for {{name: {{key: value}}}}"
            )
        self._check(key, None, place)

    def _check(self, key: str, value: Any, place: str) -> None:
        root, _, rest = key.partition(".")
        of_model = key.startswith("job.model.")
        try:
            check_setting(ModelSpec if of_model else _SPECS[root], rest.removeprefix("model."), value)
        except ConfigError as error:
            raise self._wrong(place, error.message) from None

    def _wrong(self, place: str, problem: str) -> ConfigError:
        return ConfigError(problem, file=self.file, key=place)


def column_names(keys: Sequence[str], reserved: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return a column's name for each key: its last part if that is unique, else the whole key.

    >>> list(column_names(["tp", "job.training.micro_batch", "fabric.0.size", "fabric.1.size"]).values())
    ['tp', 'micro_batch', 'fabric.0.size', 'fabric.1.size']
    """
    last = [key.rpartition(".")[2] for key in keys]
    named = zip(keys, last, strict=True)
    plain = {key for key, name in named if last.count(name) == 1 and name not in reserved}
    return {key: name if key in plain else key for key, name in zip(keys, last, strict=True)}


def _parts_of(key: str) -> list[str]:
    return [part.strip() for part in key.split(",")]


def _full(key: str) -> str:
    return f"job.parallelism.{key}" if key in PARALLELISM else _FILES[key][0] if key in _FILES else key


def _is_key(key: str) -> bool:
    return key in (*_WHOLE, *_FILES, *PARALLELISM, "faults", "mode") or key.partition(".")[0] in _SPECS


def _label(value: Any) -> Any:
    """Return the label of a value in a column: numbers and text as they are, the rest as JSON."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "; ".join(value) or "none"
    return value if isinstance(value, str | int | float | bool) else json.dumps(value)


def _range(stated: Mapping[str, Any]) -> Iterator[int | float | str]:
    """Yield the values of {from, to} by a step or a factor, or `count` values at equal distances; ends count.

    >>> list(_range({"from": 1, "to": 16, "factor": 2})), list(_range({"from": 0, "to": 1, "count": 3}))
    ([1, 2, 4, 8, 16], [0, 0.5, 1])
    >>> list(_range({"from": "25 GB/s", "to": "100 GB/s", "factor": 2}))
    ['25 GB/s', '50 GB/s', '100 GB/s']
    """
    stepped = [step_kind for step_kind in ("step", "factor", "count") if step_kind in stated]
    if len(stepped) != 1 or not {"from", "to"} <= stated.keys():
        raise ValueError("a range is {from, to} and one of step, factor and count")
    (first, unit), (last, other) = _number(stated["from"]), _number(stated["to"])
    step_kind, by = stepped[0], stated[stepped[0]]
    if unit != other or last < first or not isinstance(by, int | float) or isinstance(by, bool):
        raise ValueError("a range goes up from one number to another with the same unit")
    if by <= (step_kind == "factor") or (step_kind == "factor" and first <= 0):
        least = int(step_kind == "factor")
        raise ValueError(f"{step_kind} {by}; allowed: above {least}, and by factors a range begins above 0")
    for place in range(_MOST + 1):
        value = _placed(first, last, step_kind, by, place)
        if value > last or place == (by if step_kind == "count" else math.inf):
            return
        value = int(value) if value == int(value) else value
        yield f"{value:g}{unit}" if unit else value


def _placed(first: float, last: float, step_kind: str, by: float, place: int) -> float:
    """Return the value at a place of a range; NOTE: exact for whole numbers, rounded to 12 digits else."""
    if step_kind == "count":
        value = first + (last - first) * place / max(by - 1, 1)
    else:
        value = first + by * place if step_kind == "step" else first * by**place
    return value if isinstance(value, int) else float(f"{value:.12g}")


def _number(stated: Any) -> tuple[int | float, str]:
    if isinstance(stated, int | float) and not isinstance(stated, bool):
        return stated, ""
    match = _QUANTITY.match(stated) if isinstance(stated, str) else None
    if match is None:
        raise ValueError(f"{stated!r} is no number")
    return float(match[1]), match[2]
