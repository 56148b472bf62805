"""The keys of another tool's file, what becomes of each, and the checked job that is made of them.

A key is mapped, refused by name, or ignored.
An importer asks for keys one by one. What it asks for is mapped; `ignore` states why a key changes nothing
here; `finish` refuses what nobody has asked for. `Outcomes` collects what a user must know of all that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct, field

from rapid_des.config import to_yaml
from rapid_des.errors import ConfigError
from rapid_des.frontend.job import Job
from rapid_des.frontend.loading import load_job

T = TypeVar("T")
Tree = dict[str, Any]

AS_ASKED = "it was asked for (--ignore)"
MOST_COUNTED = 2**48
MOST_STATED = 1e30
_REQUIRED: Any = object()
MOST = 10**40
"""The largest absolute value: some files state 10**30 for no limit."""
MOST_LAYERS = 10_000
"""Largest number of layers, as in model files."""
COUNTS_OF_LAYERS = frozenset((
    "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "encoder-num-layers",
    "first_k_dense_replace", "full_attention_interval", "interleave_moe_layer_step", "max_window_layers",
    "mtp-num-layers", "n_layer", "n_layers", "no_rope_layer_interval", "num-layers",
    "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank", "num_decoder_layers",
    "num_hidden_layers", "num_layers", "num_nextn_predict_layers", "pipeline-model-parallel-size",
    "pipeline_parallel_degree", "recompute-num-layers", "sliding_window_pattern",
))  # fmt: skip


class Ignored(msgspec.Struct, frozen=True):
    """A key of the tool's file that has no effect here."""

    key: str
    """Path of the key in the file, joined by dots."""
    value: str
    """Its value as text; long values are cut."""
    reason: str
    """Why it has no effect: the text that follows `ignored, as`."""


class Outcomes(Struct):
    """The notes of an import: assumptions, and keys that have no effect."""

    notes: list[str] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    asked: frozenset[str] = frozenset()
    """Keys that the user asked to ignore, by their path or their last name."""

    def lines(self) -> tuple[str, ...]:
        """Return the notes, then the ignored keys by their reason."""
        return (*self.notes, *by_reason(self.ignored))


def by_reason(ignored: Iterable[Ignored]) -> Iterator[str]:
    """Yield one line for each reason, with the keys that it holds for.

    >>> list(by_reason([Ignored("seed", "1", "it seeds a draw"), Ignored("lr", "0.1", "it is a rate")]))
    ['ignored, as it seeds a draw: seed 1', 'ignored, as it is a rate: lr 0.1']
    """
    reasons: dict[str, list[str]] = {}
    for each in ignored:
        reasons.setdefault(each.reason, []).append(f"{each.key} {each.value}".rstrip())
    for reason, keys in reasons.items():
        yield f"ignored, as {reason}: {', '.join(keys)}"


def commented(lines: Iterable[str]) -> str:
    """Return lines as comments of YAML; whatever a file's keys hold, each stays one line of plain text."""
    plain = (" ".join(line.split()) for line in lines)
    return "".join(f"# {''.join(c if c.isprintable() else '?' for c in line)}\n" for line in plain)


class Keys(Struct):
    """A mapping of a file while an importer reads it; null counts as a missing key."""

    tree: Mapping[str, Any]
    file: str
    name: str = ""
    """The path of the mapping in its file, with a dot behind it."""
    outcomes: Outcomes = field(default_factory=Outcomes)
    _read: set[str] = field(default_factory=set)
    _inside: dict[str, Keys] = field(default_factory=dict)

    def __contains__(self, key: str) -> bool:
        return self.tree.get(key) is not None

    @property
    def notes(self) -> list[str]:
        """The notes of the import for the user."""
        return self.outcomes.notes

    def error(self, problem: str, key: str = "") -> ConfigError:
        """Return an error at a key, or at the mapping itself."""
        return ConfigError(" ".join(problem.split()), file=self.file, key=f"{self.name}{key}".rstrip("."))

    def missing(self, key: str) -> ConfigError:
        """Return the error of a key that must be there."""
        return ConfigError(f"the key {self.name + key!r} is missing", file=self.file)

    def value(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return what stands at a key, whatever it is; without a default it must be there."""
        self._read.add(key)
        value = self.tree.get(key)
        if value is None and default is _REQUIRED:
            raise self.missing(key)
        return default if value is None else value

    def get(self, key: str, kind: type[T], default: Any = _REQUIRED) -> T:
        """Return a value of a kind; without a default it must be there."""
        value = self.value(key, default)
        if key not in self:
            return value  # type: ignore[no-any-return]
        if kind is float and type(value) is int:
            return float(value)  # type: ignore[return-value]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
            raise self.error(f"{shortened(repr(value))} is no {kind.__name__}", key)
        if isinstance(value, float) and not abs(value) < MOST_STATED:
            raise self.error(f"{value} is no number that a file may state", key)
        return value

    def count(self, key: str, default: Any = _REQUIRED, *, least: int = 0, most: int = MOST_COUNTED) -> int:
        """Return a whole number from `least` to `most`; the default may be anything."""
        value = self.get(key, int, default)
        if key in self and value < least:
            raise self.error(f"{value} is below {least}", key)
        if key in self and value > most:
            raise self.error(f"{shortened(str(value))} is above {most}", key)
        return value

    def layers(self, key: str, total: int, default: Any = _REQUIRED) -> list[int]:
        """Return a list of layers, out of `total`."""
        layers = self.get(key, list, default)
        strange = [layer for layer in layers if type(layer) is not int or not 0 <= layer < total]
        if strange:
            raise self.error(f"{shortened(repr(strange[0]))} is no layer of {total}", key)
        return layers

    def nullable(self, key: str, default: float = 0) -> float:
        """Return a number, 0 for null; `default` holds where the key is not there at all."""
        return self.get(key, float, 0 if key in self.tree else default)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return yes or no; `default` is that of the tool's own code."""
        return self.get(key, bool, default)

    def choice(self, key: str, allowed: Mapping[Any, T], default: Any = _REQUIRED) -> T:
        """Return what a value stands for; another value is refused with those allowed."""
        value = self.value(key, None if None in allowed else default)
        for name, meaning in allowed.items():
            if name == value and isinstance(name, bool) == isinstance(value, bool):
                return meaning
        known = ", ".join(str(name) for name in allowed)
        raise self.error(f"{shortened(repr(value))} is not understood; allowed: {known}", key)

    def names(self, key: str, length: int) -> list[str] | None:
        """Return a list of one word a layer; None where there is none."""
        value = self.value(key, None)
        if value is not None and (not isinstance(value, list) or len(value) != length):
            raise self.error(f"must be a list of {length} layers", key)
        return value

    def section(self, key: str, *, optional: bool = False) -> Self:
        """Return the mapping under a key, an empty one where it may be left out."""
        inner = self.value(key, {} if optional else _REQUIRED)
        if not isinstance(inner, Mapping):
            raise self.error(f"{shortened(repr(inner))} is no mapping", key)
        return self.enter(inner, key)

    def enter(self, tree: Mapping[str, Any], key: str) -> Self:
        """Return the mapping at a path below this one, cached; `finish` checks it too."""
        inside = self._inside.setdefault(
            key, type(self)(tree, self.file, f"{self.name}{key}.", self.outcomes)
        )
        assert isinstance(inside, type(self))
        return inside

    def ignore(self, reason: str, *keys: str) -> None:
        """Record why unread keys have no effect here; a mapping counts with all its keys."""
        self.overrule(reason, *(key for key in keys if key not in self._read))

    def overrule(self, reason: str, *keys: str) -> None:
        """Record why keys have no effect in this file although an importer read them."""
        for key in keys:
            if key in self:
                self.outcomes.ignored += _leaves(f"{self.name}{key}", self.tree[key], reason)
            self._read.add(key)

    def ignore_known(self, reasons: Mapping[str, Iterable[str]]) -> None:
        """Ignore unread keys that are known to have no effect, here and in the sections."""
        for reason, names in reasons.items():
            self.ignore(reason, *(key for key in self.unread() if key in names))
        for inside in self._inside.values():
            inside.ignore_known(reasons)

    def unread(self) -> list[str]:
        """Return the keys that no importer read, sorted, without those that hold null."""
        return sorted(key for key in self.tree.keys() - self._read if self.tree[key] is not None)

    def finish(self) -> None:
        """Refuse keys that no importer read, here and in the sections, by name."""
        strange = dict(self.strange())
        asked = self.outcomes.asked
        for key in [key for key in strange if key in asked or key.rpartition(".")[2] in asked]:
            self.outcomes.ignored += _leaves(key, strange.pop(key), AS_ASKED)
        if strange:
            shown = ", ".join(f"{key} ({shortened(str(strange[key]))})" for key in sorted(strange))
            problem = f"not understood: {shortened(shown, 600)}; --ignore KEY leaves one out"
            raise ConfigError(problem, file=self.file)

    def strange(self) -> Iterator[tuple[str, Any]]:
        """Yield path and value of each unread key, here and in the sections."""
        yield from ((f"{self.name}{key}", self.tree[key]) for key in self.unread())
        for inside in self._inside.values():
            yield from inside.strange()


def _leaves(key: str, value: object, reason: str) -> Iterator[Ignored]:
    if isinstance(value, Mapping) and value:
        for name in value:
            yield from _leaves(f"{key}.{name}", value[name], reason)
    else:
        yield Ignored(key, shortened("" if value is True else str(value)), reason)


def shortened(text: str, most: int = 40) -> str:
    """Return the beginning of a long text."""
    return text if len(text) < most else text[: most - 4] + " …"


def bounded(tree: T, file: Path) -> T:
    """Return a file's tree; a `ConfigError` names a number in it that is out of bounds.

    Larger ones and such as are not finite may stand in lists, as in `time_step_limit: [0, Infinity]`.
    """
    waiting: list[tuple[str, object]] = [("", tree)]
    while waiting:
        place, part = waiting.pop()
        if isinstance(part, Mapping):
            for key, value in part.items():
                here = f"{place}.{key}".removeprefix(".")
                _check(str(key), value, file, here)
                waiting.append((here, value))
        elif isinstance(part, list):
            for value in part:
                _check("", value, file, place)
            waiting += ((place, value) for value in part if isinstance(value, list | Mapping))
    return tree


def _check(key: str, value: object, file: Path, place: str) -> None:
    most = MOST_LAYERS if key in COUNTS_OF_LAYERS else MOST
    if isinstance(value, int) and abs(value) > most:
        shown = str(value) if abs(value) <= MOST else "a number of more than 40 digits"
        raise ConfigError(f"{shown}; allowed: up to {most:,}", file=str(file), key=place[:200])
    if key and isinstance(value, float) and not abs(value) <= MOST:
        raise ConfigError(f"{value}; allowed: numbers up to 10**40", file=str(file), key=place[:200])


class ImportedJob(Struct, frozen=True):
    """A job and where it was imported from."""

    job: Job
    tree: Tree
    """What the job file says; what it leaves to the software's defaults is not in it."""
    source: str
    """The name of the tool and its file."""
    notes: tuple[str, ...]
    """What the imported file leaves open, and which assumptions fill it."""
    ignored: tuple[Ignored, ...]
    """The keys that change nothing, each with the reason."""

    @property
    def summary(self) -> str:
        """The job's GPUs and parameters."""
        return f"{self.job.gpus} GPUs, {self.job.model.parameters:,} parameters"

    def files(self, name: str) -> Mapping[str, str]:
        """Return the job file."""
        return {f"{name}.yaml": self.as_yaml()}

    def as_json(self) -> Tree:
        """Return the job, its GPUs and its parameters as plain data."""
        parameters = self.job.model.parameters
        return {"source": self.source, "gpus": self.job.gpus, "parameters": parameters, "job": self.tree}

    def as_yaml(self) -> str:
        """Return the text of a job file."""
        head = (f"from {self.source}", *self.notes, *by_reason(self.ignored))
        return commented(head) + to_yaml(self.tree)


def imported(tree: Tree, file: Path, tool: str, outcomes: Outcomes) -> ImportedJob:
    """Return the checked job; what does not fit together is named by the keys of a job file."""
    try:
        job = load_job(tree)
    except ConfigError as error:
        raise ConfigError(f"as a job file: {error.key}: {error.message}", file=str(file)) from None
    return ImportedJob(job, tree, f"{tool}, {file.name}", tuple(outcomes.notes), tuple(outcomes.ignored))


def replicas(gpus: int, degrees: Mapping[str, int], file: str) -> int:
    """Return how often `gpus` hold the product of `degrees`; a `ConfigError` names what does not divide."""
    product = 1
    for name, size in degrees.items():
        if size < 1:
            raise ConfigError(f"{name} {size} is below 1", file=file)
        product *= size
    if gpus % product:
        split = " · ".join(f"{name} {size}" for name, size in degrees.items())
        raise ConfigError(f"{gpus} GPUs do not divide by {split}", file=file)
    return gpus // product


def sparse(**values: object) -> Tree:
    """Return what is stated: values that are neither None nor an empty mapping."""
    return {key: value for key, value in values.items() if value is not None and value != {}}


def spread(layers: list[int], total: int) -> list[dict[str, int]]:
    """Return numbered layers as `start`, `stop` and `every` of exceptions.

    >>> spread([0, 1, 2], 9), spread([1, 3, 5], 6), spread([0, 4, 5], 6)
    ([{'stop': 3}], [{'start': 1, 'every': 2}], [{'stop': 1}, {'start': 4}])
    """
    steps = {after - before for before, after in zip(layers, layers[1:], strict=False)}
    if len(layers) > 1 and len(steps) == 1:
        return [_places(layers[0], layers[-1], steps.pop(), total)]
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [_places(run[0], run[-1], 1, total) for run in runs]


def _places(first: int, last: int, every: int, total: int) -> dict[str, int]:
    stop = {} if last + every >= total else {"stop": last + 1}
    return ({"start": first} if first else {}) | stop | ({"every": every} if every > 1 else {})
