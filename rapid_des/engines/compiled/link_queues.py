"""R2 and R3 in the kernel: links choose at the end of an instant, after all transfers have asked."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.calendar import push
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.pools import TRAIL, Pools, State
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
    ASKING,
    AT_NODE,
    FIFO,
    FREED,
    HOPS,
    LINK_FREE,
    LINKS,
    MESSAGES_CHOOSE,
    NEXT_INSTANT,
    NONE,
    NOW,
    PARTS_CHOOSE,
    PHASE,
    RECORDING,
    SPARE,
    TAILS,
    TIES,
)


@compilable
def links_choose(flat: Flat, state: State, pools: Pools) -> None:
    """Let every link serve that was asked or is free again; all that they start ends at a later instant.

    Each transfer that asks makes one event. With priorities a link makes one event for the transfer that it
    takes, which can have asked earlier, and one for the time at which it is free.
    """
    cursor = state.cursor
    if not has_room(state, pools, cursor[ASKING] + 2 * cursor[LINKS] + SPARE):
        return
    for index in range(cursor[LINKS]):
        link = state.touched[index]
        first = state.asked[link]
        state.asked[link] = NONE
        if first == FREED:
            first = NONE
        if first != NONE and pools.transfers.next[first] >= 0:  # several transfers ask at once (R3)
            state.totals[TIES] += rank_decides(pools.transfers, first)
            first = sort_asked(pools.transfers, first)
        if state.flags[FIFO]:
            _serve_all(flat, state, pools, link, first)
        else:
            _serve_first(flat, state, pools, link, first)
    cursor[LINKS] = cursor[ASKING] = 0
    cursor[PHASE] = NEXT_INSTANT


@compilable
def _serve_all(flat: Flat, state: State, pools: Pools, link: int, transfer: int) -> None:
    """Serve all that ask, in order, each when the link has finished the one before.

    With equal priorities no later transfer goes first, so no queue is needed.
    """
    while transfer != NONE:
        following = pools.transfers.next[transfer]
        serve(flat, state, pools, link, transfer)
        transfer = following


@compilable
def _serve_first(flat: Flat, state: State, pools: Pools, link: int, asking: int) -> None:
    """Serve the first that waits, and choose again when the link is free: one of higher priority may come."""
    transfers, by_load = pools.transfers, state.flags[PARTS_CHOOSE] or state.flags[MESSAGES_CHOOSE]
    if by_load:
        count_asking(flat.network, state, transfers, link, asking)
    insert_waiting(transfers, state, link, asking)
    first = state.queue[link]
    if first != NONE and state.busy[link] <= state.cursor[NOW]:
        state.queue[link] = transfers.next[first]
        transfers.next[first] = NONE
        if by_load:
            state.waits[link] -= service_of(flat.network, transfers, first)
        serve(flat, state, pools, link, first)
    if state.queue[link] != NONE and not state.armed[link]:  # one event at most for each service
        state.armed[link] = True
        push(pools.calendar, state.busy[link], LINK_FREE, link, 0)


@compilable
def serve(flat: Flat, state: State, pools: Pools, link: int, transfer: int) -> None:
    """Let a link serve a transfer as soon as it is free: all times of the hop follow."""
    network, transfers = flat.network, pools.transfers
    hop, size = transfers.hop[transfer], transfers.size[transfer]
    start = max(state.cursor[NOW], state.busy[link])  # later than now only if all have one priority
    free, forward, arrival = link_times(network, link, size, network.route_class[hop], start)
    if state.flags[TAILS]:
        arrival = last_byte_arrives(network, transfers, transfer, link, start, free)
    transfers.hop[transfer] = hop + 1
    push(pools.calendar, arrival if hop + 1 == transfers.end[transfer] else forward, AT_NODE, transfer, 0)
    state.busy[link] = free
    book(flat, state, pools, link, transfer, (start, free, arrival))


@compilable
def book(  # noqa: PLR0913 - flat arrays
    flat: Flat, state: State, pools: Pools, link: int, transfer: int, times: tuple[int, int, int]
) -> None:
    """Add a hop's bytes and times to the link's sums, and to the trail if hops are recorded."""
    network, transfers, (start, free, arrival) = flat.network, pools.transfers, times
    label = network.label[pools.instances.group[transfers.instance[transfer]]]
    state.link_bytes[link, label] += network.payload[transfers.size[transfer]]
    state.link_busy[link, label] += free - start
    state.link_wait[link, label] += start - transfers.ready[transfer]
    state.totals[HOPS] += 1
    if not state.flags[RECORDING]:
        return
    row, trail = pools.counts[TRAIL], pools.trail
    pools.counts[TRAIL] = row + 1
    trail.link[row], trail.start[row], trail.finish[row], trail.arrival[row] = link, start, free, arrival
    trail.visit[row] = flat.ranks.flat[transfers.rank[transfer]] + transfers.visit[transfer]
    trail.task[row] = transfers.task[transfer]
    trail.position[row] = transfers.hop[transfer] - 1 - transfers.begin[transfer]
