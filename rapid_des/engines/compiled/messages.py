"""R3 and R9 to R12 in the kernel: tasks send messages, whose transfers cross links and arrive."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.calendar import push
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.instances import close_if_done, task_is_delivered, task_is_injected
from rapid_des.engines.compiled.pools import FREE_TRANSFER, Pools, State
from rapid_des.engines.compiled.queue_pairs import (
    acknowledge,
    cut_rate,
    hand_over,
    next_part,
    open_pair,
    part_arrives,
    sends_notice,
)
from rapid_des.engines.compiled.replanned import end_member, end_step
from rapid_des.engines.compiled.spraying import (
    choose_route,
    lateness,
    least_loaded,
    message_hash,
    put_on_route,
    sprayed_route,
)
from rapid_des.engines.compiled.steps import next_part_starts
from rapid_des.engines.compiled.work import (
    ACKNOWLEDGED,
    ASKING,
    AT_NODE,
    CLOSING,
    DELAYED,
    ENDING,
    FLOW,
    FLOW_JOINS,
    FLOW_MAY_END,
    FLUID,
    FREED,
    JOINING,
    LATE_MESSAGE,
    LINKS,
    MESSAGES_CHOOSE,
    MESSAGES_SPRAY,
    NONE,
    NOTICE,
    NOW,
    PAIRED,
    PARTS_CHOOSE,
    PARTS_SPRAY,
    QUEUE_PAIR,
    RECEIVED,
    SENT,
    TRANSFER_DUE,
    WORKED,
    add_work,
)
from rapid_des.program.builders import LINK_ORDERS


@compilable
def fire(flat: Flat, state: State, pools: Pools, instance: int, target: int) -> None:
    """Fire what has all that it waits for: a task sends its message, a member's visit ends."""
    tasks, instances = flat.tasks, pools.instances
    template = instances.template[instance]
    if target < tasks.tasks[template]:
        state.totals[WORKED] += 1
        sends = tasks.pair[tasks.first_task[template] + target] != NONE
        if sends:
            _send(flat, state, pools, instance, target)
        task_is_injected(flat, state, pools, instance, target, not sends)
        return
    entry = instances.member[instance] + target - tasks.tasks[template]
    if instances.chunk[instance] != NONE:
        end_step(flat, state, pools, entry)
    else:
        end_member(flat, state, pools, pools.member_rank[entry], pools.member_visit[entry])
    close_if_done(state, pools, instance)


@compilable
def _send(flat: Flat, state: State, pools: Pools, instance: int, task: int) -> None:
    """Make a transfer of the first part of a message, and put it at the start of its route."""
    network, transfers, now = flat.network, pools.transfers, state.cursor[NOW]
    template = pools.instances.template[instance]
    size = flat.tasks.size[flat.tasks.first_size[template] + task]
    transfer = _new_message(flat, state, pools, instance, task, size)
    route = _route_of(flat, state, pools, transfer)
    transfers.route[transfer] = route
    first = sprayed_route(network, route, 0) if state.flags[PARTS_SPRAY] else route
    put_on_route(network, transfers, transfer, first)
    if transfers.hop[transfer] == transfers.end[transfer]:
        # A message to its own rank crosses no link: all of it arrives a tick later.
        transfers.size[transfer], transfers.parts[transfer], transfers.missing[transfer] = size, 0, 1
        push(pools.calendar, now + 1, AT_NODE, transfer, 0)
        return
    if state.flags[PAIRED]:
        open_pair(network, transfers, transfer)
    # A flow joins its links after the first half of its latency; on other links the first hop starts now.
    before = 0
    if state.flags[FLUID]:
        before = network.before[transfers.size[transfer], network.profile[route]]
    if before > 0:
        push(pools.calendar, now + before, FLOW, transfer, FLOW_JOINS)
    else:
        add_work(state, pools, AT_NODE, transfer, 0)


@compilable
def _new_message(flat: Flat, state: State, pools: Pools, instance: int, task: int, size: int) -> int:  # noqa: PLR0913
    """Take a free row for the first part of a message, record its sender and time; return it."""
    network, transfers, now = flat.network, pools.transfers, state.cursor[NOW]
    transfer = pools.counts[FREE_TRANSFER]
    pools.counts[FREE_TRANSFER] = transfers.next[transfer]
    transfers.instance[transfer], transfers.task[transfer] = instance, task
    transfers.size[transfer], transfers.last[transfer] = network.first_part[size], network.last_part[size]
    transfers.part[transfer], transfers.parts[transfer] = 0, network.parts[size] - 1
    transfers.message[transfer], transfers.missing[transfer] = transfer, network.parts[size]
    transfers.number[transfer], transfers.injected[transfer], transfers.crossed[transfer] = 0, now, 0
    state.totals[SENT] += network.payload[size]
    tasks, instances = flat.tasks, pools.instances
    source = tasks.source[tasks.first_task[instances.template[instance]] + task]
    rank, visit = _member(pools, instance, source)
    transfers.rank[transfer], transfers.visit[transfer] = rank, visit
    transfers.sub[transfer] = instances.sub[instance]
    priority = flat.visits.link_priority[flat.ranks.program[rank] + visit]
    if instances.chunk[instance] != NONE:
        # Replanned collectives have other chunks than the visit's priority was lowered with.
        priority += instances.chunk[instance] - priority % LINK_ORDERS
    transfers.priority[transfer] = priority
    return transfer


@compilable
def _member(pools: Pools, instance: int, member: int) -> tuple[int, int]:
    """Return the rank and the visit of a member."""
    entry = pools.instances.member[instance] + member
    return pools.member_rank[entry], pools.member_visit[entry]


@compilable
def _route_of(flat: Flat, state: State, pools: Pools, transfer: int) -> int:
    """Return the route that a message takes: that of its pair, around closed links, or one of several."""
    network, transfers, now = flat.network, pools.transfers, state.cursor[NOW]
    instance, task = transfers.instance[transfer], transfers.task[transfer]
    entry = flat.tasks.first_task[pools.instances.template[instance]] + task
    route = network.pair_route[pools.instances.use[instance] + flat.tasks.pair[entry]]
    if state.flags[CLOSING]:
        route = network.detour[route]
    if state.flags[MESSAGES_SPRAY]:
        route = sprayed_route(network, route, message_hash(transfers.rank[transfer], now, task))
    if state.flags[MESSAGES_CHOOSE]:
        number = message_hash(transfers.rank[transfer], now, task)
        route = least_loaded(network, state, route, transfers.size[transfer], number, now)
    return route


@compilable
def reach_node(flat: Flat, state: State, pools: Pools, transfer: int) -> None:
    """Let a transfer at a node ask for its next link; at the end of its route it arrives."""
    transfers, now = pools.transfers, state.cursor[NOW]
    if transfers.hop[transfer] == transfers.end[transfer]:
        _count_arrival(flat, state, pools, transfer)
        return
    transfers.ready[transfer] = now
    if state.flags[PARTS_CHOOSE] and transfers.hop[transfer] == transfers.begin[transfer]:
        choose_route(flat.network, state, transfers, transfer, now)
    if transfers.parts[transfer] > 0 and not state.flags[PAIRED]:
        _make_next_part(flat, state, pools, transfer)
    state.cursor[ASKING] += 1
    if state.flags[FLUID] or state.flags[CLOSING]:  # the caller of `play` looks at its links first
        transfers.next[transfer] = state.cursor[JOINING]
        state.cursor[JOINING] = transfer
        return
    link = flat.network.route_links[transfers.hop[transfer]]
    first = state.asked[link]
    if first == NONE:
        touch_link(state, link)
    transfers.next[transfer] = NONE if first == FREED else first
    state.asked[link] = transfer


@compilable
def touch_link(state: State, link: int) -> None:
    """Let a link choose at the end of this instant."""
    state.touched[state.cursor[LINKS]] = link
    state.cursor[LINKS] += 1


@compilable
def _make_next_part(flat: Flat, state: State, pools: Pools, before: int) -> None:
    """Make the next part of a message, and schedule its start for when its links have time for it.

    Each part makes the next, so that a message of a million parts needs rows only for those in flight.
    """
    network, transfers = flat.network, pools.transfers
    part = next_part(transfers, pools.counts, before)
    if state.flags[PARTS_SPRAY]:
        route = transfers.route[transfers.message[part]]
        put_on_route(network, transfers, part, sprayed_route(network, route, transfers.part[part]))
    ahead = flat.tasks.ahead[pools.instances.template[transfers.instance[part]]]
    # With `ahead` only the first link sets the pace, else every link of the route (`PartTable`).
    last = transfers.hop[before] + 1 if ahead else transfers.end[before]
    moment = next_part_starts(network, transfers, before, last, state.cursor[NOW])
    push(pools.calendar, moment, AT_NODE, part, 0)


@compilable
def _count_arrival(flat: Flat, state: State, pools: Pools, transfer: int) -> None:
    """Count a part that has arrived; the last one delivers its message, at once or late (R11)."""
    network, transfers, tasks = flat.network, pools.transfers, flat.tasks
    now, instance, task = state.cursor[NOW], transfers.instance[transfer], transfers.task[transfer]
    state.totals[RECEIVED] += network.payload[transfers.size[transfer]]
    if state.flags[PAIRED]:
        acknowledge(network, state, transfers, transfer, now)
        if sends_notice(network, state, transfers, transfer, now):
            route = transfers.route[transfers.message[transfer]]
            push(pools.calendar, now + network.rates.echo[route], QUEUE_PAIR, route, NOTICE)
    if not part_arrives(transfers, pools.counts, transfer):
        return
    template = pools.instances.template[instance]
    pair = tasks.pair[tasks.first_task[template] + task]
    # Only the delivery is delayed: the links and the acknowledgements are not.
    late = 0
    if state.flags[DELAYED] and pair != NONE:
        route = network.pair_route[pools.instances.use[instance] + pair]
        size = tasks.size[tasks.first_size[template] + task]
        late = lateness(flat.delays, transfers, transfer, route, size)
    if late > 0:
        push(pools.calendar, now + late, LATE_MESSAGE, instance, task)
    else:
        task_is_delivered(flat, state, pools, instance, task)


@compilable
def flow_event(state: State, pools: Pools, transfer: int, event: int) -> None:
    """Let a flow join or end, or a transfer reach its next node, unless the event has become void."""
    transfers = pools.transfers
    if event == FLOW_JOINS or (event == TRANSFER_DUE and transfers.due[transfer] == state.cursor[NOW]):
        transfers.due[transfer] = NONE
        add_work(state, pools, AT_NODE, transfer, 0)
    elif event == FLOW_MAY_END and transfers.flowing[transfer] == 1:  # once an instant
        transfers.flowing[transfer] = 2
        transfers.next[transfer] = state.cursor[ENDING]
        state.cursor[ENDING] = transfer
        state.cursor[ASKING] += 1


@compilable
def queue_pair_event(flat: Flat, state: State, pools: Pools, message: int, event: int) -> None:
    """Let a queue pair hand over a part if it may (R9); or cut a route's rate after a notice (R14)."""
    network, transfers = flat.network, pools.transfers
    if event == NOTICE:
        cut_rate(state.rates[message], network.rates.control, state.cursor[NOW])
        return
    if event == ACKNOWLEDGED:
        transfers.credits[message] += 1
    else:
        transfers.idle[message] = 1
    part = hand_over(transfers, pools.counts, message)
    if part == NONE:
        return
    if state.flags[PARTS_SPRAY]:
        route = sprayed_route(network, transfers.route[message], transfers.part[part])
        put_on_route(network, transfers, part, route)
    add_work(state, pools, AT_NODE, part, 0)
