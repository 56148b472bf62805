"""Settings that changed nothing: each is left out in turn, and the inputs of the run are compared.

Nothing is simulated. A job is priced again, and its traces, memory and figures are compared; if these are
equal, the lowered programs on the two machines are compared. This module lists the keys of a machine file
that no message of the job depends on (servers, algorithms of collectives that it does not run).
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
from rapid_des.network.dimensions import Hypercube, HyperX
from rapid_des.network.faults import drawn_names, placed_in_time
from rapid_des.program.collectives.library import libraries_of
from rapid_des.program.lowering import Lowered, lower
from rapid_des.program.program import Program
from rapid_des.program.services import no_hops
from rapid_des.units import PS_PER_S
from rapid_des.values import fields, is_value, replace

Subject = tuple[Job | None, Machine]
"""A job on a machine, or a machine alone: traces, whose durations are stated, or a fabric."""

MOST_GPUS = 1 << 14
"""The largest number of GPUs for which a job is priced again for every setting."""
MOST_LOWERED = 1 << 11
"""The largest number of ranks for which traces are lowered again for every setting: 2 s each."""
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
    """Return a line for every setting (`root.key=value`) that does not change the run.

    `opened` reads the subject's files with some settings; `subject` is the result with all settings. `traces`
    are replayed on a machine without a job; `analytic` says that the mode uses closed forms.
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
    """Return why a setting changes nothing, given the subject with and without it; empty if it does."""
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
"""The length of a shorter step, in pipeline depths or groups of micro-batches."""


def _shorter(job: Job) -> Job:
    """Return a training job with fewer micro-batches, whose items are of the same kinds.

    A setting that does not affect the long step does not affect the shorter one either, and the reverse holds
    if the shorter one is `_DEEP` times as long as the pipeline is deep.
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
    """Return the figures of a job in a report besides its step time."""
    precision, device = job.spec.precision, machine.device.spec
    peak = device.tensor_peak.get(precision.gemm or precision.activations)
    energy = (device.energy, device.idle_power, device.power)
    around = (machine.spec.host_power, *(getattr(each, "energy", None) for each in machine.spec.fabric))
    known = (job.tokens, job.model_flops, peak, None if None in energy[:2] else (energy, around))
    places = job.spec.parallelism.placement  # GPUs of ranks, which priced traces do not have
    return memory(job), known, device.name, device.hbm.capacity, machine.name, places


def _same_prices(trace: JobTrace, other: JobTrace) -> bool:
    """Return whether two jobs have the same traces with the same durations."""
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


def _same_tables(first: NodeTable, second: NodeTable) -> bool:
    return all(_same(getattr(first, name), getattr(second, name)) for name in fields(NodeTable))


def _same_fabric(machine: Machine, other: Machine, traces: TraceSet | None) -> bool:
    """Return whether messages (of some traces; any, if None) take the same time on two machines."""
    if machine.healthy != other.healthy or machine.faults != other.faults or machine.dead != other.dead:
        return False
    rest = (_relevant_keys(each, traces) for each in (machine, other))
    return next(rest) == next(rest)


def _relevant_keys(machine: Machine, traces: TraceSet | None) -> tuple[object, ...]:
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
    shares = traces is not None and spec.collectives.contention and any(map(_states_bounds, traces.ranks))
    sharing = machine.device if shares else None  # what kernels share with collectives
    return routing, spec.switching, spec.links, served, libraries, servers, sharing


def _states_bounds(trace: RankTrace) -> bool:
    """Return whether kernels state what bounds them; collectives do not slow other kernels."""
    return bool((trace.nodes.bound != UNSTATED).any())


def _operations(traces: TraceSet | None) -> list[str]:
    """Return the collectives of some traces; many ranks share a table."""
    kinds, last = set[int](), None
    for trace in () if traces is None else traces.ranks:
        if trace.nodes is not last:
            last = trace.nodes
            kinds.update(np.unique(last.collective[last.kind == NodeKind.COLLECTIVE]).tolist())
    return [CollectiveType(kind).name.lower() for kind in sorted(kinds)]


_FOR_PEOPLE = {"alike", "labels", "name"}
"""Fields that no engine reads."""


def _run_alike(
    machine: Machine, other: Machine, traces: TraceSet, cache: BoundedCache, *, analytic: bool
) -> bool:
    """Return whether traces run equally on two machines: their lowered programs are equal.

    `analytic` lowers for the mode of closed forms. Timed faults count as a difference if they hit a link or a
    rank that the traces use. Raises the errors of lowering.
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
    """Return whether timed faults ever hit a link or a rank of the program."""
    faults = placed_in_time(_timed(machine), PS_PER_S)  # when does not matter here, but what
    ranks = lowered.traces.ranks
    program = with_timetables(lowered, machine, faults, 1, lambda position, _: ranks[position].nodes.duration)
    used = set(np.unique(program.route_links).tolist())
    return bool(program.visit_timetables or used & program.link_timetables.keys())


def _as_used(program: Program) -> Program:
    """Return the program with only the links that it uses, renumbered in their order."""
    used, numbers = np.unique(program.route_links, return_inverse=True)
    fluid = program.fluid
    if fluid is not None:
        fluid = replace(fluid, capacity=fluid.capacity[used])
    hops = program.hops if len(used) else no_hops(())
    return replace(program, route_links=numbers.astype(np.int32), links=len(used), fluid=fluid, hops=hops)


def _same(first: Any, second: Any) -> bool:
    """Return whether two values have equal contents."""
    if first is second:
        return True
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, second))
    if type(first) is not type(second):
        return False
    if is_value(first) and not isinstance(first, Spec):
        names = (name for name in fields(first) if name not in _FOR_PEOPLE)
        return all(_same(getattr(first, name), getattr(second, name)) for name in names)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(
            _same(value, second[key]) for key, value in first.items()
        )
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second)
