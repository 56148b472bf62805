"""R8 in the compiled engine: links that may close serve one transfer at a time, and record which.

`link_closures` changes what a closure changes, in Python: that happens between instants, and rarely.
"""

from __future__ import annotations

from typing import NamedTuple

from rapid_des.compiling import CompiledKernel, compilable
from rapid_des.compiling.kinds import Int32Column, Int64Column, Int64Matrix
from rapid_des.engines.compiled.calendar import push
from rapid_des.engines.compiled.flat import Flat, Network
from rapid_des.engines.compiled.instances import pass_turn
from rapid_des.engines.compiled.kernel import play
from rapid_des.engines.compiled.link_queues import book
from rapid_des.engines.compiled.pools import TRAIL, Pools, State
from rapid_des.engines.compiled.room_checks import has_room
from rapid_des.engines.compiled.steps import NONE, insert_waiting, last_byte_arrives, link_times, sort_asked
from rapid_des.engines.compiled.work import (
    ASKING,
    DONE,
    FLOW,
    FLUID,
    FREED,
    JOINING,
    LINK_FREE,
    LINKS,
    LINKS_OF_CALLER,
    NOW,
    PHASE,
    RECORDING,
    RESTART_STOPPED,
    RESTARTING,
    SPARE,
    STATUS,
    STOPPED,
    TAILS,
    TRANSFER_DUE,
)


class Served(NamedTuple):
    """What links serve now, and what they served of transfers that are still in flight."""

    noticed: Int64Column
    """[link] the time in picoseconds at which its closure is noticed, or NONE: it is open."""
    transfer: Int32Column
    """[link] the transfer that it served last."""
    start: Int64Matrix
    """[transfer, hop of its route] the start of service in picoseconds."""
    size: Int64Matrix
    """[transfer, hop of its route] the bytes that the link serves."""
    row: Int64Matrix
    """[transfer, hop of its route] the row of the trail."""


@compilable
def play_closing(flat: Flat, state: State, pools: Pools, served: Served, until: int) -> None:
    """Play as `play` does; links have queues. Return when stopped transfers may be sent again."""
    while True:
        play(flat, state, pools, until)
        if state.totals[STATUS] != LINKS_OF_CALLER:
            return
        wanted = 2 * (state.cursor[ASKING] + state.cursor[LINKS]) + SPARE
        if not has_room(state, pools, wanted):
            return
        stop_at_closed(flat, state, pools, served.noticed)
        if state.cursor[RESTARTING] == 1:
            state.totals[STATUS] = RESTART_STOPPED
            return
        _links_choose(flat, state, pools, served)
        state.totals[STATUS] = DONE


@compilable
def stop_at_closed(flat: Flat, state: State, pools: Pools, noticed: Int64Column) -> None:
    """Stop transfers that ask for a closed link; restart at this instant those whose closure is noticed."""
    network, transfers, cursor, now = flat.network, pools.transfers, state.cursor, state.cursor[NOW]
    transfer = cursor[JOINING]
    cursor[JOINING] = NONE
    while transfer != NONE:
        following = transfers.next[transfer]
        until = _closed_until(
            network, noticed, transfers.route[transfer], transfers.hop[transfer], state.flags[FLUID]
        )
        # Two lists share `next`: those that may ask their links, and those that are stopped.
        into = JOINING if until == NONE else STOPPED
        transfers.next[transfer] = cursor[into]
        cursor[into] = transfer
        if until != NONE:
            if state.flags[FLUID]:
                # Else the flows behind it in its channel would wait for one that does not flow.
                pass_turn(flat, pools, transfer, now)
            transfers.ready[transfer] = now
            if until <= now:
                cursor[RESTARTING] = 1
        transfer = following


@compilable
def _closed_until(network: Network, noticed: Int64Column, route: int, hop: int, fluid: bool) -> int:  # noqa: FBT001
    """Return when the closure of a transfer's next link, or of any link of a flow, is noticed; else NONE."""
    if not fluid:
        return int(noticed[network.route_links[hop]])
    for direction in (route, network.back[route]):
        for place in range(network.route_starts[direction], network.route_starts[direction + 1]):
            if noticed[network.route_links[place]] != NONE:
                return int(noticed[network.route_links[place]])
    return NONE


@compilable
def _links_choose(flat: Flat, state: State, pools: Pools, served: Served) -> None:
    """Queue the transfers that ask, in order (R3); each link that is free serves the first."""
    network, transfers, cursor, now = flat.network, pools.transfers, state.cursor, state.cursor[NOW]
    # First each open link gets the list of those that ask for it, as `reach_node` does without closures.
    transfer = cursor[JOINING]
    while transfer != NONE:
        following = transfers.next[transfer]
        link = network.route_links[transfers.hop[transfer]]
        if state.asked[link] == NONE:
            state.touched[cursor[LINKS]] = link
            cursor[LINKS] += 1
        transfers.next[transfer] = NONE if state.asked[link] == FREED else state.asked[link]
        state.asked[link] = transfer
        transfer = following
    for index in range(cursor[LINKS]):
        link = state.touched[index]
        first = NONE if state.asked[link] == FREED else state.asked[link]
        state.asked[link] = NONE
        if first != NONE and transfers.next[first] >= 0:
            first = sort_asked(transfers, first)
        insert_waiting(transfers, state, link, first)
        first = state.queue[link]
        if first != NONE and state.busy[link] <= now:
            state.queue[link] = transfers.next[first]
            transfers.next[first] = NONE
            _serve(flat, state, pools, served, link, first)
        if state.queue[link] != NONE and not state.armed[link]:
            state.armed[link] = True
            push(pools.calendar, state.busy[link], LINK_FREE, link, 0)
    cursor[LINKS] = cursor[ASKING] = cursor[PHASE] = cursor[RESTARTING] = 0
    cursor[JOINING] = NONE


@compilable
def _serve(  # noqa: PLR0913 - flat arrays
    flat: Flat, state: State, pools: Pools, served: Served, link: int, transfer: int
) -> None:
    """Let a link serve a transfer from now on: all times of the hop follow."""
    network, transfers, now = flat.network, pools.transfers, state.cursor[NOW]
    hop, size = transfers.hop[transfer], transfers.size[transfer]
    place = hop - transfers.begin[transfer]
    free, forward, arrival = link_times(network, link, size, network.route_class[hop], now)
    if state.flags[TAILS]:
        arrival = last_byte_arrives(network, transfers, transfer, link, now, free)
    due = arrival if hop + 1 == transfers.end[transfer] else forward
    transfers.hop[transfer] = hop + 1
    transfers.due[transfer] = due  # a closure may change it; the event is then void
    push(pools.calendar, due, FLOW, transfer, TRANSFER_DUE)
    state.busy[link] = free
    served.transfer[link] = transfer
    served.start[transfer, place], served.size[transfer, place] = now, network.payload[size]
    book(flat, state, pools, link, transfer, (now, free, arrival))
    if state.flags[RECORDING]:
        served.row[transfer, place] = pools.counts[TRAIL] - 1


CLOSING_KERNEL = CompiledKernel(play_closing)
