"""One collective by every algorithm that does it: simulated and as estimated, and what `auto` takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from rapid_des.chakra.trace import CollectiveType
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.network.collective_specs import AUTO, Choice
from rapid_des.program.choosing import Planner
from rapid_des.program.plans import Call, geometry
from rapid_des.studies.collective_bench import Question, each_answer, members_of, share_of
from rapid_des.units import seconds


@dataclass(frozen=True)
class Compared:
    """One algorithm at one size."""

    size: int
    """Bytes, as nccl-tests counts them."""
    algorithm: str
    chunks: int
    duration: int
    """Picoseconds, simulated."""
    estimate: float
    """Picoseconds by which `auto` chooses."""
    is_auto: bool
    """Whether `auto` takes it."""
    is_best: bool = False
    """Whether no other is faster."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "size_bytes": self.size,
            "algorithm": self.algorithm,
            "chunks": self.chunks,
            "time_s": seconds(self.duration),
            "estimate_s": seconds(round(self.estimate)),
            "auto": self.is_auto,
            "best": self.is_best,
        }


def each_compared(
    machine: Machine, question: Question, *, engine: str | EngineChoice = "auto"
) -> Iterator[Compared]:
    """Yield every algorithm for all members of the group at every size, the fastest of a size first.

    Of those that go along several dimensions by an algorithm each it has the one that `auto` would take.
    """
    for size in question.sizes:
        rows = list(_at(machine, replace(question, sizes=[size]), engine))
        best = min(row.duration for row in rows)
        for row in sorted(rows, key=lambda row: row.duration):
            yield replace(row, is_best=row.duration == best)


def _at(machine: Machine, question: Question, engine: str | EngineChoice) -> Iterator[Compared]:
    (size,), kind = question.sizes, CollectiveType[question.operation.upper()]
    group = tuple(range(members_of(question, machine)))
    call = Call(kind, share_of(question, size, machine), *geometry(machine, group))
    planner = Planner(machine)
    chosen, times = planner.choice(call, group), planner.times(call, group)
    for choice, estimate in times.items():
        if isinstance(choice.algorithm, str) or choice == chosen:
            stated = choice if isinstance(choice.algorithm, str) else Choice(algorithm=AUTO)
            (row,) = each_answer(_by(machine, question.operation, stated), question, engine=engine)
            yield Compared(
                size=size,
                algorithm=row.algorithm,
                chunks=int(choice.chunks),
                duration=row.duration,
                estimate=estimate,
                is_auto=choice == chosen,
            )


def _by(machine: Machine, operation: str, choice: Choice) -> Machine:
    """Return the machine whose file names an algorithm for an operation."""
    collectives = structs.replace(machine.collectives, **{operation: choice})
    return replace(machine, spec=structs.replace(machine.spec, collectives=collectives))
