"""R7 in the compiled engine: at the end of an instant flows leave and join, and shares are computed again."""

from __future__ import annotations

from rapid_des.compiling import CompiledKernel, compilable
from rapid_des.compiling.kinds import Int64Column
from rapid_des.engines.compiled.calendar import USED, push
from rapid_des.engines.compiled.closure_kernel import stop_at_closed
from rapid_des.engines.compiled.flat import Flat, Network
from rapid_des.engines.compiled.instances import has_turn, pass_turn
from rapid_des.engines.compiled.kernel import play
from rapid_des.engines.compiled.pools import Pools, State
from rapid_des.engines.compiled.steps import NONE, lag_at, rate_at, sort_asked, timetable_of
from rapid_des.engines.compiled.work import (
    ASKING,
    AT_NODE,
    CLOSING,
    DONE,
    ENDING,
    FLOW,
    FLOW_MAY_END,
    HOPS,
    JOINING,
    LINKS,
    LINKS_OF_CALLER,
    MORE_EVENTS,
    NOW,
    PHASE,
    RESTART_STOPPED,
    RESTARTING,
    STATUS,
    WANTED,
)
from rapid_des.network.fluid import NEVER, Fluid, begin_flow, end_flow, set_capacity, settle, stride
from rapid_des.program.timetable import FULL_RATE

_PS = 1e12


@compilable
def play_fluid(  # noqa: PLR0913 - flat arrays
    flat: Flat, state: State, pools: Pools, fluid: Fluid, noticed: Int64Column, until: int
) -> None:
    """Play as `play` does; flows share the links. `noticed` is that of `Served`, empty if no link closes."""
    while True:
        play(flat, state, pools, until)
        if state.totals[STATUS] != LINKS_OF_CALLER:
            return
        # A flow makes at most two events here: it arrives and passes its turn, or its end changes.
        wanted = 2 * len(pools.transfers.next)
        if pools.calendar.counts[USED] + wanted >= len(pools.calendar.next):
            state.totals[STATUS], state.totals[WANTED] = MORE_EVENTS, wanted
            return
        if state.flags[CLOSING]:
            stop_at_closed(flat, state, pools, noticed)
            if state.cursor[RESTARTING] == 1:
                state.totals[STATUS] = RESTART_STOPPED
                return
        _links_choose(flat, state, pools, fluid)
        state.totals[STATUS] = DONE


@compilable
def _links_choose(flat: Flat, state: State, pools: Pools, fluid: Fluid) -> None:
    """Change capacities, end flows, let flows join, then compute the shares of what that touched."""
    network, transfers, cursor, now = flat.network, pools.transfers, state.cursor, state.cursor[NOW]
    for index in range(cursor[LINKS]):
        link = state.touched[index]
        set_capacity(fluid, link, _capacity(network, link, now))
    flow = cursor[ENDING]
    while flow != NONE:
        following = transfers.next[flow]
        transfers.flowing[flow] = 1
        # The event may be older than the flow's last change of rate; only the present end counts.
        if fluid.finish[flow] == now:
            end_flow(fluid, flow)
            pass_turn(flat, pools, flow, now)
            leave_links(flat, state, pools, flow, now)
        flow = following
    _flows_join(flat, pools, fluid, cursor[JOINING], now)
    changed = settle(fluid, now)
    for index in range(changed):
        flow = fluid.changed[index]
        if fluid.finish[flow] != NEVER:
            push(pools.calendar, fluid.finish[flow], FLOW, flow, FLOW_MAY_END)
    cursor[ENDING] = cursor[JOINING] = NONE
    cursor[LINKS] = cursor[ASKING] = cursor[PHASE] = cursor[RESTARTING] = 0


@compilable
def _capacity(network: Network, link: int, now: int) -> int:
    """Return a link's capacity by its timetable, in bytes a second, rounded down."""
    first, last = network.link_table[link], network.link_table[link + 1]
    rate = rate_at(network.link_time[first:last], network.link_rate[first:last], now)
    full = network.capacity[link]
    # The quotient and the rest are scaled apart, because full * rate could exceed 64 bits.
    return int(full // FULL_RATE * rate + full % FULL_RATE * rate // FULL_RATE)


@compilable
def _flows_join(flat: Flat, pools: Pools, fluid: Fluid, flow: int, now: int) -> None:
    """Let the flows of a list join whose turn it is, in the order of R3."""
    transfers = pools.transfers
    if flow != NONE and transfers.next[flow] != NONE:
        flow = sort_asked(transfers, flow)
    while flow != NONE:
        following = transfers.next[flow]
        if has_turn(flat, pools, flow):
            _join(flat, pools, fluid, flow, now)
        flow = following


@compilable
def _join(flat: Flat, pools: Pools, fluid: Fluid, flow: int, now: int) -> None:
    """Put a transfer on the links of its route and of the route back, and start its flow."""
    network, transfers = flat.network, pools.transfers
    route = transfers.route[flow]
    first, last = network.route_starts[route], network.route_starts[route + 1]
    entry = flow * stride(fluid)  # each flow has a row of `stride` links: its route, then the route back
    fluid.hops[flow] = last - first
    transfers.crossed[flow] = 0
    for hop in range(first, last):
        link = network.route_links[hop]
        time, _, lag = timetable_of(network, link)
        transfers.crossed[flow] += lag_at(time, lag, now)
        fluid.link[entry] = link
        entry += 1
    first, last = network.route_starts[network.back[route]], network.route_starts[network.back[route] + 1]
    fluid.hops_back[flow] = last - first
    for hop in range(first, last):
        fluid.link[entry] = network.route_links[hop]
        entry += 1
    size = transfers.size[flow]
    transfers.flowing[flow] = 1
    begin_flow(fluid, flow, network.wire[size], network.ratio[size, network.profile[route]], now)


@compilable
def leave_links(flat: Flat, state: State, pools: Pools, flow: int, now: int) -> None:
    """Record the service of a flow that ended, and schedule its arrival."""
    network, transfers = flat.network, pools.transfers
    route, size = transfers.route[flow], transfers.size[flow]
    label = network.label[pools.instances.group[transfers.instance[flow]]]
    for hop in range(network.route_starts[route], network.route_starts[route + 1]):
        link = network.route_links[hop]
        state.link_bytes[link, label] += network.payload[size]
        state.link_busy[link, label] += int(float(network.wire[size]) * _PS / float(network.capacity[link]))
        state.totals[HOPS] += 1
    transfers.flowing[flow] = 0
    transfers.hop[flow] = transfers.end[flow]
    after = max(network.after[size, network.profile[route]], 1) + transfers.crossed[flow]
    push(pools.calendar, now + after, AT_NODE, flow, 0)


FLUID_KERNEL = CompiledKernel(play_fluid)
