"""Keys of InfraGraph files that change nothing here, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rapid_des.config import load_document

_DESCRIBES = "it describes"
_PIECES = ("custom", "device", "cpu", "xpu", "nic", "memory", "port", "switch")
_UNITS = ("gigabits_per_second", "gigabytes_per_second", "gigatransfers_per_second", "ms", "us", "ns")


def idle_keys(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield path in the file, value and reason of each key that no graph depends on."""
    tree = load_document(path).tree
    if "infrastructure" in tree and "annotations" in tree:
        yield from _idle(tree["annotations"], "annotations", _DESCRIBES)
    yield from _idle(tree.get("infrastructure", tree), "")


def _idle(part: Any, place: str, reason: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield what changes nothing in a part of the file; all of it, where there is a `reason` for that."""
    if isinstance(part, Mapping) and (part or not reason):
        for key, value in part.items():
            here = f"{place}.{key}".removeprefix(".")
            yield from _idle(value, here, reason or _reason(key, part, place))
    elif isinstance(part, list) and (part or not reason):
        for number, entry in enumerate(part):
            yield from _idle(entry, f"{place}[{number}]", reason)
    elif reason:
        yield place, str(part), reason


def _reason(key: str, part: Mapping[str, Any], place: str) -> str:
    if key in ("description", "annotations") or (key == "name" and not place):
        return _DESCRIBES
    if key in _PIECES and "choice" in part:
        return "choice says what the component is"
    if key in _UNITS and key != part.get("choice"):
        return "choice names another unit"
    return ""
