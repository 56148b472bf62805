"""R10 and R11 in the compiled engine: which of several ways a transfer takes, and how late it comes."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.flat import Network
from rapid_des.engines.compiled.pools import Transfers
from rapid_des.program import delays, spraying
from rapid_des.program.delays import NOISE, RETRIES
from rapid_des.program.program import DelayTable

message_hash = compilable(spraying.message_hash)
compilable(delays.mix)
draw_of = compilable(delays.draw_of)
first_above = compilable(delays.first_above)


@compilable
def sprayed_route(network: Network, route: int, number: int) -> int:
    """Return the route that a part, or a message, of this number takes instead of its pair's."""
    first, last = network.spray_starts[route], network.spray_starts[route + 1]
    return network.spray_routes[first + number % (last - first)]


@compilable
def set_off(network: Network, transfers: Transfers, transfer: int, route: int) -> None:
    """Put a transfer at the begin of a route."""
    transfers.begin[transfer] = transfers.hop[transfer] = network.route_starts[route]
    transfers.end[transfer] = network.route_starts[route + 1]


@compilable
def lateness(known: DelayTable, transfers: Transfers, transfer: int, route: int, size: int) -> int:
    """Return how much later than its last byte the message of a transfer arrives, on a pair's route."""
    late = 0
    rank, visit = known.rank[transfers.rank[transfer]], transfers.visit[transfer]
    row, column = known.noise[route], known.losses[route]
    if row >= 0:
        draw = draw_of(known.seed[0], rank, visit, transfers.task[transfer], NOISE)
        late += known.values[first_above(known.limits, known.starts[row], known.starts[row + 1], draw)]
    if column >= 0:
        row = known.retries[size, column]
        draw = draw_of(known.loss_seed[column], rank, visit, transfers.task[transfer], RETRIES)
        late += known.values[first_above(known.limits, known.starts[row], known.starts[row + 1], draw)]
    return late
