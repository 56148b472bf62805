"""Service times: how long GPUs are busy with a node, and links with a message.

Of messages: rows of sizes, classes of hops or of routes, and tables of both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rapid_des.arrays import Int32s, Int64s, distinct
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable
from rapid_des.device.device import Device
from rapid_des.errors import TopologyError
from rapid_des.machine import Machine
from rapid_des.network.fabric import Fabric, Routes
from rapid_des.network.protocol import (
    CutThrough,
    Protocol,
    cut_through,
    effective_bandwidth,
    fluid_service,
    in_segments,
    stored,
    tails,
    units,
    wire_bytes,
)
from rapid_des.network.specs import Switching
from rapid_des.program.program import NONE, FluidTable, HopTable, PartTable, Program, TailTable
from rapid_des.program.timetable import FOREVER
from rapid_des.units import PS_PER_S, Bandwidth, Size, ceil_divide
from rapid_des.values import replace

_BATCH = 1 << 18
"""Number of routes that are processed at a time, which bounds memory."""

Profile = tuple[tuple[int, int], ...]
"""(bandwidth in bytes/s, latency in ps) of each link of a route."""

LONGEST_S = 100_000
"""Longest time of a message on a link, in seconds; all times fit into 63 bits of picoseconds (107 days)."""

Visit: TypeAlias = Sequence[Sequence[int]]
"""Occupancy, head and lag of a hop in picoseconds, each as a list over sizes."""


def service_times(nodes: NodeTable, device: Device) -> Int64s:
    """Return the nodes' durations, unstated ones by the device's roofline.

    Compute: the longer of `flops` at the matrix unit's bf16 peak and `tensor_bytes` through HBM, plus
    a launch. Memory nodes: `size` through HBM.
    """
    duration = nodes.duration.copy()
    unstated = duration == UNSTATED
    if not unstated.any():
        return duration
    bandwidth = float(device.spec.hbm.bandwidth)
    moved = np.where(nodes.kind == NodeKind.COMPUTE, nodes.tensor_bytes, nodes.size).astype(np.float64)
    arithmetic = np.where(nodes.kind == NodeKind.COMPUTE, nodes.flops, 0) / device.tensor_rate("bf16")
    # Tensor bytes may be unstated (below 0); such a node then takes what its arithmetic takes.
    busy = np.ceil(np.maximum(arithmetic, np.maximum(moved, 0) / bandwidth) * PS_PER_S).astype(np.int64)
    launched = np.where((nodes.kind == NodeKind.COMPUTE) & ~nodes.on_cpu, device.launch_overhead, 0)
    return np.where(unstated, busy + launched, duration)


class MessageSizes:
    """Distinct message sizes in the order of their first use; `whole` ones are never cut into parts."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, bool], int] = {}

    def row(self, size: int, *, whole: bool = False) -> int:
        """Return the hop-table row of a size in bytes."""
        return self._rows.setdefault((size, whole), len(self._rows))

    def rows(self, sizes: NDArray[np.int64], *, whole: bool = False) -> Int32s:
        """Return the rows of many sizes."""
        if len(sizes) and (sizes == sizes[0]).all():  # most collectives: no sort
            return np.full(len(sizes), self.row(int(sizes[0]), whole=whole), np.int32)
        values, places = np.unique(sizes, return_inverse=True)
        return np.array([self.row(int(size), whole=whole) for size in values], np.int32)[places]

    def all(self) -> list[int]:
        """Return every size in row order."""
        return [size for size, _ in self._rows]

    def whole(self) -> frozenset[int]:
        """Return the rows of messages that are never cut into parts."""
        return frozenset(row for row, (_, whole) in enumerate(self._rows) if whole)


def hop_table(
    fabric: Fabric,
    switching: Switching,
    routes: Routes,
    sizes: Sequence[int],
    *,
    whole: Collection[int] = (),
) -> tuple[HopTable, Int32s]:
    """Return the services of every size, and the class of each hop of `routes`.

    store_and_forward: a link takes the whole message, the next hop waits for its end.
    cut_through: the next hop starts once the first segment has arrived; a hop's service depends on the whole
    route, because a fast link behind a slow one waits for it. Where messages go in parts, the parts' sizes
    have rows behind those of `sizes`; those in rows `whole` do not.
    """
    parts = None
    if switching.mode == "store_and_forward":
        profiles, classes = by_link(fabric, routes)
        visits = [_stored(switching.protocol, profile, sizes) for profile in profiles]
    elif switching.mode == "cut_through":
        profiles, classes = by_route(fabric, routes)
        if switching.parts > 1:
            parts, sizes = part_table(packets(switching), sizes, switching.parts, whole=whole)
        visits = [hop for profile in profiles for hop in _cut(packets(switching), profile, sizes)]
    else:
        raise TopologyError(f"{fabric.name}: switching.mode {switching.mode} has no hop table")
    return _table(fabric, visits, sizes, parts), classes


def message_table(
    fabric: Fabric, switching: Switching, routes: Routes, sizes: Sequence[int]
) -> tuple[HopTable, Int32s]:
    """Return the services of whole messages at zero load, and the class of each hop of `routes`.

    As `hop_table`, but a message that store_and_forward cuts into segments is one visit a link here, and the
    next link begins with its first segment.
    """
    if switching.mode != "store_and_forward" or switching.segment is None:
        return hop_table(fabric, uncongested(switching), routes, sizes)
    profiles, classes = by_route(fabric, routes)
    protocol, segment = switching.protocol, int(switching.segment)
    visits = [
        hop
        for profile in profiles
        for hop in _by_hop([in_segments(protocol, size, profile, segment=segment) for size in sizes])
    ]
    return _table(fabric, visits, sizes), classes


def uncongested(switching: Switching) -> Switching:
    """Return the visits that price a lone message: a fluid flow alone is a cut-through message."""
    if switching.mode != "fluid":
        return switching
    return structs.replace(switching, mode="cut_through", protocol=flow_protocol(switching))


def _table(
    fabric: Fabric, visits: Sequence[Visit], sizes: Sequence[int], parts: PartTable | None = None
) -> HopTable:
    longest = max((time for visit in visits for times in visit for time in times), default=0)
    if longest > LONGEST_S * PS_PER_S:
        problem = f"a message would take {longest / PS_PER_S:.3g} s on one link; allowed: {LONGEST_S} s"
        raise TopologyError(f"{fabric.name}: {problem}")
    # `visits` is [class][field][size]; the tables are [size, class], one contiguous array a field.
    table = np.array(visits, np.int64).reshape(len(visits), 3, len(sizes)).transpose(1, 2, 0)
    occupancy, head, lag = (np.ascontiguousarray(part) for part in table)
    # A visit without duration could end before its server has chosen (R2), so each lasts a tick at least.
    payload = np.array(sizes, np.int64)
    return HopTable(np.maximum(occupancy, 1), np.maximum(head, 1), lag, payload, parts)


def with_tails(hops: HopTable, fabric: Fabric, switching: Switching, routes: Routes) -> HopTable:
    """Return `hop_table`'s services with the time at which each message's last byte crosses its hops."""
    if switching.mode != "cut_through":
        return hops
    profiles, _ = by_route(fabric, routes)
    sizes, protocol = hops.bytes.tolist(), packets(switching)
    # Each profile gives [size, field, hop]; side by side, the hops of all profiles are the classes.
    columns = [np.array([tails(protocol, size, profile) for size in sizes]) for profile in profiles]
    table = np.concatenate([np.zeros((len(sizes), 2, 0), np.int64), *columns], axis=2)
    across, along = (np.ascontiguousarray(table[:, which]) for which in (0, 1))
    return replace(hops, tails=TailTable(across, along))


def services_of(hops: HopTable, size: int, classes: Int32s) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (occupancy, head, lag, across, along) of a size row on hops of some classes.

    Where last bytes are not followed, `along` is so long ago that it never rules.
    """
    tails = (hops.lag,) if hops.tails is None else (hops.tails.across, hops.tails.along)
    columns = [column[size, classes].tolist() for column in (hops.occupancy, hops.head, hops.lag, *tails)]
    if hops.tails is None:
        columns.append([-FOREVER] * len(classes))
    return zip(*columns, strict=True)


def part_sizes(switching: Switching, size: int) -> list[int]:
    """Return the bytes of the parts that a message goes in."""
    if switching.parts == 1:
        return [size]
    count, part, last = _cut_up(packets(switching), size, switching.parts)
    return [part] * (count - 1) + [last]


def _cut_up(protocol: Protocol, size: int, most: int) -> tuple[int, int, int]:
    """Return the number of parts of a message, the bytes of each, and of the last, which may be smaller."""
    packets, _ = units(size, protocol.payload)
    part = ceil_divide(packets, most) * protocol.payload
    count, last = units(size, part)
    return count, part, last


def part_table(
    protocol: Protocol, sizes: Sequence[int], most: int, *, whole: Collection[int]
) -> tuple[PartTable, list[int]]:
    """Cut every size into at most `most` parts of equally many packets (the last may have fewer).

    Also returns the sizes with those of the parts behind them.
    """
    rows = list(sizes)
    places = {size: row for row, size in enumerate(rows)}
    table = []
    for row, size in enumerate(sizes):
        count, part, last = (1, size, size) if row in whole else _cut_up(protocol, size, most)
        for part_size in (part, last) if count > 1 else ():
            if part_size not in places:
                places[part_size] = len(rows)
                rows.append(part_size)
        table.append((count, places[part], places[last]) if count > 1 else (1, row, row))
    # The rows of parts themselves are never cut again.
    table += [(1, row, row) for row in range(len(table), len(rows))]
    columns = np.array(table, np.int32).reshape(-1, 3).T.copy()
    return PartTable(*columns), rows


def packets(switching: Switching) -> Protocol:
    """Return the unit that cut-through forwards: packets of the protocol, else bare segments."""
    if switching.protocol is not None:
        return switching.protocol
    if switching.segment is None:
        raise TopologyError("switching.mode cut_through needs a segment or a protocol")
    return Protocol(
        payload=switching.segment,
        header=Size(0),
        acknowledgement=Size(0),
        packets_per_acknowledgement=1,
        packet_time="exact",
    )


def _stored(protocol: Protocol | None, profile: Profile, sizes: Sequence[int]) -> Visit:
    bandwidth, latency = profile[0]
    times = [stored(protocol, size, bandwidth) for size in sizes]
    return [times, times, [latency] * len(sizes)]


@lru_cache(maxsize=1 << 14)
def _passing(protocol: Protocol, size: int, profile: Profile) -> CutThrough:
    """Return `cut_through`; machines that differ by one fault have most profiles in common."""
    return cut_through(protocol, size, profile)


def _cut(protocol: Protocol, profile: Profile, sizes: Sequence[int]) -> list[Visit]:
    return _by_hop([_passing(protocol, size, profile) for size in sizes])


def _by_hop(messages: Sequence[CutThrough]) -> list[Visit]:
    return [
        [
            [message.occupancy[hop] for message in messages],
            [min(message.head[hop], message.occupancy[hop]) for message in messages],
            [message.lag[hop] for message in messages],
        ]
        for hop in range(len(messages[0].head))
    ]


_BARE = 1
"""Bytes of a packet where the machine states no protocol: no hop waits for more."""
_MOST_WIRE = 2**58
"""Largest message, in bytes on the wire, that the fluid mode's arithmetic holds."""


def fluid_table(machine: Machine, routes: Routes, sizes: Sequence[int], back: Int32s) -> FluidTable:
    """Return the services of every size on every kind of route; `back` is each route's return route."""
    protocol = flow_protocol(machine.switching)
    fabric = machine.fabric
    rates, latencies = fabric.bandwidth[routes.links].tolist(), fabric.latency[routes.links].tolist()
    starts = routes.starts.tolist()
    # Routes with equal rates and latencies cost the same, so services are worked out once a profile.
    profiles: dict[Profile, int] = {}
    profile = np.zeros(len(routes), np.int32)
    for route, (first, last) in enumerate(zip(starts, starts[1:], strict=False)):
        hops = tuple(zip(rates[first:last], latencies[first:last], strict=True))
        profile[route] = profiles.setdefault(hops, len(profiles))
    slowest = int(fabric.bandwidth[routes.links].min(initial=2**62))
    for size in sizes:
        wire, longest = wire_bytes(protocol, size), LONGEST_S * slowest
        if wire > min(longest, _MOST_WIRE):
            problem = f"a message of {Size(wire)} on a link of {Bandwidth(slowest)}"
            raise TopologyError(
                f"{fabric.name}: {problem}; allowed: {LONGEST_S} s and {Size(_MOST_WIRE)} on the wire"
            )
    services = [[fluid_service(protocol, size, hops) for hops in profiles if hops] for size in sizes]
    empty = [number for hops, number in profiles.items() if not hops]
    table = np.array(
        [
            [(service.wire, service.ratio, service.before, service.after) for service in row]
            for row in services
        ],
        np.int64,
    ).reshape(len(sizes), len(profiles) - len(empty), 4)
    # Routes without links have no service: their profiles get columns of zeros.
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
        back=back,
    )


def widest(program: Program) -> int:
    """Return the largest number of links of a route and its return route together."""
    lengths = np.diff(program.route_starts)
    table = program.fluid
    assert table is not None
    return int((lengths + lengths[table.back]).max(initial=1)) if len(lengths) else 1


def no_hops(sizes: Sequence[int]) -> HopTable:
    """Return the hop table of a mode without visits to links: only the sizes."""
    nothing = np.zeros((len(sizes), 1), np.int64)
    return HopTable(nothing, nothing, nothing, np.array(sizes, np.int64))


def flow_protocol(switching: Switching) -> Protocol:
    """Return the protocol of flows; where the machine states none, bytes follow one another."""
    return switching.protocol or Protocol(
        payload=Size(_BARE),
        header=Size(0),
        acknowledgement=Size(0),
        packets_per_acknowledgement=1,
        packet_time="exact",
    )


def by_link(fabric: Fabric, routes: Routes) -> tuple[list[Profile], Int32s]:
    """Return each distinct (bandwidth, latency) as a profile of one hop, and the class of each hop."""
    kinds, places = np.unique(np.stack([fabric.bandwidth, fabric.latency], 1), axis=0, return_inverse=True)
    profiles: list[Profile] = [((int(bandwidth), int(latency)),) for bandwidth, latency in kinds]
    return profiles, places.reshape(-1).astype(np.int32)[routes.links]


def by_route(fabric: Fabric, routes: Routes) -> tuple[list[Profile], Int32s]:
    """Return the distinct profiles, and as a hop's class its profile's base plus its position."""
    used = np.zeros(len(fabric), np.bool_)
    used[routes.links] = True
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
