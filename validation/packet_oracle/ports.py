"""Packets, messages that send them, and the ports that queue them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from simpy import Environment
from simpy.events import Timeout

from validation.packet_oracle.rate_control import RateMachine


@dataclass(slots=True)
class Packet:
    """A data packet or an acknowledgement on its way; `hop` is the link that it waits for or is on."""

    flow: Flow
    payload: int
    wire: int
    route: tuple[int, ...]
    is_answer: bool
    hop: int = 0
    is_marked: bool = False


@dataclass(slots=True)
class Flow:
    """The sending side of one message: a queue pair with a window."""

    number: int
    left: int
    """Payload bytes not sent yet."""
    window: int
    payload: int
    header: int
    route: tuple[int, ...]
    packets: int
    """Data packets that have not arrived yet."""
    in_flight: int = 0
    answered: int = 0
    """Data packets that arrived and are not acknowledged yet."""
    waits_at_port: bool = False
    rate: RateMachine | None = None
    """None: as fast as its port."""
    not_before: int = 0
    """When its rate lets it send the next packet."""

    def may_send(self, now: int) -> bool:
        """Return whether something is left, the window has room and the rate allows."""
        return self.left >= 0 and self.in_flight < self.window and now >= self.not_before

    def next_wire(self) -> int:
        """Return the wire bytes of the next packet."""
        return min(max(self.left, 0), self.payload) + self.header

    def next_packet(self) -> Packet:
        """Return the next packet, which is then in flight; an empty message is one empty packet."""
        payload = min(self.left, self.payload)
        self.left = self.left - payload if self.left > payload else -1
        self.in_flight += payload
        return Packet(self, payload, payload + self.header, self.route, is_answer=False)


@dataclass(slots=True)
class Port:
    """The sending end of a directed link: acknowledgements first, then transit and own flows in turns.

    Transit packets stand in one queue; own flows take turns packet by packet. A router's port serves the
    input from its own GPU and the inputs from its neighbours like this.
    """

    env: Environment
    link: int
    latency: int
    time: Callable[[int], int]
    """Picoseconds that wire bytes take."""
    arrive: Callable[[Packet], None]
    leave: Callable[[Packet], None]
    """Called when a packet's last byte is out."""
    room: int | None = None
    """Credits in bytes; None: no limit."""
    stopped: bool = False
    urgent: deque[Packet] = field(default_factory=deque)
    transit: deque[Packet] = field(default_factory=deque)
    own: deque[Flow] = field(default_factory=deque)
    busy_until: int = 0
    woken: bool = False
    transit_next: bool = True
    queued: int = 0
    """Wire bytes of `transit`."""
    served: Flow | None = None
    """The own flow that sent last."""

    def join(self, flow: Flow) -> None:
        """Let an own flow take its turns from now on, first before the one that sent last."""
        flow.waits_at_port = True
        self.own.insert(len(self.own) - (bool(self.own) and self.own[-1] is self.served), flow)
        self.wake()

    def wake(self) -> None:
        """Send the next packet now, or when the port is free."""
        now = int(self.env.now)
        if now < self.busy_until:
            if not self.woken:
                self.woken = True
                Timeout(self.env, self.busy_until - now).callbacks.append(self._free)
            return
        packet = self._choose()
        if packet is not None:
            self._send(packet, now)

    def _free(self, _: object) -> None:
        self.woken = False
        self.wake()

    def _choose(self) -> Packet | None:
        if self.urgent:
            return self.urgent.popleft()
        if self.stopped:
            return None
        if self.transit and (self.transit_next or not self.own) and self._fits(self.transit[0].wire):
            self.transit_next = False
            packet = self.transit.popleft()
            self.queued -= packet.wire
            return packet
        self.transit_next = True
        if not self.own or not self._fits(self.own[0].next_wire()):
            return None
        own = self.served = self.own.popleft()
        packet = own.next_packet()
        if own.rate is not None:
            own.not_before = int(self.env.now) + own.rate.pace(packet.wire)
            Timeout(self.env, own.not_before - int(self.env.now), own).callbacks.append(self._paced)
        own.waits_at_port = own.may_send(int(self.env.now))
        if own.waits_at_port:
            self.own.append(own)
        return packet

    def _paced(self, event: Timeout) -> None:
        flow = event.value
        assert isinstance(flow, Flow)
        if not flow.waits_at_port and flow.may_send(int(self.env.now)):
            self.join(flow)

    def _fits(self, wire: int) -> bool:
        return self.room is None or wire <= self.room

    def _send(self, packet: Packet, now: int) -> None:
        duration = self.time(packet.wire)
        self.busy_until = now + duration
        if self.room is not None and not packet.is_answer:
            self.room -= packet.wire
        if packet.hop or packet.is_answer:
            self.leave(packet)
        arrival = Timeout(self.env, duration + self.latency, packet)
        arrival.callbacks.append(self._arrived)
        if self.urgent or self.transit or self.own:
            self.wake()

    def _arrived(self, event: Timeout) -> None:
        packet = event.value
        assert isinstance(packet, Packet)
        packet.hop += 1
        self.arrive(packet)
