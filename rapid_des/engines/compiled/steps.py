"""Small steps of the kernel; each is one rule or one operation on a data structure."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.columns import Ranks, Visits
from rapid_des.engines.compiled.flat import Array, Flat, Network
from rapid_des.engines.compiled.pools import Instances, State, Transfers
from rapid_des.program import timetable

NONE = -1

compilable(timetable.ticks_for)
compilable(timetable.shared)
compilable(timetable.without)
finish_of = compilable(timetable.finish_of)
left_after = compilable(timetable.left_after)
left_at = compilable(timetable.left_at)
advance = compilable(timetable.advance)
lag_at = compilable(timetable.lag_at)
compilable(timetable.steps_until)
rate_at = compilable(timetable.rate_at)
hop_times = compilable(timetable.hop_times)
tail_crosses = compilable(timetable.tail_crosses)


@compilable
def visit_end(flat: Flat, rank: int, visit: int, start: int) -> int:
    """Return when a COMPUTE visit that starts at `start` ends."""
    work = flat.visits.work[visit]
    if flat.visits.server[visit] == NONE:
        return start + work
    work = max(work, 1)
    time, rate = timetable_of_work(flat, rank, visit)
    if len(time) == 0:
        return start + work
    return advance(time, rate, start, work)


@compilable
def timetable_of_work(flat: Flat, rank: int, visit: int) -> tuple[Array, Array]:
    """Return the timetable of a COMPUTE visit on a server as (time, rate), without steps if it has none."""
    network = flat.network
    first = last = 0  # an empty slice: no timetable
    if len(network.visit_table) > 0:
        table = network.visit_table[flat.ranks.flat[rank] + visit - flat.ranks.program[rank]]
        if table != NONE:
            first, last = network.work_table[table], network.work_table[table + 1]
    return network.work_time[first:last], network.work_rate[first:last]


@compilable
def begin_work(flat: Flat, state: State, rank: int, visit: int, now: int) -> int:  # noqa: PLR0913
    """Start a COMPUTE visit that others may slow; return its end if the others stay the same (R6)."""
    server = flat.ranks.server[rank] + flat.visits.server[visit]
    state.working[server] = visit - flat.ranks.program[rank]
    state.computing[rank] += 1
    state.ticks[server], state.fractions[server] = max(flat.visits.work[visit], 1), 0
    return resume(flat, state, rank, server, now)


@compilable
def resume(flat: Flat, state: State, rank: int, server: int, now: int) -> int:
    """Continue a server's COMPUTE visit at its share beside those in service now; return its end."""
    visit = flat.ranks.program[rank] + state.working[server]
    others = state.present[rank] - flat.contention.weight[visit]
    share = flat.contention.share[flat.contention.first[visit] + others]
    left = state.ticks[server], state.fractions[server]
    state.since[server], state.share[server] = now, share
    table = timetable_of_work(flat, rank, visit)
    # Most visits have no timetable and are not slowed: their end is a sum.
    alone = share == timetable.ALONE and len(table[0]) == 0 and left[1] == 0
    state.until[server] = now + left[0] if alone else finish_of(table, now, left, share)
    return state.until[server]


@compilable
def changes_pace(flat: Flat, state: State, rank: int, server: int, now: int) -> bool:
    """Return whether a server's COMPUTE visit has another share from now on; record the work left."""
    if state.working[server] == NONE or state.until[server] == now:  # nothing to slow, or it ends now
        return False
    visit = flat.ranks.program[rank] + state.working[server]
    others = state.present[rank] - flat.contention.weight[visit]
    if flat.contention.share[flat.contention.first[visit] + others] == state.share[server]:
        return False
    left = state.ticks[server], state.fractions[server]
    table = timetable_of_work(flat, rank, visit)
    state.ticks[server], state.fractions[server] = left_after(
        table, state.since[server], now, left, state.share[server]
    )
    return True


@compilable
def link_times(network: Network, link: int, size: int, service: int, start: int) -> tuple[int, int, int]:
    """Return when the link is free, when the next hop is ready and, after a last hop, the arrival."""
    hop = network.occupancy[size, service], network.head[size, service], network.lag[size, service]
    return hop_times(hop, timetable_of(network, link), start)


@compilable
def next_part_starts(network: Network, transfers: Transfers, part: int, last: int, now: int) -> int:
    """Return when the part after one that starts now may start: when each link before hop `last` had time."""
    moment, size = now, transfers.size[part]
    # The slowest of these links sets the pace; a link without a timetable needs no search (R6).
    for hop in range(transfers.hop[part], last):
        link, work = network.route_links[hop], network.occupancy[size, network.route_class[hop]]
        begin, end = network.pace_table[link], network.pace_table[link + 1]
        if begin == end:
            moment = max(moment, now + work)
        else:
            time, rate = network.pace_time[begin:end], network.pace_rate[begin:end]
            moment = max(moment, advance(time, rate, now, work))
    return moment


@compilable
def timetable_of(network: Network, link: int) -> tuple[Array, Array, Array]:
    """Return a link's timetable as (time, rate, lag), without steps if it has none."""
    first, last = network.link_table[link], network.link_table[link + 1]
    return network.link_time[first:last], network.link_rate[first:last], network.link_lag[first:last]


@compilable
def last_byte_arrives(  # noqa: PLR0913 - flat arrays
    network: Network, transfers: Transfers, transfer: int, link: int, start: int, free: int
) -> int:
    """Return when the bytes that a link served from start to free arrive; record the last byte's time."""
    size, service = transfers.size[transfer], network.route_class[transfers.hop[transfer]]
    tail = network.across[size, service], network.along[size, service]
    crossed = tail_crosses(tail, timetable_of(network, link), start, free, transfers.crossed[transfer])
    transfers.crossed[transfer] = crossed
    return crossed - (network.across[size, service] - network.lag[size, service])


@compilable
def number_of(flat: Flat, state: State, rank: int, visit: int, record: int) -> int:
    """Bind and return the instance number k of a visit (R5)."""
    number = flat.visits.occurrence[visit]
    if number == NONE:  # unordered streams count as visits start
        slot = flat.ranks.slot[rank] + flat.visits.slot[visit]
        number = state.counter[slot]
        state.counter[slot] = number + 1
    state.number[record] = number
    return number


@compilable
def touch(state: State, level: int, server: int) -> None:
    """Let a server choose at the end of this instant."""
    if not state.marked[server]:
        state.marked[server] = True
        state.touched_servers[level, state.touched_count[level]] = server
        state.touched_count[level] += 1


@compilable
def before(  # noqa: PLR0913 - flat arrays and where they begin
    visits: Visits, state: State, visit: int, other: int, base: int, shift: int
) -> bool:
    """Return whether a waiting visit goes before another: smaller (priority, ready time, visit) (R3)."""
    first, second = visits.priority[visit + shift], visits.priority[other + shift]
    if first != second:
        return first < second
    if state.ready[base + visit] != state.ready[base + other]:
        return state.ready[base + visit] < state.ready[base + other]
    return visit < other


@compilable
def enqueue(visits: Visits, ranks: Ranks, state: State, rank: int, visit: int) -> None:
    """Put a visit, by its number in the rank, into its server's heap."""
    base, shift = ranks.flat[rank], ranks.program[rank]
    server = ranks.server[rank] + visits.server[visit + shift]
    heap = state.heap[ranks.heap[server] : ranks.heap[server + 1]]
    child = state.waiting[server]
    state.waiting[server] = child + 1
    while child > 0:  # later visits move down until the place of this one is found
        parent = (child - 1) >> 1
        if not before(visits, state, visit, heap[parent], base, shift):
            break
        heap[child] = heap[parent]
        child = parent
    heap[child] = visit


@compilable
def dequeue(visits: Visits, ranks: Ranks, state: State, rank: int, server: int) -> int:
    """Remove the visit that goes first from a server's heap, and return it."""
    base, shift = ranks.flat[rank], ranks.program[rank]
    heap = state.heap[ranks.heap[server] : ranks.heap[server + 1]]
    earliest = heap[0]
    length = state.waiting[server] - 1
    state.waiting[server] = length
    moved = heap[length]
    parent = 0
    while True:  # the last leaf fills the gap at the top
        child = 2 * parent + 1
        if child >= length:
            break
        if child + 1 < length and before(visits, state, heap[child + 1], heap[child], base, shift):
            child += 1
        if not before(visits, state, heap[child], moved, base, shift):
            break
        heap[parent] = heap[child]
        parent = child
    heap[parent] = moved
    return earliest


@compilable
def find_instance(instances: Instances, state: State, group: int, number: int, sub: int) -> int:
    """Return the active instance of a group, or NONE."""
    instance = state.active[group]
    while instance != NONE:
        if instances.number[instance] == number and instances.sub[instance] == sub:
            return instance
        instance = instances.next[instance]
    return NONE


@compilable
def use_of(network: Network, group: int, template: int) -> int:
    """Return the first row of `pair_route` of a group's use of a template."""
    # A group runs few templates, so a search is cheap.
    for use in range(network.use_starts[group], network.use_starts[group + 1]):
        if network.use_template[use] == template:
            return network.use_base[use]
    return NONE


@compilable
def close_instance(instances: Instances, state: State, instance: int) -> None:
    """Remove a finished instance; the next one of its template reuses its row."""
    group = instances.group[instance]
    following = instances.next[instance]
    other = state.active[group]
    if other == instance:
        state.active[group] = following
    else:  # a group has few active instances, so a search is cheap
        while instances.next[other] != instance:
            other = instances.next[other]
        instances.next[other] = following
    template = instances.template[instance]
    instances.next[instance] = state.free[template]
    state.free[template] = instance


@compilable
def goes_first(transfers: Transfers, this: int, other: int) -> bool:
    """Order transfers of equal priority and ready time by (part, rank, injected, visit, phase, task) (R3).

    Pieces of one message, which closed links made (R8), are ordered by their hop, then by their number.
    """
    if transfers.part[this] != transfers.part[other]:
        return transfers.part[this] < transfers.part[other]
    if transfers.rank[this] != transfers.rank[other]:
        return transfers.rank[this] < transfers.rank[other]
    if transfers.injected[this] != transfers.injected[other]:
        return transfers.injected[this] < transfers.injected[other]
    if transfers.visit[this] != transfers.visit[other]:
        return transfers.visit[this] < transfers.visit[other]
    if transfers.sub[this] != transfers.sub[other]:
        return transfers.sub[this] < transfers.sub[other]
    if transfers.task[this] != transfers.task[other]:
        return transfers.task[this] < transfers.task[other]
    places = transfers.hop[this] - transfers.begin[this], transfers.hop[other] - transfers.begin[other]
    if places[0] != places[1]:
        return places[0] < places[1]
    return transfers.number[this] < transfers.number[other]


@compilable
def sort_asked(transfers: Transfers, first: int) -> int:  # noqa: C901 - one merge sort
    """Sort the linked transfers that asked a link at one instant (merge sort); return the new first."""
    # Bottom-up: each pass merges pairs of sorted runs of `width`, until one merge makes the whole list.
    width = 1
    while True:
        left, head, tail, merges = first, NONE, NONE, 0
        while left != NONE:
            merges += 1
            right, left_size = left, 0
            while left_size < width and right != NONE:
                left_size += 1
                right = transfers.next[right]
            right_size = width
            while left_size > 0 or (right_size > 0 and right != NONE):
                if left_size == 0:
                    smaller, right, right_size = right, transfers.next[right], right_size - 1
                elif right_size == 0 or right == NONE or goes_first(transfers, left, right):
                    smaller, left, left_size = left, transfers.next[left], left_size - 1
                else:
                    smaller, right, right_size = right, transfers.next[right], right_size - 1
                if tail == NONE:
                    head = smaller
                else:
                    transfers.next[tail] = smaller
                tail = smaller
            left = right
        transfers.next[tail] = NONE
        first = head
        if merges <= 1:
            return first
        width *= 2


@compilable
def rank_decides(transfers: Transfers, first: int) -> bool:
    """Return whether ranks order the linked transfers: not all are at first hops of one rank's."""
    other = first
    while other != NONE:
        if transfers.rank[other] != transfers.rank[first] or transfers.hop[other] != transfers.begin[other]:
            return True
        other = transfers.next[other]
    return False


@compilable
def insert_waiting(transfers: Transfers, state: State, link: int, first: int) -> None:
    """Insert transfers that ask now, in order, into a link's queue, behind those of equal priority."""
    while first != NONE:
        following = transfers.next[first]
        ahead, other = NONE, state.queue[link]
        while other != NONE:
            if transfers.priority[other] > transfers.priority[first]:
                break
            ahead, other = other, transfers.next[other]
        transfers.next[first] = other
        if ahead == NONE:
            state.queue[link] = first
        else:
            transfers.next[ahead] = first
        first = following


@compilable
def sort_ascending(numbers: Array, count: int) -> None:
    """Sort the first `count` numbers in place by heap sort, which needs no other memory."""
    for size in range(2, count + 1):
        child = size - 1
        while child > 0 and numbers[(child - 1) >> 1] < numbers[child]:
            parent = (child - 1) >> 1
            numbers[parent], numbers[child] = numbers[child], numbers[parent]
            child = parent
    # The heap has the largest number on top, which moves behind the numbers that are still in the heap.
    for last in range(count - 1, 0, -1):
        numbers[0], numbers[last] = numbers[last], numbers[0]
        parent = 0
        while 2 * parent + 1 < last:
            child = 2 * parent + 1
            if child + 1 < last and numbers[child + 1] > numbers[child]:
                child += 1
            if numbers[parent] >= numbers[child]:
                break
            numbers[parent], numbers[child] = numbers[child], numbers[parent]
            parent = child
