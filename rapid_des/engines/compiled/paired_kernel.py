"""R9, R13 and R14 in the compiled engine: at an instant's end links choose between own parts and transit."""

from __future__ import annotations

from rapid_des.compiling import Kernel, compilable
from rapid_des.engines.compiled.calendar import push
from rapid_des.engines.compiled.flat import Flat, Network
from rapid_des.engines.compiled.kernel import play
from rapid_des.engines.compiled.link_queues import book
from rapid_des.engines.compiled.pools import Pools, State
from rapid_des.engines.compiled.queue_pairs import (
    NONE,
    count_transit,
    data_begin,
    fills,
    goes_on,
    hold,
    insert_local,
    mark,
    take,
)
from rapid_des.engines.compiled.rooms import has_room
from rapid_des.engines.compiled.spraying import count_asking, service_of
from rapid_des.engines.compiled.steps import (
    insert_waiting,
    last_byte_arrives,
    link_times,
    rank_decides,
    sort_asked,
)
from rapid_des.engines.compiled.work import (
    ASKING,
    DONE,
    FREE,
    FREED,
    HAND,
    HOP,
    LINKS,
    LINKS_APART,
    NOW,
    PAUSE_LINK,
    PHASE,
    STATUS,
    TIES,
)

_EVENTS = 5
"""At most these come of a visit that a link takes: its end, the link's, a next part, an acknowledgement.

And of each that asks or is taken one that stops a link or lets it go."""


@compilable
def play_paired(flat: Flat, state: State, pools: Pools, until: int) -> None:
    """Play as `play` does, the links' part with queue pairs."""
    while True:
        play(flat, state, pools, until)
        if state.totals[STATUS] != LINKS_APART:
            return
        wanted = state.cursor[LINKS] * _EVENTS + state.cursor[ASKING]
        if not has_room(state, pools, wanted):
            return
        _links_choose(flat, state, pools)
        state.totals[STATUS] = DONE


@compilable
def _links_choose(flat: Flat, state: State, pools: Pools) -> None:
    """Let every link that was asked, or is free again, take one visit."""
    transfers, cursor, now = pools.transfers, state.cursor, state.cursor[NOW]
    network, changed, pauses = flat.network, 0, len(flat.network.pause.latency) > 0
    for index in range(cursor[LINKS]):
        link = state.touched[index]
        changed = _enqueue(flat, state, pools, link, changed)
        if state.busy[link] <= now and not (pauses and state.stopped[link]):
            transfer = take(flat.network, transfers, state, link)
            if transfer != NONE:
                if len(state.waits):
                    state.waits[link] -= service_of(flat.network, transfers, transfer)
                if len(state.marks):
                    mark(flat.network, transfers, state, link, transfer)
                if pauses:
                    changed = hold(network, transfers, state, transfer, -1, changed)
                _serve(flat, state, pools, link, transfer)
        waits = state.queue[link] != NONE or state.local[link] != NONE
        if waits and state.busy[link] > now and not state.armed[link]:
            state.armed[link] = True
            push(pools.calendar, state.busy[link], FREE, link, 0)
    _tell(flat, state, pools, changed)
    cursor[LINKS] = cursor[ASKING] = cursor[PHASE] = 0


@compilable
def _tell(flat: Flat, state: State, pools: Pools, changed: int) -> None:
    """Have nodes stop links whose buffers are too full now, and let others go (R13)."""
    for index in range(changed):
        link = state.changed[index]
        news = fills(flat.network, state, link)
        if news != NONE:
            moment = state.cursor[NOW] + flat.network.pause.latency[link]
            push(pools.calendar, moment, PAUSE_LINK, link, news)


@compilable
def _enqueue(flat: Flat, state: State, pools: Pools, link: int, changed: int) -> int:
    """Have those that asked a link at this instant wait for it, each in its class.

    Of as many buffers as `changed` says is known that they have changed; returns that of all.
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
            changed = hold(flat.network, transfers, state, first, 1, changed)
        if transfers.hop[first] == transfers.begin[first]:
            insert_local(flat.network, transfers, state, link, first)
        else:
            transfers.next[first] = NONE
            insert_waiting(transfers, state, link, first)
        first = following
    return changed


@compilable
def _serve(flat: Flat, state: State, pools: Pools, link: int, transfer: int) -> None:
    """Begin a visit: all its times follow, and when its queue pair goes on."""
    network, transfers, now = flat.network, pools.transfers, state.cursor[NOW]
    start = data_begin(network, state, link, now)
    hop, size, message = transfers.hop[transfer], transfers.size[transfer], transfers.message[transfer]
    service = network.route_class[hop]
    free, forward, _ = link_times(network, link, size, service, start)
    arrival = last_byte_arrives(network, transfers, transfer, link, start, free)
    is_last = hop + 1 == transfers.end[transfer]
    transfers.hop[transfer] = hop + 1
    push(pools.calendar, arrival if is_last else forward, HOP, transfer, 0)
    state.busy[link], state.owed[link] = free, 0
    if hop == transfers.begin[transfer]:
        _follow(network, state, pools, transfer, start, free)
    if is_last and transfers.awaited[message] > 0:
        transfers.awaited[message] -= 1
        push(pools.calendar, max(now + 1, arrival + network.answer[size, service]), HAND, message, 1)
    book(flat, state, pools, link, transfer, (start, free, arrival))


@compilable
def _follow(network: Network, state: State, pools: Pools, part: int, start: int, free: int) -> None:  # noqa: PLR0913 - flat arrays
    """Have what comes after a part that its first link serves be handed over when that is done with it."""
    transfers, moment = pools.transfers, free
    message = transfers.message[part]
    if len(state.marks):
        moment = goes_on(network, state, transfers, part, state.cursor[NOW], start, free)
    if transfers.parts[message] > 0:
        push(pools.calendar, moment, HAND, message, 0)


PAIRED_KERNEL = Kernel(play_paired)
