"""Messages with dependencies, packet by packet over queueing links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import numpy as np
from simpy import Environment
from simpy.events import Timeout

from rapid_des.arrays import Int64s
from rapid_des.errors import DeadlockError
from rapid_des.network.protocol import Hops, acknowledgement_time, packet_time, units
from validation.network.messages import Message
from validation.packet_oracle.ports import Flow, Packet, Port
from validation.packet_oracle.rate_control import RateMachine, is_marked
from validation.packet_oracle.transport import Credits, Pause, Transport, window


@dataclass(frozen=True)
class Times:
    """Picoseconds by message."""

    start: Int64s
    arrival: Int64s


def simulate_packets(transport: Transport, links: Hops, messages: Sequence[Message]) -> Times:
    """Return when each message starts and its last packet arrives (picoseconds)."""
    return _Network(transport, links, messages).run()


class _Network:
    def __init__(self, transport: Transport, links: Hops, messages: Sequence[Message]) -> None:
        self.transport, self.links, self.messages = transport, links, messages
        self.env = Environment()
        self.ports = [self._port(link) for link in range(len(links))]
        self.flows: dict[int, Flow] = {}
        self.random = Random(0)
        self.occupied = [0] * len(links)
        self.stops = [False] * len(links)
        self.start = np.full(len(messages), -1, dtype=np.int64)
        self.arrival = np.full(len(messages), -1, dtype=np.int64)
        self.missing = [len(message.after_arrival) + len(message.after_answer) for message in messages]
        self.followers = [_followers(messages, answered=answered) for answered in (False, True)]

    def _port(self, link: int) -> Port:
        rate, latency = self.links[link]
        protocol, control = self.transport.protocol, self.transport.flow_control
        times: dict[int, int] = {}

        def time(wire: int) -> int:
            if wire not in times:
                exact = -int(-packet_time(protocol, wire - protocol.header, rate) // 1)
                rounds = protocol.packet_time == "whole_ns"  # ns-3 rounds less than half a nanosecond to none
                times[wire] = 0 if rounds and 2 * wire * 10**9 < rate else exact
            return times[wire]

        room = control.buffer if isinstance(control, Credits) else None
        return Port(self.env, link, latency, time, self._arrive, self._leave, room)

    def run(self) -> Times:
        for number, missing in enumerate(self.missing):
            if not missing:
                self._after(self.messages[number].delay, partial(self._begin, number))
        self.env.run()
        if self.arrival.min(initial=0) < 0:
            raise DeadlockError(f"message {int(np.argmin(self.arrival))} never arrives")
        return Times(self.start, self.arrival)

    def _after(self, delay: int, action: partial[None]) -> None:
        Timeout(self.env, delay).callbacks.append(lambda _: action())

    def _begin(self, number: int) -> None:
        message, protocol = self.messages[number], self.transport.protocol
        self.start[number] = int(self.env.now)
        there = [self.links[link] for link in message.route]
        back = sum(self.links[link][1] for link in message.back)
        flow = self.flows[number] = Flow(
            number,
            message.size,
            window(self.transport, there, back),
            protocol.payload,
            protocol.header,
            message.route,
            units(message.size, protocol.payload)[0],
        )
        if self.transport.rate_control is not None:
            flow.rate = RateMachine(self.env, self.transport.rate_control, there[0][0])
        self._open(flow)

    def _open(self, flow: Flow) -> None:
        if not flow.waits_at_port and flow.may_send(int(self.env.now)):
            self.ports[flow.route[0]].join(flow)

    def _arrive(self, packet: Packet) -> None:
        if packet.hop < len(packet.route):
            self._forward(packet)
        elif packet.is_answer:
            packet.flow.in_flight -= packet.payload
            self._open(packet.flow)
            if packet.flow.packets == 0 and packet.flow.in_flight == 0:
                self._done(packet.flow.number, answered=True)
        else:
            self._deliver(packet)

    def _forward(self, packet: Packet) -> None:
        port = self.ports[packet.route[packet.hop]]
        first = packet.is_answer and self.transport.acknowledgements_first
        (port.urgent if first else port.transit).append(packet)
        port.queued += 0 if first else packet.wire
        if not packet.is_answer:
            self._occupy(packet.route[packet.hop - 1], packet.wire)
        port.wake()

    def _deliver(self, packet: Packet) -> None:
        flow, protocol = packet.flow, self.transport.protocol
        flow.packets -= 1
        flow.answered += packet.payload
        if packet.is_marked and flow.rate is not None and flow.rate.notices():
            back = [self.links[link] for link in self.messages[flow.number].back]
            self._after(acknowledgement_time(protocol, back), partial(flow.rate.cut))
        if flow.packets == 0:
            self.arrival[flow.number] = int(self.env.now)
            self._done(flow.number, answered=False)
        if isinstance(self.transport.flow_control, Credits):
            self._give_back(packet.route[-1], packet.wire)
        sent = units(self.messages[flow.number].size, protocol.payload)[0] - flow.packets
        if flow.packets == 0 or sent % protocol.packets_per_acknowledgement == 0:
            self._answer(flow)

    def _answer(self, flow: Flow) -> None:
        back = self.messages[flow.number].back
        answer = Packet(flow, flow.answered, self.transport.protocol.acknowledgement, back, is_answer=True)
        flow.answered = 0
        if not back:
            self._arrive(answer)
            return
        port = self.ports[back[0]]
        port.urgent.append(answer)
        port.wake()

    def _done(self, number: int, *, answered: bool) -> None:
        for follower in self.followers[answered][number]:
            self.missing[follower] -= 1
            if not self.missing[follower]:
                self._after(self.messages[follower].delay, partial(self._begin, follower))

    # Lossless links

    def _occupy(self, link: int, wire: int) -> None:
        control = self.transport.flow_control
        if isinstance(control, Pause):
            self.occupied[link] += wire
            if self.occupied[link] > control.stop_above and not self.stops[link]:
                self.stops[link] = True
                self._after(self.links[link][1], partial(self._halt, link, stopped=True))

    def _leave(self, packet: Packet) -> None:
        """Mark a packet that starts on its next link, and free its place behind the one before."""
        stated = self.transport.rate_control
        if stated is not None and not packet.is_answer:
            queued = self.ports[packet.route[packet.hop]].queued
            packet.is_marked |= is_marked(stated, queued, self.random)
        control = self.transport.flow_control
        if control is None or packet.is_answer:
            return
        link = packet.route[packet.hop - 1]
        if isinstance(control, Credits):
            self._give_back(link, packet.wire)
            return
        self.occupied[link] -= packet.wire
        if self.stops[link] and self.occupied[link] <= control.go_at:
            self.stops[link] = False
            self._after(self.links[link][1], partial(self._halt, link, stopped=False))

    def _halt(self, link: int, *, stopped: bool) -> None:
        self.ports[link].stopped = stopped
        self.ports[link].wake()

    def _give_back(self, link: int, wire: int) -> None:
        self._after(self.links[link][1], partial(self._credit, link, wire))

    def _credit(self, link: int, wire: int) -> None:
        port = self.ports[link]
        assert port.room is not None
        port.room += wire
        port.wake()


def _followers(messages: Sequence[Message], *, answered: bool) -> list[list[int]]:
    followers: list[list[int]] = [[] for _ in messages]
    for number, message in enumerate(messages):
        for before in message.after_answer if answered else message.after_arrival:
            followers[before].append(number)
    return followers
