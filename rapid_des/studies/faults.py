"""A step with faults compared with the step without them: how much slower it is, and which waits grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import TraceSet
from rapid_des.errors import InputError
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, Run
from rapid_des.network.faults import Fault, drawn_names
from rapid_des.program.program import VisitKind
from rapid_des.report.result import Result
from rapid_des.simulation import replay, simulate
from rapid_des.units import Duration, seconds
from rapid_des.values import replace

Report = Callable[[str], None]


def _ignore_report(_: str) -> None:
    """Take a report and drop it."""


class How(Struct, frozen=True):
    """How a study runs its simulations, and the function that gets a line about each.

    >>> How(mode="hierarchical").symmetry
    True
    """

    mode: str = "flattened"
    engine: EngineChoice = EngineChoice()
    report: Report = _ignore_report
    symmetry: bool = True
    """Whether symmetry and idle links save simulations; if not, every part is simulated."""


class Change(Struct, frozen=True):
    """A time without and with faults, in picoseconds summed over all that the row stands for."""

    name: str
    healthy: int
    faulty: int

    @property
    def added(self) -> int:
        """The picoseconds that the faults add."""
        return self.faulty - self.healthy

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {"name": self.name, "healthy_s": seconds(self.healthy), "faulty_s": seconds(self.faulty)}


class Scenario(Struct, frozen=True):
    """A step with faults beside the same step without; rows with the largest change first.

    `scenario` makes one; times are picoseconds, in `as_json` seconds.

    >>> sorted(Scenario.__match_args__)[:3]
    ['busy', 'collectives', 'drawn']
    """

    healthy: Result
    faulty: Result
    rank: int
    """The rank that is critical with the faults."""
    drawn: tuple[str, ...]
    """The links or GPUs that `random` faults hit, in the order of the faults."""
    faster: str
    """The reason if the faults make the step faster; else empty."""
    kinds: tuple[Change, ...]
    """The parts of the time of `rank`."""
    collectives: tuple[Change, ...] = ()
    """The time from the last member's arrival to the end, summed over members, by stream and collective."""
    links: tuple[Change, ...] = ()
    """The time that transfers waited for each link."""
    busy: tuple[Change, ...] = ()
    """The time that each link served."""
    ranks: tuple[Change, ...] = ()
    """The time that each rank waited for the other members of its collectives and messages."""

    @property
    def slowdown(self) -> float:
        """Step time with the faults over the one without."""
        return self.faulty.step_time / max(self.healthy.step_time, 1)

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "healthy": self.healthy.as_json(),
            "faulty": self.faulty.as_json(),
            "slowdown": self.slowdown,
            "rank": self.rank,
            "drawn": list(self.drawn),
            "faster": self.faster,
            **{
                name: [row.as_json() for row in getattr(self, name)]
                for name in ("kinds", "collectives", "links", "busy", "ranks")
            },
        }


def scenario(
    subject: Job | TraceSet,
    machine: Machine,
    faults: Sequence[Fault],
    how: How = How(),  # noqa: B008 - frozen
) -> Scenario:
    """Return a step with faults on top of the machine's own, beside the step without them.

    Errors as those of `simulate` and `replay`.

    >>> from rapid_des.machine import load_machine
    >>> from rapid_des.network.faults import parse_fault
    >>> from rapid_des.simulation import load_trace
    >>> two_stages, slow = load_trace("workloads/traces/two_stages"), parse_fault("gpu=0 compute=0.5")
    >>> scenario(two_stages, load_machine("dgx_a100"), [slow]).slowdown > 1.4
    True
    """
    cache = BoundedCache()
    how.report("healthy run")
    healthy = step_of(subject, machine, how, cache)
    how.report("run with faults")
    hurt = machine.with_faults(faults)
    faulty = step_of(subject, hurt, how, cache)
    faster = why_faster(healthy, faulty, machine, hurt) if faulty.step_time < healthy.step_time else ""
    drawn = drawn_names(machine.healthy, faults, machine.spec.gpus_per_node)
    return _compared(healthy, faulty, drawn, faster)


def step_of(subject: Job | TraceSet, machine: Machine, how: How, cache: BoundedCache) -> Result:
    """Return the step of a job or of traces on a machine."""
    if isinstance(subject, Job):
        return simulate(subject, machine, mode=how.mode, engine=how.engine, cache=cache)
    if how.mode != "flattened":
        raise InputError(f"mode {how.mode}: traces have no blocks; use mode flattened")
    return replay(subject, machine, engine=how.engine, cache=cache)


def why_faster(healthy: Result, faulty: Result, machine: Machine, hurt: Machine) -> str:
    """Return why a step is faster with faults, though none of them makes a part of the machine faster.

    The reason follows from waits: of the rank that is critical with the faults, and on links where known.
    """
    rank = faulty.critical_rank
    saved = _changes(faulty.breakdown, healthy.rank_breakdown(rank))
    most = saved[0] if saved and saved[0].added > 0 else None
    waits = "" if most is None else f": rank {rank} spends {Duration(most.added)} less on {most.name}"
    if hurt.replans:
        return f"collectives are planned for what survives, and that plan suits this job better{waits}"
    where = _less_waiting(healthy, faulty)
    if hurt.dead != machine.dead or any(fault.down for fault in hurt.faults):
        return f"traffic takes other routes, which here share their links less{waits}{where}"
    return f"slower transfers come to the links that they share at other times (pacing){waits}{where}"


def _less_waiting(healthy: Result, faulty: Result) -> str:
    """Return the link on which transfers wait least compared with before; empty if waits are not known."""
    if healthy.run is None or faulty.run is None:
        return ""
    rows = _changes(_links(faulty.run, "link_wait"), _links(healthy.run, "link_wait"))
    if not rows or rows[0].added <= 0:
        return ""
    return f"; transfers wait {Duration(rows[0].added)} less for {rows[0].name}"


def _compared(healthy: Result, faulty: Result, drawn: tuple[str, ...], faster: str) -> Scenario:
    """Return the changes from one result to the other; block modes give only the parts of one rank's time."""
    rank, before, after = faulty.critical_rank, healthy.run, faulty.run
    compared = Scenario(
        replace(healthy, run=None, blocks=None),
        replace(faulty, run=None, blocks=None),
        rank,
        drawn,
        faster,
        kinds=_changes(healthy.rank_breakdown(rank), faulty.breakdown),
    )
    if before is None or after is None:
        return compared
    return replace(
        compared,
        collectives=_changes(_collectives(before), _collectives(after)),
        links=_changes(_links(before, "link_wait"), _links(after, "link_wait")),
        busy=_changes(_links(before, "link_busy"), _links(after, "link_busy")),
        ranks=_changes(_ranks(before), _ranks(after)),
    )


def _changes(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[Change, ...]:
    """Return the rows that changed, the largest growth first, then by name as listed."""
    rows = [Change(name, int(before.get(name, 0)), int(after.get(name, 0))) for name in {**before, **after}]
    return tuple(sorted((row for row in rows if row.added), key=lambda row: -row.added))


def _collectives(run: Run) -> dict[str, int]:
    program, records = run.lowered.program, run.execution.records
    offsets, totals = program.visits().tolist(), dict[str, int]()
    lasted = np.maximum(records.finish - records.met, 0)
    for binding, first, last in zip(program.bindings, offsets, offsets[1:], strict=False):
        table = program.programs[binding.program]
        members = np.flatnonzero(table.kind == VisitKind.MEMBER)
        rows = np.stack((binding.groups[table.slot[members]], table.template[members]), 1).astype(np.int64)
        for (group, template), spent in zip(*_sums(rows, lasted[first:last][members]), strict=True):
            label = program.labels[program.groups[group].label]
            name = f"{label}: {program.templates[template].name}"
            totals[name] = totals.get(name, 0) + spent
    return totals


def _sums(rows: Int64s, values: Int64s) -> tuple[list[list[int]], list[int]]:
    keys, positions = np.unique(rows, axis=0, return_inverse=True)
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, positions.reshape(-1), values)
    return keys.tolist(), sums.tolist()


def _links(run: Run, column: str) -> dict[str, int]:
    times = getattr(run.execution.records, column).sum(axis=1)
    return {run.machine.fabric.link_name(int(link)): int(times[link]) for link in np.flatnonzero(times)}


def _ranks(run: Run) -> dict[str, int]:
    program, records = run.lowered.program, run.execution.records
    offsets, waits = program.visits().tolist(), records.met - records.start
    members = {
        binding.rank: np.flatnonzero(program.programs[binding.program].kind == VisitKind.MEMBER) + first
        for binding, first in zip(program.bindings, offsets, strict=False)
    }
    return {f"rank {rank}": int(waits[visits].sum()) for rank, visits in members.items()}
