"""NICs between GPUs and a dimension's switches, several of them a GPU, and several planes of switches.

gpu ─ nic0 ─ plane 0        one lane of several: a hash of both ends says which a pair of GPUs takes
    └ nic1 ─ plane 1        (or every message goes over all of them, which is one lane of their width)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from rapid_des.arrays import Int64s
from rapid_des.errors import TopologyError
from rapid_des.network.blocks import Block, NextNode, Wires, block, both_directions, check_links
from rapid_des.network.paths import hashed
from rapid_des.network.specs import Nic, Switched
from rapid_des.units import Bandwidth

_PLANE, _NIC = 21, 22
"""What is hashed beside a flow's ends."""


def endpoints_of_a_plane(dimension: Switched, inner: int) -> int:
    """Return how many endpoints each plane has over `inner` times the dimension's positions.

    `TopologyError` where NICs and planes do not fit each other.
    """
    where, nic, planes = f"dimension {dimension.name}", dimension.nic, dimension.planes
    sharing, count = (nic.gpus, nic.count) if nic else (1, 1)
    if inner % sharing:
        allowed = "a divisor of the inner sizes' product" if dimension.spans_inner else "1 unless spans_inner"
        raise TopologyError(f"{where}: nic.gpus: {sharing} GPUs a NIC; allowed: {allowed}")
    if (dimension.spread is None) != (planes == count == 1):
        needed = (
            "missing; allowed: hash, split" if dimension.spread is None else "one plane and one NIC need none"
        )
        raise TopologyError(f"{where}: spread: {needed}")
    if count > 1 and (count % planes or (dimension.spread == "split" and count != planes)):
        allowed = f"1 or {planes}" if dimension.spread == "split" else f"1 or a multiple of {planes}"
        raise TopologyError(f"{where}: nic.count: {count} NICs on {planes} planes; allowed: {allowed}")
    return inner * dimension.size // sharing * max(count // planes, 1)


def with_lanes(plane: Block, dimension: Switched) -> Block:
    """Return the block of all planes of a dimension and its NICs, given one plane over its endpoints."""
    nic, planes = dimension.nic, dimension.planes
    if dimension.spread == "split":
        plane = replace(plane, bandwidth=plane.bandwidth * planes)
        nic = nic and _as_one(nic)
        planes = 1
    apart = nic is not None and nic.count > 1
    check_links(planes * len(plane), dimension.name)
    whole = _beside(plane, planes, apart=apart) if planes > 1 else plane
    return _through_nics(whole, nic) if nic else whole


def _as_one(nic: Nic) -> Nic:
    return structs.replace(nic, bandwidth=Bandwidth(nic.bandwidth * nic.count), count=1)


def _beside(plane: Block, planes: int, *, apart: bool) -> Block:
    """Return planes beside each other: each has all endpoints, or endpoint n is in plane n % planes."""
    endpoints = plane.positions * (planes if apart else 1)
    switches = plane.nodes - plane.positions
    laid = []
    for number in range(planes):
        ends = np.arange(plane.positions)
        shared = ends * planes + number if apart else ends
        own = endpoints + number * switches + np.arange(switches)
        node = np.concatenate([shared, own])
        laid.append(Wires(node[plane.source], node[plane.destination], plane.bandwidth, plane.latency))
    next_node = _InPlane(plane.next_node, planes, plane.positions, switches, apart)
    return block(endpoints, endpoints + planes * switches, laid, next_node)


@dataclass(frozen=True)
class _InPlane:
    """As the shape goes, within the plane that both ends are in or that their hash says."""

    inner: NextNode
    planes: int
    positions: int
    """Endpoints of a plane."""
    switches: int
    """Switches of a plane."""
    apart: bool

    def __call__(self, source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        planes, positions = self.planes, self.positions
        each = planes if self.apart else 1
        plane = source % planes if self.apart else hashed(source, destination, (_PLANE,)) % planes
        first = positions * each
        switches = self.switches * plane
        here = np.where(current < first, current // each, current - first - switches + positions)
        there = self.inner(source // each, destination // each, here)
        shared = there * each + plane if self.apart else there
        return np.where(there < positions, shared, there - positions + first + switches)


def _through_nics(inner: Block, nic: Nic) -> Block:
    """Put NICs between GPUs and a block: `gpus` neighbours share `count` NICs, which are its endpoints."""
    units = inner.positions // nic.count
    positions = units * nic.gpus
    gpu = np.arange(positions)
    moved = Wires(inner.source + positions, inner.destination + positions, inner.bandwidth, inner.latency)
    laid = [moved]
    for lane in range(nic.count):
        laid += both_directions(gpu, positions + gpu // nic.gpus * nic.count + lane, nic)
    next_node = _ThroughNics(inner.next_node, positions, nic.gpus, nic.count)
    built = block(positions, positions + inner.nodes, laid, next_node, nics=inner.positions)
    return replace(built, star=inner.star and nic.gpus == nic.count == 1, nics_each=nic.count)


@dataclass(frozen=True)
class _ThroughNics:
    """GPU to a NIC of its, from NIC to NIC as the inner block goes, NIC to GPU."""

    inner: NextNode
    positions: int
    gpus: int
    """Neighbours that share NICs."""
    count: int
    """NICs that they share."""

    def __call__(self, source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        lane = hashed(source, destination, (_NIC,)) % self.count if self.count > 1 else 0
        ends = [end // self.gpus * self.count + lane for end in (source, destination)]
        at_gpu, arrived = current < self.positions, current - self.positions == ends[1]
        following = np.where(at_gpu, self.positions + ends[0], destination)
        between = np.flatnonzero(~at_gpu & ~arrived)
        walked = self.inner(ends[0][between], ends[1][between], current[between] - self.positions)
        following[between] = walked + self.positions
        return following
