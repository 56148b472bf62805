"""R10 to R12 in the compiled engine: the choice among several routes, and delays of messages."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.flat import Network
from rapid_des.engines.compiled.pools import State, Transfers
from rapid_des.program import delays
from rapid_des.program.delays import NOISE, RETRIES
from rapid_des.program.program import NONE, DelayTable

message_hash = compilable(delays.message_hash)
column_of = compilable(delays.column_of)
compilable(delays.mix)
draw_of = compilable(delays.draw_of)
limit_above = compilable(delays.limit_above)


@compilable
def sprayed_route(network: Network, route: int, number: int) -> int:
    """Return the route that the part or message of a number takes instead of its pair's."""
    first, last = network.spray_starts[route], network.spray_starts[route + 1]
    return network.spray_routes[first + number % (last - first)]


@compilable
def put_on_route(network: Network, transfers: Transfers, transfer: int, route: int) -> None:
    """Put a transfer at the start of a route."""
    transfers.begin[transfer] = transfers.hop[transfer] = network.route_starts[route]
    transfers.end[transfer] = network.route_starts[route + 1]


@compilable
def least_loaded(  # noqa: PLR0913 - flat arrays
    network: Network, state: State, route: int, size: int, number: int, now: int
) -> int:
    """Return the route that costs a part or a message least, with the load of its links (R12)."""
    first, count = network.spray_starts[route], network.spray_starts[route + 1] - network.spray_starts[route]
    if count == 1:
        return network.spray_routes[first]
    minimal, chosen, least = network.minimal_routes[route], NONE, 0
    # Routes are looked at in the order of preference: the first of the cheapest ones is taken.
    for place in range(count):
        column = column_of(number, place, minimal, count)
        other = network.spray_routes[first + column]
        cost = network.bias[0] if column >= minimal else 0
        last = network.route_starts[other + 1] - 1
        for hop in range(network.route_starts[other], last + 1):
            link, service = network.route_links[hop], network.route_class[hop]
            crossing = network.occupancy[size, service] if hop == last else network.head[size, service]
            cost += crossing + network.lag[size, service]
            # The rest of the visit in service, and the services of those that asked at earlier instants.
            cost += max(0, state.busy[link] - now) + state.waits[link]
        if chosen == NONE or cost < least:
            chosen, least = other, cost
    return chosen


@compilable
def choose_route(network: Network, state: State, transfers: Transfers, part: int, now: int) -> None:
    """Put a part that starts now on the route that costs it least."""
    message = transfers.message[part]
    sent = message_hash(transfers.rank[part], transfers.injected[part], transfers.task[part])
    number, size = sent + transfers.part[part], transfers.size[part]
    put_on_route(
        network,
        transfers,
        part,
        least_loaded(network, state, transfers.route[message], size, number, now),
    )


@compilable
def count_asking(network: Network, state: State, transfers: Transfers, link: int, first: int) -> None:
    """Add the linked transfers that ask for a link at this instant to the load of that link."""
    while first != NONE:
        state.waits[link] += service_of(network, transfers, first)
        first = transfers.next[first]


@compilable
def service_of(network: Network, transfers: Transfers, transfer: int) -> int:
    """Return the service time of a transfer on its next link, in picoseconds at rate 1."""
    return network.occupancy[transfers.size[transfer], network.route_class[transfers.hop[transfer]]]


@compilable
def lateness(known: DelayTable, transfers: Transfers, transfer: int, route: int, size: int) -> int:
    """Return the picoseconds by which a message on a pair's route arrives later than its last byte (R11)."""
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
