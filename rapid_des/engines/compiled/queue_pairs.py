"""Steps of R9, R13 and R14 in the compiled engine: queue pairs hand parts over, links take and mark them.

Each part of a message has a row of its own while it is in flight.
"""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.flat import Array, Network
from rapid_des.engines.compiled.pools import FREE_TRANSFER, State, Transfers
from rapid_des.engines.compiled.spraying import draw_of
from rapid_des.engines.compiled.steps import advance, left_at, timetable_of
from rapid_des.program import rates


@compilable
def new_part(transfers: Transfers, counts: Array, other: int) -> int:
    """Take a free row for a part, with the columns that all parts of its message share; return it."""
    part = counts[FREE_TRANSFER]
    counts[FREE_TRANSFER] = transfers.next[part]
    transfers.instance[part] = transfers.instance[other]
    transfers.task[part] = transfers.task[other]
    transfers.hop[part] = transfers.begin[part] = transfers.begin[other]
    transfers.end[part] = transfers.end[other]
    transfers.injected[part] = transfers.injected[other]
    transfers.rank[part] = transfers.rank[other]
    transfers.visit[part] = transfers.visit[other]
    transfers.priority[part] = transfers.priority[other]
    transfers.sub[part] = transfers.sub[other]
    transfers.message[part] = transfers.message[other]
    transfers.crossed[part] = 0
    return part


@compilable
def next_part(transfers: Transfers, counts: Array, before: int) -> int:
    """Make the part of a message that follows one at its first link; return its row."""
    part = new_part(transfers, counts, before)
    transfers.last[part] = transfers.last[before]
    transfers.route[part] = transfers.route[before]
    transfers.number[part] = 0
    transfers.part[part] = transfers.part[before] + 1
    transfers.parts[part] = transfers.parts[before] - 1
    transfers.parts[before] = 0
    transfers.size[part] = transfers.size[before] if transfers.parts[part] > 0 else transfers.last[part]
    return part


@compilable
def part_arrives(transfers: Transfers, counts: Array, part: int) -> bool:
    """Free a part that has arrived; return whether its whole message has."""
    message = transfers.message[part]
    transfers.missing[message] -= 1
    if part != message:  # the first part's row holds what the message needs, so it is freed last
        transfers.next[part] = counts[FREE_TRANSFER]
        counts[FREE_TRANSFER] = part
    if transfers.missing[message] > 0:
        return False
    transfers.next[message] = counts[FREE_TRANSFER]
    counts[FREE_TRANSFER] = message
    return True


NONE = -1
TRANSIT, LOCAL = 0, 1
MOST, SEED, HELD, UNUSED = rates.MOST, rates.SEED, rates.HELD, rates.UNUSED

compilable(rates.power)
compilable(rates.rise)
compilable(rates.advance)
compilable(rates.lasts)
chance = compilable(rates.chance)
cut_rate = compilable(rates.cut)
notifies = compilable(rates.notifies)
paced = compilable(rates.paced)
mark_draw = compilable(rates.which)


@compilable
def open_pair(network: Network, transfers: Transfers, message: int) -> None:
    """Start a message on a queue pair; its first part is handed over."""
    size, route = transfers.size[message], transfers.route[message]
    # The window allows that many parts at once; each later part needs an acknowledgement.
    allowance = network.allowance[size, network.route_class[network.route_starts[route]]]
    transfers.credits[message] = allowance - 1
    transfers.awaited[message] = max(0, transfers.missing[message] - allowance)
    transfers.newest[message] = transfers.idle[message] = 0
    transfers.end_tag[message] = 0
    transfers.marked[message] = 0


@compilable
def hand_over(transfers: Transfers, counts: Array, message: int) -> int:
    """Make the next part of a message if its queue pair may send one; return its row, else NONE."""
    # It needs an idle first link, a credit of the window, and a part to send.
    if transfers.idle[message] == 0 or transfers.credits[message] == 0 or transfers.parts[message] == 0:
        return NONE
    transfers.idle[message] = 0
    transfers.credits[message] -= 1
    transfers.parts[message] -= 1
    transfers.newest[message] += 1
    part = new_part(transfers, counts, message)
    transfers.parts[part] = transfers.marked[part] = 0
    transfers.part[part] = transfers.newest[message]
    is_last = transfers.parts[message] == 0
    transfers.size[part] = transfers.last[message] if is_last else transfers.size[message]
    return part


@compilable
def acknowledge(network: Network, state: State, transfers: Transfers, part: int, now: int) -> None:
    """Post the acknowledgements of a part that arrives on the links of its route back."""
    # A message to its own rank crosses no link, and nothing goes back.
    if transfers.begin[part] == transfers.end[part]:
        return
    back = network.back[transfers.route[transfers.message[part]]]
    count = network.acknowledgements[transfers.size[part]]
    for hop in range(network.route_starts[back], network.route_starts[back + 1]):
        link = network.route_links[hop]
        state.owed[link] = owed(network, state, link, now) + count * network.acknowledgement_time[link]
        state.posted[link] = now


@compilable
def owed(network: Network, state: State, link: int, moment: int) -> int:
    """Return the picoseconds of acknowledgements to send: an idle link has been sending them."""
    time, rate, _ = timetable_of(network, link)
    # Acknowledgements are sent while the link is free, from the time at which the last one was added.
    since = max(state.busy[link], state.posted[link])
    return left_at((time, rate), since, moment, state.owed[link])


@compilable
def data_start(network: Network, state: State, link: int, moment: int) -> int:
    """Return when a free link has sent its acknowledgements, and can serve data."""
    time, rate, _ = timetable_of(network, link)
    return advance(time, rate, moment, owed(network, state, link, moment))


@compilable
def insert_local(network: Network, transfers: Transfers, state: State, link: int, part: int) -> None:
    """Give a part at its first hop a start tag, and insert it by (priority, tag) among the waiting ones."""
    # Start-time fair queueing: messages that wait for one link get equal shares of its service.
    message = transfers.message[part]
    tag = max(state.local_tag[link], transfers.end_tag[message])
    service = network.occupancy[transfers.size[part], network.route_class[transfers.hop[part]]]
    transfers.tag[part], transfers.end_tag[message] = tag, tag + service
    ahead, other = NONE, state.local[link]
    while other != NONE:
        mine, theirs = transfers.priority[part], transfers.priority[other]
        if theirs > mine or (theirs == mine and transfers.tag[other] > tag):
            break
        ahead, other = other, transfers.next[other]
    transfers.next[part] = other
    if ahead == NONE:
        state.local[link] = part
    else:
        transfers.next[ahead] = part


@compilable
def take_transfer(network: Network, transfers: Transfers, state: State, link: int) -> int:
    """Take the first transfer of the class that the link has served less; return NONE if none waits."""
    transit, local = state.queue[link], state.local[link]
    if transit == NONE and local == NONE:
        return NONE
    chosen = TRANSIT if local == NONE else LOCAL
    if transit >= 0 and local >= 0:
        first, second = transfers.priority[transit], transfers.priority[local]
        behind = state.served[link, LOCAL] < state.served[link, TRANSIT]
        chosen = LOCAL if second < first or (second == first and behind) else TRANSIT
    elif state.served[link, 1 - chosen] < state.served[link, chosen]:
        # A class in which nothing waits keeps no claim to service that it did not use.
        state.served[link, 1 - chosen] = state.served[link, chosen]
    transfer = transit if chosen == TRANSIT else local
    service = network.occupancy[transfers.size[transfer], network.route_class[transfers.hop[transfer]]]
    state.served[link, chosen] += service
    if chosen == TRANSIT:
        state.queue[link] = transfers.next[transfer]
    else:
        state.local[link] = transfers.next[transfer]
        state.local_tag[link] = transfers.tag[transfer]
    transfers.next[transfer] = NONE
    return transfer


@compilable
def set_link_stopped(state: State, link: int, stops: int, now: int) -> None:
    """Stop a link, or let it continue (R13)."""
    if stops == 0:
        state.link_stopped[link] += now - state.stopped_since[link]
    state.stopped[link], state.stopped_since[link] = stops == 1, now


@compilable
def count_in_buffer(  # noqa: PLR0913 - flat arrays
    network: Network, transfers: Transfers, state: State, transfer: int, sign: int, count: int
) -> int:
    """Add a part to the buffer of the link by which it came (sign 1), or remove it (sign -1).

    `count` is the number of buffers that have changed at this instant; returns the new number.
    """
    hop = transfers.hop[transfer]
    if hop == transfers.begin[transfer]:
        return count
    link = network.route_links[hop - 1]
    state.held[link] += sign * network.payload[transfers.size[transfer]]
    if not state.is_changed[link]:
        state.is_changed[link] = True
        state.changed[count] = link
        count += 1
    return count


@compilable
def pause_change(network: Network, state: State, link: int) -> int:
    """Return 1 if a link's buffer became too full, 0 if it no longer is, NONE if nothing changed."""
    state.is_changed[link] = False
    # Two thresholds: the buffer must drain to the lower one before the link continues.
    if not state.full[link] and state.held[link] > network.pause.stop_above:
        state.full[link] = True
        return 1
    if state.full[link] and state.held[link] <= network.pause.go_at:
        state.full[link] = False
        return 0
    return NONE


@compilable
def count_transit(network: Network, transfers: Transfers, state: State, link: int, first: int) -> None:
    """Add the linked transfers that came over links to the backlog of the link for which they wait."""
    while first != NONE:
        hop = transfers.hop[first]
        if hop > transfers.begin[first]:
            state.backlog[link] += network.occupancy[transfers.size[first], network.route_class[hop]]
        first = transfers.next[first]


@compilable
def mark(network: Network, transfers: Transfers, state: State, link: int, part: int) -> None:
    """Draw whether a link marks a part that it takes, by what waits there; only transit is marked."""
    hop, size = transfers.hop[part], transfers.size[part]
    place = hop - transfers.begin[part]
    if place == 0:
        return
    state.backlog[link] -= network.occupancy[size, network.route_class[hop]]
    thresholds = network.rates.first[link], network.rates.full[link]
    limit = chance(state.backlog[link], thresholds, network.rates.control[MOST], network.rates.packets[size])
    if limit > 0:
        seed, kind = network.rates.control[SEED], mark_draw(transfers.part[part], place)
        rank, visit, task = transfers.rank[part], transfers.visit[part], transfers.task[part]
        if draw_of(seed, rank, visit, task, kind) >> UNUSED < limit:
            transfers.marked[part] = 1
            state.marks[link] += 1


@compilable
def sends_notice(network: Network, state: State, transfers: Transfers, part: int, now: int) -> bool:
    """Return whether the receiver of a part that arrives sends a notice of marks to the sender."""
    if len(state.marks) == 0 or transfers.begin[part] == transfers.end[part] or transfers.marked[part] == 0:
        return False
    return notifies(state.rates[transfers.route[transfers.message[part]]], network.rates.control, now)


@compilable
def next_part_time(  # noqa: PLR0913 - flat arrays
    network: Network, state: State, transfers: Transfers, part: int, now: int, start: int, free: int
) -> int:
    """Return when the part after one that its first link takes now may be handed over."""
    message = transfers.message[part]
    row, size = state.rates[transfers.route[message]], transfers.size[part]
    service = network.occupancy[size, network.route_class[transfers.begin[part]]]
    pace = paced(row, network.rates.control, now, (network.payload[size], service))
    moment = max(free, start + pace)
    if transfers.parts[message] > 0:
        row[HELD] += moment - free
    return moment
