"""The routes that groups take, each looked up once: many small ones together, large patterns in batches.

Two groups of GPUs are the same to a simulation if their routes are equal up to the names of the links. A
route's profile is the (bandwidth, latency) of each of its links; hops have a class by their profiles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import prod
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.arrays import Int32s, Int64s, distinct, starts_of
from rapid_des.machine import Machine
from rapid_des.network.fabric import Fabric, Router, Routes
from rapid_des.network.spraying import spread
from rapid_des.network.switches import SwitchTrees
from rapid_des.program.program import NONE, LoadTable, SprayTable, Template, shapes
from rapid_des.program.switch_trees import tree_pairs, with_switches

_BATCH = 1 << 18
"""Number of routes that are processed at a time, which bounds memory."""

Profile = tuple[tuple[int, int], ...]
"""(bandwidth in bytes/s, latency in ps) of each link of a route."""


def by_link(fabric: Fabric, routes: Routes) -> tuple[list[Profile], Int32s]:
    """Return each distinct (bandwidth, latency) as a profile of one hop, and the class of each hop."""
    kinds, places = np.unique(np.stack([fabric.bandwidth, fabric.latency], 1), axis=0, return_inverse=True)
    profiles: list[Profile] = [((int(bandwidth), int(latency)),) for bandwidth, latency in kinds]
    return profiles, places.reshape(-1).astype(np.int32)[routes.links]


def by_route(fabric: Fabric, routes: Routes) -> tuple[list[Profile], Int32s]:
    """Return the distinct profiles, and as a hop's class its profile's base plus its position."""
    used = _used(routes.links, len(fabric))
    # Number the distinct (bandwidth, latency) of the links in use; the kind of unused links is never read.
    kinds, kind = np.unique(
        np.stack([fabric.bandwidth[used], fabric.latency[used]], 1), axis=0, return_inverse=True
    )
    link_kind = np.zeros(len(fabric), np.int32)
    link_kind[used] = kind.reshape(-1)
    firsts, profile = _kinds_of_routes(routes, link_kind, len(kinds))
    order = sorted(range(len(firsts)), key=lambda number: firsts[number][0])
    # Classes are numbered profile by profile in the order of first use: class = base[profile] + hop.
    # A route without links has profile NONE (-1), which reads the last entry of `base`.
    base = np.zeros(len(firsts) + 1, np.int32)  # the last is that of messages to itself
    total = 0
    for number in order:
        base[number] = total
        total += len(firsts[number][1])
    classes = np.empty(len(routes.links), np.int32)
    for begin in range(0, len(routes), _BATCH):
        starts = routes.starts[begin : begin + _BATCH + 1]
        lengths = np.diff(starts)
        # Position of each hop within its route: the flat index less the start of its route.
        hop = np.arange(starts[0], starts[-1]) - np.repeat(starts[:-1], lengths)
        classes[starts[0] : starts[-1]] = np.repeat(base[profile[begin : begin + _BATCH]], lengths) + hop
    rates = [(int(bandwidth), int(latency)) for bandwidth, latency in kinds]
    return [tuple(rates[link] for link in firsts[number][1]) for number in order], classes


def _used(links: Int64s, number: int) -> Int64s:
    """Return the different ones of some links, ascending, of `number` links in all."""
    if 8 * len(links) < number:  # sorting few is faster than marking among many
        return distinct(links)
    used = np.zeros(number, np.bool_)
    used[links] = True
    return np.flatnonzero(used)


def _kinds_of_routes(
    routes: Routes, link_kind: Int32s, kinds: int
) -> tuple[list[tuple[int, tuple[int, ...]]], Int32s]:
    """Return the distinct sequences of link kinds, each with its first start, and each route's sequence."""
    firsts: dict[tuple[int, ...], int] = {}
    begun: list[int] = []
    profile = np.full(len(routes), NONE, np.int32)
    for batch in range(0, len(routes), _BATCH):
        starts = routes.starts[batch : batch + _BATCH + 1]
        lengths = np.diff(starts)
        for length in distinct(lengths[lengths > 0]).tolist():  # a message to itself takes no link
            places = np.flatnonzero(lengths == length)
            begins = starts[places]
            # Routes of one length form a rectangle [route, hop], so that equal routes are equal rows.
            rows = link_kind[routes.links[begins[:, None] + np.arange(length)]]
            first, place = _alike(rows, kinds)
            numbers = np.empty(len(first), np.int32)
            for index, row in enumerate(first.tolist()):
                numbers[index] = number = firsts.setdefault(tuple(rows[row].tolist()), len(firsts))
                if number == len(begun):
                    begun.append(int(begins[row]))
            profile[batch + places] = numbers[place]
    return list(zip(begun, firsts, strict=True)), profile


def _alike(rows: Int32s, kinds: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of each set of equal rows, and each row's set; much faster than sorting rows."""
    if (rows == rows[0]).all():
        return np.zeros(1, np.int64), np.zeros(len(rows), np.int64)
    # Read each row as one integer in base `kinds`. Before that could exceed 64 bits, renumber the codes.
    code = rows[:, 0].astype(np.int64)
    for column in rows.T[1:]:
        if int(code.max(initial=0)) > 2**62 // kinds:
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
        code = code * kinds + column
    _, first, place = np.unique(code, return_index=True, return_inverse=True)
    return first, place.reshape(-1)


COMPARED = 64
"""Largest group of which all pairs are compared."""
_LARGE = 1 << 12
"""Patterns with at least this many pairs are routed one group at a time, without deduplication."""
"""Pairs that are routed at a time, which bounds memory."""

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
    lines: dict[Line, None]

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
    names = _fingerprints(templates)
    patterns: dict[_Shape, _Pattern] = {}
    for line, templates_of in dict.fromkeys(uses):
        for number in templates_of:
            shape = names[number], len(line)  # a cut has fewer members than the groups that it is of
            if shape not in patterns:
                template = templates[number]
                ends = template.pair_source, template.pair_destination
                patterns[shape] = _Pattern(*ends, template.members, template.below, {})
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


def _fingerprints(templates: Sequence[Template]) -> list[bytes]:
    """Return who sends to whom among how many, as digests: equal ones take equal routes."""
    known: dict[Hashable, bytes] = {}
    fingerprints = []
    for template, shared in zip(templates, shapes(templates), strict=True):
        if shared not in known:
            digest = hashlib.blake2b(f"{template.members} {template.below}".encode(), digest_size=16)
            digest.update(np.ascontiguousarray(template.pair_source).data)
            digest.update(np.ascontiguousarray(template.pair_destination).data)
            known[shared] = digest.digest()
        fingerprints.append(known[shared])
    return fingerprints


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
    ends = np.cumsum([0, *(len(pairs) for _, pairs in groups)])
    fabric, known, keys = machine.fabric, dict[tuple[bytes, ...], bytes](), []
    for (mark, _), first, last in zip(groups, ends, ends[1:], strict=False):
        starts = routes.starts[first : last + 1]
        links = np.asarray(routes.links[starts[0] : starts[-1]], np.int64)
        # Most groups are copies of one another, their links as many numbers further on.
        columns = np.diff(starts), links - links[:1], fabric.bandwidth[links], fabric.latency[links]
        shape = tuple(column.tobytes() for column in columns)
        if alone:
            known[shape] = b"|".join((shape[0], *shape[2:]))
        elif shape not in known:
            known[shape] = _canonical(fabric, links, np.diff(starts))
        keys.append(mark + known[shape])
    return keys


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
