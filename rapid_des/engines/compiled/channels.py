"""R7 in the compiled engine: the messages from one member of a collective to another go in order."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.calendar import push
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.pools import Pools
from rapid_des.engines.compiled.work import FLOW, FLOW_JOINS


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
