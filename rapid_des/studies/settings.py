"""Settings that changed nothing: each is left out in turn, and what a run is made of is compared.

Nothing is simulated: a job is priced again, and its traces, memory and figures compared; where these are the
same, the programs that they become on the two machines are. What of a machine file no message of the job
notices (servers, algorithms of collectives that it does not run) is listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, NodeTable, RankTrace, TraceSet
from rapid_des.config import Spec
from rapid_des.errors import RapidDesError
from rapid_des.frontend import Job, JobTrace, memory
from rapid_des.machine import Machine
from rapid_des.modes.pricing import price
from rapid_des.modes.timed_faults import with_timetables
from rapid_des.network.faults import drawn_names, placed_in_time
from rapid_des.network.specs import Hypercube, HyperX
from rapid_des.program.collectives.library import libraries_of
from rapid_des.program.lowering import Lowered, lower
from rapid_des.program.program import Program
from rapid_des.program.services import no_hops
from rapid_des.units import PS_PER_S
from rapid_des.values import fields, is_value, replace

Subject = tuple[Job | None, Machine]
"""A job on a machine, or a machine alone: traces, whose durations are stated, or a fabric."""

MOST_GPUS = 1 << 14
"""GPUs of a job up to which it is priced again for every setting."""
MOST_LOWERED = 1 << 11
"""Ranks of traces up to which they are lowered again for every setting, which takes 2 s then."""
_ALREADY = "that is what stands there already"
_NOTHING = "nothing in this run depends on it"


def idle_settings(
    settings: Sequence[str],
    opened: Callable[[Sequence[str]], Subject],
    subject: Subject,
    *,
    traces: TraceSet | None = None,
    analytic: bool = False,
) -> tuple[str, ...]:
    """Return a line for every setting (`root.key=value`) that changes nothing of what is run.

    `opened` reads the subject's files with some settings; `subject` is what it returns with all. `traces` are
    those that are replayed on a machine alone; `analytic` tells that the mode is of closed forms.
    """
    job, machine = subject
    if not settings or max(machine.fabric.gpus, job.gpus if job else 0) > MOST_GPUS:
        return ()
    cache, lines = BoundedCache(), list[str]()
    for number, setting in enumerate(settings):
        try:
            other = opened([*settings[:number], *settings[number + 1 :]])
            why = _why_idle(subject, other, traces, cache, analytic=analytic)
        except RapidDesError:  # without it there is no run at all
            continue
        if why:
            lines.append(f"--set {setting}: {why}")
    return tuple(lines)


def _why_idle(
    subject: Subject, other: Subject, traces: TraceSet | None, cache: BoundedCache, *, analytic: bool
) -> str:
    """Return why a setting changes nothing, given the subject with it and without; empty if it does."""
    (job, machine), (other_job, other_machine) = subject, other
    if job == other_job and machine == other_machine and machine.spec == other_machine.spec:
        return _ALREADY
    if job is not None and other_job is not None:
        if _figures(job, machine) != _figures(other_job, other_machine):
            return ""
        short = [_shorter(each_job) for each_job in (job, other_job)]
        trace, other_trace = (
            price(short[0], machine, cache=cache),
            price(short[1], other_machine, cache=cache),
        )
        if not _same_prices(trace, other_trace):
            return ""
        traces = trace.traces
    elif machine.slowed and machine.device != other_machine.device:
        return ""
    if _same_fabric(machine, other_machine, traces):
        return _NOTHING
    if traces is None or len(traces.ranks) > MOST_LOWERED:
        return ""
    return _NOTHING if _run_alike(machine, other_machine, traces, cache, analytic=analytic) else ""


_DEEP = 2
"""How many times the pipeline's depth, or a group of micro-batches, a shorter step is long."""


def _shorter(job: Job) -> Job:
    """Return a training job with fewer micro-batches, all of whose kinds of items the long one repeats.

    What a long step does not notice, a shorter one of as many times its pipeline's depth does not either.
    """
    if job.spec.training is None:
        return job
    shape, count = job.shape, job.micro_batches
    least = _DEEP * max(shape.stages * shape.chunks, shape.in_group)
    fewer = least + (count - least) % (2 * shape.in_group)
    if fewer >= count or job.schedule.refusal(shape._replace(micro_batches=fewer)) is not None:
        return job
    batch = job.training.global_batch // count * fewer
    training = structs.replace(job.training, global_batch=batch)
    return replace(job, spec=structs.replace(job.spec, training=training))


def _figures(job: Job, machine: Machine) -> tuple[object, ...]:
    """Return what a report says of a job besides its step."""
    precision, device = job.spec.precision, machine.device.spec
    peak = device.tensor_peak.get(precision.gemm or precision.activations)
    energy = (device.energy, device.idle_power, device.power)
    known = (job.tokens, job.model_flops, peak, None if None in energy[:2] else energy)
    return memory(job), known, device.name, device.hbm.capacity, machine.name


def _same_prices(trace: JobTrace, other: JobTrace) -> bool:
    """Tell whether two jobs have the same traces, at the same prices."""
    mine, theirs = trace.traces, other.traces
    named = (trace.operators, trace.segments, mine.groups) == (other.operators, other.segments, theirs.groups)
    if not named or len(mine.ranks) != len(theirs.ranks):
        return False
    tables: list[tuple[NodeTable, NodeTable]] = []
    for first, second in zip(mine.ranks, theirs.ranks, strict=True):
        if (first.rank, first.groups, first.peers) != (second.rank, second.groups, second.peers):
            return False
        if not any(first.nodes is known and second.nodes is beside for known, beside in tables):
            tables.append((first.nodes, second.nodes))
    return all(_same_tables(first, second) for first, second in tables)


def _same_tables(first: NodeTable, two: NodeTable) -> bool:
    return all(_same(getattr(first, name), getattr(two, name)) for name in fields(NodeTable))


def _same_fabric(machine: Machine, other: Machine, traces: TraceSet | None) -> bool:
    """Tell whether messages (of some traces; any, if None) fare alike on two machines."""
    if machine.healthy != other.healthy or machine.faults != other.faults or machine.dead != other.dead:
        return False
    rest = (_without_what_is_not_read(each, traces) for each in (machine, other))
    return next(rest) == next(rest)


def _without_what_is_not_read(machine: Machine, traces: TraceSet | None) -> tuple[object, ...]:
    spec, fabric = machine.spec, machine.healthy
    routing = spec.routing
    if len(fabric.axes) == 1 and not isinstance(spec.fabric[0], Hypercube | HyperX):  # which have inner axes
        routing = structs.replace(routing, order="innermost_first")
    if fabric.nodes == fabric.gpus + fabric.nics:
        routing = structs.replace(routing, ecmp="hash")
    named = traces is not None and any(fault.node is not None for fault in machine.faults)
    operations = _operations(traces) or spec.collectives.operations
    served = tuple((name, spec.collectives.choice(name)) for name in operations)
    servers = spec.gpus_per_node if named or traces is None else None
    libraries = spec.collectives if traces is None else libraries_of(traces, machine)
    shares = traces is not None and spec.collectives.contention and any(map(_tells_bounds, traces.ranks))
    sharing = machine.device if shares else None  # what kernels share with collectives
    return routing, spec.switching, spec.links, served, libraries, servers, sharing


def _tells_bounds(trace: RankTrace) -> bool:
    """Tell whether kernels say what bounds them; others are not slowed by what runs beside them."""
    return bool((trace.nodes.bound != UNSTATED).any())


def _operations(traces: TraceSet | None) -> list[str]:
    """Return the collectives of some traces, of which many ranks share a table."""
    kinds, last = set[int](), None
    for trace in () if traces is None else traces.ranks:
        if trace.nodes is not last:
            last = trace.nodes
            kinds.update(np.unique(last.collective[last.kind == NodeKind.COLLECTIVE]).tolist())
    return [CollectiveType(kind).name.lower() for kind in sorted(kinds)]


_FOR_PEOPLE = {"alike", "labels", "name"}
"""Fields that no engine reads, and the object by which templates know their like."""


def _run_alike(
    machine: Machine, other: Machine, traces: TraceSet, cache: BoundedCache, *, analytic: bool = False
) -> bool:
    """Tell whether traces at their prices take the same course on two machines, whatever else these have.

    `analytic`: in the mode of closed forms. A timed fault counts as a difference as soon as it hits anything
    that the traces use. Raises what lowering raises.
    """
    if (machine.name, _drawn(machine)) != (other.name, _drawn(other)):
        return False
    before, after = (_lowered(traces, each, cache, analytic=analytic) for each in (machine, other))
    if not _same(_as_used(before.program), _as_used(after.program)):
        return False
    hit = any(_hit(*pair) for pair in ((before, machine), (after, other)))
    return not hit or _timed(machine) == _timed(other)


def _lowered(traces: TraceSet, machine: Machine, cache: BoundedCache, *, analytic: bool) -> Lowered:
    def make() -> Lowered:
        return lower(traces, machine, analytic=analytic, cache=cache)

    key = ("lowered", machine, traces, analytic)
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


def _same(first: Any, two: Any) -> bool:
    """Tell whether two values have equal contents."""
    if first is two:
        return True
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, two))
    if type(first) is not type(two):
        return False
    if is_value(first) and not isinstance(first, Spec):
        names = (name for name in fields(first) if name not in _FOR_PEOPLE)
        return all(_same(getattr(first, name), getattr(two, name)) for name in names)
    if isinstance(first, dict):
        return first.keys() == two.keys() and all(_same(value, two[key]) for key, value in first.items())
    if isinstance(first, tuple | list):
        return len(first) == len(two) and all(map(_same, first, two))
    return bool(first == two)
