"""Routers: dimension order, which is arithmetic without tables of pairs, and what goes before it.

Between nodes that are no GPUs the shortest path, where the machine file states waypoints that by them, and
around dead links what is left. All are pure and deterministic. A router may remember distances; a copy in
another process starts without. Shortest paths over living links take one array operation a level.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import (
    Bools,
    Int32s,
    Int64s,
    distinct,
    entries_of,
    hashed,
    rows_of,
    starts_by,
    starts_of,
)
from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import FabricCutError, TopologyError
from rapid_des.network.build import DimensionLayout, FabricLayout, find_gpu, find_node
from rapid_des.network.fabric import Fabric, Router, Routes
from rapid_des.network.specs import Routing, Waypoint

UNREACHED = -1


def hops_to(fabric: Fabric, destination: int, alive: Bools) -> Int32s:
    """Return each node's number of hops to `destination` over living links, `UNREACHED` (-1) if cut off."""
    return levels(fabric.incoming, fabric.source, destination, alive)


def hops_from(fabric: Fabric, source: int, alive: Bools) -> Int32s:
    """Return each node's number of hops from `source` over living links, `UNREACHED` (-1) if cut off."""
    return levels(fabric.outgoing, fabric.destination, source, alive)


def compressed(ends: Int64s, nodes: int) -> tuple[Int64s, Int64s]:
    """Return (starts, links): the links of each node, given the node of each link."""
    order = np.argsort(ends, kind="stable")
    return starts_by(ends, nodes), order


def levels(table: tuple[Int64s, Int64s], far_end: Int32s | Int64s, start: int, alive: Bools) -> Int32s:
    """Return each node's level in a breadth-first search along a table of links, `UNREACHED` if none."""
    hops = np.full(len(table[0]) - 1, UNREACHED, np.int32)
    for level, reached in enumerate(waves(table, far_end, start, alive)):
        hops[reached] = level
    return hops


def waves(
    table: tuple[Int64s, Int64s], far_end: Int32s | Int64s, start: int, alive: Bools
) -> Iterator[Int64s]:
    """Yield the nodes of each level of a breadth-first search, ascending."""
    starts, entries = table
    is_left = np.ones(len(starts) - 1, np.bool_)
    frontier: Int64s = np.array([start])
    while len(frontier):
        is_left[frontier] = False
        yield frontier
        links = entries[entries_of(starts, frontier)]
        ends = far_end[links[alive[links]]]
        frontier = distinct(ends[is_left[ends]]).astype(np.int64)


def pick(  # noqa: PLR0913 - a flow, and what it chooses from
    routing: Routing,
    source: Int64s,
    destination: Int64s,
    salt: Int64s | int,
    choices: Int64s | int,
    *,
    turn: Int64s | None = None,
) -> Int64s:
    """Return one of 0..choices-1 for each flow: the first, or by the SplitMix64 finaliser of (flow, salt).

    Or `turn` modulo the choices, for `ecmp: destination`; it is the destination unless the caller numbers
    those destinations that meet the same choices. Equal-cost multi-path: all messages between two endpoints
    take one of the equal paths, on every machine and in every run the same.
    """
    if routing.ecmp == "lowest_id":
        return np.zeros(len(source), np.int64)
    if routing.ecmp == "destination":
        return (destination if turn is None else turn) % choices
    return hashed(source, destination, (0, salt)) % choices


_ROOM = 2**24
"""The most (node, destination) entries of distances and next links that a router keeps, at eight bytes each.
"""
_LISTED = 8
"""The most links and GPUs that an error lists by name."""


def as_pairs(pairs: Iterable[tuple[int, int]] | Int64s) -> Int64s:
    """Return pairs of nodes as the rows of a table."""
    return np.array(pairs if isinstance(pairs, np.ndarray) else list(pairs), np.int64).reshape(-1, 2)


class DimensionOrderRouter(Struct, frozen=True, eq=False):
    """Corrects one dimension after the other, in the order that the machine file states."""

    layout: FabricLayout

    @property
    def fabric(self) -> Fabric:
        """The fabric that the links belong to."""
        return self.layout.fabric

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the ids of the links between two GPUs, in order."""
        return self.routes([(source, destination)]).of(0)

    def joins_arms(self, gpus: Int64s) -> bool:
        """Return whether GPUs differ along one dimension only, and that is a star."""
        digits = [(layout, gpus // layout.stride % layout.size) for layout in self.layout.layouts]
        varied = [layout for layout, digit in digits if (digit != digit[0]).any()]
        return len(varied) == 1 and varied[0].block.star

    def routes(self, pairs: Iterable[tuple[int, int]]) -> Routes:
        """Return the routes of many pairs of GPUs at once."""
        table = as_pairs(pairs)
        _check_gpus(self.fabric, table)
        layouts = self.layout.layouts
        current, flows, parts = table[:, 0].copy(), np.arange(len(table)), []
        for layout in layouts if self.layout.routing.order == "innermost_first" else reversed(layouts):
            target = current + _offset(layout, current, table[:, 1])
            moved = np.flatnonzero(current != target)
            links, lengths = _within(layout, current[moved], target[moved])
            parts.append((np.repeat(flows[moved], lengths), links))
            current = target
        parts = [part for part in parts if len(part[0])] or parts[:1]
        flow, links = (np.concatenate(column) for column in zip(*parts, strict=True))
        starts = starts_by(flow, len(table))
        return Routes(starts, links if len(parts) == 1 else links[np.argsort(flow, kind="stable")])


def _offset(layout: DimensionLayout, current: Int64s, destination: Int64s) -> Int64s:
    here, there = current // layout.stride % layout.size, destination // layout.stride % layout.size
    return (there - here) * layout.stride


def _within(layout: DimensionLayout, source: Int64s, target: Int64s) -> tuple[Int64s, Int64s]:
    """Return the links of many moves within one dimension, and how many each has."""
    (copy, start), (_, end) = layout.locate(source), layout.locate(target)
    if layout.block.star:
        routes = layout.block.walk(start, end)
        lengths = np.diff(routes.starts)
        return layout.links(np.repeat(copy, lengths), routes.links), lengths
    keys, which = np.unique(start * layout.block.positions + end, return_inverse=True)
    routes = layout.block.walk(keys // layout.block.positions, keys % layout.block.positions)
    lengths = np.diff(routes.starts)[which]
    local = routes.links[entries_of(routes.starts, which)]
    return layout.links(np.repeat(copy, lengths), local), lengths


def _check_gpus(fabric: Fabric, pairs: Int64s) -> None:
    """Refuse ends of a route that are no GPUs of the fabric."""
    wrong = pairs[(pairs < 0) | (pairs >= fabric.gpus)]
    if len(wrong):
        raise TopologyError(f"{fabric.name}: there is no GPU {wrong[0]}; allowed: 0 to {fabric.gpus - 1}")


class AnyNodeRouter(Struct, frozen=True, eq=False, dict=True):
    """Routes between GPUs as `between_gpus` has them, and between any other nodes the shortest path.

    Such a path leads through no GPU, from the lower node to the higher one over the lowest nodes, and back
    over the same nodes where those links exist. It is blind to faults, as planned routes are.
    """

    fabric: Fabric
    between_gpus: Router
    known: BoundedCache = field(default_factory=lambda: BoundedCache(_ROOM))
    """The hops of each node to a destination, by destination, and routes, by their ends."""

    def joins_arms(self, gpus: Int64s) -> bool:
        """Return the answer of the router between GPUs."""
        return self.between_gpus.joins_arms(gpus)

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the ids of the links between two nodes, in order."""
        if max(source, destination) < self.fabric.gpus:
            return self.between_gpus.route(source, destination)
        if source < destination:
            return self._shortest(source, destination)
        fabric, nodes = self.fabric, [destination]
        for link in self._shortest(destination, source):
            nodes.append(int(fabric.destination[link]))
        try:
            return tuple(fabric.link(*hop) for hop in zip(nodes[:0:-1], nodes[-2::-1], strict=True))
        except TopologyError:
            return self._shortest(source, destination)

    def routes(self, pairs: Iterable[tuple[int, int]]) -> Routes:
        """Return the routes of many pairs of nodes at once."""
        table = as_pairs(pairs)
        beyond = np.flatnonzero((table >= self.fabric.gpus).any(axis=1))
        if not len(beyond):
            return self.between_gpus.routes(table)
        known = self.known.get_or_make
        others = {
            flow: known(tuple(pair), partial(self.route, *pair), weight=len)
            for flow, pair in zip(beyond.tolist(), table[beyond].tolist(), strict=True)
        }
        between = table.copy()
        between[beyond] = 0  # a GPU's route to itself has no links
        return replaced(self.between_gpus.routes(between), others)

    def _shortest(self, source: int, destination: int) -> tuple[int, ...]:
        fabric, links, node = self.fabric, list[int](), source
        hops = self.known.get_or_make(destination, lambda: self._hops_to(destination), weight=len)
        if hops[source] == UNREACHED:
            ends = f"{fabric.node_name(source)} to {fabric.node_name(destination)}"
            raise TopologyError(f"{fabric.name}: no path leads from {ends} but through GPUs")
        starts, outgoing = fabric.outgoing
        while node != destination:
            candidates = outgoing[starts[node] : starts[node + 1]]
            ends_of = fabric.destination[candidates]
            nearer = (hops[ends_of] == hops[node] - 1) & ((ends_of >= fabric.gpus) | (ends_of == destination))
            links.append(
                int(candidates[np.argmax(nearer)])
            )  # they ascend by destination: the lowest is first
            node = int(fabric.destination[links[-1]])
        return tuple(links)

    def _hops_to(self, destination: int) -> Int32s:
        fabric = self.fabric
        passes = (fabric.destination >= fabric.gpus) | (fabric.destination == destination)
        return levels(fabric.incoming, fabric.source, destination, passes)


class WaypointRouter(Struct, frozen=True, eq=False):
    """Routes as planned, but for the pairs that have one of their own; blind to faults, as planned ones."""

    planned: Router
    stated: Mapping[tuple[int, int], tuple[int, ...]]
    """The links of a stated route, by its (source, destination) GPUs."""

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the ids of the links between two nodes, in order."""
        return self.stated.get((source, destination)) or self.planned.route(source, destination)

    def joins_arms(self, gpus: Int64s) -> bool:
        """Return the answer of the planned router; False if a pair among the GPUs has a stated route."""
        group = set(gpus.tolist())
        is_stated = any(group.issuperset(pair) for pair in self.stated)
        return not is_stated and self.planned.joins_arms(gpus)

    def routes(self, pairs: Iterable[tuple[int, int]]) -> Routes:
        """Return the routes of many pairs of nodes at once."""
        table = as_pairs(pairs)
        ends = [np.isin(table[:, side], [pair[side] for pair in self.stated]) for side in (0, 1)]
        rows = np.flatnonzero(ends[0] & ends[1]).tolist()
        keys = {row: (int(table[row, 0]), int(table[row, 1])) for row in rows}
        stated = {row: self.stated[key] for row, key in keys.items() if key in self.stated}
        return replaced(self.planned.routes(table), stated)


def by_waypoints(fabric: Fabric, planned: Router, waypoints: Sequence[Waypoint]) -> Router:
    """Return the router that comes by the stated nodes: planned up to there, and planned on from there.

    Where that would come by a node twice, one of the two parts takes the shortest path that does not.
    `TopologyError` names the waypoint that cannot be.
    """
    stated: dict[tuple[int, int], tuple[int, ...]] = {}
    for index, waypoint in enumerate(waypoints):
        try:
            source, destination = (find_gpu(fabric, end) for end in (waypoint.source, waypoint.destination))
            through = find_node(fabric, waypoint.through)
            _check_waypoint(fabric, (source, through, destination), on_path=(source, destination) in stated)
            stated[source, destination] = _by(fabric, planned, (source, through, destination))
        except TopologyError as error:
            raise TopologyError(f"routing.waypoints[{index}]: {error}") from None
    return WaypointRouter(planned, stated) if stated else planned


def _check_waypoint(fabric: Fabric, nodes: tuple[int, int, int], *, on_path: bool) -> None:
    source, through, destination = nodes
    if source == destination:
        raise TopologyError(f"{fabric.node_name(source)} needs no route to itself")
    if through < fabric.gpus:
        raise TopologyError(f"through: {fabric.node_name(through)} is a GPU; allowed: a switch or a NIC")
    if on_path:
        ends = f"{fabric.node_name(source)} to {fabric.node_name(destination)}"
        raise TopologyError(f"{ends} has a waypoint already; allowed: one")


def _by(fabric: Fabric, planned: Router, nodes: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the links from a GPU by a node to a GPU: of the two parts at least one is as planned."""
    source, through, destination = nodes
    there, on = planned.route(source, through), planned.route(through, destination)
    with suppress(FabricCutError):
        return *there, *_avoiding(fabric, planned, nodes[1:], fabric.source[list(there)])
    try:
        return *_avoiding(fabric, planned, nodes[:2], fabric.destination[list(on)]), *on
    except FabricCutError:
        by, ends = fabric.node_name(through), f"{fabric.node_name(source)} to {fabric.node_name(destination)}"
        raise TopologyError(f"no route leads by {by} from {ends} but twice by a node") from None


def _avoiding(fabric: Fabric, planned: Router, ends: tuple[int, int], nodes: Int32s) -> tuple[int, ...]:
    """Return the links between two nodes: as planned, or the shortest by no other GPU and none of `nodes`."""
    closed = np.isin(fabric.destination, nodes)
    closed |= (fabric.destination < fabric.gpus) & (fabric.destination != ends[1])
    router = FaultAwareRouter(fabric, planned, frozenset(np.flatnonzero(closed).tolist()))
    return router.route(*ends)


class FaultAwareRouter(Struct, frozen=True, eq=False, dict=True):
    """Routes around dead links.

    A route whose links all live is taken as planned. Otherwise, among the shortest surviving paths, the one
    that follows the plan longest, then the one of lowest node ids. Such paths have no loops: each hop is one
    nearer to the destination. `FabricCutError` names the cut where no path survives.
    """

    fabric: Fabric
    planned: Router
    dead: frozenset[int]
    descents: BoundedCache = field(default_factory=lambda: BoundedCache(_ROOM))
    """The hops of each node to a destination, and its link to the lowest nearer neighbour; by destination."""

    @cached_property
    def alive(self) -> Bools:
        """Whether each link lives."""
        return self.fabric.alive(self.dead)

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the ids of the links between two GPUs, in order."""
        return self.routes([(source, destination)]).of(0)

    def routes(self, pairs: Iterable[tuple[int, int]]) -> Routes:
        """Return the routes of many pairs of GPUs at once."""
        table = as_pairs(pairs)
        planned = self.planned.routes(table)
        flows = rows_of(np.diff(planned.starts))
        broken = distinct(flows[~self.alive[planned.links]])
        order = np.lexsort((table[broken, 0], table[broken, 1]))
        detours = {
            flow: self._detour(int(table[flow, 0]), int(table[flow, 1]), planned.of(flow))
            for flow in broken[order].tolist()
        }
        return replaced(planned, detours)

    def joins_arms(self, gpus: Int64s) -> bool:
        """Return the planned router's answer; False if there are detours, which may depend on both ends."""
        return not self.dead and self.planned.joins_arms(gpus)

    def _detour(self, source: int, destination: int, planned: tuple[int, ...]) -> tuple[int, ...]:
        nodes = self.fabric.nodes
        hops, nearer = self.descents.get_or_make(
            destination, lambda: self._descent(destination), weight=lambda _: nodes
        )
        if hops[source] == UNREACHED:
            raise self._cut(source, destination)
        ends, links, node = self.fabric.destination, list[int](), source
        for link in planned:
            ahead = int(ends[link])
            if not self.alive[link] or hops[ahead] != hops[node] - 1:
                break
            links.append(link)
            node = ahead
        while node != destination:
            links.append(int(nearer[node]))
            node = int(ends[links[-1]])
        return tuple(links)

    def _descent(self, destination: int) -> tuple[Int32s, Int32s]:
        """Return each node's hops to a destination, and its link to the lowest neighbour that is nearer."""
        hops = hops_to(self.fabric, destination, self.alive)
        links = self._descending
        closer = links[hops[self.fabric.source[links]] == hops[self.fabric.destination[links]] + 1]
        nearer = np.zeros(self.fabric.nodes, np.int32)
        nearer[self.fabric.source[closer]] = closer  # of several, the last one written stays: the lowest
        return hops, nearer

    @cached_property
    def _descending(self) -> Int64s:
        """The living links, those to higher nodes first."""
        links = np.flatnonzero(self.alive)
        return links[np.argsort(-self.fabric.destination[links], kind="stable")]

    def _cut(self, source: int, destination: int) -> FabricCutError:
        fabric = self.fabric
        reached = hops_from(fabric, source, self.alive) != UNREACHED
        crossing = np.flatnonzero(reached[fabric.source] & ~reached[fabric.destination])
        ends = f"{fabric.node_name(source)} cannot reach {fabric.node_name(destination)}"
        near, far = _side(fabric, reached), _side(fabric, ~reached)
        links = _listed([fabric.link_name(link) for link in crossing[: _LISTED + 1].tolist()], len(crossing))
        return FabricCutError(f"{fabric.name}: {ends}: dead links cut {near} from {far}: {links}")


def _side(fabric: Fabric, member: Bools) -> str:
    gpus = np.flatnonzero(member[: fabric.gpus])
    names = _listed([fabric.node_name(gpu) for gpu in gpus[: _LISTED + 1].tolist()], len(gpus))
    others = int(np.count_nonzero(member)) - len(gpus)
    if not len(gpus):
        nodes = np.flatnonzero(member)
        return _listed([fabric.node_name(node) for node in nodes[: _LISTED + 1].tolist()], len(nodes))
    return f"{len(gpus)} GPUs ({names})" + (f" and {others} switches or NICs" if others else "")


def _listed(names: list[str], count: int) -> str:
    return ", ".join(names[:_LISTED]) + (f", … {count - _LISTED} more" if count > _LISTED else "")


def replaced(routes: Routes, others: dict[int, tuple[int, ...]]) -> Routes:
    """Return routes, those of the flows in `others` exchanged for what stands there."""
    if not others:
        return routes
    lengths = np.diff(routes.starts)
    lengths[list(others)] = [len(links) for links in others.values()]
    starts = starts_of(lengths)
    links = np.empty(int(starts[-1]), np.int64)
    same = np.ones(len(routes), bool)
    same[list(others)] = False
    links[np.repeat(same, lengths)] = routes.links[np.repeat(same, np.diff(routes.starts))]
    for flow, row in others.items():
        links[starts[flow] : starts[flow + 1]] = row
    return Routes(starts, links)
