"""R9, R13 and R14 in the compiled engine: links choose between their own parts and transit.

Own parts are at their first hop; transit came over other links. Links choose at the end of an instant.
"""

from __future__ import annotations

from rapid_des.compiling import CompiledKernel, compilable
from rapid_des.engines.compiled.calendar import push
from rapid_des.engines.compiled.flat import Flat, Network
from rapid_des.engines.compiled.kernel import play
from rapid_des.engines.compiled.link_queues import book
from rapid_des.engines.compiled.pools import Pools, State
from rapid_des.engines.compiled.queue_pairs import (
    NONE,
    count_in_buffer,
    count_transit,
    data_start,
    insert_local,
    mark,
    next_part_time,
    pause_change,
    take_transfer,
)
from rapid_des.engines.compiled.room_checks import has_room
from rapid_des.engines.compiled.spraying import count_asking, service_of
from rapid_des.engines.compiled.steps import (
    insert_waiting,
    last_byte_arrives,
    link_times,
    rank_decides,
    sort_asked,
)
from rapid_des.engines.compiled.work import (
    ACKNOWLEDGED,
    ASKING,
    AT_NODE,
    DONE,
    FIRST_LINK_DONE,
    FREED,
    LINK_FREE,
    LINKS,
    LINKS_OF_CALLER,
    NOW,
    PAUSE_LINK,
    PHASE,
    QUEUE_PAIR,
    STATUS,
    TIES,
)

_EVENTS = 5
"""The largest number of events of a transfer that a link takes: its arrival at the next node, the end of the
link's service, the next part, an acknowledgement, and a stop or restart of the link that it came by. Each
transfer that asks can add one more stop.
"""


@compilable
def play_paired(flat: Flat, state: State, pools: Pools, until: int) -> None:
    """Play as `play` does; links choose among parts of queue pairs."""
    while True:
        play(flat, state, pools, until)
        if state.totals[STATUS] != LINKS_OF_CALLER:
            return
        wanted = state.cursor[LINKS] * _EVENTS + state.cursor[ASKING]
        if not has_room(state, pools, wanted):
            return
        _links_choose(flat, state, pools)
        state.totals[STATUS] = DONE


@compilable
def _links_choose(flat: Flat, state: State, pools: Pools) -> None:
    """Let every link that was asked, or is free again, take one transfer."""
    transfers, cursor, now = pools.transfers, state.cursor, state.cursor[NOW]
    network, changed, pauses = flat.network, 0, len(flat.network.pause.latency) > 0
    for index in range(cursor[LINKS]):
        link = state.touched[index]
        changed = _enqueue(flat, state, pools, link, changed)
        if state.busy[link] <= now and not (pauses and state.stopped[link]):
            transfer = take_transfer(flat.network, transfers, state, link)
            if transfer != NONE:
                if len(state.waits):
                    state.waits[link] -= service_of(flat.network, transfers, transfer)
                if len(state.marks):
                    mark(flat.network, transfers, state, link, transfer)
                if pauses:  # what is taken leaves the buffer of the link by which it came
                    changed = count_in_buffer(network, transfers, state, transfer, -1, changed)
                _serve(flat, state, pools, link, transfer)
        waits = state.queue[link] != NONE or state.local[link] != NONE
        # A stopped link needs no event: it chooses again when a node lets it continue.
        if waits and state.busy[link] > now and not state.armed[link]:
            state.armed[link] = True
            push(pools.calendar, state.busy[link], LINK_FREE, link, 0)
    _send_pauses(flat, state, pools, changed)
    cursor[LINKS] = cursor[ASKING] = cursor[PHASE] = 0


@compilable
def _send_pauses(flat: Flat, state: State, pools: Pools, changed: int) -> None:
    """Let nodes stop links whose buffers are now too full, and let others continue (R13)."""
    for index in range(changed):
        link = state.changed[index]
        news = pause_change(flat.network, state, link)
        if news != NONE:
            moment = state.cursor[NOW] + flat.network.pause.latency[link]
            push(pools.calendar, moment, PAUSE_LINK, link, news)


@compilable
def _enqueue(flat: Flat, state: State, pools: Pools, link: int, changed: int) -> int:
    """Queue the transfers that asked for a link at this instant, each in its class.

    `changed` is the number of buffers that have changed at this instant; returns it with those of this link.
    """
    transfers = pools.transfers
    first = state.asked[link]
    state.asked[link] = NONE
    if first == FREED:
        return changed
    if transfers.next[first] >= 0:
        state.totals[TIES] += rank_decides(transfers, first)
        first = sort_asked(transfers, first)
    if len(state.marks):
        count_transit(flat.network, transfers, state, link, first)
    if len(state.waits):
        count_asking(flat.network, state, transfers, link, first)
    while first != NONE:
        following = transfers.next[first]
        if len(flat.network.pause.latency):
            changed = count_in_buffer(flat.network, transfers, state, first, 1, changed)
        if transfers.hop[first] == transfers.begin[first]:
            insert_local(flat.network, transfers, state, link, first)
        else:
            transfers.next[first] = NONE
            insert_waiting(transfers, state, link, first)
        first = following
    return changed


@compilable
def _serve(flat: Flat, state: State, pools: Pools, link: int, transfer: int) -> None:
    """Start the service of a transfer: all its times follow, and when its queue pair continues."""
    network, transfers, now = flat.network, pools.transfers, state.cursor[NOW]
    start = data_start(network, state, link, now)
    hop, size, message = transfers.hop[transfer], transfers.size[transfer], transfers.message[transfer]
    service = network.route_class[hop]
    free, forward, _ = link_times(network, link, size, service, start)
    # With queue pairs the last byte is always followed: it decides when the part has arrived (R6).
    arrival = last_byte_arrives(network, transfers, transfer, link, start, free)
    is_last = hop + 1 == transfers.end[transfer]
    transfers.hop[transfer] = hop + 1
    push(pools.calendar, arrival if is_last else forward, AT_NODE, transfer, 0)
    state.busy[link], state.owed[link] = free, 0  # the acknowledgements went before this transfer
    if hop == transfers.begin[transfer]:
        _schedule_next_part(network, state, pools, transfer, start, free)
    if is_last and transfers.awaited[message] > 0:
        transfers.awaited[message] -= 1
        push(
            pools.calendar,
            max(now + 1, arrival + network.answer[size, service]),
            QUEUE_PAIR,
            message,
            ACKNOWLEDGED,
        )
    book(flat, state, pools, link, transfer, (start, free, arrival))


@compilable
def _schedule_next_part(  # noqa: PLR0913 - flat arrays
    network: Network, state: State, pools: Pools, part: int, start: int, free: int
) -> None:
    """Schedule the handing over of the part after one that its first link serves."""
    transfers, moment = pools.transfers, free
    message = transfers.message[part]
    if len(state.marks):
        moment = next_part_time(network, state, transfers, part, state.cursor[NOW], start, free)
    if transfers.parts[message] > 0:
        push(pools.calendar, moment, QUEUE_PAIR, message, FIRST_LINK_DONE)


PAIRED_KERNEL = CompiledKernel(play_paired)
