"""Dragonfly+: groups of leaves under spines, whose spines are cabled to those of other groups."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.errors import TopologyError
from rapid_des.network.fabric import Block, Wires, both_directions, check_bandwidth, check_links
from rapid_des.network.paths import pick
from rapid_des.network.shapes.low_diameter import OverRouters, takes_detour, third, with_hosts
from rapid_des.network.specs import DragonflyPlus, NonMinimal, Rate, Routing

_UP, _CABLE, _LEAF, _SECOND = 5, 6, 7, 8
"""The salts that are hashed with a flow's source and destination at each choice."""


def dragonfly_plus(dimension: DragonflyPlus, routing: Routing) -> Block:
    """Return a Dragonfly+; its routers are all leaves, group by group, and then all spines."""
    groups = _DragonflyPlusGroups.of(dimension)
    check_links(2 * groups.leaves_in_all * groups.spines + 2 * groups.count * groups.ports, dimension.name)
    widest = groups.ports * int(dimension.global_link.bandwidth)
    check_bandwidth(widest, f"dimension {dimension.name}: global cables of a group")
    leaf = np.repeat(np.arange(groups.leaves_in_all), groups.spines)
    spine = np.tile(np.arange(groups.spines), groups.leaves_in_all)
    laid = both_directions(leaf, groups.spine(leaf // groups.leaves, spine), dimension.local_link)
    laid.append(_cables(groups, dimension.global_link))
    minimal, detour = _UpOverDown(groups, routing), routing.non_minimal
    if detour is not None and detour.through == "group":
        paths: OverRouters | _OverGroups = _OverGroups(groups, minimal, dimension.hosts, detour)
    else:
        paths = OverRouters(minimal, dimension.hosts, groups.leaves_in_all, detour)
    return with_hosts(dimension, groups.leaves_in_all + groups.count * groups.spines, laid, paths)


class _DragonflyPlusGroups(Struct, frozen=True):
    """Which spines join two groups, by the distance 1..count-1 between them and the cable's number."""

    count: int
    leaves: int
    """The number of leaves in a group; `spines` is the number of its spines."""
    spines: int
    each: int
    """The number of global cables of a spine."""

    @classmethod
    def of(cls, dimension: DragonflyPlus) -> _DragonflyPlusGroups:
        """Return the groups of a dimension; `TopologyError` where their cables can not join them."""
        hosts = dimension.hosts * dimension.leaves
        count = -(-dimension.size // hosts)
        groups = cls(count, dimension.leaves, dimension.spines, dimension.global_links)
        if count > 1 and not groups.copies:
            allowed = f"up to {(groups.ports + 1) * hosts} with {groups.ports} global cables a group"
            raise TopologyError(f"dimension {dimension.name}: size: {dimension.size}; allowed: {allowed}")
        return groups

    @property
    def ports(self) -> int:
        """Global cables that a group has room for."""
        return self.spines * self.each

    @property
    def copies(self) -> int:
        """Cables between two groups."""
        return self.ports // max(self.count - 1, 1)

    @property
    def leaves_in_all(self) -> int:
        return self.count * self.leaves

    def spine(self, group: Int64s, spine: Int64s) -> Int64s:
        """Return the router that a group's spine is."""
        return self.leaves_in_all + group * self.spines + spine

    def gateway(self, group: Int64s, other: Int64s, copy: Int64s | int) -> Int64s:
        """Return the router in a group that holds a cable to another group."""
        distance = (other - group) % self.count
        port = copy * (self.count - 1) + np.maximum(distance, 1) - 1
        return self.spine(group, port // self.each)


def _cables(groups: _DragonflyPlusGroups, rate: Rate) -> Wires:
    """Return the links between groups: as wide as their cables are many."""
    group, other, copy = np.indices((groups.count, groups.count, groups.copies)).reshape(3, -1)
    group, other, copy = (column[group != other] for column in (group, other, copy))
    ends = np.stack([groups.gateway(group, other, copy), groups.gateway(other, group, copy)], axis=1)
    links, cables = np.unique(ends, axis=0, return_counts=True)
    bandwidth, latency = cables * int(rate.bandwidth), np.full(len(links), int(rate.latency))
    return Wires(links[:, 0], links[:, 1], bandwidth, latency)


class _UpOverDown(Struct, frozen=True):
    """Minimal routes: leaf, spine, spine of the other group, leaf; within a group over one spine."""

    groups: _DragonflyPlusGroups
    routing: Routing

    def __call__(self, start: Int64s, goal: Int64s, flow: tuple[Int64s, Int64s]) -> Int64s:
        here, there = start // self.groups.leaves, goal // self.groups.leaves
        out, into = self.crossing(here, there, flow)
        within = self.groups.spine(here, pick(self.routing, *flow, _UP, self.groups.spines))
        near, same = here == there, start == goal
        up = np.where(same, start, np.where(near, within, out))
        down = np.where(same, start, np.where(near, within, into))
        return np.stack([start, up, down, goal], axis=1)

    def crossing(self, here: Int64s, there: Int64s, flow: tuple[Int64s, Int64s]) -> tuple[Int64s, Int64s]:
        """Return the two ends of the cable that a flow takes from group to group."""
        copy = pick(self.routing, *flow, _CABLE, max(self.groups.copies, 1))
        return self.groups.gateway(here, there, copy), self.groups.gateway(there, here, copy)


class _OverGroups(Struct, frozen=True):
    """Minimal routes, but over a third group for the stated share of the flows between groups.

    There they go on from the spine they came to, if it has a cable to the last group, else over a leaf.
    """

    groups: _DragonflyPlusGroups
    minimal: _UpOverDown
    hosts: int
    """The number of endpoints at a leaf."""
    detour: NonMinimal

    def __call__(self, source: Int64s, destination: Int64s) -> Int64s:
        groups, flow = self.groups, (source, destination)
        start, goal = source // self.hosts, destination // self.hosts
        path = self.minimal(start, goal, flow)
        if groups.count < 3:
            return path
        here, there = start // groups.leaves, goal // groups.leaves
        takes = takes_detour(self.detour, flow) & (here != there)
        over = third(self.detour, flow, (here, there), groups.count)
        up, into = self.minimal.crossing(here, over, flow)
        out, down = self._onward(into, over, there, flow)
        leaf = over * groups.leaves + pick(self.minimal.routing, *flow, _LEAF, groups.leaves)
        long = np.stack([start, up, into, np.where(into == out, into, leaf), out, down, goal], axis=1)
        short = np.concatenate([path, np.repeat(path[:, -1:], 3, axis=1)], axis=1)
        return np.where(takes[:, None], long, short)

    def _onward(
        self, into: Int64s, over: Int64s, there: Int64s, flow: tuple[Int64s, Int64s]
    ) -> tuple[Int64s, Int64s]:
        """Return the ends of the cable from the third group on: one of the spine that was come to, if any."""
        groups, copies = self.groups, np.arange(self.groups.copies)[None, :]
        held = groups.gateway(over[:, None], there[:, None], copies) == into[:, None]
        allowed = held | ~held.any(axis=1, keepdims=True)
        nth = pick(self.minimal.routing, *flow, _SECOND, allowed.sum(axis=1))
        copy = np.argmax(np.cumsum(allowed, axis=1) > nth[:, None], axis=1)
        return groups.gateway(over, there, copy), groups.gateway(there, over, copy)
