"""What a failure does to the run: one function for each effect that a reliability file names.

stops: the job stands still until it is restarted. hangs: likewise, but only a time-out notices it.
corrupts: training goes on until the detection, and all since the failure is void. slows: steps take longer
until the part recovers or is replaced. pauses: a planned stop with a checkpoint before it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, TypeAlias

import simpy
from msgspec import Struct, field

from rapid_des.runs.failures import Draws, Failure
from rapid_des.runs.steps import CUT, State
from rapid_des.runs.treatment import RunPlan, Treatment

Process: TypeAlias = Generator[simpy.Event, Any, None]


class Incident(Struct):
    """A failure, and the times that it cost in picoseconds."""

    at: int
    name: str
    part: int
    times: dict[str, int] = field(default_factory=dict)
    """The times of the run's standstill and the lost work by cause; empty: it joined the one before."""


class Struck(Struct, frozen=True):
    """A failure that the job must treat."""

    failure: Failure
    treatment: Treatment
    incident: Incident
    since: int | None = None
    """The time since which all work is void; None: none is, beyond what no checkpoint holds."""


class RunClock(Protocol):
    """What effects ask of the clock of a run."""

    plan: RunPlan
    env: simpy.Environment

    @property
    def state(self) -> State:
        """The parts that are slow."""

    def change(self, state: State) -> None:
        """State which parts are slow from the next step on."""

    def stop(self, struck: Struck) -> None:
        """Stop the job, or join what it is stopped by."""

    def pause(self, struck: Struck) -> None:
        """Stop the job as soon as it trains."""


def stops(clock: RunClock, struck: Struck) -> Process:
    """Stop the job."""
    clock.stop(struck)
    yield from ()


def pauses(clock: RunClock, struck: Struck) -> Process:
    """Stop the job once it trains."""
    clock.pause(struck)
    yield from ()


def corrupts(clock: RunClock, struck: Struck) -> Process:
    """Let the job train on until the detection."""
    yield clock.env.timeout(struck.treatment.detection.at(struck.failure.uniforms[Draws.DETECTION]))
    clock.stop(Struck(struck.failure, struck.treatment, struck.incident, struck.failure.at))


def slows(clock: RunClock, struck: Struck) -> Process:
    """Slow the steps; after the detection the part is replaced if that is not tolerated."""
    failure, treatment = struck.failure, struck.treatment
    part = (failure.fleet, failure.part)
    clock.change(clock.state | {part})
    if clock.plan.steps.of(clock.state) == CUT:
        clock.stop(struck)
        return
    detected = treatment.detection.at(failure.uniforms[Draws.DETECTION])
    lasts = None if treatment.lasts is None else treatment.lasts.at(failure.uniforms[Draws.LASTS])
    if lasts is None or lasts > detected:
        yield clock.env.timeout(detected)
        healthy = clock.plan.course.step
        slower = (clock.plan.steps.of(clock.state) - healthy) / healthy
        if part in clock.state and slower >= clock.plan.tolerated:
            clock.stop(struck)
            return
    if lasts is not None:
        yield clock.env.timeout(failure.at + lasts - clock.env.now)
        clock.change(clock.state - {part})


EFFECTS: Mapping[str, Callable[[RunClock, Struck], Process]] = {
    "stops": stops,
    "hangs": stops,
    "corrupts": corrupts,
    "slows": slows,
    "pauses": pauses,
}
