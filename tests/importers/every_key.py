"""Changes of one key of a file at a time, and what an importer must make of each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rapid_des.errors import InputError
from rapid_des.importers.keys import Ignored

Steps = tuple[str | int, ...]
UNKNOWN = "nobody-knows-this"


@dataclass(frozen=True)
class Outcome:
    """What came of a file: something to compare, and the keys that were ignored."""

    result: object
    ignored: tuple[Ignored, ...]


Import = Callable[[Any], Outcome]


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
    """Return what went by without a word: changes that changed nothing, and strange keys that were taken."""
    before, found = importing(tree), []
    for path, value in leaves(tree):
        name = ".".join(map(str, path))
        named = any(each.key == name or each.key.startswith(f"{name}.") for each in before.ignored)
        for other in others(value):
            if other == value:
                continue
            after = _outcome(changed(tree, path, other), importing)
            listed = isinstance(after, Outcome) and any(each.key == name for each in after.ignored)
            if isinstance(after, Outcome) and after.result == before.result and not (named or listed):
                found.append(f"{name}: {value!r} -> {other!r} changes nothing")
        if isinstance(path[-1], str) and value is not None:
            after = _outcome(renamed(tree, path), importing)
            strange = ".".join((*map(str, path[:-1]), UNKNOWN))
            if isinstance(after, str):
                told = UNKNOWN in after or str(path[-1]) in after
            else:
                told = any(each.key == strange and each.reason for each in after.ignored)
            if not told:
                found.append(
                    f"{name}: renamed, and nobody says so: {after if isinstance(after, str) else ''}"
                )
    return found


def _outcome(tree: Any, importing: Import) -> Outcome | str:
    """Return what came of a tree, or what its refusal says."""
    try:
        return importing(tree)
    except InputError as error:
        return str(error)
