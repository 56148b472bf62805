"""R5 in the kernel: the k-th use of a slot by each member of a group is one collective, instance k.

The messages from one member of an instance to another go in order (R7).
"""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.calendar import push
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.pools import ARENA, MADE, MEMBERS, Pools, State
from rapid_des.engines.compiled.steps import close_instance, find_instance, use_of
from rapid_des.engines.compiled.work import DISAGREES, FIRE, FLOW, FLOW_JOINS, NONE, NOW, STATUS, add_work


@compilable
def join(  # noqa: PLR0913 - flat arrays
    flat: Flat, state: State, pools: Pools, template: int, key: tuple[int, int, int], use: tuple[int, int]
) -> int:
    """Return the instance of a key (group, number, sub); the first member to arrive opens it.

    `use` holds its first row of routes and its chunk if it is a step of a plan, else NONE. Returns NONE if
    another member issued a different collective; the totals then name both.
    """
    group, number, sub = key
    instance = find_instance(pools.instances, state, group, number, sub)
    if instance == NONE:
        return _open(flat, state, pools, template, key, use)
    if pools.instances.template[instance] != template:
        totals = state.totals
        totals[STATUS], totals[2], totals[3], totals[4] = DISAGREES, group, number, sub
        totals[5], totals[6] = pools.instances.template[instance], template
        return NONE
    return instance


@compilable
def _open(  # noqa: PLR0913 - flat arrays
    flat: Flat, state: State, pools: Pools, template: int, key: tuple[int, int, int], use: tuple[int, int]
) -> int:
    """Open an instance; `room_checks` has made sure that there is room."""
    instances, tasks = pools.instances, flat.tasks
    instance = _take_slot(flat, state, pools, template)
    group, number, sub = key
    instances.group[instance], instances.number[instance], instances.sub[instance] = group, number, sub
    members = tasks.members[template]
    instances.absent[instance], instances.left[instance] = members, tasks.tasks[template] + members
    routes, chunk = use
    instances.chunk[instance] = chunk
    instances.use[instance] = use_of(flat.network, group, template) if chunk == NONE else routes
    instances.next[instance] = state.active[group]
    state.active[group] = instance
    # The arena rows hold what an earlier instance of the template left there.
    base, entry = instances.arena[instance], tasks.first_task[template]
    for task in range(tasks.tasks[template]):
        pools.pending[base + task] = tasks.need[entry + task]
        pools.ready[base + task] = 0
    base, entry = base + tasks.tasks[template], tasks.first_member[template]
    for member in range(members):
        pools.pending[base + member] = tasks.member_need[entry + member]
        pools.ready[base + member] = 0
    return instance


@compilable
def _take_slot(flat: Flat, state: State, pools: Pools, template: int) -> int:
    """Return a free instance of a template, or a new one.

    An instance keeps its arena rows, one for each task and member of the template.
    """
    instances, counts = pools.instances, pools.counts
    # A finished instance leaves an arena range of the right length, so only its own template reuses it.
    instance = state.free[template]
    if instance != NONE:
        state.free[template] = instances.next[instance]
        return instance
    instance, members = counts[MADE], flat.tasks.members[template]
    instances.template[instance] = template
    instances.arena[instance], instances.member[instance] = counts[ARENA], counts[MEMBERS]
    counts[MADE] += 1
    counts[ARENA] += flat.tasks.tasks[template] + members
    counts[MEMBERS] += members
    return instance


@compilable
def count_member(flat: Flat, state: State, pools: Pools, instance: int, meets: bool) -> None:  # noqa: FBT001
    """Count a member that has arrived; the last one fixes the time at which all met, if `meets`."""
    instances = pools.instances
    instances.absent[instance] -= 1
    if instances.absent[instance] > 0 or not meets:
        return
    entry = instances.member[instance]
    for other in range(entry, entry + flat.tasks.members[instances.template[instance]]):
        record = flat.ranks.flat[pools.member_rank[other]] + pools.member_visit[other]
        state.met[record] = state.cursor[NOW]


@compilable
def member_arrives(flat: Flat, state: State, pools: Pools, instance: int, member: int) -> None:
    """Count down the tasks and members that wait for a member's arrival."""
    tasks = flat.tasks
    entry = tasks.first_member[pools.instances.template[instance]] + member
    for edge in range(tasks.arrival_starts[entry], tasks.arrival_starts[entry + 1]):
        _count_down(state, pools, instance, tasks.arrival_target[edge], tasks.arrival_lag[edge])


@compilable
def task_is_injected(  # noqa: PLR0913 - flat arrays
    flat: Flat,
    state: State,
    pools: Pools,
    instance: int,
    task: int,
    delivers: bool,  # noqa: FBT001
) -> None:
    """Count down what waits for a task's injection, and for its delivery if the task crosses no link."""
    tasks = flat.tasks
    entry = tasks.first_task[pools.instances.template[instance]] + task
    for edge in range(tasks.edge_starts[entry], tasks.edge_starts[entry + 1]):
        if delivers or tasks.edge_at_injection[edge]:
            _count_down(state, pools, instance, tasks.edge_target[edge], tasks.edge_lag[edge])
    if delivers:
        close_if_done(state, pools, instance)


@compilable
def task_is_delivered(flat: Flat, state: State, pools: Pools, instance: int, task: int) -> None:
    """Count down the tasks and members that wait for a task's delivery."""
    tasks = flat.tasks
    entry = tasks.first_task[pools.instances.template[instance]] + task
    for edge in range(tasks.edge_starts[entry], tasks.edge_starts[entry + 1]):
        if not tasks.edge_at_injection[edge]:
            _count_down(state, pools, instance, tasks.edge_target[edge], tasks.edge_lag[edge])
    close_if_done(state, pools, instance)


@compilable
def close_if_done(state: State, pools: Pools, instance: int) -> None:
    """Count a task that is delivered or a member that is done; close the instance after the last one."""
    pools.instances.left[instance] -= 1
    if pools.instances.left[instance] == 0:
        close_instance(pools.instances, state, instance)


@compilable
def _count_down(state: State, pools: Pools, instance: int, target: int, lag: int) -> None:
    """Count an edge that has passed to a task or member; the last edge makes it ready (R1)."""
    place, now = pools.instances.arena[instance] + target, state.cursor[NOW]
    left = pools.pending[place] - 1
    if left < 0:
        return  # more predecessors have finished than it needs
    pools.pending[place] = left
    moment = max(pools.ready[place], now + lag)
    pools.ready[place] = moment
    if left > 0:
        return
    if moment == now:  # same instant: no need to go through the calendar
        add_work(state, pools, FIRE, instance, target)
    else:
        push(pools.calendar, moment, FIRE, instance, target)


@compilable
def channel_of(flat: Flat, pools: Pools, flow: int) -> int:
    """Return the arena row of a flow's pair in its instance."""
    instances, transfers, tasks = pools.instances, pools.transfers, flat.tasks
    instance = transfers.instance[flow]
    task = tasks.first_task[instances.template[instance]] + transfers.task[flow]
    return int(instances.arena[instance] + tasks.pair[task])


@compilable
def has_turn(flat: Flat, pools: Pools, flow: int) -> bool:
    """Return whether a flow may join now; if not, it waits behind the others of its channel."""
    channels, following = pools.channels, pools.transfers.next
    channel = channel_of(flat, pools, flow)
    if channels.turn[channel] == 0:
        channels.turn[channel] = flow + 1
    if channels.turn[channel] == flow + 1:
        return True
    # Those that wait form a ring: the last one points to the first, so one column serves both ends.
    last = channels.last[channel] - 1
    if last < 0:
        following[flow] = flow
    else:
        following[flow] = following[last]
        following[last] = flow
    channels.last[channel] = flow + 1
    return False


@compilable
def pass_turn(flat: Flat, pools: Pools, flow: int, now: int) -> None:
    """Let the next flow of a channel join one tick later, if this flow was the channel's first."""
    channels, following = pools.channels, pools.transfers.next
    channel = channel_of(flat, pools, flow)
    if channels.turn[channel] != flow + 1:
        return
    last = channels.last[channel] - 1
    channels.turn[channel] = 0
    if last < 0:
        return
    first = following[last]
    if first == last:
        channels.last[channel] = 0
    else:
        following[last] = following[first]
    channels.turn[channel] = first + 1
    push(pools.calendar, now + 1, FLOW, first, FLOW_JOINS)
