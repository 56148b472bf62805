"""What the fluid mode needs to know of sizes and routes before a run (R7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rapid_des.machine import Machine
from rapid_des.network.protocol import Protocol, effective_bandwidth, fluid_service
from rapid_des.program.groups import Routed
from rapid_des.program.program import FluidTable, HopTable, Program
from rapid_des.program.services import Profile
from rapid_des.units import Size

_BARE = 2**40
"""Bytes of a packet where the machine states no protocol: messages are one packet without a header."""


def fluid_table(machine: Machine, routed: Routed, sizes: Sequence[int]) -> FluidTable:
    """Return the services of every size on every kind of route."""
    protocol = machine.switching.protocol or _bare_protocol()
    fabric, routes = machine.fabric, routed.routes
    rates, latencies = fabric.bandwidth[routes.links].tolist(), fabric.latency[routes.links].tolist()
    starts = routes.starts.tolist()
    profiles: dict[Profile, int] = {}
    profile = np.zeros(len(routes), np.int32)
    for route, (first, last) in enumerate(zip(starts, starts[1:], strict=False)):
        hops = tuple(zip(rates[first:last], latencies[first:last], strict=True))
        profile[route] = profiles.setdefault(hops, len(profiles))
    services = [[fluid_service(protocol, size, hops) for hops in profiles if hops] for size in sizes]
    empty = [number for hops, number in profiles.items() if not hops]
    table = np.array(
        [[(one.wire, one.ratio, one.before, one.after) for one in row] for row in services], np.int64
    ).reshape(len(sizes), len(profiles) - len(empty), 4)
    for number in empty:
        table = np.insert(table, number, 0, axis=1)
    distinct = {rate: effective_bandwidth(protocol, rate) for rate in np.unique(fabric.bandwidth).tolist()}
    return FluidTable(
        capacity=np.array([distinct[rate] for rate in fabric.bandwidth.tolist()], np.int64),
        wire=table[:, :, 0].max(axis=1, initial=0),
        ratio=np.ascontiguousarray(table[:, :, 1]),
        before=np.ascontiguousarray(table[:, :, 2]),
        after=np.ascontiguousarray(table[:, :, 3]),
        profile=profile,
        back=routed.ways_back,
    )


def widest(program: Program) -> int:
    """Return the most links that a route and its way back have together."""
    lengths = np.diff(program.route_starts)
    table = program.fluid
    assert table is not None
    return int((lengths + lengths[table.back]).max(initial=1)) if len(lengths) else 1


def no_hops(sizes: Sequence[int]) -> HopTable:
    """Return the hop table of a mode without visits to links: only the sizes."""
    nothing = np.zeros((len(sizes), 1), np.int64)
    return HopTable(nothing, nothing, nothing, np.array(sizes, np.int64))


def _bare_protocol() -> Protocol:
    return Protocol(
        payload=Size(_BARE),
        header=Size(0),
        acknowledgement=Size(0),
        packets_per_acknowledgement=1,
        packet_time="exact",
    )
