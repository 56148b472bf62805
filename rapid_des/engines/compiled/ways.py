"""R10 in the compiled engine: which of several equal ways a transfer takes."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.flat import Network
from rapid_des.engines.compiled.pools import Transfers
from rapid_des.program import spraying

message_hash = compilable(spraying.message_hash)


@compilable
def way(network: Network, route: int, number: int) -> int:
    """Return the route that a part, or a message, of this number takes instead of its pair's."""
    first, last = network.way_starts[route], network.way_starts[route + 1]
    return network.ways[first + number % (last - first)]


@compilable
def set_off(network: Network, transfers: Transfers, transfer: int, route: int) -> None:
    """Put a transfer at the begin of a route."""
    transfers.begin[transfer] = transfers.hop[transfer] = network.route_starts[route]
    transfers.end[transfer] = network.route_starts[route + 1]
