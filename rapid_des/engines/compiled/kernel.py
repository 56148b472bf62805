"""The rules R1 to R6 as one loop (the SimPy engine is the definition; this one has nothing to decide).

Instant by instant: everything that becomes ready or free at a time is worked off a stack, then the touched
servers choose, streams before slots before links. Before each work item `play` makes sure that there is room
for all that the item can make; if not it returns, is given larger pools, and goes on where it was.

NOTE: one long function, and compiled without reference counting (`_nrt=False`): counting references to a
hundred arrays took five times as long as the rules. The clear form is the SimPy engine.
"""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.calendar import HEAP, USED, pop, push, recycle, recycle_bucket
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.pools import (
    ARENA,
    FREE_TRANSFER,
    MADE,
    MEMBERS,
    TRAIL,
    Board,
    Pools,
)
from rapid_des.engines.compiled.steps import (
    NONE,
    ascend,
    close_instance,
    dequeue,
    enqueue,
    find_instance,
    insert_waiting,
    link_times,
    next_part,
    number_of,
    part_arrives,
    rank_decides,
    sort_asked,
    touch,
    use_of,
    visit_end,
)

READY, START, END, FIRE, HOP, FREE, FLOW, CAPACITY = 0, 1, 2, 3, 4, 5, 6, 7
"""Work items: a visit is ready, is taken by its server, ends; a task or member fires; a transfer stands at a
node; a link is free; a flow joins (b = 1) or may end; a link's rate changes (fluid mode)."""
COMPUTE, HOLD, MEMBER, JOIN = 0, 1, 2, 3
HOPS, STATUS = 0, 1
DONE, DISAGREES, MORE_EVENTS, MORE_STACK, MORE_INSTANCES, MORE_TRANSFERS, MORE_TRAIL = 0, 1, 2, 3, 4, 5, 6
FLUID_TURN = 7
"""The fluid mode's links choose next (see `fluid_kernel`)."""
SENT, RECEIVED, TIES = 7, 8, 9
WANTED = 2
"""In `Board.totals`: how much more room is needed."""
PHASE, DEPTH, LINKS, SERVER, ASKING, NOW, JOINING, ENDING = 0, 1, 2, 3, 4, 5, 6, 7
"""In `Board.state`: where the loop stands. Phase 0 is between instants, 1 works off what happens, 2 and 3 let
streams and slots choose, 4 links. JOINING and ENDING begin lists of flows."""
_SPARE = 4
_FREED = -2
"""In `Board.asked`: a link that nobody asked, but that became free."""


@compilable
def play(flat: Flat, board: Board, pools: Pools, until: int) -> None:  # noqa: C901, PLR0912, PLR0915
    """Play until nothing is left to happen, past `until`, or until room is wanted (`Board.totals`)."""
    visits, ranks, tasks, ways = flat.visits, flat.ranks, flat.tasks, flat.ways
    calendar, instances, transfers, trail = pools.calendar, pools.instances, pools.transfers, pools.trail
    pending, ready = pools.pending, pools.ready
    member_rank, member_visit = pools.member_rank, pools.member_visit
    counts, totals, state = pools.counts, board.totals, board.state
    stack_kind, stack_a, stack_b = pools.stack_kind, pools.stack_a, pools.stack_b
    fifo, recording, fluid = board.flags[0], board.flags[1], board.flags[2]
    phase, depth, touched_links = state[PHASE], state[DEPTH], state[LINKS]
    server_place, asking, now = state[SERVER], state[ASKING], state[NOW]
    totals[STATUS] = DONE

    while totals[STATUS] == DONE:
        if phase == 0:
            if calendar.counts[HEAP] == 0 or calendar.time[0] > until:
                break
            if calendar.counts[USED] + _SPARE >= len(stack_kind):
                totals[STATUS], totals[WANTED] = MORE_STACK, calendar.counts[USED] + _SPARE
                break
            now = calendar.time[0]
            while calendar.counts[HEAP] > 0 and calendar.time[0] == now:
                bucket = pop(calendar)
                event = calendar.first[bucket]
                while event != NONE:
                    stack_kind[depth] = calendar.kind[event]
                    stack_a[depth] = calendar.a[event]
                    stack_b[depth] = calendar.b[event]
                    depth += 1
                    following = calendar.next[event]
                    recycle(calendar, event)
                    event = following
                recycle_bucket(calendar, bucket)
            phase = 1

        if phase == 4 and fluid:
            if touched_links + asking > 0:
                totals[STATUS] = FLUID_TURN
                break
            phase = 0
            continue

        if phase == 4:
            wanted = asking + touched_links + _SPARE
            if calendar.counts[USED] + wanted >= len(calendar.next):
                totals[STATUS], totals[WANTED] = MORE_EVENTS, wanted
                break
            if recording and counts[TRAIL] + wanted > len(trail.link):
                totals[STATUS], totals[WANTED] = MORE_TRAIL, wanted
                break
            # Links choose last; whatever they start lies in the future.
            for place in range(touched_links):
                link = board.touched[place]
                first = board.asked[link]
                board.asked[link] = NONE
                if first == _FREED:
                    first = NONE
                if first != NONE and transfers.next[first] >= 0:
                    totals[TIES] += rank_decides(transfers, first)
                    first = sort_asked(transfers, first)
                if not fifo:
                    insert_waiting(visits, ranks, transfers, board, link, first)
                    first = board.queue[link] if board.busy[link] <= now else NONE
                    if first != NONE:
                        board.queue[link] = transfers.next[first]
                        transfers.next[first] = NONE
                while first != NONE:
                    following = transfers.next[first]
                    start = max(now, board.busy[link])
                    hop = transfers.hop[first]
                    instance = transfers.instance[first]
                    size = transfers.size[first]
                    free, forward, arrival = link_times(ways, link, size, ways.route_class[hop], start)
                    last_hop = hop + 1 == transfers.end[first]
                    transfers.hop[first] = hop + 1
                    push(calendar, arrival if last_hop else forward, HOP, first, 0)
                    board.busy[link] = free
                    label = ways.label[instances.group[instance]]
                    board.link_bytes[link, label] += ways.payload[size]
                    board.link_busy[link, label] += free - start
                    board.link_wait[link, label] += start - transfers.ready[first]
                    totals[HOPS] += 1
                    if recording:
                        row = counts[TRAIL]
                        counts[TRAIL] = row + 1
                        trail.link[row] = link
                        trail.start[row], trail.finish[row], trail.arrival[row] = start, free, arrival
                        trail.visit[row] = ranks.flat[transfers.rank[first]] + transfers.visit[first]
                        trail.task[row] = transfers.task[first]
                        trail.place[row] = hop - transfers.begin[first]
                    first = following
                if not fifo and board.queue[link] != NONE and not board.armed[link]:
                    board.armed[link] = True
                    push(calendar, board.busy[link], FREE, link, 0)
            touched_links = asking = 0
            phase = 0
            continue

        # The next work item; when there is none, the next touched server's choice.
        if depth == 0:
            level = phase - 2
            if phase == 1 or server_place == board.touched_count[level]:
                if phase > 1:
                    board.touched_count[level] = 0
                phase += 1
                server_place = 0
                if phase < 4:
                    ascend(board.touched_servers[phase - 2], board.touched_count[phase - 2])
                continue
            server = board.touched_servers[level, server_place]
            if board.waiting[server] == 0 or board.serving[server] >= ranks.capacity[server]:
                board.marked[server] = False
                server_place += 1
                continue
            board.serving[server] += 1
            a = ranks.of_server[server]
            stack_kind[0], stack_a[0], stack_b[0] = START, a, dequeue(visits, ranks, board, a, server)
            depth = 1
        kind, a, b = stack_kind[depth - 1], stack_a[depth - 1], stack_b[depth - 1]

        # Room for whatever this item makes.
        row = 0
        visit = 0
        starts = False
        if kind <= END:
            visit = ranks.program[a] + b
            starts = kind == START or (kind == READY and visits.server[visit] == NONE)
            row = visits.edge_starts[visit + 1] - visits.edge_starts[visit]
            if starts and visits.kind[visit] == MEMBER:
                slot = ranks.slot[a] + visits.slot[visit]
                template = visits.template[visit]
                place = tasks.first_member[template] + ranks.slot_member[slot]
                row += tasks.arrival_starts[place + 1] - tasks.arrival_starts[place]
                members = tasks.members[template]
                wanted = tasks.tasks[template] + members
                if board.free[template] == NONE and (
                    counts[MADE] == len(instances.group)
                    or counts[ARENA] + wanted > len(pending)
                    or counts[MEMBERS] + members > len(member_rank)
                ):
                    totals[STATUS], totals[WANTED] = MORE_INSTANCES, wanted
                    break
        elif kind == FIRE:
            template = instances.template[a]
            if b < tasks.tasks[template]:
                place = tasks.first_task[template] + b
                row = tasks.edge_starts[place + 1] - tasks.edge_starts[place]
                if counts[FREE_TRANSFER] == NONE:
                    totals[STATUS] = MORE_TRANSFERS
                    break
        elif kind == HOP and transfers.parts[a] > 0:
            if counts[FREE_TRANSFER] == NONE:
                totals[STATUS] = MORE_TRANSFERS
                break
        elif kind == HOP and transfers.hop[a] == transfers.end[a]:
            place = tasks.first_task[instances.template[transfers.instance[a]]] + transfers.task[a]
            row = tasks.edge_starts[place + 1] - tasks.edge_starts[place]
        if depth + row + _SPARE >= len(stack_kind):
            totals[STATUS], totals[WANTED] = MORE_STACK, depth + row + _SPARE
            break
        if calendar.counts[USED] + row + _SPARE >= len(calendar.next):
            totals[STATUS], totals[WANTED] = MORE_EVENTS, row + _SPARE
            break
        depth -= 1

        # What the edges below lead to: visits of rank a, or tasks of an instance.
        visit_first, visit_last = 0, 0
        edge_instance, edge_first, edge_last = NONE, 0, 0
        deliver, at_injection, arrives = False, False, False

        if starts:
            record = ranks.flat[a] + b
            board.start[record] = now
            visit_first, visit_last = visits.edge_starts[visit], visits.edge_starts[visit + 1]
            if visits.kind[visit] == COMPUTE:
                push(calendar, visit_end(flat, a, visit, now), END, a, b)
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
                    members = tasks.members[template]
                    wanted = tasks.tasks[template] + members
                    instance = board.free[template]
                    if instance != NONE:
                        board.free[template] = instances.next[instance]
                    else:
                        instance = counts[MADE]
                        instances.template[instance] = template
                        instances.arena[instance] = counts[ARENA]
                        instances.member[instance] = counts[MEMBERS]
                        counts[MADE] += 1
                        counts[ARENA] += wanted
                        counts[MEMBERS] += members
                    instances.group[instance] = group
                    instances.number[instance] = number
                    instances.sub[instance] = sub
                    instances.absent[instance] = members
                    instances.left[instance] = wanted
                    instances.use[instance] = use_of(ways, group, template)
                    instances.next[instance] = board.active[group]
                    board.active[group] = instance
                    base, place = instances.arena[instance], tasks.first_task[template]
                    for task in range(tasks.tasks[template]):
                        pending[base + task] = tasks.need[place + task]
                        ready[base + task] = 0
                    base, place = base + tasks.tasks[template], tasks.first_member[template]
                    for other in range(members):
                        pending[base + other] = tasks.member_need[place + other]
                        ready[base + other] = 0
                elif instances.template[instance] != template:
                    totals[STATUS] = DISAGREES
                    totals[2], totals[3], totals[4] = group, number, sub
                    totals[5], totals[6] = instances.template[instance], template
                    break
                place = instances.member[instance]
                member_rank[place + member] = a
                member_visit[place + member] = b
                instances.absent[instance] -= 1
                if instances.absent[instance] == 0:
                    for other in range(place, place + tasks.members[template]):
                        board.met[ranks.flat[member_rank[other]] + member_visit[other]] = now
                arrives = True
                edge_instance = instance
                place = tasks.first_member[template] + member
                edge_first, edge_last = tasks.arrival_starts[place], tasks.arrival_starts[place + 1]

        elif kind == READY:
            enqueue(visits, ranks, board, a, b)
            server = ranks.server[a] + visits.server[visit]
            if board.serving[server] < ranks.capacity[server]:
                touch(board, ranks.level[server], server)

        elif kind == END:
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
                served = visits.server[ranks.program[rank] + visit] != NONE
                if served and board.start[ranks.flat[rank] + visit] == now:
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
            if tasks.pair[place] == NONE:
                deliver = True
            else:
                route = ways.pair_route[instances.use[a] + tasks.pair[place]]
                transfer = counts[FREE_TRANSFER]
                counts[FREE_TRANSFER] = transfers.next[transfer]
                transfers.instance[transfer] = a
                transfers.task[transfer] = b
                size = tasks.size[tasks.first_size[template] + b]
                transfers.size[transfer] = ways.first_part[size]
                transfers.last[transfer] = ways.last_part[size]
                transfers.part[transfer] = 0
                transfers.parts[transfer] = ways.parts[size] - 1
                transfers.missing[transfer] = ways.parts[size]
                transfers.whole[transfer] = transfer
                transfers.begin[transfer] = ways.route_starts[route]
                transfers.hop[transfer] = ways.route_starts[route]
                transfers.end[transfer] = ways.route_starts[route + 1]
                transfers.injected[transfer] = now
                totals[SENT] += ways.payload[size]
                place = instances.member[a] + tasks.source[place]
                transfers.rank[transfer] = member_rank[place]
                transfers.visit[transfer] = member_visit[place]
                to_oneself = transfers.hop[transfer] == transfers.end[transfer]
                before = 0
                if fluid and not to_oneself:
                    transfers.route[transfer] = route
                    before = ways.before[transfers.size[transfer], ways.profile[route]]
                if to_oneself:
                    transfers.size[transfer] = size
                    transfers.parts[transfer], transfers.missing[transfer] = 0, 1
                    push(calendar, now + 1, HOP, transfer, 0)
                elif before > 0:
                    push(calendar, now + before, FLOW, transfer, 1)
                else:
                    stack_kind[depth], stack_a[depth], stack_b[depth] = HOP, transfer, 0
                    depth += 1

        elif kind == HOP:
            if fluid and transfers.hop[a] < transfers.end[a]:
                transfers.next[a] = state[JOINING]
                state[JOINING] = a
                asking += 1
                continue
            if transfers.hop[a] < transfers.end[a]:
                transfers.ready[a] = now
                link = ways.route_links[transfers.hop[a]]
                if transfers.parts[a] > 0:
                    transfer = next_part(transfers, counts, a)
                    pace = ways.occupancy[transfers.size[a], ways.route_class[transfers.hop[a]]]
                    push(calendar, now + pace, HOP, transfer, 0)
                if board.asked[link] == NONE:
                    board.touched[touched_links] = link
                    touched_links += 1
                transfers.next[a] = NONE if board.asked[link] == _FREED else board.asked[link]
                board.asked[link] = a
                asking += 1
                continue
            edge_instance, b = transfers.instance[a], transfers.task[a]
            place = tasks.first_task[instances.template[edge_instance]] + b
            edge_first, edge_last = tasks.edge_starts[place], tasks.edge_starts[place + 1]
            totals[RECEIVED] += ways.payload[transfers.size[a]]
            deliver = part_arrives(transfers, counts, a)
            if not deliver:
                continue

        elif kind == FLOW:
            if b == 1:
                stack_kind[depth], stack_a[depth], stack_b[depth] = HOP, a, 0
                depth += 1
            elif transfers.flowing[a] == 1:
                transfers.flowing[a] = 2
                transfers.next[a] = state[ENDING]
                state[ENDING] = a
                asking += 1

        elif kind == CAPACITY:
            board.touched[touched_links] = a
            touched_links += 1

        else:
            board.armed[a] = False
            if board.asked[a] == NONE:
                board.asked[a] = _FREED
                board.touched[touched_links] = a
                touched_links += 1

        # Visits that wait for this one's start or finish (R1).
        for edge in range(visit_first, visit_last):
            if visits.edge_at_start[edge] != starts:
                continue
            target = visits.edge_target[edge]
            record = ranks.flat[a] + target
            if board.pending[record] == 0:
                continue  # a counting predecessor beyond those needed
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
                if arrives:
                    target, lag = tasks.arrival_target[edge], tasks.arrival_lag[edge]
                else:
                    injected = tasks.edge_at_injection[edge]
                    if (injected and not at_injection) or (not injected and not deliver):
                        continue
                    target, lag = tasks.edge_target[edge], tasks.edge_lag[edge]
                left = pending[base + target] - 1
                if left < 0:
                    continue  # a counting predecessor beyond those needed
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

    state[PHASE], state[DEPTH], state[LINKS] = phase, depth, touched_links
    state[SERVER], state[ASKING], state[NOW] = server_place, asking, now
