"""What slow links reach, and what need not be worked out again for links that they do not.

Constant faults that leave all links alive change no route and no plan of a collective: of a program they
change the services of messages, of groups the keys of those whose routes they stand on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np

from rapid_des.arrays import Int64s, digest
from rapid_des.bounded_cache import BoundedCache
from rapid_des.machine import Machine
from rapid_des.network.fabric import Routes
from rapid_des.program.lowering import Lowered
from rapid_des.program.routes import COMPARED, Reach, compared_pairs, signatures
from rapid_des.program.services import hop_table

Rings = Sequence[Int64s]
"""Rings of ranks: tables of rings of one length, a row each."""


def basis_of(machine: Machine, members: int, cache: BoundedCache) -> tuple[Hashable, ...]:
    """Return what of a machine a block on `members` GPUs runs by, besides its routes and the GPUs' paces.

    Who plans collectives knows of no fault, unless links are dead.
    """
    if not keeps_routes(machine) or members > COMPARED:
        return (machine,)
    return healthy_of(machine, cache), int(machine.fabric.bandwidth.max(initial=0))


def keeps_routes(machine: Machine) -> bool:
    """Whether messages take the routes of the healthy machine, each for itself."""
    return not (machine.dead or machine.in_switches or machine.switching.spray is not None)


def healthy_of(machine: Machine, cache: BoundedCache) -> Machine:
    """Return the machine without its faults, the same object for all that are equal."""
    healthy = machine.unfaulted
    return cache.get_or_make(("machine", healthy), lambda: healthy)


def _changed(machine: Machine) -> Int64s:
    """Return the links that constant faults have slowed."""
    fabric, healthy = machine.fabric, machine.healthy
    return np.flatnonzero((fabric.bandwidth != healthy.bandwidth) | (fabric.latency != healthy.latency))


def group_keys(machine: Machine, groups: Sequence[tuple[int, ...]], cache: BoundedCache) -> list[bytes]:
    """Return the key of each group as `signatures` does; groups that no fault slows keep that of health."""
    if not keeps_routes(machine) or not machine.faults:
        return signatures(machine, groups)

    def make() -> tuple[list[bytes], Reach]:
        return signatures(healthy, groups), Reach.of(healthy, list(compared_pairs(groups)))

    healthy = healthy_of(machine, cache)
    key = ("signatures", healthy, tuple(groups))
    keys, reach = cache.get_or_make(key, make, weight=lambda made: 64 * len(groups) + made[1].links.nbytes)
    keys = list(keys)
    for group in reach.users_of(_changed(machine)):
        (keys[group],) = signatures(machine, [groups[group]])
    return keys


def places_reached(machine: Machine, places: Sequence[Rings], cache: BoundedCache) -> Sequence[int]:
    """Return the places on whose way faults are, or all where that would have to be looked for."""
    if not keeps_routes(machine):
        return range(len(places))

    def make() -> Reach:
        pairs = [[compared_pairs(table.tolist()).reshape(-1, 2) for table in lines] for lines in places]
        return Reach.of(healthy, [np.concatenate([np.zeros((0, 2), np.int64), *lines]) for lines in pairs])

    healthy = healthy_of(machine, cache)
    key = ("reach", healthy, digest(*(table for lines in places for table in lines)), len(places))
    return cache.get_or_make(key, make, weight=lambda reach: reach.links.nbytes).users_of(_changed(machine))


def in_health(
    machine: Machine, cache: BoundedCache, key: Hashable, make: Callable[[Machine], Lowered], weight: int
) -> Lowered:
    """Return what `make` lowers on the machine without its faults, once.

    `key` is what the program follows from besides the machine, `weight` about how many bytes it takes.
    """
    healthy = healthy_of(machine, cache)
    whole = ("lowered", healthy, key)
    return cache.get_or_make(whole, lambda: make(healthy), weight=lambda _: weight)


def slowed(lowered: Lowered, machine: Machine, make: Callable[[Machine], Lowered]) -> Lowered:
    """Return what `make` lowers on a machine with constant faults, given the same without them."""
    if not _follows_from_rates(lowered, machine):
        return make(machine)
    program, sizes = lowered.program, lowered.sizes
    routes = Routes(program.route_starts, program.route_links.astype(np.int64))
    services = machine.fabric, machine.switching, routes, sizes.all()
    hops, classes = hop_table(*services, whole=sizes.whole())
    return replace(lowered, program=replace(program, hops=hops, route_class=classes))


def _follows_from_rates(lowered: Lowered, machine: Machine) -> bool:
    """Whether a program on slower links differs by the services of messages alone."""
    switching, program = machine.switching, lowered.program
    plain = switching.mode != "fluid" and switching.congestion is None and program.delays is None
    fastest = machine.fabric.bandwidth.max(initial=0) == machine.healthy.bandwidth.max(initial=0)
    return bool(plain and fastest and lowered.replicas is None and program.links == len(machine.fabric))
