"""One fault scenario against the run without it: how much slower, and who waits for what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rapid_des.modes.flattened import Run
from rapid_des.program.program import VisitKind
from rapid_des.report.result import Result
from rapid_des.units import seconds

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Change:
    """A time before and after, picoseconds summed over whatever the row stands for."""

    name: str
    healthy: int
    faulty: int

    @property
    def added(self) -> int:
        """How much longer it is with the faults."""
        return self.faulty - self.healthy

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {"name": self.name, "healthy_s": seconds(self.healthy), "faulty_s": seconds(self.faulty)}


@dataclass(frozen=True)
class Scenario:
    """A step with faults beside the same step without; rows with the largest change first."""

    healthy: Result
    faulty: Result
    kinds: tuple[Change, ...]
    """Parts of the critical rank's time."""
    collectives: tuple[Change, ...]
    """From the last member's arrival to the end, over all members; by stream and collective."""
    links: tuple[Change, ...]
    """Time that transfers waited for a link."""
    busy: tuple[Change, ...]
    """Time that a link served."""
    ranks: tuple[Change, ...]
    """Time that a rank waited for the other members of its collectives and messages."""

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
            **{
                name: [row.as_json() for row in getattr(self, name)]
                for name in ("kinds", "collectives", "links", "busy", "ranks")
            },
        }


def compared(healthy: Result, faulty: Result) -> Scenario:
    """Return what changed from one result to the other; without a flattened run only the critical rank's."""
    before, after = healthy.run, faulty.run
    kinds = _changes(
        {part: int(time) for part, time in healthy.breakdown.items()},
        {part: int(time) for part, time in faulty.breakdown.items()},
    )
    if before is None or after is None:
        return Scenario(healthy, faulty, kinds, (), (), (), ())
    return Scenario(
        healthy,
        faulty,
        kinds,
        collectives=_changes(_collectives(before), _collectives(after)),
        links=_changes(_links(before, "link_wait"), _links(after, "link_wait")),
        busy=_changes(_links(before, "link_busy"), _links(after, "link_busy")),
        ranks=_changes(_ranks(before), _ranks(after)),
    )


def _changes(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[Change, ...]:
    """Return the rows that changed, the largest growth first, then by name as listed."""
    rows = [Change(name, before.get(name, 0), after.get(name, 0)) for name in {**before, **after}]
    return tuple(sorted((row for row in rows if row.added), key=lambda row: -row.added))


def _collectives(run: Run) -> dict[str, int]:
    program, records = run.lowered.program, run.execution.records
    offsets, found = program.visits().tolist(), dict[str, int]()
    for binding, first, last in zip(program.bindings, offsets, offsets[1:], strict=False):
        table = program.programs[binding.program]
        own = np.flatnonzero(table.kind == VisitKind.MEMBER)
        taken = np.maximum(records.finish - records.met, 0)[first:last][own]
        rows = np.stack((binding.groups[table.slot[own]], table.template[own]), 1).astype(np.int64)
        for (group, template), spent in zip(*_sums(rows, taken), strict=True):
            label = program.labels[program.groups[group].label]
            name = f"{label}: {program.templates[template].name}"
            found[name] = found.get(name, 0) + spent
    return found


def _sums(rows: Int64s, values: Int64s) -> tuple[list[list[int]], list[int]]:
    keys, places = np.unique(rows, axis=0, return_inverse=True)
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, places.reshape(-1), values)
    return keys.tolist(), sums.tolist()


def _links(run: Run, column: str) -> dict[str, int]:
    times = getattr(run.execution.records, column).sum(axis=1)
    return {run.machine.fabric.link_name(int(link)): int(times[link]) for link in np.flatnonzero(times)}


def _ranks(run: Run) -> dict[str, int]:
    program, records = run.lowered.program, run.execution.records
    offsets, found = program.visits().tolist(), {}
    for binding, first in zip(program.bindings, offsets, strict=False):
        own = np.flatnonzero(program.programs[binding.program].kind == VisitKind.MEMBER) + first
        found[f"rank {binding.rank}"] = int((records.met - records.start)[own].sum())
    return found
