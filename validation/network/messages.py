"""Messages with dependencies on a fabric, outside any trace: what each switching mode makes of them.

`makespan` is the only way from here into the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias

import numpy as np

from rapid_des.arrays import Int32s, Int64s
from rapid_des.engines import compiled as engine
from rapid_des.network.congestion import Unheld, Window
from rapid_des.network.fabric import Fabric, Routes
from rapid_des.network.protocol import Protocol, acknowledgement_time, effective_bandwidth, fluid_service
from rapid_des.network.specs import Switching
from rapid_des.program.program import (
    NONE,
    FluidTable,
    Group,
    Program,
    QueuePairTable,
    RankBinding,
    RankProgram,
    Template,
    VisitKind,
)
from rapid_des.program.queue_pairs import queue_pair_table
from rapid_des.program.services import MessageSizes, hop_table, no_hops

Mode: TypeAlias = Literal[
    "fluid",
    "cut_through",
    "cut_through_turns",
    "cut_through_window",
    "cut_through_whole",
    "store_and_forward",
]
"""`cut_through` sends messages in `PARTS` parts; `cut_through_turns` too, whose queue pairs take turns, and
`cut_through_window`, held back by windows of `BANDWIDTH_DELAY_PRODUCTS` too; `cut_through_whole` in one."""
PARTS = 12
"""Parts of a message in the machine files that we ship."""
BANDWIDTH_DELAY_PRODUCTS = 2.0
"""The window of the packet-level references."""
Edges: TypeAlias = list[list[tuple[int, int]]]


@dataclass(frozen=True)
class Message:
    """One message: it starts `delay` after all it waits for, and never splits."""

    size: int
    route: tuple[int, ...]
    back: tuple[int, ...]
    """The links that its acknowledgements take."""
    after_arrival: tuple[int, ...] = ()
    """Messages (positions) that must have arrived."""
    after_answer: tuple[int, ...] = ()
    """Messages whose last acknowledgement must be back at their sender."""
    delay: int = 0


@dataclass(frozen=True)
class Traffic:
    """Messages on a fabric; message i is injected by GPU `sources[i]`."""

    fabric: Fabric
    messages: tuple[Message, ...]
    sources: tuple[int, ...]

    @property
    def links(self) -> list[tuple[int, int]]:
        """(bandwidth, latency) by link."""
        return list(zip(self.fabric.bandwidth.tolist(), self.fabric.latency.tolist(), strict=True))


def makespan(traffic: Traffic, protocol: Protocol, mode: Mode) -> int:
    """Return when the last message arrives, in picoseconds, as the compiled engine replays it."""
    return engine.run(program(traffic, protocol, mode)).makespan


def alone(traffic: Traffic) -> int:
    """Return the α-β model's answer: payload at the slowest link plus latencies, nothing shared."""
    links, arrival = traffic.links, [0] * len(traffic.messages)
    for number, message in enumerate(traffic.messages):
        slowest = min(links[link][0] for link in message.route)
        latency = sum(links[link][1] for link in message.route)
        ready = max((arrival[before] for before in message.after_arrival + message.after_answer), default=0)
        arrival[number] = ready + message.delay + latency + message.size * 10**12 // slowest
    return max(arrival)


def arrivals(traffic: Traffic, protocol: Protocol, switching: Switching) -> Int64s:
    """Return when each message arrives, in picoseconds, as the compiled engine replays them."""
    trail = engine.run(program(traffic, protocol, switching), trail=True).trail
    assert trail is not None, "it was asked for"
    times = np.zeros(len(traffic.messages), np.int64)
    np.maximum.at(times, trail.task, trail.arrival)
    return times


def program(traffic: Traffic, protocol: Protocol, mode: Mode | Switching) -> Program:
    """Return the messages as one collective of all GPUs that each joins at once."""
    messages, fabric = traffic.messages, traffic.fabric
    sizes = MessageSizes()
    template = _template(traffic, protocol, sizes)
    numbers: dict[tuple[int, ...], int] = {}
    for message in messages:
        numbers.setdefault(message.route, len(numbers))
        numbers.setdefault(message.back, len(numbers))
    starts = np.cumsum([0, *map(len, numbers)])
    links = np.fromiter(chain.from_iterable(numbers), np.int64)
    pairs: QueuePairTable | None = None
    if mode == "fluid":
        hops, classes = no_hops(sizes.all()), np.zeros(len(links), np.int32)
    else:
        switching = mode if isinstance(mode, Switching) else _SWITCHING[mode](protocol)
        routes = Routes(starts, links)
        hops, classes = hop_table(fabric, switching, routes, sizes.all())
        if switching.congestion is not None:
            hops, pairs = queue_pair_table(fabric, switching, routes, hops, _back(traffic, numbers))
    routes_taken = np.array([numbers[message.route] for message in messages], np.int32)
    zero = np.zeros(1, np.int32)
    return Program(
        bindings=tuple(RankBinding(gpu, 0, zero, np.array([gpu], np.int32)) for gpu in range(fabric.gpus)),
        programs=(_member(),),
        groups=(Group("all", np.arange(fabric.gpus, dtype=np.int32), routes={0: routes_taken}),),
        templates=(template,),
        hops=hops,
        route_starts=starts.astype(np.int64),
        route_links=links.astype(np.int32),
        route_class=classes,
        links=len(fabric),
        queue_pairs=pairs,
        fluid=_fluid(traffic, protocol, numbers, sizes.all()) if mode == "fluid" else None,
    )


_SWITCHING: Mapping[Mode, Callable[[Protocol], Switching]] = {
    "cut_through": lambda protocol: Switching(mode="cut_through", protocol=protocol, parts=PARTS),
    "cut_through_turns": lambda protocol: Switching(
        mode="cut_through", protocol=protocol, parts=PARTS, congestion=Unheld()
    ),
    "cut_through_window": lambda protocol: Switching(
        mode="cut_through",
        protocol=protocol,
        parts=PARTS,
        congestion=Window(bandwidth_delay_products=BANDWIDTH_DELAY_PRODUCTS),
    ),
    "cut_through_whole": lambda protocol: Switching(mode="cut_through", protocol=protocol),
    "store_and_forward": lambda protocol: Switching(mode="store_and_forward", protocol=protocol),
}


def _fluid(
    traffic: Traffic, protocol: Protocol, numbers: dict[tuple[int, ...], int], sizes: list[int]
) -> FluidTable:
    """Return the services of every size on every route, each of which is a profile of its own kind."""
    links = traffic.links
    paths = [tuple(links[link] for link in route) for route in numbers]
    kinds = {path: number for number, path in enumerate(dict.fromkeys(path for path in paths if path))}
    services = [[fluid_service(protocol, size, path) for path in kinds] for size in sizes]

    def table(field: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return np.array([[getattr(service, field) for service in row] for row in services], np.int64)

    return FluidTable(
        capacity=np.array([effective_bandwidth(protocol, rate) for rate, _ in links], np.int64),
        wire=table("wire")[:, 0].copy(),
        ratio=table("ratio"),
        before=table("before"),
        after=table("after"),
        profile=np.array([kinds.get(path, 0) for path in paths], np.int32),
        back=_back(traffic, numbers),
    )


def _back(traffic: Traffic, numbers: dict[tuple[int, ...], int]) -> Int32s:
    """Return the way back of each route."""
    back = np.arange(len(numbers), dtype=np.int32)
    for message in traffic.messages:
        back[numbers[message.route]] = numbers[message.back]
    return back


def _template(traffic: Traffic, protocol: Protocol, sizes: MessageSizes) -> Template:
    messages, members = traffic.messages, traffic.fabric.gpus
    count = len(messages)
    after: Edges = [[(count, 0)] for _ in messages]
    arrivals: Edges = [[(count + member, 0)] for member in range(members)]
    for number, message in enumerate(messages):
        if not message.after_arrival and not message.after_answer:
            arrivals[traffic.sources[number]].append((number, message.delay))
        for before in message.after_arrival:
            after[before].append((number, message.delay))
        for before in message.after_answer:
            back = [traffic.links[link] for link in messages[before].back]
            after[before].append((number, message.delay + acknowledgement_time(protocol, back)))
    edge_starts, edge_target, edge_lag = _rows(after)
    arrival_starts, arrival_target, arrival_lag = _rows(arrivals)
    sources = np.array(traffic.sources, np.int32)
    needs = [max(1, len(message.after_arrival) + len(message.after_answer)) for message in messages]
    return Template(
        members=members,
        pair=np.arange(count, dtype=np.int32),
        pair_source=sources,
        pair_destination=sources,
        source=sources,
        size=sizes.rows(np.array([message.size for message in messages], np.int64)),
        need=np.array(needs, np.int32),
        edge_starts=edge_starts,
        edge_target=edge_target.astype(np.int32),
        edge_lag=edge_lag,
        edge_at_injection=np.zeros(len(edge_target), np.bool_),
        arrival_starts=arrival_starts,
        arrival_target=arrival_target.astype(np.int32),
        arrival_lag=arrival_lag,
        member_need=np.array([1 + count, *[1] * (members - 1)], np.int32),
    )


def _rows(edges: Edges) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    flat = np.array(list(chain.from_iterable(edges)), np.int64).reshape(-1, 2)
    return np.cumsum([0, *map(len, edges)]), flat[:, 0], flat[:, 1]


def _member() -> RankProgram:
    """Return a program of one visit: join the only group."""

    def single(value: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.array([value], np.int32)

    none32, none64 = np.zeros(0, np.int32), np.zeros(0, np.int64)
    return RankProgram(
        kind=np.array([VisitKind.MEMBER], np.int8),
        server=single(NONE),
        work=np.zeros(1, np.int64),
        priority=np.zeros(1, np.int64),
        link_priority=np.zeros(1, np.int64),
        release=single(NONE),
        slot=single(0),
        parent=single(NONE),
        occurrence=single(NONE),
        sub=single(0),
        template=single(0),
        need=single(0),
        edge_starts=np.zeros(2, np.int64),
        edge_target=none32,
        edge_lag=none64,
        edge_at_start=np.zeros(0, np.bool_),
        server_capacity=none32,
        server_level=np.zeros(0, np.int8),
        node=single(NONE),
    )
