"""Documents: files read into plain trees, and what `--set key.path=value` changes in them.

This is the untyped boundary, and what it refuses. Settings come before the checks that a file itself passes.
Tables in CSV files are read here too.
"""

from __future__ import annotations

import copy
import csv
import difflib
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct

from rapid_des.config.texts import Tree, parse_text
from rapid_des.errors import ConfigError, InputError
from rapid_des.inputs import read_input

Settings: TypeAlias = Mapping[str, Any] | Iterable[tuple[str, str]]
"""Settings over a file: key paths with Python values, or with the YAML text of `--set`."""


class Document(Struct, frozen=True):
    """A file's tree with the path that errors name and references are relative to."""

    path: Path
    tree: Tree
    settings: tuple[tuple[str, str], ...] = ()
    """The settings that were applied, as (the text as written, the key path in the tree); errors quote them.
    """

    def __hash__(self) -> int:
        return hash((self.path, self.settings))

    @property
    def folder(self) -> Path:
        """The folder that references inside this document start from."""
        return self.path.parent


def read_text(path: Path) -> str:
    """Return a text file's content; a missing, unreadable or too large one is a `ConfigError`."""
    content = read_input(path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 text (byte {error.start})"
        if content.startswith((b"\x1f\x8b", b"SQLite format 3")):
            problem = "is packed or a database, no text; `rapid-des profile show` and `replay` read profiles"
        raise ConfigError(problem, file=str(path)) from None


def count_rows(path: Path) -> tuple[tuple[int, ...], ...]:
    """Return the rows of a text file of counts, commas between them; a `ConfigError` names a line."""
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        entries = [entry.strip() for entry in line.split(",")]
        if not line.strip():
            continue
        wrong = [entry for entry in entries if not entry.isdecimal()]
        if wrong:
            raise ConfigError(f"{wrong[0]!r} is no count of 0 or more", file=str(path), key=f"line {number}")
        rows.append(tuple(map(int, entries)))
    return tuple(rows)


_CACHED = 1 << 16
"""The length of a text, in characters, up to which its tree is cached. Documents are never changed in place.
"""


@lru_cache(maxsize=256)
def _parsed(text: str, path: Path) -> object:
    """Return what a text holds; studies read the same few files again and again, 10 ms each."""
    return parse_text(text, path)


def load_document(path: Path) -> Document:
    """Read one file whose top level is a mapping."""
    text = read_text(path)
    tree = _parsed(text, path) if len(text) <= _CACHED else parse_text(text, path)
    if not isinstance(tree, dict):
        kind = "empty" if tree is None else f"a {type(tree).__name__}"
        raise ConfigError(f"the top level must be a mapping of keys, it is {kind}", file=str(path))
    return Document(path, tree)


_FACTOR = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,40})?|\.[0-9]{1,40})x\Z")
_ITEM = re.compile(r"[0-9]{1,9}\Z")
_QUANTITY = re.compile(
    r"\s*((?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([^0-9.].*)\Z", re.DOTALL
)

_FILES = re.compile(r"machine\.(?:device|fabric\.[0-9]+\.file)|job\.model|device\.operators")
"""The key paths whose values name a file."""
_SOURCE = re.compile(r"[A-Za-z0-9_-]{1,100}:(?=.)")
"""The name of what reads a file, before its path, as in `operators: learned:FILE`."""


def as_pairs(settings: Settings) -> list[tuple[str, str]]:
    """Return settings as (key path, YAML text) pairs; text in a mapping is what `--set` would be given.

    >>> as_pairs({"parallelism.tp": 8, "training.recompute": "full"})
    [('parallelism.tp', '8'), ('training.recompute', 'full')]
    """
    if not isinstance(settings, Mapping):
        return list(settings)
    return [(key, value if isinstance(value, str) else _text(key, value)) for key, value in settings.items()]


def _text(key: str, value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        problem = f"{type(value).__name__} is no value of a file"
        raise ConfigError(problem, file="settings", key=key) from None


def apply_overrides(
    document: Document, settings: Iterable[tuple[str, str]], *, root: str = "", folder: Path = Path()
) -> Document:
    """Return the document with each (key path, YAML text) set, in order.

    Keys are joined by dots and list items are numbers (`fabric.0.bandwidth`); keys that are there may have
    dots themselves (`constants.decode.trtllm-0.9.norm`). A value such as `0.73x`
    multiplies the present number or quantity. Missing mappings along the path are created; whether
    the key is known is for the spec to say. A file that is named is looked for in `folder` first; `root` is
    what `--set` has before the keys.
    """
    tree = copy.copy(document.tree)
    settings, prefix = tuple(settings), f"{root}." if root else ""
    for key, text in settings:
        steps = _steps(tree, key)
        holder: Any = tree
        for step in steps[:-1]:
            holder = _enter(holder, step, key)
        value = parse_text(text, Path(f"--set {prefix}{key}"))
        if isinstance(value, str) and _FILES.fullmatch(f"{prefix}{key}"):
            value = located(value, folder)
        _assign(holder, steps[-1], value, key)
    stated = ((f"--set {prefix}{key}={text}", key) for key, text in settings)
    return Document(document.path, tree, (*document.settings, *stated))


def _steps(tree: object, key: str) -> list[str]:
    """Return the keys that a path of keys joined by dots goes through, the shortest that are there."""
    steps, rest = list[str](), key.split(".")
    while rest:
        known = (".".join(rest[:n]) for n in range(1, len(rest) + 1)) if isinstance(tree, dict) else ()
        step = next((step for step in known if isinstance(tree, dict) and step in tree), rest[0])
        steps.append(step)
        rest = rest[step.count(".") + 1 :]
        tree = tree.get(step) if isinstance(tree, dict) else _item(tree, step)
    return steps


def _item(tree: object, step: str) -> object:
    there = isinstance(tree, list) and _ITEM.match(step) and int(step) < len(tree)
    return tree[int(step)] if there and isinstance(tree, list) else None


def located(reference: str, folder: Path) -> str:
    """Return the absolute path of a file if it is in a folder, else the reference as it is written."""
    source = _SOURCE.match(reference)
    scheme = source[0] if source else ""
    written = folder / reference.removeprefix(scheme)
    with suppress(OSError, ValueError):
        for path in (written, written.with_name(f"{written.name}.yaml")):
            if path.is_file():
                return scheme + str(path.absolute())
    return reference


@contextmanager
def settings_named(document: Document) -> Iterator[None]:
    """Make errors about a value that a setting replaced name the setting instead of the file."""
    try:
        yield
    except ConfigError as error:
        guilty = [
            written
            for written, key in document.settings
            if error.file == str(document.path) and _is_about(error, key.split("."))
        ]
        if not guilty:
            raise
        raise ConfigError(error.message, file=guilty[-1], key=error.key) from None


def _is_about(error: ConfigError, steps: list[str]) -> bool:
    """Return whether an error is about the value at some steps, or about a key that they introduced."""
    place = re.findall(r"[^.\[\]]+", error.key)
    if place == steps[: len(place)] and len(place) < len(steps):
        return f"unknown key {steps[len(place)]!r}" in error.message
    return place[: len(steps)] == steps


def _enter(holder: Any, step: str, key: str) -> Any:
    """Return a copy of what stands at a step, which takes its place; a mapping where there is none."""
    index: Any = step if isinstance(holder, dict) else _index(holder, step, key)
    if isinstance(holder, dict) and not isinstance(holder.get(step), dict | list):
        holder[index] = {}
    holder[index] = copy.copy(holder[index])
    return holder[index]


def _index(holder: object, step: str, key: str) -> int:
    if not isinstance(holder, list):
        raise ConfigError(f"nothing stands below {step!r}", file="--set", key=key)
    if not _ITEM.match(step) or int(step) >= len(holder):
        allowed = f"0 to {len(holder) - 1}"
        raise ConfigError(f"{step!r} is no item of this list; allowed: {allowed}", file="--set", key=key)
    return int(step)


def _assign(holder: Any, step: str, value: object, key: str) -> None:
    index: Any = step if isinstance(holder, dict) else _index(holder, step, key)
    factor = _FACTOR.match(value) if isinstance(value, str) else None
    if factor:
        present = holder.get(index) if isinstance(holder, dict) else holder[index]
        if present is None:
            near = difflib.get_close_matches(step, holder, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; state a value"
            raise ConfigError(f"the file states no {step!r} to multiply{hint}", file="--set", key=key)
        value = _scaled(present, float(factor[1]), key)
    holder[index] = value


def _scaled(present: object, factor: float, key: str) -> object:
    match = _QUANTITY.match(present) if isinstance(present, str) else None
    if match is None and (isinstance(present, bool) or not isinstance(present, int | float)):
        raise ConfigError(f"{present!r} is no number to multiply", file="--set", key=key)
    scaled = (float(match[1].replace("_", "")) if match else present) * factor  # type: ignore[operator]
    if not math.isfinite(scaled):
        raise ConfigError(f"{present!r} times {factor:g} is too large a number", file="--set", key=key)
    if match:
        return f"{scaled:.12g} {match[2]}"
    return int(scaled) if isinstance(present, int) and scaled == int(scaled) else scaled


def read_rows(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file, each by the names in its first line; `InputError` for a missing column.

    A cell that a line lacks is None, and cells beyond the first line's are below the key None.
    """
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    try:
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{path}: not valid CSV: {error}") from None
    if missing:
        raise InputError(f"{path}: no column {missing[0]!r}; needed: {', '.join(needed)}")
    if not rows:
        raise InputError(f"{path}: no rows in it")
    return rows


Change: TypeAlias = Callable[[Document, list[tuple[str, str]]], Document]
"""Sets (key path, text) pairs over a base's document."""


def with_base(
    document: Document,
    find: Callable[[str, Document], Path],
    change: Change = apply_overrides,
    *,
    settle: Callable[[Document], Document] = lambda document: document,
    seen: tuple[Path, ...] = (),
) -> Document:
    """Return a document with its chain of bases merged in; `find` says which file a base is.

    `settle` makes the references of each file independent of the folder that it stands in.

    Mappings are merged key by key, and lists are replaced. A key below a list is the number of its item, as
    in `fabric: {"1": {bandwidth: 45 GB/s}}`. A value such as `0.73x` multiplies what the base has.
    """
    document = settle(document)
    tree = dict(document.tree)
    base, seen = tree.pop("base", None), (*seen, document.path)
    if base is None:
        return document
    if not isinstance(base, str):
        raise ConfigError(
            f"{base!r}; allowed: the name of a file or preset", file=str(document.path), key="base"
        )
    path = find(base, document)
    if path in seen:
        chain = " -> ".join(str(step) for step in (*seen, path))
        raise ConfigError(
            f"the chain of bases runs in a circle: {chain}", file=str(document.path), key="base"
        )
    below = with_base(load_document(path), find, change, settle=settle, seen=seen)
    changed = change(Document(document.path, below.tree), list(_leaves(tree)))
    return Document(document.path, changed.tree)


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key path and the text of every value of a tree that is no mapping."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value)
