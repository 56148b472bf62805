"""One replication of a run: SimPy processes on a clock of picoseconds.

    failures ──► job: train ──► detection ──► diagnosis ──► spares ──► restart ──► train …
                  ▲   rework of what no checkpoint holds      ▲ repair (a process for each failure)

A failure while the job stands still joins the incident that is being treated. One during a restart ends that
restart and begins an incident of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any, TypeAlias

import simpy
from msgspec import Struct, field

from rapid_des.errors import CannotFinishError
from rapid_des.runs.failures import Failure
from rapid_des.runs.stretch import TrainingStretch
from rapid_des.runs.times import Time
from rapid_des.units import PS_PER_US, LongDuration

Process: TypeAlias = Generator[simpy.Event, Any, None]
_MOST_FRUITLESS = 1000
"""The number of incidents in a row without a new checkpoint after which a run is said never to progress."""


class Treatment(Struct, frozen=True):
    """What a failure of one class leads to."""

    name: str
    detection: Time
    diagnosis: Time
    repair: Time
    nodes: int
    """The number of nodes that are replaced."""


class Tier(Struct, frozen=True):
    """Spare nodes that need equally long to be ready."""

    count: int
    start: Time


class RunPlan(Struct, frozen=True):
    """A run as its clock needs it; times are picoseconds."""

    course: TrainingStretch
    write: int
    """The time from the end of a checkpoint's stall until it can be loaded."""
    horizon: int | None
    """The time at which the run is stopped; None: it ends after its last step."""
    treatments: tuple[Treatment, ...]
    """The treatment of a failure of each class, in the order of the classes."""
    restart: Mapping[str, Time]
    """The phases of a restart by name."""
    tiers: tuple[Tier, ...] = ()
    """The spares in the order in which they are taken: hot, warm, cold; none: one is always at hand."""

    @property
    def causes(self) -> tuple[str, ...]:
        """The names of all causes of a run's wall time."""
        phases = (f"restart_{phase}" for phase in self.restart)
        return ("steps", "checkpoints", "rework", "detection", "diagnosis", "spare_wait", *phases)


class Incident(Struct):
    """A failure, and the times that it cost in picoseconds."""

    at: int
    name: str
    part: int
    times: dict[str, int] = field(default_factory=dict)
    """The times of the run's standstill and the lost work by cause; empty: it joined the one before."""


class Replication(Struct, frozen=True):
    """One run from its start to its end."""

    number: int
    wall: int
    """The duration of the run in picoseconds."""
    steps: int
    """The number of steps whose results are left at the end."""
    times: Mapping[str, int]
    """The wall time by cause in picoseconds; it adds up to `wall`."""
    incidents: tuple[Incident, ...]
    nodes_out: float
    """The mean number of nodes in repair."""
    most_out: int
    """The largest number of nodes in repair at a time."""


def replicate(plan: RunPlan, failures: Iterator[Failure], number: int) -> Replication:
    """Return one replication of a run that these failures meet.

    Raises `CannotFinishError` if it never progresses.
    """
    return _Clock(plan, failures).run(number)


class _Clock:
    """The processes of a replication and what they count."""

    def __init__(self, plan: RunPlan, failures: Iterator[Failure]) -> None:
        self.plan, self.env = plan, simpy.Environment()
        self.times = dict.fromkeys(plan.causes, 0)
        self.incidents: list[Incident] = []
        self.spares = _Spares(self.env, plan.tiers)
        self._failures, self._joined = failures, list[Failure]()
        self._done = self._saved = self._loaded = self._fruitless = 0
        self._unsaved: list[tuple[int, int, int]] = []  # from and to which step, at which duration of a step
        self._partial = 0
        self._job = self._run()
        self._process = self.env.process(self._job)
        self._stoppable = False

    def run(self, number: int) -> Replication:
        """Return what a run from its start to its end counts."""
        self.env.process(self._strike())
        try:
            self.env.run(until=self._process if self.plan.horizon is None else self.plan.horizon)
        except RuntimeError:
            raise CannotFinishError("the run waits for a node that no repair gives back") from None
        self._job.close()  # books the time of what was going on
        self._settle(self._done)
        self.times["steps"] += self._partial
        wall = self._now
        assert sum(self.times.values()) == wall, "every instant has one cause"
        mean, most = self.spares.usage(wall)
        return Replication(number, wall, self._done, self.times, tuple(self.incidents), mean, most)

    @property
    def _now(self) -> int:
        """The time since the start of the run, in picoseconds; every delay is a whole number of them."""
        return int(self.env.now)

    def _run(self) -> Process:
        while True:
            failure = yield from self._train()
            while failure is not None:
                incident = self._opened(failure)
                self._lose(incident)
                treatment = self.plan.treatments[failure.fleet]
                yield from self._spend("detection", treatment.detection.at(failure.uniforms[0]), incident)
                yield from self._spend("diagnosis", treatment.diagnosis.at(failure.uniforms[1]), incident)
                yield from self._replace([failure], incident)
                failure = yield from self._restart(failure, incident)
            if self._done == self.plan.course.last:
                return

    def _train(self) -> Generator[simpy.Event, Any, Failure | None]:
        """Train until the end or a failure, which is returned."""
        course, began, done = self.plan.course, self._now, self._done
        self._stoppable = True
        try:
            if course.last is None:
                yield self.env.event()
            else:
                yield self.env.timeout(course.time_to(done, course.last))
        except simpy.Interrupt as interrupt:
            return _failure(interrupt)
        finally:
            self._stoppable = False
            self._book(done, self._now - began)
        return None

    def _book(self, done: int, elapsed: int) -> None:
        course = self.plan.course
        travelled = course.after(done, elapsed)
        self.times["checkpoints"] += travelled.stalled
        self._partial, self._done = travelled.partial, done + travelled.steps
        self._unsaved.append((done, self._done, course.step))
        self._saved = max(self._saved, course.saved(done, elapsed - self.plan.write))

    def _settle(self, saved: int) -> int:
        """Count steps up to `saved` as done and return the time of the others."""
        lost = 0
        for first, last, step in self._unsaved:
            kept = min(max(saved - first, 0), last - first)
            self.times["steps"] += kept * step
            lost += (last - first - kept) * step
        self._unsaved.clear()
        return lost

    def _lose(self, incident: Incident) -> None:
        """Go back to the last checkpoint; the time since then is rework."""
        fruitful = self._saved > self._loaded
        lost = self._settle(self._saved) + self._partial
        self._fruitless = 0 if fruitful else self._fruitless + 1
        self._partial, self._done, self._loaded = 0, self._saved, self._saved
        self._count("rework", lost, incident)
        if self._fruitless == _MOST_FRUITLESS:
            between = LongDuration(self._now // len(self.incidents) // PS_PER_US)
            raise CannotFinishError(
                f"the run does not progress: {_MOST_FRUITLESS:,} failures in a row, {between} apart on "
                f"average, left no new checkpoint behind step {self._saved:,}"
            )

    def _spend(self, cause: str, duration: int, incident: Incident) -> Process:
        began = self._now
        try:
            yield self.env.timeout(duration)
        finally:
            self._count(cause, self._now - began, incident)

    def _count(self, cause: str, time: int, incident: Incident) -> None:
        self.times[cause] += time
        incident.times[cause] = incident.times.get(cause, 0) + time

    def _replace(self, failed: list[Failure], incident: Incident) -> Process:
        """Wait until other nodes stand in for those of all failures so far."""
        began = self._now
        try:
            failed, self._joined = failed + self._joined, []
            while failed:
                for failure in failed:
                    treatment = self.plan.treatments[failure.fleet]
                    self.spares.release(treatment.nodes, treatment.repair.at(failure.uniforms[2]))
                for failure in failed:
                    for _ in range(self.plan.treatments[failure.fleet].nodes):
                        yield from self.spares.take(failure.uniforms[3])
                failed, self._joined = self._joined, []
        finally:
            self._count("spare_wait", self._now - began, incident)

    def _restart(self, failure: Failure, incident: Incident) -> Generator[simpy.Event, Any, Failure | None]:
        """Go through the phases of a restart; return the failure that ends it before its end."""
        self._stoppable = True
        try:
            for place, (phase, time) in enumerate(self.plan.restart.items()):
                duration = time.at(failure.uniforms[4 + place])
                yield from self._spend(f"restart_{phase}", duration, incident)
        except simpy.Interrupt as interrupt:
            return _failure(interrupt)
        finally:
            self._stoppable = False
        return None

    def _strike(self) -> Process:
        for failure in self._failures:
            yield self.env.timeout(failure.at - self._now)
            if not self._process.is_alive:
                return
            if self._stoppable:
                self._stoppable = False
                self._process.interrupt(failure)
            else:
                self._opened(failure)
                self._joined.append(failure)

    def _opened(self, failure: Failure) -> Incident:
        name = self.plan.treatments[failure.fleet].name
        self.incidents.append(Incident(failure.at, name, failure.part))
        return self.incidents[-1]


def _failure(interrupt: simpy.Interrupt) -> Failure:
    """Return the failure that interrupted the job."""
    assert isinstance(interrupt.cause, Failure), "nothing else interrupts it"
    return interrupt.cause


class _Spares:
    """The nodes that can replace others, and those in repair."""

    def __init__(self, env: simpy.Environment, tiers: tuple[Tier, ...]) -> None:
        self._env, self._tiers = env, tiers
        self._ready = simpy.PriorityStore(env)
        self._ready.items = [tier for tier, nodes in enumerate(tiers) for _ in range(nodes.count)]
        self._out = self._most = self._changed = self._node_time = 0

    def release(self, nodes: int, repair: int) -> None:
        """Send broken nodes to repair."""
        if nodes:
            self._count(nodes)
            self._env.process(self._repaired(nodes, repair))

    def take(self, uniform: float) -> Process:
        """Wait for a spare node and its start."""
        if self._tiers:
            tier = yield self._ready.get()
            yield self._env.timeout(self._tiers[tier].start.at(uniform))

    def usage(self, wall: int) -> tuple[float, int]:
        """Return the mean and the largest number of nodes in repair."""
        self._count(0)
        return self._node_time / max(wall, 1), self._most

    def _repaired(self, nodes: int, repair: int) -> Process:
        yield self._env.timeout(repair)
        self._count(-nodes)
        for _ in range(nodes if self._tiers else 0):
            yield self._ready.put(0)

    def _count(self, nodes: int) -> None:
        now = int(self._env.now)
        self._node_time += self._out * (now - self._changed)
        self._changed = now
        self._out += nodes
        self._most = max(self._most, self._out)
