"""The rules R1 to R6 as one loop (the SimPy engine is the definition; this one has nothing to decide).

Instant by instant: everything that becomes ready or free at a time is worked off a stack, then the touched
servers choose, streams before slots before links. Before each work item `play` makes sure that there is room
for all that the item can make; if not it returns, is given larger pools, and goes on where it was.

NOTE: one long function, and compiled without reference counting (`_nrt=False`): counting references to a
hundred arrays took five times as long as the rules. The clear form is the SimPy engine.
"""

from __future__ import annotations

from rapid_des.compiling import Kernel, compilable
from rapid_des.engines.compiled.calendar import HEAP, PUSHED, USED, pop, push, recycle, recycle_bucket
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.plan_tables import AS_LOWERED
from rapid_des.engines.compiled.pools import (
    ARENA,
    FREE_TRANSFER,
    MADE,
    MEMBERS,
    PARTS,
    TRAIL,
    Pools,
    State,
)
from rapid_des.engines.compiled.queue_pairs import (
    acknowledge,
    cut,
    hand_over,
    open_pair,
    stop_or_go,
    tells,
)
from rapid_des.engines.compiled.spraying import (
    choose_route,
    count_asking,
    lateness,
    least_loaded,
    message_hash,
    service_of,
    set_off,
    sprayed_route,
)
from rapid_des.engines.compiled.steps import (
    NONE,
    ascend,
    begin_work,
    changes_pace,
    close_instance,
    dequeue,
    enqueue,
    find_instance,
    insert_waiting,
    last_byte_arrives,
    link_times,
    next_part,
    next_sets_off,
    number_of,
    part_arrives,
    rank_decides,
    resume,
    sort_asked,
    touch,
    use_of,
    visit_end,
)
from rapid_des.program.builders import LINK_ORDERS

READY, START, END, FIRE, HOP, FREE, FLOW, CAPACITY, HAND, WAKE, LATE, PAUSE_LINK, STEP = range(13)
"""Work items: a visit is ready, is taken by its server, ends; a task or member fires; a transfer stands at a
node; a link is free; a flow joins (b = 1) or may end (0), or a transfer that a closing link may cut is due at
a node (2); a link's rate changes (fluid mode); a message may hand over one part more (b = 1), or its first
link is done with the last one (R9), or a notice comes to a route's sender (b = 2, R14); what closed links
stopped may set off again (R8); a message that comes late arrives (R11: instance, task); a link is stopped
(b = 1) or let go (R13); a rank's part in a collective that is replanned comes to a step."""
COMPUTE, HOLD, MEMBER, JOIN = 0, 1, 2, 3
HOPS, STATUS = 0, 1
DONE, DISAGREES, MORE_EVENTS, MORE_STACK, MORE_INSTANCES, MORE_TRANSFERS, MORE_TRAIL = 0, 1, 2, 3, 4, 5, 6
LINKS_APART = 7
"""Links that flows share, with queue pairs, or that close choose next (see `fluid_kernel`, `paired_kernel`,
`closing_kernel`)."""
PAUSED = 8
"""Enough events for one call (`cursor[PAUSE]`): Python looks for signals, and calls again."""
STOPPED_WAKES, DETOUR, NO_SCHEDULE, MORE_PARTS = 9, 10, 11, 12
"""Closed links: what they stopped may set off again; a message needs a route around them; a rank comes to a
collective and it is not known what it does there under a plan, or there is no room to note that it is there.
"""
SENT, RECEIVED, TIES, WORKED = 7, 8, 9, 10
"""In `State.totals`; WORKED are visits that ended and tasks that fired, see `expected_hops`."""
WANTED = 2
"""In `State.totals`: how much more room is needed."""
PHASE, DEPTH, LINKS, SERVER, ASKING, NOW, JOINING, ENDING, PAUSE = 0, 1, 2, 3, 4, 5, 6, 7, 8
STOPPED, WAKING, PLAN = 9, 10, 11
"""In `State.cursor`: where the loop stands, so that it can go on after a call that ended for want of room.

Phase 0 is between instants, 1 works off what happens, 2 and 3 let streams and slots choose, 4 links. JOINING,
ENDING and STOPPED begin lists of transfers; PAUSE is the count of events made at which a call ends, between
instants; WAKING is 1 if stopped transfers may set off again before links choose, 2 if they have; PLAN is that
of collectives that begin now, 0 for none."""
NOTICE = 2
_SPARE = 4
FREED = -2
"""In `State.asked`: a link that nobody asked, but that became free."""


@compilable
def has_room(state: State, pools: Pools, wanted: int) -> bool:
    """Tell whether so many events, and hops of the record, have room; else the totals say what lacks."""
    if pools.calendar.counts[USED] + wanted >= len(pools.calendar.next):
        state.totals[STATUS], state.totals[WANTED] = MORE_EVENTS, wanted
        return False
    if state.flags[1] and pools.counts[TRAIL] + wanted > len(pools.trail.link):
        state.totals[STATUS], state.totals[WANTED] = MORE_TRAIL, wanted
        return False
    return True


@compilable
def play(flat: Flat, state: State, pools: Pools, until: int) -> None:  # noqa: C901, PLR0912, PLR0915
    """Play until nothing is left to happen, past `until`, to a pause, or until room is wanted."""
    visits, ranks, tasks, network = flat.visits, flat.ranks, flat.tasks, flat.network
    contention, replans = flat.contention, flat.replans
    calendar, instances, transfers, trail = pools.calendar, pools.instances, pools.transfers, pools.trail
    pending, ready = pools.pending, pools.ready
    member_rank, member_visit = pools.member_rank, pools.member_visit
    parts, member_part, member_step = pools.parts, pools.member_part, pools.member_step
    counts, totals, cursor = pools.counts, state.totals, state.cursor
    stack_kind, stack_a, stack_b = pools.stack_kind, pools.stack_a, pools.stack_b
    fifo, recording, fluid, tails = state.flags[0], state.flags[1], state.flags[2], state.flags[3]
    paired, closing, contends = state.flags[4], state.flags[5], state.flags[6]
    parts_spray, messages_spray, delayed = state.flags[7], state.flags[8], state.flags[9]
    parts_choose, messages_choose, replanning = state.flags[10], state.flags[11], state.flags[12]
    listed = fluid or closing
    phase, depth, touched_links = cursor[PHASE], cursor[DEPTH], cursor[LINKS]
    server_index, asking, now = cursor[SERVER], cursor[ASKING], cursor[NOW]
    totals[STATUS] = DONE
    # Arrays and counters are locals here because LLVM then keeps them in registers; those that change are put
    # back into `cursor` at the end. A `break` leaves the item on the stack, for the next call to take up.

    while totals[STATUS] == DONE:
        if phase == 0:  # the next instant: all its events become work items, in any order (R4)
            if calendar.counts[HEAP] == 0 or calendar.time[0] > until:
                break
            if calendar.counts[PUSHED] >= cursor[PAUSE]:
                totals[STATUS] = PAUSED
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

        if phase == 4 and (listed or paired):  # `play_fluid` and the like do that, and call again
            if touched_links + asking + cursor[WAKING] > 0:
                totals[STATUS] = LINKS_APART
                break
            phase = 0
            continue

        if phase == 4:
            # Each transfer that asks makes one event. By priority a link makes one of a transfer that it
            # takes, which may have asked long ago, and one for when it is free.
            wanted = asking + 2 * touched_links + _SPARE
            if calendar.counts[USED] + wanted >= len(calendar.next):
                totals[STATUS], totals[WANTED] = MORE_EVENTS, wanted
                break
            if recording and counts[TRAIL] + wanted > len(trail.link):
                totals[STATUS], totals[WANTED] = MORE_TRAIL, wanted
                break
            # Links choose last; whatever they start lies in the future.
            for asked in range(touched_links):
                link = state.touched[asked]
                first = state.asked[link]
                state.asked[link] = NONE
                if first == FREED:
                    first = NONE
                if first != NONE and transfers.next[first] >= 0:
                    totals[TIES] += rank_decides(transfers, first)
                    first = sort_asked(transfers, first)
                # By priority a link serves one transfer and looks again when it is free, because a better one
                # may come meanwhile. With equal priorities nobody overtakes: all that asked are served in
                # order, each from when the one before it is through, and there is no queue.
                if not fifo:
                    if parts_choose or messages_choose:
                        count_asking(network, state, transfers, link, first)
                    insert_waiting(transfers, state, link, first)
                    first = state.queue[link] if state.busy[link] <= now else NONE
                    if first != NONE:
                        state.queue[link] = transfers.next[first]
                        transfers.next[first] = NONE
                        if parts_choose or messages_choose:
                            state.waits[link] -= service_of(network, transfers, first)
                while first != NONE:
                    following = transfers.next[first]
                    start = max(now, state.busy[link])
                    hop = transfers.hop[first]
                    instance = transfers.instance[first]
                    size = transfers.size[first]
                    free, forward, arrival = link_times(network, link, size, network.route_class[hop], start)
                    if tails:
                        arrival = last_byte_arrives(network, transfers, first, link, start, free)
                    last_hop = hop + 1 == transfers.end[first]
                    transfers.hop[first] = hop + 1
                    push(calendar, arrival if last_hop else forward, HOP, first, 0)
                    state.busy[link] = free
                    label = network.label[instances.group[instance]]
                    state.link_bytes[link, label] += network.payload[size]
                    state.link_busy[link, label] += free - start
                    state.link_wait[link, label] += start - transfers.ready[first]
                    totals[HOPS] += 1
                    if recording:
                        row = counts[TRAIL]
                        counts[TRAIL] = row + 1
                        trail.link[row] = link
                        trail.start[row], trail.finish[row], trail.arrival[row] = start, free, arrival
                        trail.visit[row] = ranks.flat[transfers.rank[first]] + transfers.visit[first]
                        trail.task[row] = transfers.task[first]
                        trail.position[row] = hop - transfers.begin[first]
                    first = following
                if not fifo and state.queue[link] != NONE and not state.armed[link]:
                    state.armed[link] = True
                    push(calendar, state.busy[link], FREE, link, 0)
            touched_links = asking = 0
            phase = 0
            continue

        # The next work item; when there is none, the next touched server's choice. A server that chose
        # something is looked at again, until it is full or nobody waits; servers go by number.
        if depth == 0:
            level = phase - 2
            if phase == 1 or server_index == state.touched_count[level]:
                if phase > 1:
                    state.touched_count[level] = 0
                phase += 1
                server_index = 0
                if phase < 4:
                    ascend(state.touched_servers[phase - 2], state.touched_count[phase - 2])
                continue
            server = state.touched_servers[level, server_index]
            if state.waiting[server] == 0 or state.serving[server] >= ranks.capacity[server]:
                state.marked[server] = False
                server_index += 1
                continue
            state.serving[server] += 1
            a = ranks.of_server[server]
            stack_kind[0], stack_a[0], stack_b[0] = START, a, dequeue(visits, ranks, state, a, server)
            depth = 1
        kind, a, b = stack_kind[depth - 1], stack_a[depth - 1], stack_b[depth - 1]

        # Room for whatever this item makes: a work item or an event for each edge that leads on from it, a
        # transfer if it is a task that sends, an instance if it is the first member of a collective to come.
        # Nothing has changed yet, so an item that finds too little room is simply begun again.
        row = 0
        visit = 0
        starts = False
        opens, member = NONE, 0  # the template of the instance that a member comes to
        part, schedule, call, plan, caller, group, number = NONE, NONE, NONE, AS_LOWERED, 0, 0, 0
        if kind <= END:
            visit = ranks.program[a] + b
            starts = kind == START or (kind == READY and visits.server[visit] == NONE)
            row = visits.edge_starts[visit + 1] - visits.edge_starts[visit]
            if contends:  # and an event for each server of the rank that now works faster or slower
                row += ranks.server[a + 1] - ranks.server[a]
            if starts and visits.kind[visit] == MEMBER:
                opens = visits.template[visit]
                member = ranks.slot_member[ranks.slot[a] + visits.slot[visit]]
                if replanning and replans.stands[visit] != NONE:
                    # R8: the first member to come fixes the plan; of another than the program's the rank
                    # follows its schedule, whose steps come to instances of their own.
                    caller = b if visits.parent[visit] == NONE else visits.parent[visit]
                    slot = ranks.slot[a] + visits.slot[ranks.program[a] + caller]
                    number = visits.occurrence[visit]
                    if caller != b:
                        number = state.number[ranks.flat[a] + caller]
                    elif number == NONE:
                        number = state.counter[slot]
                    group = ranks.slot_group[slot]
                    call = replans.calls[group] + number
                    if state.planned[call] == 0:
                        state.planned[call], state.called[call] = max(AS_LOWERED, cursor[PLAN]), opens
                    plan = state.planned[call]
                    record = ranks.flat[a] + b
                    if plan != AS_LOWERED:
                        part = state.part[ranks.flat[a] + caller]
                        schedule = state.schedule[record]
                        if part == NONE and state.schedule_plan[record] != plan:
                            totals[STATUS] = NO_SCHEDULE
                            totals[WANTED], totals[3], totals[4] = a, b, plan
                            break
                        if part == NONE and counts[PARTS] == len(parts.rank):
                            totals[STATUS] = MORE_PARTS
                            break
                        opens = NONE
                        if part == NONE:
                            row += replans.schedules[schedule + 1] - replans.schedules[schedule]
        elif kind == STEP:
            opens, member = replans.template[b], replans.member[b]
        elif kind == FIRE:
            template = instances.template[a]
            if b >= tasks.tasks[template]:
                if instances.chunk[a] != NONE:
                    row = parts.visits[member_part[instances.member[a] + b - tasks.tasks[template]]]
            else:
                entry = tasks.first_task[template] + b
                row = tasks.edge_starts[entry + 1] - tasks.edge_starts[entry]
                if counts[FREE_TRANSFER] == NONE:
                    totals[STATUS] = MORE_TRANSFERS
                    break
                if closing and tasks.pair[entry] != NONE:
                    route = network.pair_route[instances.use[a] + tasks.pair[entry]]
                    if network.detour[route] < 0:
                        totals[STATUS], totals[WANTED] = DETOUR, route
                        break
        elif kind == HAND or (kind == HOP and transfers.parts[a] > 0 and not paired):
            if counts[FREE_TRANSFER] == NONE:
                totals[STATUS] = MORE_TRANSFERS
                break
        elif kind == HOP and transfers.hop[a] == transfers.end[a]:
            entry = tasks.first_task[instances.template[transfers.instance[a]]] + transfers.task[a]
            row = tasks.edge_starts[entry + 1] - tasks.edge_starts[entry]
        elif kind == LATE:
            entry = tasks.first_task[instances.template[a]] + b
            row = tasks.edge_starts[entry + 1] - tasks.edge_starts[entry]
        if opens != NONE:
            entry = tasks.first_member[opens] + member
            row += tasks.arrival_starts[entry + 1] - tasks.arrival_starts[entry]
            members = tasks.members[opens]
            wanted = tasks.tasks[opens] + members
            if state.free[opens] == NONE and (
                counts[MADE] == len(instances.group)
                or counts[ARENA] + wanted > len(pending)
                or counts[MEMBERS] + members > len(member_rank)
            ):
                totals[STATUS], totals[WANTED] = MORE_INSTANCES, wanted
                break
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
        sub, chunk, meets, come_rank, come_visit = 0, NONE, True, 0, 0
        added = 0  # to what rank a serves

        if starts:
            record = ranks.flat[a] + b
            state.start[record] = now
            visit_first, visit_last = visits.edge_starts[visit], visits.edge_starts[visit + 1]
            if contends and kind == START:
                added = contention.weight[visit]
                state.present[a] += added
            if contends and visits.kind[visit] == COMPUTE and contention.first[visit] != NONE:
                push(calendar, begin_work(flat, state, a, visit, now), END, a, b)
            elif visits.kind[visit] == COMPUTE:
                push(calendar, visit_end(flat, a, visit, now), END, a, b)
            elif visits.kind[visit] == JOIN:
                if visits.work[visit] > 0:
                    push(calendar, now + visits.work[visit], END, a, b)
                else:
                    stack_kind[depth], stack_a[depth], stack_b[depth] = END, a, b
                    depth += 1
            elif visits.kind[visit] == HOLD:
                number_of(flat, state, a, visit, record)
                if state.finish[ranks.flat[a] + visits.release[visit]] != NONE:
                    # What it holds its server for is over already; yet no visit is shorter than a tick.
                    push(calendar, now + 1, END, a, b)
            else:
                if visits.parent[visit] == NONE:
                    number = number_of(flat, state, a, visit, record)
                else:
                    number = state.number[ranks.flat[a] + visits.parent[visit]]
                if opens != NONE:
                    group = ranks.slot_group[ranks.slot[a] + visits.slot[visit]]
                    sub, chunk, meets = visits.sub[visit], NONE, True
                    come_rank, come_visit = a, b
                elif part == NONE:
                    if state.called[call] != visits.template[visit]:
                        totals[STATUS] = DISAGREES
                        totals[2], totals[3], totals[4] = group, number, 0
                        totals[5], totals[6] = state.called[call], visits.template[visit]
                        break
                    part = counts[PARTS]
                    counts[PARTS] += 1
                    parts.rank[part], parts.group[part], parts.number[part] = a, group, number
                    parts.visit[part], parts.arrived[part], parts.visits[part] = replans.stands[visit], b, 1
                    parts.left[part] = replans.schedules[schedule + 1] - replans.schedules[schedule]
                    state.part[ranks.flat[a] + caller], state.beside[record] = part, NONE
                    for place in range(replans.schedules[schedule], replans.schedules[schedule + 1]):
                        stack_kind[depth] = STEP
                        stack_a[depth], stack_b[depth] = part, replans.first[place]
                        depth += 1
                else:
                    state.beside[record] = parts.arrived[part]
                    state.met[record] = state.met[ranks.flat[a] + parts.visit[part]]
                    parts.arrived[part] = b
                    parts.visits[part] += 1
                    if parts.left[part] == 0 and visits.server[visit] != NONE:
                        push(calendar, now + 1, END, a, b)
                    elif parts.left[part] == 0:
                        stack_kind[depth], stack_a[depth], stack_b[depth] = END, a, b
                        depth += 1

        elif kind == STEP:
            group, number, sub = parts.group[a], parts.number[a], replans.sub[b]
            chunk, meets = replans.chunk[b], replans.meets[b]
            come_rank, come_visit = parts.rank[a], parts.visit[a]

        elif kind == READY:
            enqueue(visits, ranks, state, a, b)
            server = ranks.server[a] + visits.server[visit]
            if state.serving[server] < ranks.capacity[server]:
                touch(state, ranks.level[server], server)

        elif kind == END:
            server = visits.server[visit]
            if contends and server != NONE:
                if contention.first[visit] != NONE:
                    worker = ranks.server[a] + server
                    if state.working[worker] != b or state.until[worker] != now:
                        continue  # at another pace since this end was foreseen
                    state.working[worker] = NONE
                    state.computing[a] -= 1
                added = -contention.weight[visit]
                state.present[a] += added
            state.finish[ranks.flat[a] + b] = now
            totals[WORKED] += 1
            if server != NONE:
                server += ranks.server[a]
                state.serving[server] -= 1
                if state.waiting[server] > 0:
                    touch(state, ranks.level[server], server)
            holder = visits.holder[visit]
            if holder != NONE:  # this visit's end is what a HOLD waits for
                held_from = state.start[ranks.flat[a] + holder]
                if held_from == now:
                    push(calendar, now + 1, END, a, holder)
                elif held_from != NONE:
                    stack_kind[depth], stack_a[depth], stack_b[depth] = END, a, holder
                    depth += 1
            visit_first, visit_last = visits.edge_starts[visit], visits.edge_starts[visit + 1]

        elif kind == FIRE:
            template = instances.template[a]
            if b >= tasks.tasks[template]:  # a member has all that it waits for: its visit ends
                entry = instances.member[a] + b - tasks.tasks[template]
                rank, visit = member_rank[entry], member_visit[entry]
                following = NONE
                if instances.chunk[a] != NONE:  # or it goes on with its next step, and ends with the last one
                    part, step = member_part[entry], replans.next[member_step[entry]]
                    if step != NONE:
                        stack_kind[depth], stack_a[depth], stack_b[depth] = STEP, part, step
                        depth += 1
                        visit = NONE
                    else:
                        parts.left[part] -= 1
                        visit = NONE if parts.left[part] > 0 else parts.arrived[part]
                while visit != NONE:
                    if instances.chunk[a] != NONE:
                        following = state.beside[ranks.flat[rank] + visit]
                        met = state.met[ranks.flat[rank] + parts.visit[part]]
                        state.met[ranks.flat[rank] + visit] = met
                    served = visits.server[ranks.program[rank] + visit] != NONE
                    if served and state.start[ranks.flat[rank] + visit] == now:
                        push(calendar, now + 1, END, rank, visit)
                    else:
                        stack_kind[depth], stack_a[depth], stack_b[depth] = END, rank, visit
                        depth += 1
                    visit = following
                instances.left[a] -= 1
                if instances.left[a] == 0:
                    close_instance(instances, state, a)
                continue
            totals[WORKED] += 1
            entry = tasks.first_task[template] + b
            edge_instance = a
            edge_first, edge_last = tasks.edge_starts[entry], tasks.edge_starts[entry + 1]
            at_injection = True
            if tasks.pair[entry] == NONE:
                deliver = True
            else:
                route = network.pair_route[instances.use[a] + tasks.pair[entry]]
                if closing:
                    route = network.detour[route]
                transfer = counts[FREE_TRANSFER]
                counts[FREE_TRANSFER] = transfers.next[transfer]
                transfers.instance[transfer] = a
                transfers.task[transfer] = b
                size = tasks.size[tasks.first_size[template] + b]
                transfers.size[transfer] = network.first_part[size]
                transfers.last[transfer] = network.last_part[size]
                transfers.part[transfer] = 0
                transfers.parts[transfer] = network.parts[size] - 1
                transfers.missing[transfer] = network.parts[size]
                transfers.message[transfer] = transfer
                transfers.number[transfer] = 0
                transfers.injected[transfer] = now
                transfers.crossed[transfer] = 0
                totals[SENT] += network.payload[size]
                entry = instances.member[a] + tasks.source[entry]
                transfers.rank[transfer] = member_rank[entry]
                transfers.visit[transfer] = member_visit[entry]
                transfers.sub[transfer] = instances.sub[a]
                priority = visits.link_priority[ranks.program[member_rank[entry]] + member_visit[entry]]
                if instances.chunk[a] != NONE:
                    priority += instances.chunk[a] - priority % LINK_ORDERS
                transfers.priority[transfer] = priority
                if messages_spray:
                    route = sprayed_route(network, route, message_hash(member_rank[entry], now, b))
                if messages_choose:
                    number = message_hash(member_rank[entry], now, b)
                    route = least_loaded(network, state, route, transfers.size[transfer], number, now)
                transfers.route[transfer] = route
                first = sprayed_route(network, route, 0) if parts_spray else route
                set_off(network, transfers, transfer, first)
                # A message to oneself crosses no link: it arrives a tick later, whole.
                to_oneself = transfers.hop[transfer] == transfers.end[transfer]
                before = 0
                if paired and not to_oneself:
                    open_pair(network, transfers, transfer)
                if fluid and not to_oneself:
                    before = network.before[transfers.size[transfer], network.profile[route]]
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
            if transfers.hop[a] < transfers.end[a]:
                transfers.ready[a] = now
                if parts_choose and transfers.hop[a] == transfers.begin[a]:
                    choose_route(network, state, transfers, a, now)
                if transfers.parts[a] > 0 and not paired:
                    # Parts are handed over at a link's pace; each makes the next, so that a message of a
                    # million parts needs room for those that are on their way only.
                    transfer = next_part(transfers, counts, a)
                    if parts_spray:
                        route = transfers.route[transfers.message[transfer]]
                        part = transfers.part[transfer]
                        set_off(network, transfers, transfer, sprayed_route(network, route, part))
                    ahead = tasks.ahead[instances.template[transfers.instance[a]]]
                    last = transfers.hop[a] + 1 if ahead else transfers.end[a]
                    push(calendar, next_sets_off(network, transfers, a, last, now), HOP, transfer, 0)
                if listed:
                    transfers.next[a] = cursor[JOINING]
                    cursor[JOINING] = a
                    asking += 1
                    continue
                link = network.route_links[transfers.hop[a]]
                if state.asked[link] == NONE:
                    state.touched[touched_links] = link
                    touched_links += 1
                transfers.next[a] = NONE if state.asked[link] == FREED else state.asked[link]
                state.asked[link] = a
                asking += 1
                continue
            edge_instance, b = transfers.instance[a], transfers.task[a]
            entry = tasks.first_task[instances.template[edge_instance]] + b
            edge_first, edge_last = tasks.edge_starts[entry], tasks.edge_starts[entry + 1]
            totals[RECEIVED] += network.payload[transfers.size[a]]
            if paired:
                acknowledge(network, state, transfers, a, now)
                if tells(network, state, transfers, a, now):
                    route = transfers.route[transfers.message[a]]
                    push(calendar, now + network.rates.echo[route], HAND, route, NOTICE)
            deliver = part_arrives(transfers, counts, a)
            if not deliver:
                continue
            if delayed and tasks.pair[entry] != NONE:
                route = network.pair_route[instances.use[edge_instance] + tasks.pair[entry]]
                size = tasks.size[tasks.first_size[instances.template[edge_instance]] + b]
                late = lateness(flat.delays, transfers, a, route, size)
                if late > 0:
                    push(calendar, now + late, LATE, edge_instance, b)
                    continue

        elif kind == LATE:
            edge_instance, deliver = a, True
            entry = tasks.first_task[instances.template[a]] + b
            edge_first, edge_last = tasks.edge_starts[entry], tasks.edge_starts[entry + 1]

        elif kind == FLOW:
            if b == 1 or (b == 2 and transfers.due[a] == now):
                transfers.due[a] = NONE
                stack_kind[depth], stack_a[depth], stack_b[depth] = HOP, a, 0
                depth += 1
            elif b == 0 and transfers.flowing[a] == 1:  # once an instant, however often its end was predicted
                transfers.flowing[a] = 2
                transfers.next[a] = cursor[ENDING]
                cursor[ENDING] = a
                asking += 1

        elif kind == CAPACITY:
            state.touched[touched_links] = a
            touched_links += 1

        elif kind == HAND:
            if b == NOTICE:
                cut(state.rates[a], network.rates.control, now)
                continue
            if b == 1:
                transfers.credits[a] += 1
            else:
                transfers.idle[a] = 1
            part = hand_over(transfers, counts, a)
            if part != NONE:
                if parts_spray:
                    route = sprayed_route(network, transfers.route[a], transfers.part[part])
                    set_off(network, transfers, part, route)
                stack_kind[depth], stack_a[depth], stack_b[depth] = HOP, part, 0
                depth += 1

        elif kind == WAKE:
            cursor[WAKING] = 1

        else:  # FREE, PAUSE_LINK: the link looks at its queue, also if nobody asks it at this instant
            if kind == FREE:
                state.armed[a] = False
            else:
                stop_or_go(state, a, b, now)
            if state.asked[a] == NONE:
                state.asked[a] = FREED
                state.touched[touched_links] = a
                touched_links += 1

        if opens != NONE:
            # R5: the k-th use of a slot by each member of a group is one collective, the instance k. The
            # first member to come opens it; an instance of this template that is over is used again, with its
            # stretch of the arena, which is as long as the template has tasks and members.
            template = opens
            instance = find_instance(instances, state, group, number, sub)
            if instance == NONE:
                members = tasks.members[template]
                wanted = tasks.tasks[template] + members
                instance = state.free[template]
                if instance != NONE:
                    state.free[template] = instances.next[instance]
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
                instances.chunk[instance] = chunk
                instances.absent[instance] = members
                instances.left[instance] = wanted
                instances.use[instance] = (
                    use_of(network, group, template) if chunk == NONE else replans.use[b]
                )
                instances.next[instance] = state.active[group]
                state.active[group] = instance
                base, entry = instances.arena[instance], tasks.first_task[template]
                for task in range(tasks.tasks[template]):
                    pending[base + task] = tasks.need[entry + task]
                    ready[base + task] = 0
                base, entry = base + tasks.tasks[template], tasks.first_member[template]
                for other in range(members):
                    pending[base + other] = tasks.member_need[entry + other]
                    ready[base + other] = 0
            elif instances.template[instance] != template:
                totals[STATUS] = DISAGREES
                totals[2], totals[3], totals[4] = group, number, sub
                totals[5], totals[6] = instances.template[instance], template
                break
            entry = instances.member[instance]
            member_rank[entry + member] = come_rank
            member_visit[entry + member] = come_visit
            if chunk != NONE:
                member_part[entry + member], member_step[entry + member] = a, b
            instances.absent[instance] -= 1
            if instances.absent[instance] == 0 and meets:
                for other in range(entry, entry + tasks.members[template]):
                    state.met[ranks.flat[member_rank[other]] + member_visit[other]] = now
            arrives = True
            edge_instance = instance
            entry = tasks.first_member[template] + member
            edge_first, edge_last = tasks.arrival_starts[entry], tasks.arrival_starts[entry + 1]

        if (
            added != 0 and state.computing[a] > 0
        ):  # what else the rank works at may be slower or faster from now on (R6)
            for worker in range(ranks.server[a], ranks.server[a + 1]):
                if changes_pace(flat, state, a, worker, now):
                    push(calendar, resume(flat, state, a, worker, now), END, a, state.working[worker])

        # Visits that wait for this one's start or finish (R1).
        for edge in range(visit_first, visit_last):
            if visits.edge_at_start[edge] != starts:
                continue
            target = visits.edge_target[edge]
            record = ranks.flat[a] + target
            if state.pending[record] == 0:
                continue  # a counting predecessor beyond those needed
            state.pending[record] -= 1
            moment = max(state.ready[record], now + visits.edge_lag[edge])
            state.ready[record] = moment
            if state.pending[record] == 0:
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
                    close_instance(instances, state, edge_instance)

    cursor[PHASE], cursor[DEPTH], cursor[LINKS] = phase, depth, touched_links
    cursor[SERVER], cursor[ASKING], cursor[NOW] = server_index, asking, now


KERNEL = Kernel(play)
