"""Dependencies: an acyclic table of positions from the ids that nodes name, and counts of what is dropped."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s, starts_by
from rapid_des.chakra.columns import RawTable
from rapid_des.chakra.kernels import on_arrays, ready_order

REPAIRS = ("dangling", "self", "duplicate")


class Edges(Struct, frozen=True):
    """Dependencies as pairs of positions in id order, grouped by node in the order they were written."""

    node: Int64s
    needs: Int64s

    def table(self, size: int) -> tuple[Int64s, Int32s]:
        """Return (starts, positions) as `NodeTable` holds them."""
        return starts_by(self.node, size), self.needs.astype(np.int32)


class Repair(Struct, frozen=True):
    """Dependencies dropped for one reason: ids of the nodes and ids that they name, as int64 bits."""

    kind: str
    nodes: Int64s
    needs: Int64s


def id_order(ids: Int64s) -> Int64s:
    """Return the file positions in ascending order of unsigned id."""
    return np.argsort(ids.view(np.uint64), kind="stable")


def resolve(raw: RawTable, order: Int64s, fields: tuple[str, ...]) -> tuple[Edges, list[Repair]]:
    """Return the edges that the named fields (`data`, `ctrl`) state, and what had to be dropped."""
    edges, repairs = [], []
    for name in fields:
        resolved, dropped = _resolve_field(raw, order, name)
        edges.append(resolved)
        repairs += dropped
    stated = [part for part in edges if len(part.node)] or edges[:1]
    joined = stated[0] if len(stated) == 1 else _union(stated, len(raw))
    return joined, repairs


def _resolve_field(raw: RawTable, order: Int64s, name: str) -> tuple[Edges, list[Repair]]:
    counts, values = raw.dependencies[name]
    if not len(values):
        return Edges(values, values), []
    size = len(raw)
    ids = raw.ids.view(np.uint64)[order]
    # the inverse of `order`: where each node of the file stands among the sorted ids
    position = np.empty(size, np.int64)
    position[order] = np.arange(size)
    node = np.repeat(position, counts)
    slot = np.searchsorted(ids, values.view(np.uint64))
    # searchsorted says where an id would stand; the id there must be the one that was asked for
    known = slot < size
    known[known] = ids[slot[known]] == values.view(np.uint64)[known]
    itself = known & (slot == node)
    fine = np.flatnonzero(known & ~itself)
    first = _firsts(node[fine] * size + slot[fine])  # each (node, needed) once, as one number
    rows_left = fine[first]
    rows_left = rows_left[np.argsort(node[rows_left], kind="stable")]
    if len(rows_left) == len(values):
        return Edges(node[rows_left], slot[rows_left]), []
    repeated = np.ones(len(fine), np.bool_)
    repeated[first] = False
    masks = (np.flatnonzero(~known), np.flatnonzero(itself), fine[repeated])
    named = raw.ids[order]
    repairs = [
        Repair(kind, named[node[rows]], values[rows])
        for kind, rows in zip(REPAIRS, masks, strict=True)
        if len(rows)
    ]
    return Edges(node[rows_left], slot[rows_left]), repairs


def _firsts(values: Int64s) -> Int64s:
    """Return where each distinct value stands first, in ascending order."""
    if (values[1:] > values[:-1]).all():
        return np.arange(len(values))
    return np.sort(np.unique(values, return_index=True)[1])


def _union(edges: list[Edges], size: int) -> Edges:
    node = np.concatenate([part.node for part in edges])
    needs = np.concatenate([part.needs for part in edges])
    first = _firsts(node * size + needs)
    rows_left = first[np.argsort(node[first], kind="stable")]
    return Edges(node[rows_left], needs[rows_left])


def with_chains(edges: Edges, stream: Int64s) -> Edges:
    """Return the edges and, for each node, one to the node before it on its stream."""
    by_stream = np.argsort(stream, kind="stable")
    same = stream[by_stream][1:] == stream[by_stream][:-1]
    later, earlier = by_stream[1:][same], by_stream[:-1][same]  # neighbours on a stream, in file order
    node = np.concatenate([edges.node, later])
    order = np.argsort(node, kind="stable")
    return Edges(node[order], np.concatenate([edges.needs, earlier])[order])


def points_back(edges: Edges) -> bool:
    """Return whether every node needs only nodes of smaller id, so that there is no cycle."""
    return bool((edges.needs < edges.node).all())


def topological_order(edges: Edges, size: int) -> Int64s:
    """Return all positions that are on no cycle and behind none; of those ready, the smallest comes first."""
    if points_back(edges):
        return np.arange(size)
    children = edges.node[np.argsort(edges.needs, kind="stable")]
    starts = starts_by(edges.needs, size)
    waiting = np.bincount(edges.node, minlength=size)
    heap, result = np.zeros(size, np.int64), np.zeros(size, np.int64)
    count, *_ = on_arrays(ready_order, len(edges.node), (starts, children), (waiting, heap, result))
    return result[:count]


def one_cycle(edges: Edges, size: int) -> list[int]:
    """Return one cycle's positions, each needing the next, from its smallest on; empty if there is none."""
    sorted_part = topological_order(edges, size)
    if len(sorted_part) == size:
        return []
    stuck = np.ones(size, np.bool_)
    stuck[sorted_part] = False
    both = stuck[edges.node] & stuck[edges.needs]
    node, needs = edges.node[both], edges.needs[both]
    following = dict(zip(node[::-1].tolist(), needs[::-1].tolist(), strict=True))
    walked: dict[int, int] = {}
    current = int(np.flatnonzero(stuck)[0])
    while current not in walked:
        walked[current] = len(walked)
        current = following[current]
    cycle = list(walked)[walked[current] :]
    smallest = cycle.index(min(cycle))
    return cycle[smallest:] + cycle[:smallest]
