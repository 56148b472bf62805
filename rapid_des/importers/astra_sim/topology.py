"""The network file to our fabric, its routes, and how long its links are busy.

A link takes a whole message at a time. It is busy for trunc(bytes / B) nanoseconds and the message is at the
other end trunc(latency + bytes / B) after it started (B in bytes a nanosecond), both in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isqrt
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.arrays import Int32s
from rapid_des.errors import ConfigError, TopologyError
from rapid_des.importers.astra_sim.files import NetworkFile, Shape
from rapid_des.network import dimensions
from rapid_des.network.build import FabricLayout, build
from rapid_des.network.fabric import Fabric, Router
from rapid_des.network.routing import DimensionOrderRouter, FaultAwareRouter
from rapid_des.network.specs import Routing
from rapid_des.program.program import HopTable
from rapid_des.units import PS_PER_NS, Bandwidth, Duration
from rapid_des.values import replace

_GIB = 2**30

_Maker = Callable[..., dimensions.AnyDimension]


def _square(kind: _Maker) -> _Maker:
    def make(*, size: int, **stated: object) -> dimensions.AnyDimension:
        edge = isqrt(size)
        if edge * edge != size:
            raise TopologyError(f"{size} is not a square number")
        return kind(size=(edge, edge), **stated)

    return make


_SHAPES: Mapping[Shape, _Maker] = {
    "Ring": dimensions.Ring,
    "FullyConnected": dimensions.FullyConnected,
    "Switch": dimensions.Switch,
    "Mesh": dimensions.Mesh,
    "Torus2D": _square(dimensions.Torus),
    "Mesh2D": _square(dimensions.Mesh),
    "KingMesh2D": _square(dimensions.KingMesh),
    "HyperCube": dimensions.Hypercube,
}


class AstraNetwork(Struct, frozen=True):
    """The machine's links and routes, with times by ASTRA-sim's rules."""

    fabric: Fabric
    router: Router
    sizes: tuple[int, ...]
    """GPUs along each dimension, innermost first."""
    service_class: Int32s
    """[link] the number of its class."""
    bandwidth: NDArray[np.float64]
    """[class] bandwidth in bytes per nanosecond."""
    latency: NDArray[np.float64]
    """[class] latency in nanoseconds."""

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.fabric.gpus

    @property
    def switch_trees(self) -> None:
        """None: ASTRA-sim has no collectives inside switches."""
        return


def network_of(file: NetworkFile, path: Path) -> AstraNetwork:
    """Build the fabric: dimensions outermost first, inside a 2-D shape the first axis first, ties upwards."""
    within = Routing(order="innermost_first", tie="positive")
    dimensions = [_dimension(file, index, path) for index in range(len(file.topology))]
    layout = build(str(path), dimensions, within)
    layout = replace(layout, routing=Routing(order="outermost_first", tie="positive"))
    classes = [
        (bandwidth * _GIB / 1e9, latency)
        for bandwidth, latency in zip(file.bandwidth, file.latency, strict=True)
    ]
    service_class, dead = _faults(file, layout, classes, path)
    planned = DimensionOrderRouter(layout)
    router: Router = FaultAwareRouter(layout.fabric, planned, dead) if dead else planned
    rates = np.array(classes, np.float64)
    return AstraNetwork(layout.fabric, router, file.npus_count, service_class, rates[:, 0], rates[:, 1])


def _dimension(file: NetworkFile, index: int, path: Path) -> dimensions.AnyDimension:
    try:
        return _SHAPES[file.topology[index]](
            name=f"dim{index}",
            size=file.npus_count[index],
            bandwidth=Bandwidth(max(1, round(file.bandwidth[index] * _GIB))),
            latency=Duration(round(file.latency[index] * PS_PER_NS)),
        )
    except TopologyError as error:
        shape = file.topology[index]
        raise ConfigError(f"{shape}: {error}", file=str(path), key=f"npus_count[{index}]") from None


def _faults(
    file: NetworkFile, layout: FabricLayout, classes: list[tuple[float, float]], path: Path
) -> tuple[Int32s, frozenset[int]]:
    """Give derated links a class of their own, both directions alike; return classes and dead links."""
    service_class = layout.fabric.dimension.astype(np.int32)
    dead: set[int] = set()
    seen: set[tuple[int, int]] = set()
    for index, (source, destination, health) in enumerate(file.faulty_links):
        ends = (min(source, destination), max(source, destination))
        if ends in seen:
            continue
        seen.add(ends)
        links = _both_directions(layout.fabric, ends, path, f"faulty_links[{index}]")
        if health == 0:
            dead.update(links)
            continue
        bandwidth, latency = classes[int(layout.fabric.dimension[links[0]])]
        classes.append((bandwidth * health, latency))
        service_class[links] = len(classes) - 1
    return service_class, frozenset(dead)


def _both_directions(fabric: Fabric, ends: tuple[int, int], path: Path, key: str) -> list[int]:
    if not 0 <= ends[0] <= ends[1] < fabric.nodes:
        allowed = f"0 to {fabric.nodes - 1}"
        raise ConfigError(f"{list(ends)} are no nodes; allowed: {allowed}", file=str(path), key=key)
    try:
        return [fabric.link(*ends), fabric.link(*ends[::-1])]
    except TopologyError as error:
        raise ConfigError(str(error), file=str(path), key=key) from None


def astra_hop_table(network: AstraNetwork, sizes: list[int]) -> HopTable:
    """Return the service of every size by every class; whole nanoseconds, a busy link at least one tick."""
    size = np.array(sizes, np.float64)[:, None]
    serialization = np.trunc(size / network.bandwidth)
    arrival = np.trunc(network.latency + size / network.bandwidth)
    occupancy = np.maximum(serialization.astype(np.int64) * PS_PER_NS, 1)
    lag = np.maximum(arrival.astype(np.int64) * PS_PER_NS - occupancy, 0)
    return HopTable(occupancy, occupancy, lag, np.array(sizes, np.int64))
