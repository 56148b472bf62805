"""R3 and R9 to R12 in the kernel: tasks send messages, whose transfers stand at nodes and arrive."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.calendar import push
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.instances import close_if_done, deliver, inject
from rapid_des.engines.compiled.message_parts import next_part, part_arrives
from rapid_des.engines.compiled.pools import FREE_TRANSFER, Pools, State
from rapid_des.engines.compiled.queue_pairs import acknowledge, cut, hand_over, open_pair, tells
from rapid_des.engines.compiled.replanned import end_member, end_step
from rapid_des.engines.compiled.spraying import (
    choose_route,
    lateness,
    least_loaded,
    message_hash,
    set_off,
    sprayed_route,
)
from rapid_des.engines.compiled.steps import next_sets_off
from rapid_des.engines.compiled.work import (
    ASKING,
    CLOSING,
    DELAYED,
    ENDING,
    FLOW,
    FLUID,
    FREED,
    HAND,
    HOP,
    JOINING,
    LATE,
    LINKS,
    MESSAGES_CHOOSE,
    MESSAGES_SPRAY,
    NONE,
    NOTICE,
    NOW,
    PAIRED,
    PARTS_CHOOSE,
    PARTS_SPRAY,
    RECEIVED,
    SENT,
    WORKED,
    add_work,
)
from rapid_des.program.builders import LINK_ORDERS


@compilable
def fire(flat: Flat, state: State, pools: Pools, instance: int, target: int) -> None:
    """Have a task send that has all that it waits for, or a member's visit end."""
    tasks, instances = flat.tasks, pools.instances
    template = instances.template[instance]
    if target < tasks.tasks[template]:
        state.totals[WORKED] += 1
        sends = tasks.pair[tasks.first_task[template] + target] != NONE
        if sends:
            _send(flat, state, pools, instance, target)
        inject(flat, state, pools, instance, target, not sends)
        return
    entry = instances.member[instance] + target - tasks.tasks[template]
    if instances.chunk[instance] != NONE:
        end_step(flat, state, pools, entry)
    else:
        end_member(flat, state, pools, pools.member_rank[entry], pools.member_visit[entry])
    close_if_done(state, pools, instance)


@compilable
def _send(flat: Flat, state: State, pools: Pools, instance: int, task: int) -> None:
    """Make a transfer of the first part of a message, and put it at the begin of its route."""
    network, transfers, now = flat.network, pools.transfers, state.cursor[NOW]
    template = pools.instances.template[instance]
    size = flat.tasks.size[flat.tasks.first_size[template] + task]
    transfer = _new_message(flat, state, pools, instance, task, size)
    route = _route_of(flat, state, pools, transfer)
    transfers.route[transfer] = route
    first = sprayed_route(network, route, 0) if state.flags[PARTS_SPRAY] else route
    set_off(network, transfers, transfer, first)
    if transfers.hop[transfer] == transfers.end[transfer]:
        # A message to oneself crosses no link: it arrives a tick later, whole.
        transfers.size[transfer], transfers.parts[transfer], transfers.missing[transfer] = size, 0, 1
        push(pools.calendar, now + 1, HOP, transfer, 0)
        return
    if state.flags[PAIRED]:
        open_pair(network, transfers, transfer)
    before = 0
    if state.flags[FLUID]:
        before = network.before[transfers.size[transfer], network.profile[route]]
    if before > 0:
        push(pools.calendar, now + before, FLOW, transfer, 1)
    else:
        add_work(state, pools, HOP, transfer, 0)


@compilable
def _new_message(flat: Flat, state: State, pools: Pools, instance: int, task: int, size: int) -> int:  # noqa: PLR0913
    """Take a free slot for a message: its first part, and who sends it when; return it."""
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
    """Return the route that a message takes: its pair's, a way around closed links, or one of several."""
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
def stand(flat: Flat, state: State, pools: Pools, transfer: int) -> None:
    """Have a transfer that stands at a node ask for its next link; at the end of its route it arrives."""
    transfers, now = pools.transfers, state.cursor[NOW]
    if transfers.hop[transfer] == transfers.end[transfer]:
        _arrive(flat, state, pools, transfer)
        return
    transfers.ready[transfer] = now
    if state.flags[PARTS_CHOOSE] and transfers.hop[transfer] == transfers.begin[transfer]:
        choose_route(flat.network, state, transfers, transfer, now)
    if transfers.parts[transfer] > 0 and not state.flags[PAIRED]:
        _make_next_part(flat, state, pools, transfer)
    state.cursor[ASKING] += 1
    if state.flags[FLUID] or state.flags[CLOSING]:
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
    """Have a link choose at the end of this instant."""
    state.touched[state.cursor[LINKS]] = link
    state.cursor[LINKS] += 1


@compilable
def _make_next_part(flat: Flat, state: State, pools: Pools, before: int) -> None:
    """Have the next part of a message set off when its links have time for it.

    Each part makes the next, so that a message of a million needs room for those that are on their way only.
    """
    network, transfers = flat.network, pools.transfers
    part = next_part(transfers, pools.counts, before)
    if state.flags[PARTS_SPRAY]:
        route = transfers.route[transfers.message[part]]
        set_off(network, transfers, part, sprayed_route(network, route, transfers.part[part]))
    ahead = flat.tasks.ahead[pools.instances.template[transfers.instance[part]]]
    last = transfers.hop[before] + 1 if ahead else transfers.end[before]
    moment = next_sets_off(network, transfers, before, last, state.cursor[NOW])
    push(pools.calendar, moment, HOP, part, 0)


@compilable
def _arrive(flat: Flat, state: State, pools: Pools, transfer: int) -> None:
    """Count a part that has arrived; the last one of a message delivers it, at once or late (R11)."""
    network, transfers, tasks = flat.network, pools.transfers, flat.tasks
    now, instance, task = state.cursor[NOW], transfers.instance[transfer], transfers.task[transfer]
    state.totals[RECEIVED] += network.payload[transfers.size[transfer]]
    if state.flags[PAIRED]:
        acknowledge(network, state, transfers, transfer, now)
        if tells(network, state, transfers, transfer, now):
            route = transfers.route[transfers.message[transfer]]
            push(pools.calendar, now + network.rates.echo[route], HAND, route, NOTICE)
    if not part_arrives(transfers, pools.counts, transfer):
        return
    template = pools.instances.template[instance]
    pair = tasks.pair[tasks.first_task[template] + task]
    late = 0
    if state.flags[DELAYED] and pair != NONE:
        route = network.pair_route[pools.instances.use[instance] + pair]
        size = tasks.size[tasks.first_size[template] + task]
        late = lateness(flat.delays, transfers, transfer, route, size)
    if late > 0:
        push(pools.calendar, now + late, LATE, instance, task)
    else:
        deliver(flat, state, pools, instance, task)


@compilable
def flow(state: State, pools: Pools, transfer: int, event: int) -> None:
    """Have a flow join, or end as was foreseen; or a transfer be at its next node, if that still holds."""
    transfers = pools.transfers
    if event == 1 or (event == 2 and transfers.due[transfer] == state.cursor[NOW]):
        transfers.due[transfer] = NONE
        add_work(state, pools, HOP, transfer, 0)
    elif event == 0 and transfers.flowing[transfer] == 1:  # once an instant, however often it was predicted
        transfers.flowing[transfer] = 2
        transfers.next[transfer] = state.cursor[ENDING]
        state.cursor[ENDING] = transfer
        state.cursor[ASKING] += 1


@compilable
def hand(flat: Flat, state: State, pools: Pools, message: int, event: int) -> None:
    """Have a queue pair hand over a part, if it may (R9); or cut a route's rate by a notice (R14)."""
    network, transfers = flat.network, pools.transfers
    if event == NOTICE:
        cut(state.rates[message], network.rates.control, state.cursor[NOW])
        return
    if event == 1:
        transfers.credits[message] += 1
    else:
        transfers.idle[message] = 1
    part = hand_over(transfers, pools.counts, message)
    if part == NONE:
        return
    if state.flags[PARTS_SPRAY]:
        route = sprayed_route(network, transfers.route[message], transfers.part[part])
        set_off(network, transfers, part, route)
    add_work(state, pools, HOP, part, 0)
