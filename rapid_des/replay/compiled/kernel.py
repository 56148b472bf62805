"""The rules R1 to R6 as one loop (the SimPy engine is the definition; this one has nothing to decide).

Instant by instant: everything that becomes ready or free at a time is worked off a stack, then the touched
servers choose, streams before slots before links. Pools grow between work items only, so helpers may write to
them freely. NOTE: `play` is one long function on purpose: the pools it replaces by larger ones are its locals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from rapid_des.replay.compiled.calendar import HEAP, USED, pop, push, recycle, recycle_bucket
from rapid_des.replay.compiled.flat import Flat
from rapid_des.replay.compiled.pools import (
    Array,
    Board,
    Calendar,
    Instances,
    Trail,
    Transfers,
    grown_calendar,
    grown_instances,
    grown_trail,
    grown_transfers,
    wider,
)
from rapid_des.replay.compiled.steps import (
    NONE,
    close_instance,
    dequeue,
    enqueue,
    find_instance,
    insert_waiting,
    link_times,
    number_of,
    sort_asked,
    touch,
    use_of,
    visit_end,
)

READY, END, FIRE, HOP, FREE = 0, 1, 2, 3, 4
"""Work items: a visit is ready or ends, a task or member fires, a transfer is at a node, a link is free."""
COMPUTE, HOLD, MEMBER, JOIN = 0, 1, 2, 3
HOPS, STATUS = 0, 1
DONE, DISAGREES = 0, 1
_SPARE = 8
"""Room for what a work item makes besides one event for each of its edges."""


class Pools(NamedTuple):
    """Everything that grows."""

    calendar: Calendar
    instances: Instances
    pending: Array
    ready: Array
    member_rank: Array
    member_visit: Array
    transfers: Transfers
    trail: Trail
    counts: Array
    """[instances made, arena used, members used, first free transfer, trail length]."""


MADE, ARENA, MEMBERS, FREE_TRANSFER, TRAIL = 0, 1, 2, 3, 4


@njit(cache=True)
def play(flat: Flat, board: Board, pools: Pools, until: int) -> Pools:  # noqa: C901, PLR0912, PLR0915
    """Play until nothing is left to happen, or past `until`; return the pools as they are then."""
    visits, ranks, tasks, ways = flat.visits, flat.ranks, flat.tasks, flat.ways
    calendar, instances, transfers, trail = pools.calendar, pools.instances, pools.transfers, pools.trail
    pending, ready = pools.pending, pools.ready
    member_rank, member_visit = pools.member_rank, pools.member_visit
    counts = pools.counts
    stack_kind, stack_a, stack_b = np.zeros(1024, np.int8), np.zeros(1024, np.int32), np.zeros(1024, np.int32)
    depth = 0
    touched_links = 0
    fifo = board.flags[0]
    recording = board.flags[1]

    while calendar.count[HEAP] > 0 and board.totals[STATUS] == DONE:
        now = calendar.time[0]
        if now > until:
            break
        while calendar.count[HEAP] > 0 and calendar.time[0] == now:
            bucket = pop(calendar)
            event = calendar.first[bucket]
            while event != NONE:
                if depth + _SPARE >= len(stack_kind):
                    stack_kind = wider(stack_kind, 2 * len(stack_kind))
                    stack_a = wider(stack_a, 2 * len(stack_a))
                    stack_b = wider(stack_b, 2 * len(stack_b))
                stack_kind[depth] = calendar.kind[event]
                stack_a[depth] = calendar.a[event]
                stack_b[depth] = calendar.b[event]
                depth += 1
                following = calendar.next[event]
                recycle(calendar, event)
                event = following
            recycle_bucket(calendar, bucket)

        for level in range(-1, 2):
            if level >= 0:
                if board.touched_count[level] == 0:
                    continue
                chosen = board.touched_servers[level, : board.touched_count[level]]
                if len(chosen) > 1:
                    chosen.sort()
            servers_left = 0 if level < 0 else len(chosen)
            server_place = 0
            if level >= 0:
                board.touched_count[level] = 0
            while True:
                # A choice is a work item too: the next visit that a touched server takes.
                starting = False
                if depth > 0:
                    depth -= 1
                    kind, a, b = stack_kind[depth], stack_a[depth], stack_b[depth]
                elif server_place < servers_left:
                    server = chosen[server_place]
                    if board.waiting[server] == 0 or board.serving[server] >= ranks.capacity[server]:
                        board.marked[server] = False
                        server_place += 1
                        continue
                    board.serving[server] += 1
                    a = ranks.of_server[server]
                    b = dequeue(visits, ranks, board, a, server)
                    kind = READY
                    starting = True
                else:
                    break

                # Room for whatever this item makes.
                if kind == FIRE:
                    template = instances.template[a]
                    row = 0
                    if b < tasks.tasks[template]:
                        place = tasks.first_task[template] + b
                        row = tasks.edge_starts[place + 1] - tasks.edge_starts[place]
                elif kind == HOP:
                    place = tasks.first_task[instances.template[transfers.instance[a]]] + transfers.task[a]
                    row = tasks.edge_starts[place + 1] - tasks.edge_starts[place]
                elif kind == FREE:
                    row = 0
                else:
                    visit = ranks.program[a] + b
                    row = visits.edge_starts[visit + 1] - visits.edge_starts[visit]
                    if visits.kind[visit] == MEMBER and kind == READY:
                        place = tasks.first_member[visits.template[visit]]
                        place += ranks.slot_member[ranks.slot[a] + visits.slot[visit]]
                        row += tasks.arrival_starts[place + 1] - tasks.arrival_starts[place]
                row += _SPARE
                if depth + row >= len(stack_kind):
                    room = 2 * len(stack_kind) + row
                    stack_kind, stack_a = wider(stack_kind, room), wider(stack_a, room)
                    stack_b = wider(stack_b, room)
                if calendar.count[USED] + row >= len(calendar.next):
                    calendar = grown_calendar(calendar, row)

                # What the edges below lead to: tasks of an instance, or visits of a rank.
                edge_instance, edge_first, edge_last = NONE, 0, 0
                visit_first, visit_last, visit_anchor = 0, 0, False
                deliver = False
                at_injection = False
                arrivals = False

                if kind == READY:
                    visit = ranks.program[a] + b
                    record = ranks.flat[a] + b
                    server = visits.server[visit]
                    if server != NONE and not starting:
                        enqueue(visits, ranks, board, a, b)
                        server += ranks.server[a]
                        if board.serving[server] < ranks.capacity[server]:
                            touch(board, ranks.level[server], server)
                        continue
                    board.start[record] = now
                    visit_first, visit_last = visits.edge_starts[visit], visits.edge_starts[visit + 1]
                    visit_anchor = True
                    if visits.kind[visit] == COMPUTE:
                        end = visit_end(flat, a, visit, now)
                        push(calendar, end, END, a, b)
                    elif visits.kind[visit] == JOIN:
                        if visits.work[visit] > 0:
                            push(calendar, now + visits.work[visit], END, a, b)
                        else:
                            stack_kind[depth], stack_a[depth], stack_b[depth] = END, a, b
                            depth += 1
                    elif visits.kind[visit] == HOLD:
                        number_of(flat, board, a, visit, record)
                        if board.finish[ranks.flat[a] + visits.release[visit]] != NONE:
                            push(calendar, now + 1, END, a, b)
                    else:
                        if visits.parent[visit] == NONE:
                            number = number_of(flat, board, a, visit, record)
                        else:
                            number = board.number[ranks.flat[a] + visits.parent[visit]]
                        slot = ranks.slot[a] + visits.slot[visit]
                        group, member = ranks.slot_group[slot], ranks.slot_member[slot]
                        template, sub = visits.template[visit], visits.sub[visit]
                        instance = find_instance(instances, board, group, number, sub)
                        if instance == NONE:
                            count = tasks.tasks[template] + tasks.members[template]
                            instance = board.free[template]
                            if instance != NONE:
                                board.free[template] = instances.next[instance]
                            else:
                                if counts[MADE] == len(instances.group):
                                    instances = grown_instances(instances)
                                if counts[ARENA] + count > len(pending):
                                    room = 2 * len(pending) + count
                                    pending, ready = wider(pending, room), wider(ready, room)
                                if counts[MEMBERS] + tasks.members[template] > len(member_rank):
                                    room = 2 * len(member_rank) + tasks.members[template]
                                    member_rank = wider(member_rank, room)
                                    member_visit = wider(member_visit, room)
                                instance = counts[MADE]
                                instances.template[instance] = template
                                instances.arena[instance] = counts[ARENA]
                                instances.member[instance] = counts[MEMBERS]
                                counts[MADE] += 1
                                counts[ARENA] += count
                                counts[MEMBERS] += tasks.members[template]
                            instances.group[instance] = group
                            instances.number[instance] = number
                            instances.sub[instance] = sub
                            instances.absent[instance] = tasks.members[template]
                            instances.left[instance] = count
                            instances.use[instance] = use_of(ways, group, template)
                            instances.next[instance] = board.active[group]
                            board.active[group] = instance
                            base, first = instances.arena[instance], tasks.first_task[template]
                            for task in range(tasks.tasks[template]):
                                pending[base + task] = tasks.need[first + task]
                                ready[base + task] = 0
                            base += tasks.tasks[template]
                            first = tasks.first_member[template]
                            for other in range(tasks.members[template]):
                                pending[base + other] = tasks.member_need[first + other]
                                ready[base + other] = 0
                        elif instances.template[instance] != template:
                            board.totals[STATUS] = DISAGREES
                            board.totals[2], board.totals[3], board.totals[4] = group, number, sub
                            board.totals[5], board.totals[6] = instances.template[instance], template
                            break
                        place = instances.member[instance]
                        member_rank[place + member] = a
                        member_visit[place + member] = b
                        instances.absent[instance] -= 1
                        if instances.absent[instance] == 0:
                            for other in range(tasks.members[template]):
                                board.met[
                                    ranks.flat[member_rank[place + other]] + member_visit[place + other]
                                ] = now
                        arrivals = True
                        edge_instance = instance
                        edge_first = tasks.arrival_starts[tasks.first_member[template] + member]
                        edge_last = tasks.arrival_starts[tasks.first_member[template] + member + 1]

                elif kind == END:
                    visit = ranks.program[a] + b
                    board.finish[ranks.flat[a] + b] = now
                    server = visits.server[visit]
                    if server != NONE:
                        server += ranks.server[a]
                        board.serving[server] -= 1
                        if board.waiting[server] > 0:
                            touch(board, ranks.level[server], server)
                    holder = visits.holder[visit]
                    if holder != NONE:
                        held_from = board.start[ranks.flat[a] + holder]
                        if held_from == now:
                            push(calendar, now + 1, END, a, holder)
                        elif held_from != NONE:
                            stack_kind[depth], stack_a[depth], stack_b[depth] = END, a, holder
                            depth += 1
                    visit_first, visit_last = visits.edge_starts[visit], visits.edge_starts[visit + 1]

                elif kind == FIRE:
                    template = instances.template[a]
                    if b >= tasks.tasks[template]:
                        place = instances.member[a] + b - tasks.tasks[template]
                        rank, visit = member_rank[place], member_visit[place]
                        if (
                            board.start[ranks.flat[rank] + visit] == now
                            and visits.server[ranks.program[rank] + visit] != NONE
                        ):
                            push(calendar, now + 1, END, rank, visit)
                        else:
                            stack_kind[depth], stack_a[depth], stack_b[depth] = END, rank, visit
                            depth += 1
                        instances.left[a] -= 1
                        if instances.left[a] == 0:
                            close_instance(instances, board, a)
                        continue
                    place = tasks.first_task[template] + b
                    edge_instance = a
                    edge_first, edge_last = tasks.edge_starts[place], tasks.edge_starts[place + 1]
                    at_injection = True
                    pair = tasks.pair[place]
                    if pair == NONE:
                        deliver = True
                    else:
                        route = ways.pair_route[instances.use[a] + pair]
                        transfer = counts[FREE_TRANSFER]
                        if transfer == NONE:
                            transfer = len(transfers.next)
                            transfers = grown_transfers(transfers, NONE)
                        counts[FREE_TRANSFER] = transfers.next[transfer]
                        place = instances.member[a] + tasks.source[place]
                        transfers.instance[transfer] = a
                        transfers.task[transfer] = b
                        transfers.hop[transfer] = ways.route_starts[route]
                        transfers.end[transfer] = ways.route_starts[route + 1]
                        transfers.injected[transfer] = now
                        transfers.rank[transfer] = member_rank[place]
                        transfers.visit[transfer] = member_visit[place]
                        stack_kind[depth], stack_a[depth], stack_b[depth] = HOP, transfer, 0
                        depth += 1

                elif kind == HOP:
                    if transfers.hop[a] < transfers.end[a]:
                        transfers.ready[a] = now
                        link = ways.route_links[transfers.hop[a]]
                        if board.asked[link] == NONE:
                            board.touched[touched_links] = link
                            touched_links += 1
                        transfers.next[a] = board.asked[link]
                        board.asked[link] = a
                        continue
                    edge_instance, b = transfers.instance[a], transfers.task[a]
                    place = tasks.first_task[instances.template[edge_instance]] + b
                    edge_first, edge_last = tasks.edge_starts[place], tasks.edge_starts[place + 1]
                    deliver = True
                    transfers.next[a] = counts[FREE_TRANSFER]
                    counts[FREE_TRANSFER] = a

                else:
                    board.armed[a] = False
                    if board.asked[a] == NONE:
                        board.asked[a] = -2
                        board.touched[touched_links] = a
                        touched_links += 1
                    continue

                # Visits that wait for this one's start or finish (R1).
                for edge in range(visit_first, visit_last):
                    if visits.edge_at_start[edge] != visit_anchor:
                        continue
                    target = visits.edge_target[edge]
                    record = ranks.flat[a] + target
                    board.pending[record] -= 1
                    moment = max(board.ready[record], now + visits.edge_lag[edge])
                    board.ready[record] = moment
                    if board.pending[record] == 0:
                        if moment == now:
                            stack_kind[depth], stack_a[depth], stack_b[depth] = READY, a, target
                            depth += 1
                        else:
                            push(calendar, moment, READY, a, target)

                # Tasks and members that wait for this arrival, injection or delivery.
                if edge_instance != NONE:
                    base = instances.arena[edge_instance]
                    for edge in range(edge_first, edge_last):
                        if arrivals:
                            target, lag = tasks.arrival_target[edge], tasks.arrival_lag[edge]
                        else:
                            injected = tasks.edge_at_injection[edge]
                            if (injected and not at_injection) or (not injected and not deliver):
                                continue
                            target, lag = tasks.edge_target[edge], tasks.edge_lag[edge]
                        left = pending[base + target] - 1
                        if left < 0:
                            continue
                        pending[base + target] = left
                        moment = max(ready[base + target], now + lag)
                        ready[base + target] = moment
                        if left == 0:
                            if moment == now:
                                stack_kind[depth] = FIRE
                                stack_a[depth], stack_b[depth] = edge_instance, target
                                depth += 1
                            else:
                                push(calendar, moment, FIRE, edge_instance, target)
                    if deliver:
                        instances.left[edge_instance] -= 1
                        if instances.left[edge_instance] == 0:
                            close_instance(instances, board, edge_instance)
            if board.totals[STATUS] != DONE:
                break

        # Links choose last; whatever they start lies in the future.
        for place in range(touched_links):
            link = board.touched[place]
            first = board.asked[link]
            board.asked[link] = NONE
            if first == -2:
                first = NONE
            if first != NONE and transfers.next[first] >= 0:
                first = sort_asked(transfers, first)
            if not fifo:
                insert_waiting(visits, ranks, transfers, board, link, first)
                first = board.queue[link] if board.busy[link] <= now else NONE
                if first != NONE:
                    board.queue[link] = transfers.next[first]
                    transfers.next[first] = NONE
            while first != NONE:
                if calendar.count[USED] + _SPARE >= len(calendar.next):
                    calendar = grown_calendar(calendar, _SPARE)
                following = transfers.next[first]
                start = max(now, board.busy[link])
                hop = transfers.hop[first]
                instance = transfers.instance[first]
                size = tasks.size[tasks.first_task[instances.template[instance]] + transfers.task[first]]
                free, forward, arrival = link_times(ways, link, size, ways.route_class[hop], start)
                last_hop = hop + 1 == transfers.end[first]
                transfers.hop[first] = hop + 1
                push(calendar, arrival if last_hop else forward, HOP, first, 0)
                board.busy[link] = free
                label = ways.label[instances.group[instance]]
                board.link_bytes[link, label] += ways.payload[size]
                board.link_busy[link, label] += free - start
                board.link_wait[link, label] += start - transfers.ready[first]
                board.totals[HOPS] += 1
                if recording:
                    if counts[TRAIL] == len(trail.link):
                        trail = grown_trail(trail)
                    row = counts[TRAIL]
                    counts[TRAIL] = row + 1
                    trail.link[row] = link
                    trail.start[row], trail.finish[row], trail.arrival[row] = start, free, arrival
                    trail.visit[row] = ranks.flat[transfers.rank[first]] + transfers.visit[first]
                    trail.task[row] = transfers.task[first]
                    trail.place[row] = hop
                first = following
            if not fifo and board.queue[link] != NONE and not board.armed[link]:
                board.armed[link] = True
                push(calendar, board.busy[link], FREE, link, 0)
        touched_links = 0

    return Pools(calendar, instances, pending, ready, member_rank, member_visit, transfers, trail, counts)
