"""R10 to R12 in the compiled engine: which of several routes a transfer takes, and how late it comes."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.flat import Network
from rapid_des.engines.compiled.pools import State, Transfers
from rapid_des.program import delays, spraying
from rapid_des.program.delays import NOISE, RETRIES
from rapid_des.program.program import NONE, DelayTable

message_hash = compilable(spraying.message_hash)
column_of = compilable(spraying.column_of)
compilable(delays.mix)
draw_of = compilable(delays.draw_of)
limit_above = compilable(delays.limit_above)


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
def least_loaded(  # noqa: PLR0913 - flat arrays
    network: Network, state: State, route: int, size: int, number: int, now: int
) -> int:
    """Return the route that a part or a message takes by what is queued on each (R12)."""
    first, count = network.spray_starts[route], network.spray_starts[route + 1] - network.spray_starts[route]
    if count == 1:
        return network.spray_routes[first]
    minimal, chosen, least = network.minimal_routes[route], NONE, 0
    for place in range(count):
        column = column_of(number, place, minimal, count)
        other = network.spray_routes[first + column]
        cost = network.bias[0] if column >= minimal else 0
        last = network.route_starts[other + 1] - 1
        for hop in range(network.route_starts[other], last + 1):
            link, service = network.route_links[hop], network.route_class[hop]
            crossing = network.occupancy[size, service] if hop == last else network.head[size, service]
            cost += crossing + network.lag[size, service]
            cost += max(0, state.busy[link] - now) + state.waits[link]
        if chosen == NONE or cost < least:
            chosen, least = other, cost
    return chosen


@compilable
def choose_route(network: Network, state: State, transfers: Transfers, part: int, now: int) -> None:
    """Put a part that sets off at the begin of the route that it chooses by load."""
    message = transfers.message[part]
    sent = message_hash(transfers.rank[part], transfers.injected[part], transfers.task[part])
    number, size = sent + transfers.part[part], transfers.size[part]
    set_off(
        network,
        transfers,
        part,
        least_loaded(network, state, transfers.route[message], size, number, now),
    )


@compilable
def count_asking(network: Network, state: State, transfers: Transfers, link: int, first: int) -> None:
    """Add the linked transfers that ask a link at this instant to what waits for it."""
    while first != NONE:
        state.waits[link] += service_of(network, transfers, first)
        first = transfers.next[first]


@compilable
def service_of(network: Network, transfers: Transfers, transfer: int) -> int:
    """Return how long a transfer takes its next link, at rate 1."""
    return network.occupancy[transfers.size[transfer], network.route_class[transfers.hop[transfer]]]


@compilable
def lateness(known: DelayTable, transfers: Transfers, transfer: int, route: int, size: int) -> int:
    """Return how much later than its last byte the message of a transfer arrives, on a pair's route."""
    late = 0
    rank, visit = known.rank[transfers.rank[transfer]], transfers.visit[transfer]
    row, column = known.noise[route], known.losses[route]
    if row >= 0:
        draw = draw_of(known.seed[0], rank, visit, transfers.task[transfer], NOISE)
        late += known.values[limit_above(known.limits, known.starts[row], known.starts[row + 1], draw)]
    if column >= 0:
        row = known.retries[size, column]
        draw = draw_of(known.loss_seed[column], rank, visit, transfers.task[transfer], RETRIES)
        late += known.values[limit_above(known.limits, known.starts[row], known.starts[row + 1], draw)]
    return late
