"""Whether two machines run the same traces alike: by the programs that the traces become on them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import TraceSet
from rapid_des.machine import Machine
from rapid_des.modes.timed_faults import with_timetables
from rapid_des.network.faults import drawn_names, placed_in_time
from rapid_des.program.lowering import Lowered, lower
from rapid_des.program.program import Program
from rapid_des.program.services import no_hops
from rapid_des.units import PS_PER_S

_FOR_PEOPLE = {"alike", "labels", "name"}
"""Fields that no engine reads, and the object by which templates know their like."""


def run_alike(
    machine: Machine, other: Machine, traces: TraceSet, cache: BoundedCache, *, analytic: bool = False
) -> bool:
    """Tell whether traces at their prices take the same course on two machines, whatever else these have.

    `analytic`: in the mode of closed forms. A timed fault counts as a difference as soon as it hits anything
    that the traces use. Raises what lowering raises.
    """
    if (machine.name, _drawn(machine)) != (other.name, _drawn(other)):
        return False
    one, two = (_lowered(traces, each, cache, analytic=analytic) for each in (machine, other))
    if not _same(_as_used(one.program), _as_used(two.program)):
        return False
    return not any(_hit(*pair) for pair in ((one, machine), (two, other))) or _timed(machine) == _timed(other)


def _lowered(traces: TraceSet, machine: Machine, cache: BoundedCache, *, analytic: bool) -> Lowered:
    def make() -> Lowered:
        return lower(traces, machine, analytic=analytic, cache=cache)

    key = ("lowered", machine, id(traces), analytic)
    return cache.get_or_make(key, make, weight=lambda _: 1000 * len(traces.ranks))


def _drawn(machine: Machine) -> tuple[str, ...]:
    return drawn_names(machine.healthy, machine.faults, machine.spec.gpus_per_node)


def _timed(machine: Machine) -> tuple[Any, ...]:
    return tuple(fault for fault in machine.faults if fault.timed)


def _hit(lowered: Lowered, machine: Machine) -> bool:
    """Tell whether timed faults ever hit a link or a rank of the program."""
    faults = placed_in_time(_timed(machine), PS_PER_S)  # when does not matter here, but what
    ranks = lowered.traces.ranks
    program = with_timetables(lowered, machine, faults, 1, lambda position, _: ranks[position].nodes.duration)
    used = set(np.unique(program.route_links).tolist())
    return bool(program.visit_timetables or used & program.link_timetables.keys())


def _as_used(program: Program) -> Program:
    """Return the program with its links numbered among those that it uses, in their order."""
    used, numbers = np.unique(program.route_links, return_inverse=True)
    fluid = program.fluid
    if fluid is not None:
        fluid = replace(fluid, capacity=fluid.capacity[used])
    hops = program.hops if len(used) else no_hops(())
    return replace(program, route_links=numbers.astype(np.int32), links=len(used), fluid=fluid, hops=hops)


def _same(one: Any, two: Any) -> bool:
    """Tell whether two values have equal contents."""
    if one is two:
        return True
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, two))
    if type(one) is not type(two):
        return False
    if is_dataclass(one):
        names = (field.name for field in fields(one) if field.name not in _FOR_PEOPLE)
        return all(_same(getattr(one, name), getattr(two, name)) for name in names)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_same(value, two[key]) for key, value in one.items())
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(map(_same, one, two))
    return bool(one == two)
