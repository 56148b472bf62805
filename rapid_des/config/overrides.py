"""`--set key.path=value`: changes to a document's tree, before the checks that the file itself passes."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from rapid_des.config.documents import Document, parse_text
from rapid_des.errors import ConfigError

_FACTOR = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,40})?|\.[0-9]{1,40})x\Z")
_ITEM = re.compile(r"[0-9]{1,9}\Z")
_QUANTITY = re.compile(r"\s*([0-9._]+(?:[eE][+-]?[0-9]{1,3})?)\s*([^0-9].*)\Z", re.DOTALL)


Settings: TypeAlias = Mapping[str, Any] | Iterable[tuple[str, str]]
"""Key paths and what is set there: Python values, or the YAML text of `--set`."""


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


_FILES = re.compile(r"machine\.(?:device|fabric\.[0-9]+\.file)|job\.model|device\.operators")
"""Settings that name a file."""
_LEARNED = "learned:"


def apply_overrides(
    document: Document, settings: Iterable[tuple[str, str]], *, root: str = "", folder: Path = Path()
) -> Document:
    """Return the document with each (key path, YAML text) set, in order.

    Keys are joined by dots and list items are numbers (`fabric.0.bandwidth`). A value such as `0.73x`
    multiplies the number or quantity that stands there. Missing mappings on the way are made; whether
    the key is known is for the spec to say. A file that is named is looked for in `folder` first; `root` is
    what `--set` has before the keys.
    """
    tree = copy.deepcopy(document.tree)
    settings, prefix = tuple(settings), f"{root}." if root else ""
    for key, text in settings:
        steps = key.split(".")
        holder: Any = tree
        for step in steps[:-1]:
            holder = _enter(holder, step, key)
        value = parse_text(text, Path(f"--set {prefix}{key}"))
        if isinstance(value, str) and _FILES.fullmatch(f"{prefix}{key}"):
            value = _located(value, folder)
        _assign(holder, steps[-1], value, key)
    stated = ((f"--set {prefix}{key}={text}", key) for key, text in settings)
    return Document(document.path, tree, (*document.settings, *stated))


def _located(reference: str, folder: Path) -> str:
    """Return the absolute path of a file if it is in a folder, else the reference as it is written."""
    scheme = _LEARNED if reference.startswith(_LEARNED) else ""
    written = folder / reference.removeprefix(scheme)
    with suppress(OSError, ValueError):
        for path in (written, written.with_name(f"{written.name}.yaml")):
            if path.is_file():
                return scheme + str(path.absolute())
    return reference


@contextmanager
def settings_named(document: Document) -> Iterator[None]:
    """Have errors about what was set over a file name the setting instead of the file."""
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
    """Tell whether an error is about what stands at some steps, or about a key that they brought."""
    place = re.findall(r"[^.\[\]]+", error.key)
    if place == steps[: len(place)] and len(place) < len(steps):
        return f"unknown key {steps[len(place)]!r}" in error.message
    return place[: len(steps)] == steps


def _enter(holder: Any, step: str, key: str) -> Any:
    if isinstance(holder, dict):
        if not isinstance(holder.get(step), dict | list):
            holder[step] = {}
        return holder[step]
    return holder[_index(holder, step, key)]


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
        value = _scaled(present, float(factor[1]), key)
    holder[index] = value


def _scaled(present: object, factor: float, key: str) -> object:
    if isinstance(present, bool) or present is None:
        raise ConfigError(f"there is no number to multiply, the file has {present!r}", file="--set", key=key)
    if isinstance(present, int | float):
        scaled = present * factor
        return int(scaled) if isinstance(present, int) and scaled == int(scaled) else scaled
    match = _QUANTITY.match(present) if isinstance(present, str) else None
    if match is None:
        raise ConfigError(f"{present!r} is no number to multiply", file="--set", key=key)
    return f"{float(match[1].replace('_', '')) * factor:.12g} {match[2]}"
