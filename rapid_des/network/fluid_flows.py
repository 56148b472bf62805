"""A small event loop around the fluid mode: messages with dependencies on fixed routes.

The replay engines have their own loops; this one is for tests and for validation at the level of messages.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
from numba import njit

from rapid_des.errors import DeadlockError
from rapid_des.network import fluid as interpreted
from rapid_des.network.fluid import Fluid, new_fluid, set_route
from rapid_des.network.fluid_state import Int64s
from rapid_des.network.protocol import (
    Hops,
    Protocol,
    acknowledgement_ratio,
    acknowledgement_time,
    effective_bandwidth,
    fluid_tail,
    wire_bytes,
)


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
class Times:
    """Picoseconds by message."""

    start: Int64s
    arrival: Int64s


@dataclass(frozen=True)
class Kernel:
    """The three functions of the fluid mode, interpreted or compiled."""

    begin_flow: Callable[..., Any]
    end_flow: Callable[..., Any]
    settle: Callable[..., Any]


INTERPRETED = Kernel(interpreted.begin_flow, interpreted.end_flow, interpreted.settle)


@cache
def compiled() -> Kernel:
    """Return the functions compiled, which takes some seconds the first time."""
    compile_one: Callable[..., Any] = cast("Callable[..., Any]", njit)(_nrt=False)
    return Kernel(
        compile_one(interpreted.begin_flow),
        compile_one(interpreted.end_flow),
        compile_one(interpreted.settle),
    )


def simulate_flows(
    protocol: Protocol, links: Hops, messages: Sequence[Message], *, kernel: Kernel = INTERPRETED
) -> Times:
    """Return when each message starts and arrives; `links` are (bandwidth, latency) by link id."""
    return _Run(protocol, links, messages, kernel).run()


@dataclass(frozen=True)
class _Service:
    """What a size on a kind of route means; many messages share it."""

    wire: int
    ratio: int
    tail: int
    answer: int


class _Run:
    """One simulation; a message's flow has the message's position as its slot."""

    def __init__(self, protocol: Protocol, links: Hops, messages: Sequence[Message], kernel: Kernel) -> None:
        self.protocol, self.links, self.messages, self.kernel = protocol, links, messages, kernel
        self.fluid = _empty_state(protocol, links, messages)
        self.start = np.zeros(len(messages), dtype=np.int64)
        self.arrival = np.zeros(len(messages), dtype=np.int64)
        self.missing = [len(message.after_arrival) + len(message.after_answer) for message in messages]
        self.ready = [0] * len(messages)
        self.followers: list[list[tuple[int, bool]]] = [[] for _ in messages]
        self.services: dict[tuple[object, ...], _Service] = {}
        self.events: list[tuple[int, bool, int]] = []
        """(time, begins, message)"""

    def run(self) -> Times:
        for number, message in enumerate(self.messages):
            for before in message.after_arrival:
                self.followers[before].append((number, False))
            for before in message.after_answer:
                self.followers[before].append((number, True))
            if not self.missing[number]:
                heapq.heappush(self.events, (message.delay, True, number))
        while self.events:
            self._instant(self.events[0][0])
        if any(self.missing):
            raise DeadlockError(f"message {np.flatnonzero(self.missing)[0]} waits for ever")
        return Times(self.start, self.arrival)

    def _instant(self, now: int) -> None:
        while self.events and self.events[0][0] == now:
            _, begins, number = heapq.heappop(self.events)
            if begins:
                self._begin(number, now)
            elif self.fluid.finish[number] == now:
                self.kernel.end_flow(self.fluid, number)
                self._arrive(number, now)
        for flow in self.fluid.changed[: self.kernel.settle(self.fluid, now)].tolist():
            heapq.heappush(self.events, (int(self.fluid.finish[flow]), False, flow))

    def _begin(self, number: int, now: int) -> None:
        service = self._service(self.messages[number])
        self.start[number] = now
        self.kernel.begin_flow(self.fluid, number, service.wire, service.ratio, now)

    def _arrive(self, number: int, now: int) -> None:
        service = self._service(self.messages[number])
        arrival = now + service.tail
        answer = arrival + service.answer
        self.arrival[number] = arrival
        for follower, answered in self.followers[number]:
            self.ready[follower] = max(self.ready[follower], answer if answered else arrival)
            self.missing[follower] -= 1
            if not self.missing[follower]:
                begin = self.ready[follower] + self.messages[follower].delay
                heapq.heappush(self.events, (begin, True, follower))

    def _service(self, message: Message) -> _Service:
        there = tuple([self.links[link] for link in message.route])
        back = tuple([self.links[link] for link in message.back])
        key = (message.size, there, back)
        if key not in self.services:
            self.services[key] = _service(self.protocol, message.size, there, back)
        return self.services[key]


def _service(protocol: Protocol, size: int, there: Hops, back: Hops) -> _Service:
    slowest = min(rate for rate, _ in there)
    return _Service(
        wire=wire_bytes(protocol, size),
        ratio=acknowledgement_ratio(protocol, size, slowest),
        tail=fluid_tail(protocol, size, there),
        answer=acknowledgement_time(protocol, back),
    )


def _empty_state(protocol: Protocol, links: Hops, messages: Sequence[Message]) -> Fluid:
    capacities = np.array([effective_bandwidth(protocol, rate) for rate, _ in links], dtype=np.int64)
    hops = max((len(message.route) + len(message.back) for message in messages), default=0)
    fluid = new_fluid(capacities, flows=len(messages), hops=hops)
    for number, message in enumerate(messages):
        set_route(fluid, number, message.route, message.back)
    return fluid
