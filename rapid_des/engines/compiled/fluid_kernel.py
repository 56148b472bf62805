"""R7 in the compiled engine: at the end of an instant flows leave, join and share the links anew."""

from __future__ import annotations

from rapid_des.compiling import compilable, inlined
from rapid_des.engines.compiled.calendar import USED, push
from rapid_des.engines.compiled.flat import Flat, Ways
from rapid_des.engines.compiled.kernel import (
    ASKING,
    DONE,
    ENDING,
    FLOW,
    FLUID_TURN,
    HOP,
    HOPS,
    JOINING,
    LINKS,
    MORE_EVENTS,
    NOW,
    PHASE,
    STATUS,
    WANTED,
    play,
)
from rapid_des.engines.compiled.pools import Board, Pools
from rapid_des.engines.compiled.steps import NONE
from rapid_des.network.fluid import NEVER, Fluid, begin_flow, end_flow, set_capacity, settle, stride
from rapid_des.program.timetable import FULL_RATE

_PS = 1e12


@compilable
def play_fluid(flat: Flat, board: Board, pools: Pools, fluid: Fluid, until: int) -> None:
    """Play as `play` does, the links' part by flows."""
    while True:
        play(flat, board, pools, until)
        if board.totals[STATUS] != FLUID_TURN:
            return
        wanted = 2 * len(pools.transfers.next)
        if pools.calendar.counts[USED] + wanted >= len(pools.calendar.next):
            board.totals[STATUS], board.totals[WANTED] = MORE_EVENTS, wanted
            return
        _links_choose(flat, board, pools, fluid)
        board.totals[STATUS] = DONE


@inlined
def _links_choose(flat: Flat, board: Board, pools: Pools, fluid: Fluid) -> None:
    """Let capacities change, then flows end, then flows join; share anew what that touched."""
    ways, transfers, state, now = flat.ways, pools.transfers, board.state, board.state[NOW]
    for place in range(state[LINKS]):
        link = board.touched[place]
        set_capacity(fluid, link, ways.capacity[link] * _rate(ways, link, now) // FULL_RATE)
    flow = state[ENDING]
    while flow != NONE:
        following = transfers.next[flow]
        transfers.flowing[flow] = 1
        if fluid.finish[flow] == now:
            end_flow(fluid, flow)
            _leave(flat, board, pools, flow, now)
        flow = following
    flow = state[JOINING]
    while flow != NONE:
        following = transfers.next[flow]
        _join(flat, pools, fluid, flow, now)
        flow = following
    changed = settle(fluid, now)
    for place in range(changed):
        flow = fluid.changed[place]
        if fluid.finish[flow] != NEVER:
            push(pools.calendar, fluid.finish[flow], FLOW, flow, 0)
    state[ENDING] = state[JOINING] = NONE
    state[LINKS] = state[ASKING] = state[PHASE] = 0


@inlined
def _rate(ways: Ways, link: int, now: int) -> int:
    """Return a link's rate by its timetable."""
    rate = FULL_RATE
    for row in range(ways.link_table[link], ways.link_table[link + 1]):
        if ways.link_time[row] <= now:
            rate = ways.link_rate[row]
    return rate


@inlined
def _join(flat: Flat, pools: Pools, fluid: Fluid, flow: int, now: int) -> None:
    """Put a transfer's route and way back on the fluid's links and start its flow."""
    ways, transfers = flat.ways, pools.transfers
    route = transfers.route[flow]
    first, last = ways.route_starts[route], ways.route_starts[route + 1]
    place = flow * stride(fluid)
    fluid.hops[flow] = last - first
    for hop in range(first, last):
        fluid.link[place] = ways.route_links[hop]
        place += 1
    first, last = ways.route_starts[ways.back[route]], ways.route_starts[ways.back[route] + 1]
    fluid.hops_back[flow] = last - first
    for hop in range(first, last):
        fluid.link[place] = ways.route_links[hop]
        place += 1
    size = transfers.size[flow]
    transfers.flowing[flow] = 1
    begin_flow(fluid, flow, ways.wire[size], ways.ratio[size, ways.profile[route]], now)


@inlined
def _leave(flat: Flat, board: Board, pools: Pools, flow: int, now: int) -> None:
    """Book a flow that ended and let it arrive."""
    ways, transfers = flat.ways, pools.transfers
    route, size = transfers.route[flow], transfers.size[flow]
    label = ways.label[pools.instances.group[transfers.instance[flow]]]
    for hop in range(ways.route_starts[route], ways.route_starts[route + 1]):
        link = ways.route_links[hop]
        board.link_bytes[link, label] += ways.payload[size]
        board.link_busy[link, label] += int(float(ways.wire[size]) * _PS / float(ways.capacity[link]))
        board.totals[HOPS] += 1
    transfers.flowing[flow] = 0
    transfers.hop[flow] = transfers.end[flow]
    push(pools.calendar, now + max(ways.after[size, ways.profile[route]], 1), HOP, flow, 0)
