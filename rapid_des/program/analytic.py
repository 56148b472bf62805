"""Closed forms for a first look: how long collectives and messages last alone, and templates that last so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from rapid_des.arrays import Int64s
from rapid_des.compiling import Kernel
from rapid_des.machine import Machine
from rapid_des.network.collectives.schedule import Schedule
from rapid_des.network.specs import Switching
from rapid_des.program.builders import make_template
from rapid_des.program.edges import Edges
from rapid_des.program.plans import with_switches
from rapid_des.program.program import NONE, Template
from rapid_des.program.services import Sizes, bare_protocol, hop_table
from rapid_des.program.templates import one_transfer, template_of

_LARGE = 64
"""Members of a group from which on what takes no link is one task for all."""
_INTERPRETED = 50_000
"""Tasks up to which the longest chain is walked in Python; above, compiled."""


def alone(schedule: Schedule, machine: Machine, ranks: Sequence[int]) -> int:
    """Return the picoseconds of a collective among `ranks` that all arrive at once, without congestion.

    The longer of the longest chain of transfers at zero load, and the busiest link's service of all that
    crosses it.
    """
    chain, load = chain_and_load(schedule, machine, ranks)
    return max(chain, int(load.max(initial=0)))


def chain_and_load(schedule: Schedule, machine: Machine, ranks: Sequence[int]) -> tuple[int, Int64s]:
    """Return the longest chain of transfers at zero load, and every link's service of all that crosses it."""
    members = with_switches(machine.switch_trees, ranks) if schedule.switches else tuple(ranks)
    crossed = crossings(schedule, machine, members)
    return int(finish_times(schedule, crossed.time).max(initial=0)), crossed.load


@dataclass(frozen=True)
class Crossings:
    """Picoseconds at zero load: each transfer's on its way, of its slowest link, and each link's of all."""

    time: Int64s
    occupancy: Int64s
    load: Int64s


def crossings(schedule: Schedule, machine: Machine, members: Sequence[int]) -> Crossings:
    """Return what a schedule's transfers take; `members` are nodes: GPUs, then switches."""
    sizes = Sizes()
    template = template_of(schedule, sizes, name="")
    if not len(template.pair_source):
        none = np.zeros(len(schedule), np.int64)
        return Crossings(none, none, np.zeros(0, np.int64))
    nodes = np.array(members, np.int64)
    routes = machine.router.routes(
        np.stack((nodes[template.pair_source], nodes[template.pair_destination]), 1)
    )
    switching = uncongested(machine.switching)
    hops, classes = hop_table(machine.fabric, switching, routes, sizes.all())
    return _zero_load(template, hops, routes, classes)


def message_alone(size: int, machine: Machine, source: int, destination: int) -> int:
    """Return the picoseconds of one message between two GPUs at zero load."""
    if source == destination:
        return 0
    return alone(one_transfer(size), machine, (source, destination))


def uncongested(switching: Switching) -> Switching:
    """Return the visits that price a lone message: a fluid flow alone is a cut-through message."""
    if switching.mode != "fluid":
        return switching
    return replace(switching, mode="cut_through", protocol=switching.protocol or bare_protocol())


def _zero_load(template: Template, hops: Any, routes: Any, classes: Any) -> Crossings:
    moves = np.flatnonzero(template.pair >= 0)
    pair, size = template.pair[moves], template.size[moves]
    counts = (routes.starts[1:] - routes.starts[:-1])[pair]
    task = np.repeat(np.arange(len(moves)), counts)
    place = np.arange(len(task)) - np.repeat(np.cumsum(counts) - counts, counts)
    hop = routes.starts[pair][task] + place
    last = place == counts[task] - 1
    row, service = size[task], classes[hop]
    occupancy = hops.occupancy[row, service]
    step = np.where(last, occupancy, hops.head[row, service]) + hops.lag[row, service]
    crossing, slowest = np.zeros((2, len(template)), np.int64)
    np.add.at(crossing, moves[task], step)
    np.maximum.at(slowest, moves[task], occupancy)
    load = np.zeros(int(routes.links.max(initial=0)) + 1, np.int64)
    np.add.at(load, routes.links[hop], occupancy)
    return Crossings(crossing, slowest, load)


@dataclass(frozen=True)
class Turns:
    """The order in which transfers begin, the port through which each goes, and for how long it takes it."""

    order: Int64s
    port: Int64s
    taken: Int64s


def finish_times(schedule: Schedule, crossing: Int64s, turns: Turns | None = None) -> Int64s:
    """Return when each transfer has arrived, given how long each takes; all members arrive at 0.

    With `turns` a transfer begins when its port is free of those before it, too.
    """
    walk = _walk if len(schedule) <= _INTERPRETED else _compiled_walk
    done = np.zeros(len(schedule), np.int64)
    if turns is None:
        turns = Turns(np.arange(len(schedule)), done, done)
    free = np.zeros(int(turns.port.max(initial=0)) + 1, np.int64)
    columns = schedule.dependency_starts, schedule.dependencies, crossing
    walk(*columns, turns.order, turns.port, turns.taken, free, done)
    return done


def _walk(  # noqa: PLR0913 - columns, as kernels take them
    starts: Any, awaited: Any, crossing: Any, order: Any, port: Any, taken: Any, free: Any, done: Any
) -> None:
    for task in order:
        ready = 0
        for place in range(starts[task], starts[task + 1]):
            ready = max(ready, done[awaited[place]])
        if taken[task]:
            ready = max(ready, free[port[task]])
            free[port[task]] = ready + taken[task]
        done[task] = ready + crossing[task]


_compiled_walk = Kernel(_walk, [Path(__file__)])


def fixed_template(members: int, duration: int, sizes: Sizes, *, name: str) -> Template:
    """Return a collective that takes no link: all members are done `duration` after the last arrived.

    Every member of a small group has a task of its own, so that none stands out where runs are folded.
    """
    tasks, every = (members if members <= _LARGE else 1), np.arange(members)
    task, member = np.divmod(np.arange(tasks * members), members)
    lag = np.full(members, duration, np.int64)
    own = Edges(every % tasks, tasks + every, lag)
    return _linkless((members, tasks), own, Edges(member, task), sizes, name)


def fixed_message(duration: int, sizes: Sizes) -> Template:
    """Return a message that takes no link: it arrives `duration` after it was sent."""
    ends = np.array([0, 0]), np.array([1, 2]), np.full(2, duration, np.int64)
    return _linkless((2, 1), Edges(*ends), Edges(np.array([0, 1]), np.array([0, 2])), sizes, "a message")


def _linkless(count: tuple[int, int], edges: Edges, arrivals: Edges, sizes: Sizes, name: str) -> Template:
    members, tasks = count
    nobody, row = np.zeros(0, np.int32), np.full(tasks, sizes.row(0), np.int32)
    pairs = np.full(tasks, NONE, np.int32), nobody, nobody
    return make_template(
        members, (np.arange(tasks, dtype=np.int32), row), pairs, edges=edges, arrivals=arrivals, name=name
    )
