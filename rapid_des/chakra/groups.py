"""Process groups, and nodes by label.

Where the members of a process group are written, and which group a collective's `pg_name` means; and names,
process groups, peers and streams of nodes as numbers into tables of distinct ones.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int8s, Int32s, Int64s
from rapid_des.chakra.columns import Attribute, RawTable
from rapid_des.chakra.trace import MOST_RANKS, UNSTATED, NodeKind
from rapid_des.chakra.wire import UNREADABLE, message_class
from rapid_des.config.documents import read_text
from rapid_des.config.texts import parse_json
from rapid_des.errors import ConfigError, TraceError

WORLD = "world"
DIMENSIONS = "dimensions:"
_PARAM_TAIL = re.compile(
    r"[(\[]'([^']+)', '[^']*'[)\]],.*, ([0-9]{1,9}), ([0-9]{1,9}), ([0-9]{1,9})\]\s*\Z", re.DOTALL
)
_LARGEST_FILE = 1 << 24
_RANK = re.compile(r"[0-9]{1,8}\Z")
_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.0*)?\Z")

Groups = dict[str, tuple[int, ...]]


def load_groups(path: Path) -> Groups:
    """Read a group file, `{name: [ranks]}`; any other content is a `TraceError` naming the key."""
    try:
        content = parse_json(read_text(path), path)
    except ConfigError as error:
        raise TraceError(str(error)) from None
    if not isinstance(content, dict):
        raise TraceError(f"{path}: is no object of the form {{name: [ranks]}}")
    return {name: _members(members, f"{path}: {name}") for name, members in content.items()}


def _members(members: object, where: str) -> tuple[int, ...]:
    if not isinstance(members, list) or not all(map(is_rank, members)):
        allowed = f"whole numbers from 0 to {MOST_RANKS - 1}"
        raise TraceError(f"{where}: {repr(members)[:60]} is no list of ranks ({allowed})")
    if len(set(members)) != len(members):
        raise TraceError(f"{where}: names a rank twice")
    return tuple(members)


def is_rank(value: object) -> bool:
    """Return whether a value of a file is a rank: a whole number in range, no text and no truth value."""
    return type(value) is int and 0 <= value < MOST_RANKS


def find_group_file(folder: Path, prefix: str, trace_files: Iterable[Path]) -> tuple[Path | None, str]:
    """Return (the group file, why that one): PREFIX.groups.json, else the folder's only JSON of its shape."""
    named_alike = folder / f"{prefix}.groups.json"
    if named_alike.is_file():
        return named_alike, "named after the traces"
    traces = set(trace_files)
    named = [path for path in sorted(folder.glob("*.json")) if path not in traces and path.is_file()]
    shaped = [path for path in named if _is_group_file(path)]
    if len(shaped) == 1:
        return shaped[0], "the folder's only group file"
    several = ", ".join(path.name for path in shaped[:6])
    return None, f"several group files, none taken: {several}; choose one with --groups" if shaped else ""


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
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return {}
    groups: Groups = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("ranks"), list | dict) and "pg_name" in entry:
            ranks = [int(rank) for rank in entry["ranks"] if _RANK.match(str(rank))]
            groups[str(entry["pg_name"])] = tuple(dict.fromkeys(ranks)) or world
    return groups


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
    if not _NUMBER.match(name):
        return name
    integer = str(int(name.partition(".")[0]))
    if integer in known:
        return integer
    return WORLD if integer == "0" else name


def dimension_groups(involved: tuple[bool, ...], shape: tuple[int, ...], world: tuple[int, ...]) -> Groups:
    """Return, by "dimensions:flags#k", the groups of ranks that differ only in the involved dimensions.

    >>> dimension_groups((True, False), (2, 2), (0, 1, 2, 3))
    {'dimensions:1,0#0': (0, 1), 'dimensions:1,0#1': (2, 3)}
    """
    flags = ",".join(str(int(flag)) for flag in involved)
    members: dict[tuple[int, ...], list[int]] = {}
    for rank in world:
        rest, outside = rank, []
        for index, size in enumerate(shape):
            rest, coordinate = divmod(rest, size)
            if index >= len(involved) or not involved[index]:
                outside.append(coordinate)
        members.setdefault(tuple(outside), []).append(rank)
    return {f"{DIMENSIONS}{flags}#{slot}": tuple(ranks) for slot, ranks in enumerate(members.values())}


Label = TypeVar("Label", str, int, bytes)
_SHORT = 1024
"""The number of rows up to which a Python dictionary is faster than a numpy sort."""


class Labels(Struct, frozen=True):
    """A label for each node, or `UNSTATED`: positions in `texts`, which need not be in any order."""

    codes: Int64s
    texts: list[str]

    def renamed(self, rename: Callable[[str], str]) -> Labels:
        """Return the labels under new names; names that become equal become one label."""
        table: dict[str, int] = {}
        new = [table.setdefault(rename(text), len(table)) for text in self.texts]
        codes = np.array([*new, UNSTATED], np.int64)[self.codes]
        return Labels(codes, list(table))


def by_first_appearance(codes: Int64s, texts: Sequence[Label]) -> tuple[Int32s, tuple[Label, ...]]:
    """Return codes renumbered as they first appear (`UNSTATED` stays) and the texts that occur."""
    used = [code for code in _distinct(codes) if code != UNSTATED]
    new = np.full(len(texts) + 1, UNSTATED, np.int32)
    new[used] = np.arange(len(used), dtype=np.int32)
    return new[codes], tuple(texts[code] for code in used)


def _distinct(codes: Int64s) -> list[int]:
    """Return the codes as they first appear."""
    if len(codes) <= _SHORT:
        return list(dict.fromkeys(codes.tolist()))
    used, first = np.unique(codes, return_index=True)
    distinct: list[int] = used[np.argsort(first, kind="stable")].tolist()
    return distinct


def attribute_labels(attribute: Attribute | None, size: int) -> Labels:
    """Return an attribute that is a text or a number as labels."""
    if attribute is None:
        return Labels(np.full(size, UNSTATED, np.int64), [])
    texts = [text.decode(errors="backslashreplace") for text in attribute.texts]
    codes = attribute.text.astype(np.int64)
    numbers, inverse = np.unique(attribute.value, return_inverse=True)
    numeric = attribute.stated & (codes == UNSTATED)
    codes[numeric] = inverse[numeric] + len(texts)
    return Labels(codes, texts + [str(number) for number in numbers.tolist()])


def group_labels(raw: RawTable) -> Labels:
    """Return the process group that each node names, by whichever attribute its writer uses."""
    size = len(raw)
    table: dict[str, int] = {}
    codes = np.full(size, UNSTATED, np.int64)
    for name in ("pg_name", "comm_group", "communicator_id"):
        if name not in raw.attributes:
            continue
        labels = attribute_labels(raw.attributes[name], size)
        merged = np.array([table.setdefault(text, len(table)) for text in labels.texts] + [UNSTATED])
        codes = np.where(codes == UNSTATED, merged[labels.codes], codes)
    dimensions = _dimension_labels(raw, table)
    return Labels(np.where(codes == UNSTATED, dimensions, codes), list(table))


def _dimension_labels(raw: RawTable, table: dict[str, int]) -> Int64s:
    """Name the network dimensions that a collective spans, where it does not span all of them."""
    attribute = raw.attributes.get("involved_dim")
    if attribute is None:
        return np.full(len(raw), UNSTATED, np.int64)
    new = []
    for packed in attribute.texts:
        flags = packed[2:] if packed[:1] == b"\x0a" else packed[1::2]
        partial = 0 in flags and any(flags)
        name = DIMENSIONS + ",".join(str(int(flag > 0)) for flag in flags)
        new.append(table.setdefault(name, len(table)) if partial else UNSTATED)
    return np.array([*new, UNSTATED], np.int64)[attribute.text]


_STREAM_OF_KIND = {
    NodeKind.COMPUTE: "compute",
    NodeKind.SEND: "send",
    NodeKind.RECV: "recv",
    NodeKind.MEM_LOAD: "memory",
    NodeKind.MEM_STORE: "memory",
    NodeKind.STORAGE: "storage",
    NodeKind.DATA_OPERATION: "storage",
    NodeKind.METADATA: "metadata",
    NodeKind.INVALID: "metadata",
}
_STREAMS = [_STREAM_OF_KIND.get(kind, "compute") for kind in sorted(NodeKind)]
_COLLECTIVE = int(NodeKind.COLLECTIVE)


def stream_labels(raw: RawTable, kind: Int8s, on_cpu: Bools, groups: Labels, *, named: bool) -> Labels:
    """Return each node's stream: what the file says, else one by kind, group and CPU thread.

    With `named`, the numbers in `stream` and `tid` are GPU streams and CPU threads.
    """
    table: dict[str, int] = {}

    def codes_of(labels: Labels, form: str) -> Int64s:
        new = [table.setdefault(form.format(text), len(table)) for text in labels.texts]
        return np.array([*new, UNSTATED], np.int64)[labels.codes]

    def stated(name: str, form: str, otherwise: Int64s) -> Int64s:
        if name not in raw.attributes:
            return otherwise
        labels = attribute_labels(raw.attributes[name], len(raw))
        return np.where(labels.codes == UNSTATED, otherwise, codes_of(labels, form))

    codes = np.array([table.setdefault(text, len(table)) for text in _STREAMS])[kind]
    collective = kind == _COLLECTIVE
    by_group = codes_of(groups, "coll-{}")
    world = table.setdefault("coll-world", len(table))
    codes[collective] = np.where(by_group == UNSTATED, world, by_group)[collective]
    if named:
        codes = stated("stream", "stream-{}", codes)
    if on_cpu.any():
        single = np.full(len(raw), table.setdefault("cpu-0", len(table)))
        codes = np.where(on_cpu, stated("tid", "cpu-{}", single) if named else single, codes)
    codes = stated("rapid_stream", "{}", codes)
    return Labels(codes, list(table))
