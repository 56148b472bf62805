"""Dimension-order routing over a product of blocks: arithmetic, deterministic, without tables of pairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from rapid_des.errors import TopologyError
from rapid_des.network.build import Layout, Plan
from rapid_des.network.fabric import Fabric, Ints, Routes

_WHOLE_ROWS = 256
"""Positions up to which a first question computes the local routes from a position to all others at once."""


@dataclass(frozen=True, eq=False)
class DimensionOrderRouter:
    """Corrects one dimension after the other, in the order that the machine file states."""

    plan: Plan
    _local: list[dict[tuple[int, int], tuple[int, ...]]] = field(init=False, repr=False)
    _known: dict[tuple[int, int], tuple[int, ...]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_local", [{} for _ in self.plan.layouts])

    @property
    def fabric(self) -> Fabric:
        """The fabric that the links belong to."""
        return self.plan.fabric

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the ids of the links on the way between two GPUs, in order."""
        known = self._known.get((source, destination))
        if known is None:
            known = self._known[source, destination] = self._one(source, destination)
        return known

    def routes(self, pairs: Iterable[tuple[int, int]]) -> Routes:
        """Return the routes of many pairs of GPUs at once."""
        table = np.array(pairs if isinstance(pairs, np.ndarray) else list(pairs), np.int64).reshape(-1, 2)
        check_gpus(self.fabric, table)
        current, flows, parts = table[:, 0].copy(), np.arange(len(table)), []
        for index in self._order():
            layout = self.plan.layouts[index]
            target = current + _offset(layout, current, table[:, 1])
            moved = np.flatnonzero(current != target)
            local, lengths = self._segments(index, current[moved], target[moved])
            parts.append((np.repeat(flows[moved], lengths), local))
            current = target
        parts = [part for part in parts if len(part[0])] or parts[:1]
        flow, links = (np.concatenate(column) for column in zip(*parts, strict=True))
        starts = np.concatenate(([0], np.cumsum(np.bincount(flow, minlength=len(table)))))
        return Routes(starts, links if len(parts) == 1 else links[np.argsort(flow, kind="stable")])

    def _order(self) -> Iterable[int]:
        indices = range(len(self.plan.layouts))
        return indices if self.plan.routing.order == "innermost_first" else reversed(indices)

    def _one(self, source: int, destination: int) -> tuple[int, ...]:
        check_gpus(self.fabric, np.array([[source, destination]]))
        current, links = source, list[int]()
        for index in self._order():
            layout = self.plan.layouts[index]
            digits = current // layout.stride % layout.size, destination // layout.stride % layout.size
            target = current + (digits[1] - digits[0]) * layout.stride
            if target != current:
                (copy, start), (_, end) = layout.place_one(current), layout.place_one(target)
                first = layout.first_link + copy * len(layout.block)
                links += [first + link for link in self._segment(index, start, end)]
            current = target
        return tuple(links)

    def _segment(self, index: int, start: int, end: int) -> tuple[int, ...]:
        """Return the local links from one position to another, computing a whole row on a small block."""
        known, block = self._local[index], self.plan.layouts[index].block
        if (start, end) not in known:
            few = block.positions <= _WHOLE_ROWS
            ends = np.arange(block.positions) if few else np.array([end])
            routes = block.walk(np.full(len(ends), start), ends)
            known.update({(start, int(to)): routes.of(flow) for flow, to in enumerate(ends)})
        return known[start, end]

    def _segments(self, index: int, source: Ints, target: Ints) -> tuple[Ints, Ints]:
        """Return the links of many moves within one dimension, and how many each has."""
        layout = self.plan.layouts[index]
        (copy, start), (_, end) = layout.place(source), layout.place(target)
        if layout.block.star:
            routes = layout.block.walk(start, end)
            lengths = np.diff(routes.starts)
            return layout.links(np.repeat(copy, lengths), routes.links), lengths
        keys, which = np.unique(start * layout.block.positions + end, return_inverse=True)
        routes = layout.block.walk(keys // layout.block.positions, keys % layout.block.positions)
        lengths = np.diff(routes.starts)[which]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        local = routes.links[np.repeat(routes.starts[which], lengths) + within]
        return layout.links(np.repeat(copy, lengths), local), lengths


def _offset(layout: Layout, current: Ints, destination: Ints) -> Ints:
    here, there = current // layout.stride % layout.size, destination // layout.stride % layout.size
    return (there - here) * layout.stride


def check_gpus(fabric: Fabric, pairs: Ints) -> None:
    """Refuse ends of a route that are no GPUs of the fabric."""
    wrong = pairs[(pairs < 0) | (pairs >= fabric.gpus)]
    if len(wrong):
        raise TopologyError(f"{fabric.name}: there is no GPU {wrong[0]}; allowed: 0 to {fabric.gpus - 1}")
