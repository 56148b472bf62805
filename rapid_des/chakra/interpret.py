"""One file's raw columns, under a dialect, to the node table that replay uses.

Files of a set that are byte for byte the same are understood once, for all their ranks (`Copies`).
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s
from rapid_des.chakra.attributes import Columns, TableSource, columns_of
from rapid_des.chakra.columns import RawTable
from rapid_des.chakra.dependencies import (
    Edges,
    Repair,
    id_order,
    one_cycle,
    points_back,
    resolve,
    topological_order,
    with_chains,
)
from rapid_des.chakra.groups import Labels, attribute_labels, by_first_appearance, group_labels, stream_labels
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable
from rapid_des.errors import ConfigError
from rapid_des.inputs import TRACE, open_input
from rapid_des.values import replace

_COLLECTIVE = int(NodeKind.COLLECTIVE)
_MESSAGES = int(NodeKind.SEND), int(NodeKind.RECV)


class Interpreted(Struct, frozen=True):
    """A rank's table and slots, with the findings of reading them."""

    nodes: NodeTable
    groups: tuple[str, ...]
    peers: tuple[int, ...]
    fields: tuple[str, ...]
    """The dependency fields that are used: `data`, `ctrl` or both."""
    repairs: tuple[Repair, ...]
    remarks: tuple[str, ...]


def interpret(raw: RawTable, origin: TableSource) -> Interpreted:
    """Return the node table of one file; an impossible one is a `FoundError` naming the nodes."""
    order = id_order(raw.ids)
    _refuse_duplicates(raw, order, origin)
    fields = _dependency_fields(raw, order, origin)
    edges, repairs = resolve(raw, order, fields)
    issues = _issues(raw, order, origin)
    _refuse_cycle(raw, order, _and(edges, issues), origin)
    columns = columns_of(raw, origin)
    groups = _groups(raw, columns, origin)
    named = origin.dialect.streams_named
    streams = stream_labels(raw, columns.kind, columns.on_cpu, groups, named=named)
    sequence = _program_order(raw, order, edges, _ordered_streams(streams, order, origin))
    remarks = list(columns.remarks)
    if (sequence != np.arange(len(raw))).any():
        edges = _moved(edges, sequence)
        if "rapid_position" not in raw.attributes:
            remarks.append("ids contradict dependencies within a stream, so dependencies decide its order")
    nodes, slots = _table(raw, columns, (groups, streams), order[sequence], edges)
    nodes = replace(nodes, issuer=_issuers(issues, sequence))
    return Interpreted(nodes, *slots, fields, tuple(repairs), tuple(remarks))


def _table(
    raw: RawTable, columns: Columns, labels: tuple[Labels, Labels], rows: Int64s, edges: Edges
) -> tuple[NodeTable, tuple[tuple[str, ...], tuple[int, ...]]]:
    groups, streams = labels
    name, names = by_first_appearance(raw.name[rows].astype(np.int64), raw.names)
    stream, stream_names = by_first_appearance(streams.codes[rows], streams.texts)
    group, group_names = by_first_appearance(groups.codes[rows], groups.texts)
    peer, peers = _peers(columns.peer[rows])
    starts, needs = edges.table(len(raw))
    nodes = NodeTable(
        ids=raw.ids[rows].view(np.uint64),
        kind=columns.kind[rows],
        name=name,
        stream=stream,
        duration=columns.duration[rows],
        size=columns.size[rows],
        collective=columns.collective[rows],
        group=group,
        peer=peer,
        tag=columns.tag[rows],
        priority=columns.priority[rows],
        flops=columns.flops[rows],
        tensor_bytes=columns.tensor_bytes[rows],
        on_cpu=columns.on_cpu[rows],
        issuer=np.full(len(raw), UNSTATED, np.int32),
        issued=columns.issued[rows],
        bound=columns.bound[rows],
        dependency_starts=starts,
        dependencies=needs,
        names=tuple(text.decode(errors="backslashreplace") for text in names),
        streams=stream_names,
    )
    return nodes, (group_names, peers)


def _issues(raw: RawTable, order: Int64s, origin: TableSource) -> Edges:
    """Return which nodes others issue, and who, as positions in id order."""
    stated = raw.attributes.get("rapid_issuer")
    if stated is None:
        none = np.zeros(0, np.int64)
        return Edges(none, none)
    issued, ids = np.flatnonzero(stated.stated[order]), raw.ids.view(np.uint64)[order]
    named = stated.value[order[issued]].view(np.uint64)
    issuer = np.minimum(np.searchsorted(ids, named), len(ids) - 1)
    lost = np.flatnonzero(ids[issuer] != named)
    if len(lost):
        node = int(ids[issued[lost[0]]])
        raise origin.error("dangling", f"node {node}: its rapid_issuer {named[lost[0]]} is no node", node)
    return Edges(issued, issuer)


def _and(edges: Edges, issues: Edges) -> Edges:
    if not len(issues.node):
        return edges
    return Edges(np.append(edges.node, issues.node), np.append(edges.needs, issues.needs))


def _issuers(issues: Edges, sequence: Int64s) -> Int32s:
    """Return by position in the table who issues a node, or `UNSTATED`."""
    place, issuer = np.empty(len(sequence), np.int64), np.full(len(sequence), UNSTATED, np.int32)
    place[sequence] = np.arange(len(sequence))
    issuer[place[issues.node]] = place[issues.needs]
    return issuer


def _peers(ranks: Int64s) -> tuple[Int32s, tuple[int, ...]]:
    distinct, inverse = np.unique(ranks, return_inverse=True)
    codes = np.where(ranks == UNSTATED, UNSTATED, inverse)
    return by_first_appearance(codes, distinct.tolist())


def _groups(raw: RawTable, columns: Columns, origin: TableSource) -> Labels:
    """Return the group of each collective, and of messages that name a communicator, by its resolved name."""
    labels = group_labels(raw)
    world = len(labels.texts)
    codes = np.where(labels.codes == UNSTATED, world, labels.codes)
    codes = np.where(columns.kind == _COLLECTIVE, codes, UNSTATED)
    through = attribute_labels(raw.attributes.get("rapid_communicator"), len(raw))
    named = (through.codes != UNSTATED) & np.isin(columns.kind, _MESSAGES)
    codes = np.where(named, world + 1 + through.codes, codes)
    return Labels(codes, [*labels.texts, "", *through.texts]).renamed(origin.group_named)


def _refuse_duplicates(raw: RawTable, order: Int64s, origin: TableSource) -> None:
    ids = raw.ids[order]
    repeated = np.flatnonzero(ids[1:] == ids[:-1])
    if len(repeated):
        first, second = order[repeated[0]], order[repeated[0] + 1]
        node = int(ids.view(np.uint64)[repeated[0]])
        raise origin.error(
            "duplicate id",
            f"node id {node} occurs twice, at byte {raw.offsets[first]} ({_name(raw, first)}) "
            f"and at byte {raw.offsets[second]} ({_name(raw, second)})",
            node,
        )


def _name(raw: RawTable, position: int) -> str:
    text = raw.names[raw.name[position]].decode(errors="backslashreplace")
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _dependency_fields(raw: RawTable, order: Int64s, origin: TableSource) -> tuple[str, ...]:
    """Choose which of `data` and `ctrl` are predecessors; see `Dialect.dependencies`."""
    has = {name: len(values) > 0 for name, (_, values) in raw.dependencies.items()}
    policy = origin.options.dependencies
    policy = origin.dialect.dependencies if policy == "auto" else policy
    if policy in ("data", "ctrl"):
        return (policy,)
    if policy == "both":
        return ("data", "ctrl")
    if not has["ctrl"]:
        return ("data",)
    if not has["data"]:
        return ("ctrl",)
    edges, repairs = resolve(raw, order, ("data", "ctrl"))
    dangling = any(repair.kind == "dangling" for repair in repairs)
    acyclic = len(topological_order(edges, len(raw))) == len(raw)
    return ("data", "ctrl") if acyclic and not dangling else ("data",)


def _refuse_cycle(raw: RawTable, order: Int64s, edges: Edges, origin: TableSource) -> None:
    cycle = one_cycle(edges, len(raw))
    if cycle:
        raise origin.error("cycle", _cycle_text(raw, order, cycle), _id(raw, order[cycle[0]]))


def _id(raw: RawTable, position: int) -> int:
    return int(raw.ids.view(np.uint64)[position])


def _cycle_text(raw: RawTable, order: Int64s, cycle: list[int]) -> str:
    shown = [f"{_id(raw, order[node])} ({_name(raw, order[node])})" for node in [*cycle[:8], cycle[0]]]
    if len(cycle) > 8:
        shown.insert(8, f"… {len(cycle) - 8} more …")
    return f"{len(cycle)} nodes wait for each other in a circle: {' needs '.join(shown)}"


def _ordered_streams(streams: Labels, order: Int64s, origin: TableSource) -> Int64s:
    """Return stream numbers in id order; every node of an unordered stream gets one of its own."""
    stream = streams.codes[order]
    free = np.array([origin.is_unordered(text) for text in streams.texts])[stream]
    return np.where(free, len(streams.texts) + np.arange(len(stream)), stream)


def _program_order(raw: RawTable, order: Int64s, edges: Edges, stream: Int64s) -> Int64s:
    """Return the table's order as positions in id order; ids decide unless dependencies contradict them."""
    size = len(raw)
    sequence = np.arange(size)
    if "rapid_position" in raw.attributes:
        sequence = np.argsort(raw.attributes["rapid_position"].value[order], kind="stable")
    elif points_back(edges):
        return sequence
    chained = with_chains(_moved(edges, sequence), stream[sequence])
    if len(topological_order(chained, size)) == size:
        return sequence
    return topological_order(edges, size)


def _moved(edges: Edges, sequence: Int64s) -> Edges:
    inverse = np.empty(len(sequence), np.int64)
    inverse[sequence] = np.arange(len(sequence))
    node = inverse[edges.node]
    order = np.argsort(node, kind="stable")
    return Edges(node[order], inverse[edges.needs][order])


Key = tuple[str, bytes]


class Original(Struct, frozen=True):
    """The first file of those that are the same, as it was understood."""

    result: Interpreted
    origin: TableSource
    named: Mapping[str, str]
    """The names that this file's nodes use for groups, and the group that each name means."""

    def for_rank(
        self, path: Path, rank: int, group_named: Callable[[str], str]
    ) -> tuple[Interpreted, TableSource] | None:
        """Return this file's result for another rank; None if one of its groups means another group there."""
        if any(group_named(text) != group for text, group in self.named.items()):
            return None
        return self.result, replace(self.origin, file=str(path), rank=rank, group_named=group_named)


class Copies:
    """Finds the files of a set that are equal; a file of a unique size is not read for that."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._sizes = {path: path.stat().st_size for path in paths if path.is_file()}
        self._often = Counter(self._sizes.values())
        self._seen: dict[Path, Key] = {}
        self.known: dict[Key, Original] = {}

    def size(self, path: Path) -> int:
        """Return how many bytes a file has."""
        return self._sizes.get(path, 0)

    def key(self, path: Path, content: bytes | None = None) -> Key | None:
        """Return the key that equal files share, or None for a file that is certainly unique.

        `content` is the file's, where it has been read.
        """
        if self._often[self._sizes.get(path, -1)] < 2:
            return None
        if path not in self._seen:
            try:
                with open_input(path, TRACE) if content is None else io.BytesIO(content) as stream:
                    digest = hashlib.file_digest(stream, "blake2b").digest()
            except (ConfigError, OSError):  # whoever reads it says what is wrong
                return None
            self._seen[path] = path.suffix, digest
        return self._seen[path]
