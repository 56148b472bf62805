"""The check of importers: each key has an effect, is refused by name, or is ignored with a reason."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct

from rapid_des.errors import InputError
from rapid_des.extensions import IMPORTERS, find
from rapid_des.importers import Importer
from rapid_des.importers.keys import Ignored

Steps: TypeAlias = tuple[str | int, ...]
UNKNOWN = "nobody-knows-this"


class ReadFile(Struct, frozen=True):
    """What an importer makes of a file: something to compare, and the keys that it ignored."""

    result: object
    ignored: tuple[Ignored, ...]


Import: TypeAlias = Callable[[Any], ReadFile]


def check_importer(name: str, tree: Mapping[str, Any], *, file: str = "config.json", **options: Any) -> None:
    """Check `rapid-des import NAME` on a JSON file that holds `tree`, with the options of the command.

    The file is recognised, a second reading gives equal files, and each of its keys, changed or renamed,
    changes them, is refused by its name, or stands among the ignored ones with a reason.
    """
    importer = find(IMPORTERS, name, Importer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file

        def importing(changed: Any) -> ReadFile:
            path.write_text(json.dumps(changed), encoding="utf-8")
            read = importer.load(path, ignore=(), **options)
            return ReadFile(dict(read.files("checked")), tuple(read.ignored))

        first = importing(tree)
        assert importer.match(path), f"{file} is not recognised"
        assert importing(tree).result == first.result, "a second reading gives other files"
        found = silent(tree, importing)
    assert not found, "; ".join(found)


def leaves(tree: Any, path: Steps = ()) -> Iterator[tuple[Steps, Any]]:
    """Yield path and value of everything in a tree that is no mapping, nor a list that holds mappings."""
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif isinstance(tree, list) and tree and isinstance(tree[0], Mapping):
        for number, value in enumerate(tree):
            yield from leaves(value, (*path, number))
    elif path:
        yield path, tree


def others(value: Any) -> list[Any]:
    """Return values of the same kind that are not this one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2 if value else 1, value + 1, max(value // 2, 1) if value != 1 else 4]
    if isinstance(value, float):
        return [value * 2 if value else 0.5, value / 2 if value else 1.0]
    if isinstance(value, list):
        return [value[:-1], value[1:]]
    number, _, unit = value.partition(" ") if isinstance(value, str) else ("", "", "")
    if unit and number.isdigit():
        return [f"{int(number) * 2} {unit}", f"{int(number) + 1} {unit}"]
    return ["fp32", "fp16", "something_else"] if isinstance(value, str) else []


def changed(tree: Any, path: Steps, value: Any) -> Any:
    """Return a tree with another value at a path."""
    tree = copy.deepcopy(tree)
    _holder(tree, path)[path[-1]] = value
    return tree


def renamed(tree: Any, path: Steps) -> Any:
    """Return a tree in which the key at a path has a name that nobody knows."""
    tree = copy.deepcopy(tree)
    holder = _holder(tree, path)
    holder[UNKNOWN] = holder.pop(path[-1])
    return tree


def _holder(tree: Any, path: Steps) -> Any:
    for step in path[:-1]:
        tree = tree[step]
    return tree


def silent(tree: Any, importing: Import) -> list[str]:
    """Return what has no effect and is not named: idle changes, and unknown keys that are taken."""
    before = importing(tree)
    return [
        problem
        for path, value in leaves(tree)
        for problem in (*_idle(tree, path, value, importing, before), *_taken(tree, path, value, importing))
    ]


def _idle(tree: Any, path: Steps, value: Any, importing: Import, before: ReadFile) -> Iterator[str]:
    """Yield the changes of a key that change nothing, unless the key is ignored with a reason."""
    name = ".".join(map(str, path))
    named = any(each.key == name or each.key.startswith(f"{name}.") for each in before.ignored)
    for other in others(value):
        after = before if other == value else _outcome(changed(tree, path, other), importing)
        if other == value or isinstance(after, str) or after.result != before.result:
            continue
        if not (named or any(each.key == name for each in after.ignored)):
            yield f"{name}: {value!r} -> {other!r} changes nothing"


def _taken(tree: Any, path: Steps, value: Any, importing: Import) -> Iterator[str]:
    """Yield a key that can have an unknown name without being refused or ignored."""
    if not isinstance(path[-1], str) or value is None:
        return
    after = _outcome(renamed(tree, path), importing)
    strange = ".".join((*map(str, path[:-1]), UNKNOWN))
    if isinstance(after, str):
        named = UNKNOWN in after or path[-1] in after
    else:
        named = any(each.key == strange and each.reason for each in after.ignored)
    if not named:
        yield f"{'.'.join(map(str, path))}: an unknown name instead of it is not refused by name"


def _outcome(tree: Any, importing: Import) -> ReadFile | str:
    """Return what came of a tree, or what its refusal says."""
    try:
        return importing(tree)
    except InputError as error:
        return str(error)
