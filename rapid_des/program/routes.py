"""The routes that groups take, each looked up once: many small ones together, large patterns in batches."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rapid_des.arrays import Int32s, Int64s, starts_of
from rapid_des.network.fabric import Fabric, Router, Routes
from rapid_des.network.switches import SwitchTrees
from rapid_des.program.plans import with_switches
from rapid_des.program.program import Template, shapes

_LARGE = 1 << 12
"""Pairs of a pattern from which on its routes are looked for among those of equal members only."""
_BATCH = 1 << 18
"""Pairs that are routed at a time."""

_DENSE = 1 << 3
"""Pairs of nodes for each pair in use up to which all are marked in one table instead of sorted."""

Line = tuple[int, ...]
"""The GPUs of a group in member order."""


class Wired(Protocol):
    """What has links, routes over them and maybe trees of switches: a machine, or a network alone."""

    @property
    def fabric(self) -> Fabric:
        """The links."""
        ...

    @property
    def router(self) -> Router:
        """Where messages go."""
        ...

    @property
    def switch_trees(self) -> SwitchTrees | None:
        """The trees of switches over groups, if collectives work in them."""
        ...


@dataclass(frozen=True)
class GroupRoutes:
    """The routes of every group's templates."""

    of_group: tuple[dict[int, Int32s], ...]
    """By group: template to the route of each of its pairs; groups that are equal in both share it."""
    routes: Routes
    return_routes: Int32s
    """[route] the number of the route that its acknowledgements take."""


@dataclass(frozen=True)
class _Pattern:
    """Who sends to whom, and the groups in which they do."""

    source: Int32s
    destination: Int32s
    members: int
    lines: dict[Line, None]

    def pairs(self, lines: Sequence[Line], machine: Wired) -> Int64s:
        """Return source * nodes + destination of the pairs, a row for each line."""
        (pairs,) = self.batches(lines, machine, len(self.source))
        return pairs

    def batches(self, lines: Sequence[Line], machine: Wired, batch: int) -> Iterator[Int64s]:
        """Yield `pairs` by so many columns; what a batch holds beside the result is of its size."""
        if self.source.max(initial=0) >= self.members:
            lines = [with_switches(machine.switch_trees, line) for line in lines]
        nodes = np.array(lines, np.int64)
        for begin in range(0, len(self.source) or 1, batch or 1):
            columns = slice(begin, begin + batch)
            yield nodes[:, self.source[columns]] * machine.fabric.nodes + nodes[:, self.destination[columns]]


def routes_of_groups(
    uses: Sequence[tuple[Line, tuple[int, ...]]],
    templates: Sequence[Template],
    machine: Wired,
    *,
    both_ways: bool,
) -> GroupRoutes:
    """Return the routes of all templates, and with `both_ways` the ways back.

    `uses` are the members of each group and the templates that it runs.
    """
    names = _fingerprints(templates)
    patterns: dict[bytes, _Pattern] = {}
    for line, own in dict.fromkeys(uses):
        for number in own:
            if names[number] not in patterns:
                template = templates[number]
                patterns[names[number]] = _Pattern(
                    template.pair_source, template.pair_destination, template.members, {}
                )
            patterns[names[number]].lines[line] = None
    large = {
        name: one for name, one in patterns.items() if len(one.source) >= _LARGE and not both_ways
    }  # ways back are looked for among all routes
    small = {name: one for name, one in patterns.items() if name not in large}
    rows, distinct, return_routes = _numbered(small, machine, both_ways=both_ways)
    count = len(distinct)
    for name, one in large.items():
        for line in one.lines:
            rows[name, line] = np.arange(count, count + len(one.source), dtype=np.int32)
            count += len(one.source)
    routes = {
        (line, own): {number: rows[names[number], line] for number in own}
        for line, own in dict.fromkeys(uses)
    }
    of_group = tuple(routes[use] for use in uses)
    return GroupRoutes(of_group, _routed(machine, _batches(distinct, large, machine)), return_routes)


def _numbered(
    patterns: Mapping[bytes, _Pattern], machine: Wired, *, both_ways: bool
) -> tuple[dict[tuple[bytes, Line], Int32s], Int64s, Int32s]:
    """Return the number of each pair of each line, the distinct pairs in order, and their ways back."""
    nodes = machine.fabric.nodes
    keys = [one.pairs(list(one.lines), machine) for one in patterns.values()]
    pairs = np.concatenate([np.zeros(0, np.int64), *[part.reshape(-1) for part in keys]])
    reverse = pairs % nodes * nodes + pairs // nodes if both_ways else pairs[:0]
    distinct, places = _distinct(np.concatenate((pairs, reverse)), nodes)
    there, back = np.split(places, [len(pairs)])
    return_routes = np.zeros(len(distinct) if both_ways else 0, np.int32)
    if both_ways:
        return_routes[there], return_routes[back] = back, there
    flat, begin = there, 0
    rows: dict[tuple[bytes, Line], Int32s] = {}
    for (name, one), part in zip(patterns.items(), keys, strict=True):
        found = flat[begin : begin + part.size].reshape(part.shape)
        begin += part.size
        rows |= {(name, line): row for line, row in zip(one.lines, found, strict=True)}
    return rows, distinct, return_routes


def _distinct(pairs: Int64s, nodes: int) -> tuple[Int64s, Int32s]:
    """Return the distinct pairs in ascending order, and where each stands among them."""
    if nodes * nodes > _DENSE * len(pairs):
        distinct, places = np.unique(pairs, return_inverse=True)
        return distinct, places.reshape(-1).astype(np.int32)
    marks = np.zeros(nodes * nodes, np.bool_)
    marks[pairs] = True
    distinct = np.flatnonzero(marks)
    numbers = np.zeros(nodes * nodes, np.int32)
    numbers[distinct] = np.arange(len(distinct), dtype=np.int32)
    return distinct, numbers[pairs]


def _batches(distinct: Int64s, large: Mapping[bytes, _Pattern], machine: Wired) -> Iterator[Int64s]:
    """Yield all pairs in the order of their numbers."""
    yield distinct
    for one in large.values():
        for line in one.lines:
            for (batch,) in one.batches([line], machine, _BATCH):
                yield batch


def _routed(machine: Wired, batches: Iterator[Int64s]) -> Routes:
    lengths, links = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for batch in batches:
        for begin in range(0, len(batch), _BATCH):
            ends = np.divmod(batch[begin : begin + _BATCH], machine.fabric.nodes)
            routes = machine.router.routes(np.stack(ends, 1))
            lengths.append(np.diff(routes.starts).astype(np.int32))
            links.append(routes.links.astype(np.int32, copy=False))
    return Routes(starts_of(np.concatenate(lengths)), np.concatenate(links))


def _fingerprints(templates: Sequence[Template]) -> list[bytes]:
    """Return who sends to whom among how many, as digests: equal ones take equal routes."""
    known: dict[Hashable, bytes] = {}
    found = []
    for one, shared in zip(templates, shapes(templates), strict=True):
        if shared not in known:
            digest = hashlib.blake2b(str(one.members).encode(), digest_size=16)
            digest.update(np.ascontiguousarray(one.pair_source).data)
            digest.update(np.ascontiguousarray(one.pair_destination).data)
            known[shared] = digest.digest()
        found.append(known[shared])
    return found
