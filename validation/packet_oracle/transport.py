"""What the transport and the links of the packet oracle do."""

from __future__ import annotations

from dataclasses import dataclass

from rapid_des.network.congestion import Dcqcn
from rapid_des.network.protocol import Hops, Protocol
from rapid_des.units import PS_PER_S


@dataclass(frozen=True)
class Credits:
    """A link sends a packet only into free space of the next node's input buffer."""

    buffer: int
    """Bytes of input buffer behind each link."""


@dataclass(frozen=True)
class Pause:
    """A node stops a link when the bytes that came by it pass a threshold, and lets it go below another."""

    stop_above: int
    go_at: int


@dataclass(frozen=True)
class Transport:
    """How packets are sent: the machine file's protocol and what only packets know."""

    protocol: Protocol
    window_in_bdp: float | None
    """Unacknowledged payload that a message may have on the way, in bandwidth-delay products; None: any."""
    acknowledgements_first: bool
    """Acknowledgements have their own queue, served before data."""
    flow_control: Credits | Pause | None = None
    rate_control: Dcqcn | None = None
    """Whole; None: nothing is marked."""


def window(transport: Transport, there: Hops, latency_back: int) -> int:
    """Return the payload bytes that a message may have unacknowledged; it sends while below that."""
    if transport.window_in_bdp is None:
        return 2**62
    slowest = min(rate for rate, _ in there)
    payload = transport.protocol.payload
    round_trip = sum(lag + payload * PS_PER_S // rate for rate, lag in there) + latency_back
    return int(round_trip * slowest // PS_PER_S * transport.window_in_bdp)
