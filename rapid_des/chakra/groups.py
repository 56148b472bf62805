"""Process groups: where their members are written, and which group a collective's `pg_name` means."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rapid_des.chakra.messages import UNREADABLE, message_class
from rapid_des.errors import TraceError

WORLD = "world"
DIMENSIONS = "dimensions:"
_PARAM_TAIL = re.compile(r"[(\[]'([^']+)', '[^']*'[)\]],.*, (\d+), (\d+), (\d+)\]\s*\Z", re.DOTALL)
_LARGEST_FILE = 1 << 24

Groups = dict[str, tuple[int, ...]]


def load_groups(path: Path) -> Groups:
    """Read a group file, `{name: [ranks]}`; any other content is a `TraceError` naming the key."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise TraceError(f"{path}: can not be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TraceError(f"{path}: is no object of the form {{name: [ranks]}}")
    return {name: _members(members, f"{path}: {name}") for name, members in content.items()}


def _members(members: object, where: str) -> tuple[int, ...]:
    if not isinstance(members, list) or not all(type(rank) is int and rank >= 0 for rank in members):
        raise TraceError(f"{where}: {str(members)[:60]} is no list of ranks (whole numbers from 0 on)")
    if len(set(members)) != len(members):
        raise TraceError(f"{where}: names a rank twice")
    return tuple(members)


def find_group_file(folder: Path, prefix: str, trace_files: Iterable[Path]) -> tuple[Path | None, str]:
    """Return (the group file, why that one): PREFIX.groups.json, else the folder's only JSON of its shape."""
    own = folder / f"{prefix}.groups.json"
    if own.is_file():
        return own, "named after the traces"
    taken = set(trace_files)
    shaped = [path for path in sorted(folder.glob("*.json")) if path not in taken and _is_group_file(path)]
    if len(shaped) == 1:
        return shaped[0], "the folder's only group file"
    named = ", ".join(path.name for path in shaped[:6])
    return None, f"several group files, none taken: {named}; choose one with --groups" if shaped else ""


def _is_group_file(path: Path) -> bool:
    if path.stat().st_size > _LARGEST_FILE:
        return False
    try:
        return bool(load_groups(path))
    except TraceError:
        return False


def groups_from_nodes(frames: Iterable[bytes], world: tuple[int, ...]) -> tuple[Groups, Groups]:
    """Return the groups that (process_group:init, record_param_comms) nodes describe."""
    stated: Groups = {}
    implied: Groups = {}
    for node in sorted(_readable(frames), key=lambda node: node.id):
        if "process_group:init" in node.name:
            stated.update(_from_init(node.inputs.values, world))
        else:
            implied.update(_from_param_comms(node.inputs.values))
    return stated, implied


def _readable(frames: Iterable[bytes]) -> Iterator[Any]:
    """Yield the nodes that protobuf accepts; one with text that is not UTF-8 describes no group."""
    for frame in frames:
        with contextlib.suppress(*UNREADABLE):
            yield message_class("Node").FromString(frame)


def _from_init(values: str, world: tuple[int, ...]) -> Groups:
    """Read the JSON list inside the Python list that PyTorch writes; no ranks means all of them."""
    try:
        outer = ast.literal_eval(values)
        entries = json.loads(outer[0] if isinstance(outer, list) and outer else values)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    found: Groups = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("ranks"), list | dict) and "pg_name" in entry:
            ranks = [rank for rank in entry["ranks"] if str(rank).isdigit()]
            found[str(entry["pg_name"])] = tuple(int(rank) for rank in ranks) or world
    return found


def _from_param_comms(values: str) -> Groups:
    """Read `(name, description), …, start, stride, size]`, as PyTorch records since 1.1.0."""
    match = _PARAM_TAIL.search(values)
    if match is None:
        return {}
    start, stride, size = (int(match.group(index)) for index in (2, 3, 4))
    if not 0 < size <= 1 << 20:
        return {}
    return {match.group(1): tuple(start + stride * index for index in range(size))}


def which_group(name: str, known: Mapping[str, Any], *, zero_is_world: bool = False) -> str:
    """Return the group that a `pg_name` means; a name that nobody defines is returned as it is.

    None or "" is the world; then the exact name, then its integer value ("3.0" is 3), then "0" as the world.

    >>> which_group("3.0", {"3": (0, 1)}), which_group("0", {}), which_group("0", {"0": (0, 1)})
    ('3', 'world', '0')
    """
    if not name or (zero_is_world and name == "0"):
        return WORLD
    if name in known:
        return name
    try:
        whole = str(int(float(name)))
    except (ValueError, OverflowError):
        return name
    if whole in known:
        return whole
    return WORLD if whole == "0" else name


def dimension_groups(involved: tuple[bool, ...], shape: tuple[int, ...], world: tuple[int, ...]) -> Groups:
    """Return, by "dimensions:flags#k", the groups of ranks that differ only in the involved dimensions.

    >>> dimension_groups((True, False), (2, 2), (0, 1, 2, 3))
    {'dimensions:1,0#0': (0, 1), 'dimensions:1,0#1': (2, 3)}
    """
    flags = ",".join(str(int(flag)) for flag in involved)
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in world:
        rest, outside = rank, []
        for index, size in enumerate(shape):
            rest, coordinate = divmod(rest, size)
            if index >= len(involved) or not involved[index]:
                outside.append(coordinate)
        found.setdefault(tuple(outside), []).append(rank)
    return {f"{DIMENSIONS}{flags}#{slot}": tuple(ranks) for slot, ranks in enumerate(found.values())}
