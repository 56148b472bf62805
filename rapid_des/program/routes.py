"""The routes that groups take, each looked up once: many small ones together, large patterns in batches.

Two groups of GPUs are the same to a simulation if their routes are equal up to the names of the links. A
route's profile is the (bandwidth, latency) of each of its links; hops have a class by their profiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Protocol

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s, fingerprint, starts_of
from rapid_des.bounded_cache import BoundedCache
from rapid_des.machine import Machine
from rapid_des.network.fabric import Fabric, Router, Routes
from rapid_des.network.spraying import spread
from rapid_des.network.switches import SwitchTrees
from rapid_des.program.program import LoadTable, SprayTable, Template, shapes
from rapid_des.program.switch_trees import tree_pairs, with_switches

_BATCH = 1 << 18
"""Number of routes that are processed at a time, which bounds memory."""

COMPARED = 64
"""Largest group of which all pairs are compared."""
_LARGE = 1 << 12
"""Patterns with at least this many pairs are routed one group at a time, without deduplication."""
_KINDS = 16
"""The number of groups with which others are compared; what is a copy of none is taken by itself."""

_DENSE = 1 << 3
"""Pairs are deduplicated by a dense table if nodes² is at most this many times their number; else sorted."""

Line = tuple[int, ...]
"""The GPUs of a group in member order."""
_Shape = tuple[bytes, int]
"""A digest of a template's sources and destinations, and the number of GPUs in the group that runs it."""


class Wired(Protocol):
    """An object with links, routes and possibly trees of switches: a machine, or a network alone."""

    @property
    def fabric(self) -> Fabric:
        """The links."""
        ...

    @property
    def router(self) -> Router:
        """Returns the routes of messages."""
        ...

    @property
    def switch_trees(self) -> SwitchTrees | None:
        """The trees of switches over groups, if collectives work in them."""
        ...


class GroupRoutes(Struct, frozen=True):
    """The routes of every group's templates."""

    of_group: tuple[dict[int, Int32s], ...]
    """A mapping from a template to the route of each of its pairs, for each group; equal ones are shared."""
    routes: Routes
    return_routes: Int32s
    """[route] the number of the route that its acknowledgements take."""


class _Pattern(Struct, frozen=True):
    """The (source, destination) pairs of a template, and the groups that use them."""

    source: Int32s
    destination: Int32s
    members: int
    below: tuple[tuple[int, ...], ...]
    lines: dict[Line, None] = {}

    @classmethod
    def of(cls, template: Template) -> _Pattern:
        """Return the pattern of a template that no group uses yet."""
        return cls(template.pair_source, template.pair_destination, template.members, template.below)

    @property
    def key(self) -> bytes:
        """A key of who sends to whom among how many: equal ones take equal routes."""
        return fingerprint(self, without={"lines"})

    def pairs(self, lines: Sequence[Line], machine: Wired) -> Int64s:
        """Return the pairs, each as source * nodes + destination, as an array [line, pair]."""
        (pairs,) = self.batches(lines, machine, len(self.source))
        return pairs

    def batches(self, lines: Sequence[Line], machine: Wired, batch: int) -> Iterator[Int64s]:
        """Yield `pairs` in blocks of this many columns; temporary memory is proportional to a block."""
        if self.source.max(initial=0) >= self.members:
            lines = [with_switches(machine.switch_trees, line, self.below) for line in lines]
        nodes = np.array(lines, np.int64)
        for begin in range(0, len(self.source) or 1, batch or 1):
            columns = slice(begin, begin + batch)
            # A pair of nodes is one integer, source * nodes + destination.
            yield nodes[:, self.source[columns]] * machine.fabric.nodes + nodes[:, self.destination[columns]]


def routes_of_groups(
    uses: Sequence[tuple[Line, tuple[int, ...]]],
    templates: Sequence[Template],
    machine: Wired,
    *,
    both_directions: bool,
) -> GroupRoutes:
    """Return the routes of all templates, and with `both_directions` the routes back.

    `uses` are the members of each group and the templates that it runs.
    """
    of_shape = dict(zip(shapes(templates), templates, strict=True))
    keys = {shape: _Pattern.of(template).key for shape, template in of_shape.items()}
    names = [keys[shape] for shape in shapes(templates)]
    patterns: dict[_Shape, _Pattern] = {}
    for line, templates_of in dict.fromkeys(uses):
        for number in templates_of:
            shape = names[number], len(line)  # a cut has fewer members than the groups that it is of
            if shape not in patterns:
                patterns[shape] = _Pattern.of(templates[number])
            patterns[shape].lines[line] = None
    large = {
        name: pattern
        for name, pattern in patterns.items()
        if len(pattern.source) >= _LARGE and not both_directions
    }  # routes back are looked for among all routes
    small = {name: pattern for name, pattern in patterns.items() if name not in large}
    rows, distinct, return_routes = _numbered(small, machine, both_directions=both_directions)
    count = len(distinct)
    for (name, _), pattern in large.items():
        for line in pattern.lines:
            rows[name, line] = np.arange(count, count + len(pattern.source), dtype=np.int32)
            count += len(pattern.source)
    routes = {
        (line, templates_of): {number: rows[names[number], line] for number in templates_of}
        for line, templates_of in dict.fromkeys(uses)
    }
    of_group = tuple(routes[use] for use in uses)
    return GroupRoutes(of_group, _routed(machine, _batches(distinct, large, machine)), return_routes)


def _numbered(
    patterns: Mapping[_Shape, _Pattern], machine: Wired, *, both_directions: bool
) -> tuple[dict[tuple[bytes, Line], Int32s], Int64s, Int32s]:
    """Return the number of each pair of each line, the distinct pairs in order, and their routes back."""
    nodes = machine.fabric.nodes
    keys = [pattern.pairs(list(pattern.lines), machine) for pattern in patterns.values()]
    pairs = np.concatenate([np.zeros(0, np.int64), *[part.reshape(-1) for part in keys]])
    # Swap both ends of each encoded pair.
    reverse = pairs % nodes * nodes + pairs // nodes if both_directions else pairs[:0]
    distinct, places = _distinct(np.concatenate((pairs, reverse)), nodes)
    there, back = np.split(places, [len(pairs)])
    return_routes = np.zeros(len(distinct) if both_directions else 0, np.int32)
    if both_directions:
        # Each pair and its reverse are the return routes of each other.
        return_routes[there], return_routes[back] = back, there
    flat, begin = there, 0
    rows: dict[tuple[bytes, Line], Int32s] = {}
    for ((name, _), pattern), part in zip(patterns.items(), keys, strict=True):
        numbers = flat[begin : begin + part.size].reshape(part.shape)
        begin += part.size
        rows |= {(name, line): row for line, row in zip(pattern.lines, numbers, strict=True)}
    return rows, distinct, return_routes


def _distinct(pairs: Int64s, nodes: int) -> tuple[Int64s, Int32s]:
    """Return the distinct pairs in ascending order, and where each stands among them."""
    if nodes * nodes > _DENSE * len(pairs):
        distinct, places = np.unique(pairs, return_inverse=True)
        return distinct, places.reshape(-1).astype(np.int32)
    # Dense pairs: a table over all pairs of nodes replaces the sort of np.unique.
    marks = np.zeros(nodes * nodes, np.bool_)
    marks[pairs] = True
    distinct = np.flatnonzero(marks)
    numbers = np.zeros(nodes * nodes, np.int32)
    numbers[distinct] = np.arange(len(distinct), dtype=np.int32)
    return distinct, numbers[pairs]


def _batches(distinct: Int64s, large: Mapping[_Shape, _Pattern], machine: Wired) -> Iterator[Int64s]:
    """Yield all pairs in the order of their numbers."""
    yield distinct
    for pattern in large.values():
        for line in pattern.lines:
            for (batch,) in pattern.batches([line], machine, _BATCH):
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


def all_pairs(groups: Sequence[Sequence[int]] | Int64s) -> Int64s:
    """Return every ordered pair of different members of each group, as rows, group by group."""
    member = np.array(groups, np.int64).reshape(len(groups), -1)
    source, destination = np.nonzero(~np.eye(member.shape[1], dtype=bool))
    return np.stack((member[:, source], member[:, destination]), 2).reshape(-1, 2)


def distinguishing_pairs(group: Sequence[int]) -> Int64s:
    """Return the pairs by whose routes a large group differs from others: to neighbours, and from the first.

    All pairs are quadratic; groups that agree in these and not in others do not occur in regular fabrics.
    """
    member = np.array(group, np.int64)
    star = np.stack((np.broadcast_to(member[:1], len(member) - 1), member[1:]), 1)
    return np.concatenate((np.stack((member, np.roll(member, -1)), 1), star))


def compared_pairs(groups: Sequence[Sequence[int]]) -> Int64s:
    """Return [group, pair, end] the pairs by whose routes groups of one size are distinguished."""
    if len(groups[0]) > COMPARED:
        return np.stack([distinguishing_pairs(group) for group in groups])
    return all_pairs(groups).reshape(len(groups), -1, 2)


class Reach(Struct, frozen=True, eq=False):
    """The links on the routes of each user (a group, or a place): one row for each (link, user)."""

    links: Int64s
    users: Int64s

    @classmethod
    def of(cls, machine: Wired, pairs: Sequence[Int64s]) -> Reach:
        """Return the table for users with these pairs of nodes."""
        rows = [np.zeros((0, 2), np.int64)]
        for user, ends in enumerate(pairs):
            links = np.unique(np.asarray(machine.router.routes(ends.reshape(-1, 2)).links, np.int64))
            rows.append(np.stack((links, np.full(len(links), user)), 1))
        table = np.concatenate(rows)
        return cls(table[:, 0], table[:, 1])

    def users_of(self, links: Int64s) -> list[int]:
        """Return the users on whose routes one of some links is, ascending."""
        positions: list[int] = np.unique(self.users[np.isin(self.links, links)]).tolist()
        return positions


def signatures(machine: Machine, groups: Sequence[Sequence[int]], *, alone: bool = False) -> list[bytes]:
    """Return a key for each group of GPUs, all of one size; equal keys give equal results.

    Two groups have one key if a renaming of links maps the routes between their members, in member order,
    onto each other with equal bandwidth and latency; likewise those in the trees of switches over them, where
    the machine uses such. With `alone` each route is compared by itself: no matter which routes share links.
    """
    members = len(groups[0])
    most = max(1, _BATCH // (members * min(members, COMPARED)))
    batches = (groups[begin : begin + most] for begin in range(0, len(groups), most))
    return [key for batch in batches for key in _signatures(machine, batch, alone=alone)]


def known_signatures(
    machine: Machine, groups: Sequence[Sequence[int]], cache: BoundedCache, *, alone: bool = False
) -> list[bytes]:
    """Return what `signatures` does, from the cache where a machine of equal links has asked before."""
    key = ("signatures", machine.network, tuple(map(tuple, groups)), alone)
    bytes_of_key = 8 * sum(map(len, groups))
    return cache.get_or_make(
        key,
        lambda: signatures(machine, groups, alone=alone),
        weight=lambda keys: bytes_of_key + sum(map(len, keys)),
    )


def _signatures(machine: Machine, groups: Sequence[Sequence[int]], *, alone: bool) -> list[bytes]:
    pairs = compared_pairs(groups)
    if not machine.in_switches:
        return route_keys(machine, [(b"", ends) for ends in pairs], alone=alone)
    known = [machine.switch_trees.over(tuple(group)) for group in groups]
    marks = [b"" if tree is None else repr(tree.parents).encode() for tree in known]
    branches = [
        np.concatenate((ends, tree_pairs(machine, [group])))
        for ends, group in zip(pairs, groups, strict=True)
    ]
    return route_keys(machine, list(zip(marks, branches, strict=True)), alone=alone)


def route_keys(
    machine: Machine, groups: Sequence[tuple[bytes, Int64s]], *, alone: bool = False
) -> list[bytes]:
    """Return a key of the routes of each (label, node pairs), independent of the names of links.

    With `alone` it does not depend on which routes share links.
    """
    routes = machine.router.routes(np.concatenate([pairs for _, pairs in groups]))
    firsts = starts_of([len(pairs) for _, pairs in groups])
    lengths, links = np.diff(routes.starts), np.asarray(routes.links, np.int64)
    begins, keys = routes.starts[firsts], [b""] * len(groups)
    for copies in _copies(machine.fabric, _in_rows(lengths, firsts), _in_rows(links, begins), len(groups)):
        group = copies[0]
        mine = links[begins[group] : begins[group + 1]], lengths[firsts[group] : firsts[group + 1]]
        key = (_each_alone if alone else _canonical)(machine.fabric, *mine)
        for copy in copies.tolist():
            keys[copy] = groups[copy][0] + key
    return keys


def _in_rows(column: Int64s, starts: Int64s) -> Int64s | None:
    """Return a column as an array [group, place]; None if groups differ in length."""
    lengths = np.diff(starts)
    return column.reshape(len(lengths), int(lengths[0])) if (lengths == lengths[0]).all() else None


def _copies(fabric: Fabric, lengths: Int64s | None, links: Int64s | None, groups: int) -> Iterator[Int64s]:
    """Yield groups that are copies of one another: their links are as many numbers further on."""
    left = np.arange(groups)
    if lengths is not None and links is not None:
        columns = lengths, links - links[:, :1], fabric.bandwidth[links], fabric.latency[links]
        for _ in range(_KINDS):
            alike = np.ones(len(left), np.bool_)
            for column in columns if len(left) else ():
                alike &= (column[left] == column[left[0]]).all(axis=1)
            if alike.any():
                yield left[alike]
            left = left[~alike]
    yield from left[:, None]


def _each_alone(fabric: Fabric, links: Int64s, lengths: Int64s) -> bytes:
    """Return the bandwidth and latency of each link of each route."""
    return b"|".join(column.tobytes() for column in (lengths, fabric.bandwidth[links], fabric.latency[links]))


def _canonical(fabric: Fabric, links: Int64s, lengths: Int64s) -> bytes:
    """Return the routes with links numbered by first use, and each link's bandwidth and latency."""
    _, first_use, names = np.unique(links, return_index=True, return_inverse=True)
    # np.unique numbers links in ascending order; renumber them by their first use in the routes.
    number = np.empty(len(first_use), np.int64)
    number[np.argsort(first_use, kind="stable")] = np.arange(len(first_use))
    used = links[np.sort(first_use)]
    parts = (lengths, number[names], fabric.bandwidth[used], fabric.latency[used])
    return b"|".join(np.ascontiguousarray(part, np.int64).tobytes() for part in parts)


def geometry(machine: Machine, gpus: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (extents, axes) of a group: the grid that its members are by position, and along which axes.

    Members ascend, and every block of the fabric that has some (a node, a row, a pod) has as many as any
    other of its kind: those of a whole fabric, of two of its nodes, or of every other GPU of each. A fabric
    of one axis, such as a graph, has nodes and the places in them. Any other group, and one listed in another
    order, is one logical ring: ((members,), ()).
    """
    fabric, node = machine.fabric, machine.spec.gpus_per_node or 1
    one_ring = (len(gpus),), ()
    blocks = np.array(gpus, np.int64)
    if prod(fabric.axes) != fabric.gpus or len(gpus) < 2 or not (np.diff(blocks) > 0).all():
        return one_ring
    extents, axes, count = list[int](), list[int](), len(gpus)
    levels = list(enumerate(fabric.axes))
    if len(levels) == 1 and 1 < node < fabric.gpus and fabric.gpus % node == 0:
        levels = [(0, node), (0, fabric.gpus // node)]
    for axis, extent in levels:
        blocks = blocks[:: len(blocks) // count] // extent  # one member of each block of the axis before
        distinct_blocks = len(set(blocks.tolist()))  # np.unique imports numpy.ma
        rows = blocks.reshape(distinct_blocks, -1) if count % distinct_blocks == 0 else blocks[None, :]
        if (rows != rows[:, :1]).any():
            return one_ring
        if count > distinct_blocks:
            extents.append(count // distinct_blocks)
            axes.append(axis)
        count = distinct_blocks
    return tuple(extents), tuple(axes)


def sprayed(machine: Machine, routes: Routes) -> tuple[Routes, SprayTable | None]:
    """Return the routes with all that messages are spread over, and who takes which."""
    spray = machine.switching.spray
    if spray is None:
        return routes, None
    several = spread(machine.fabric, machine.dead, routes, spray)
    load = LoadTable(several.minimal, int(spray.bias or 0)) if spray.choose == "least_loaded" else None
    return several.routes, SprayTable(spray.per == "message", several.starts, several.numbers, load)


def routes_back(back: Int32s, routes: int, spray: SprayTable | None) -> Int32s:
    """Return the route back of each of this many routes: that of its pair's planned one."""
    if spray is None:
        return back
    known = np.zeros(routes, np.int32)
    known[spray.routes] = np.repeat(back, np.diff(spray.starts))
    return known
