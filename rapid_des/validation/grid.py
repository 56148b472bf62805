"""The grid of the packet oracle: fabrics × traffic patterns × sizes, as messages on routes.

Every link has 400 Gb/s and 500 ns each way. A case is named `fabric/pattern/size`, the size in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from rapid_des.network.build import build
from rapid_des.network.fluid_flows import Message
from rapid_des.network.protocol import Protocol
from rapid_des.network.routing import DimensionOrderRouter
from rapid_des.network.specs import (
    AnyDimension,
    Extent,
    FatTree,
    FullyConnected,
    Hypercube,
    KingMesh,
    Mesh,
    Rate,
    Ring,
    Routing,
    Switch,
    Torus,
)
from rapid_des.units import Bandwidth, Duration, Size
from rapid_des.validation.messages import Traffic
from rapid_des.validation.patterns import PATTERNS, Script

_BANDWIDTH, _LATENCY = Bandwidth.parse("400 Gb/s"), Duration.parse("500 ns")
_UPLINK = Rate(bandwidth=_BANDWIDTH, latency=_LATENCY)


def _of(shape: Callable[..., AnyDimension], size: Extent, **more: Any) -> AnyDimension:
    return shape(name="fabric", bandwidth=_BANDWIDTH, latency=_LATENCY, size=size, **more)


FABRICS: Mapping[str, AnyDimension] = {
    "ring8": _of(Ring, 8),
    "ring16": _of(Ring, 16),
    "mesh4x4": _of(Mesh, (4, 4)),
    "mesh8x8": _of(Mesh, (8, 8)),
    "torus4x4": _of(Torus, (4, 4)),
    "torus8x8": _of(Torus, (8, 8)),
    "torus2x2x4": _of(Torus, (2, 2, 4)),
    "torus4x4x4": _of(Torus, (4, 4, 4)),
    "king4x4": _of(KingMesh, (4, 4)),
    "king8x8": _of(KingMesh, (8, 8)),
    "hypercube8": _of(Hypercube, 8),
    "hypercube32": _of(Hypercube, 32),
    "fully_connected8": _of(FullyConnected, 8),
    "switch8": _of(Switch, 8),
    "switch32": _of(Switch, 32),
    "fat_tree16": _of(FatTree, 16, levels=2, radix=8, oversubscription=1, uplink=_UPLINK),
    "fat_tree32_3to1": _of(FatTree, 32, levels=2, radix=8, oversubscription=3, uplink=_UPLINK),
}

PROTOCOL = Protocol(
    payload=Size.parse("4 KiB"),
    header=Size(36),
    acknowledgement=Size(48),
    packets_per_acknowledgement=1,
    packet_time="exact",
)
"""RoCE v2 with the largest MTU."""

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
MOST_BYTES = 1 << 27
"""Size times GPUs of the largest cases; those of 16 MiB are hours of packets on more GPUs."""
MANY_MESSAGES = ("all_reduce-bidirectional_ring", "all_reduce-direct", "all_to_all-ring", "all_to_all-direct")
"""Left out on 64 GPUs."""

_ROUTING = Routing(order="innermost_first", tie="positive")


@cache
def router(fabric: str) -> DimensionOrderRouter:
    """Return the router of one of the grid's fabrics."""
    return DimensionOrderRouter(build(fabric, [FABRICS[fabric]], _ROUTING))


def traffic(fabric: str, pattern: str, size: int) -> Traffic:
    """Return one case's messages; `size` is the pattern's, in bytes."""
    ways = router(fabric)
    script = Script(ways.fabric.gpus)
    PATTERNS[pattern](script, size)
    messages = tuple(
        Message(
            size=step.size,
            route=ways.route(step.source, step.destination),
            back=ways.route(step.destination, step.source),
            after_arrival=step.after,
        )
        for step in script.steps
    )
    return Traffic(ways.fabric, messages, tuple(step.source for step in script.steps))


def cases(fabric: str) -> Iterator[tuple[str, int]]:
    """Yield the grid's (pattern, size) for a fabric: fewer sizes where there are more GPUs."""
    gpus = router(fabric).fabric.gpus
    sizes = [size for size in SIZES if size * gpus <= MOST_BYTES]
    for size in sizes if gpus < 64 else sizes[2:3]:
        for pattern in PATTERNS:
            if gpus < 64 or pattern not in MANY_MESSAGES:
                yield pattern, size
