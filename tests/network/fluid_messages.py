"""A small event loop around the fluid mode: messages with dependencies on fixed routes.

The engines have their own loops; this one is a second opinion, and asks the fluid mode alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.compiling import CompiledKernel
from rapid_des.compiling.library import KernelLibrary
from rapid_des.errors import DeadlockError
from rapid_des.network import fluid as interpreted
from rapid_des.network.fluid import Fluid, new_fluid, set_route
from rapid_des.network.protocol import (
    FluidService,
    Hops,
    Protocol,
    acknowledgement_time,
    effective_bandwidth,
    fluid_service,
)
from validation.network.messages import Message


@dataclass(frozen=True)
class MessageTimes:
    """Picoseconds by message."""

    start: Int64s
    arrival: Int64s


@dataclass(frozen=True)
class Functions:
    """The three functions of the fluid mode, interpreted or compiled."""

    begin_flow: Callable[..., Any]
    end_flow: Callable[..., Any]
    settle: Callable[..., Any]


INTERPRETED = Functions(interpreted.begin_flow, interpreted.end_flow, interpreted.settle)


@cache
def compiled() -> Functions:
    """Return the functions compiled, which takes some seconds the first time."""

    def settle(fluid: Fluid, now: int) -> int:
        count = np.zeros(1, np.int64)
        SETTLE(fluid, now, count)
        return int(count[0])

    return Functions(BEGIN_FLOW, END_FLOW, settle)


def begin(fluid: Fluid, flow: int, wire: int, ratio: int, now: int) -> None:
    interpreted.begin_flow(fluid, flow, wire, ratio, now)


def end(fluid: Fluid, flow: int) -> None:
    interpreted.end_flow(fluid, flow)


def settled(fluid: Fluid, now: int, count: Int64s) -> None:
    count[0] = interpreted.settle(fluid, now)


LIBRARY = KernelLibrary(
    [__name__], lambda: [Path(__file__), *sorted(Path(interpreted.__file__).parent.glob("*.py"))]
)
BEGIN_FLOW, END_FLOW, SETTLE = (CompiledKernel(function, LIBRARY) for function in (begin, end, settled))


def simulate_flows(
    protocol: Protocol, links: Hops, messages: Sequence[Message], *, kernel: Functions = INTERPRETED
) -> MessageTimes:
    """Return when each message starts and arrives; `links` are (bandwidth, latency) by link id."""
    return _Simulation(protocol, links, messages, kernel).run()


class _Simulation:
    """One simulation; a message's flow has the message's position as its slot."""

    def __init__(
        self, protocol: Protocol, links: Hops, messages: Sequence[Message], kernel: Functions
    ) -> None:
        self.protocol, self.links, self.messages, self.kernel = protocol, links, messages, kernel
        self.fluid = _empty_state(protocol, links, messages)
        self.start = np.zeros(len(messages), dtype=np.int64)
        self.arrival = np.zeros(len(messages), dtype=np.int64)
        self.missing = [len(message.after_arrival) + len(message.after_answer) for message in messages]
        self.ready = [0] * len(messages)
        self.followers: list[list[tuple[int, bool]]] = [[] for _ in messages]
        self.services: dict[tuple[object, ...], tuple[FluidService, int]] = {}
        self.events: list[tuple[int, bool, int]] = []
        """(time, joins, message)"""

    def run(self) -> MessageTimes:
        for number, message in enumerate(self.messages):
            for before in message.after_arrival:
                self.followers[before].append((number, False))
            for before in message.after_answer:
                self.followers[before].append((number, True))
            if not self.missing[number]:
                self._start(number, message.delay)
        while self.events:
            self._instant(self.events[0][0])
        if any(self.missing):
            raise DeadlockError(f"message {np.flatnonzero(self.missing)[0]} waits for ever")
        return MessageTimes(self.start, self.arrival)

    def _instant(self, now: int) -> None:
        while self.events and self.events[0][0] == now:
            _, joins, number = heapq.heappop(self.events)
            if joins:
                self._join(number, now)
            elif self.fluid.finish[number] == now:
                self.kernel.end_flow(self.fluid, number)
                self._arrive(number, now)
        for flow in self.fluid.changed[: self.kernel.settle(self.fluid, now)].tolist():
            heapq.heappush(self.events, (int(self.fluid.finish[flow]), False, flow))

    def _start(self, number: int, now: int) -> None:
        """Let a message start: it joins its links once its head is half-way."""
        self.start[number] = now
        heapq.heappush(self.events, (now + self._service(number)[0].before, True, number))

    def _join(self, number: int, now: int) -> None:
        service, _ = self._service(number)
        self.kernel.begin_flow(self.fluid, number, service.wire, service.ratio, now)

    def _arrive(self, number: int, now: int) -> None:
        service, answer = self._service(number)
        arrival = self.arrival[number] = now + service.after
        for follower, answered in self.followers[number]:
            self.ready[follower] = max(self.ready[follower], arrival + (answer if answered else 0))
            self.missing[follower] -= 1
            if not self.missing[follower]:
                self._start(follower, self.ready[follower] + self.messages[follower].delay)

    def _service(self, number: int) -> tuple[FluidService, int]:
        """Return a message's service and its acknowledgement's time; many messages share them."""
        message = self.messages[number]
        there = tuple([self.links[link] for link in message.route])
        back = tuple([self.links[link] for link in message.back])
        key = (message.size, there, back)
        if key not in self.services:
            service = fluid_service(self.protocol, message.size, there)
            self.services[key] = service, acknowledgement_time(self.protocol, back)
        return self.services[key]


def _empty_state(protocol: Protocol, links: Hops, messages: Sequence[Message]) -> Fluid:
    capacities = np.array([effective_bandwidth(protocol, rate) for rate, _ in links], dtype=np.int64)
    hops = max((len(message.route) + len(message.back) for message in messages), default=0)
    fluid = new_fluid(capacities, flows=len(messages), hops=hops)
    for number, message in enumerate(messages):
        set_route(fluid, number, message.route, message.back)
    return fluid
