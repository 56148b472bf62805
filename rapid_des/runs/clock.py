"""One replication of a run: SimPy processes on a clock of picoseconds.

    failures ──► job: train ──► detection ──► diagnosis ──► spares ──► restart ──► train …
                  ▲   rework of what no checkpoint holds      ▲ repair (a process for each failure)

A failure while the job stands still joins the incident that is being treated. One during a restart ends that
restart and begins an incident of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from typing import Any, TypeAlias

import simpy
from msgspec import Struct, structs

from rapid_des.errors import CannotFinishError
from rapid_des.runs.effects import EFFECTS, Incident, Process, Struck
from rapid_des.runs.failures import Draws, Failure, again
from rapid_des.runs.policies import POLICIES, Restart
from rapid_des.runs.progress import Progress
from rapid_des.runs.spares import Spares
from rapid_des.runs.steps import MISSING, State, StateKey
from rapid_des.runs.stretch import EVERYTHING, NODE, PROCESSES, CheckpointLevel, TrainingStretch
from rapid_des.runs.treatment import NOTHING, RunPlan
from rapid_des.units import PS_PER_US, LongDuration, ceil_divide

Stopped: TypeAlias = Generator[simpy.Event, Any, Struck | None]
_MOST_FRUITLESS = 1000
"""The number of incidents in a row without a new checkpoint after which a run is said never to progress."""
_CHANGE = "other parts are slow"


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
    retired: int = 0
    """The number of nodes that were not repaired again."""
    counts: Mapping[str, int] = {}
    """The number of incidents by class."""
    states: frozenset[StateKey] = frozenset()
    """The states other than the healthy one in which steps were simulated."""
    at_least: int = 0
    """The time of training with more slow parts than are simulated together, in picoseconds; steps then take
    longer than here.
    """
    lacking: int = 0
    """The number of shares of the batch, one for each replica, that the steps lack."""


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
        self.spares = Spares(self.env, plan.tiers, plan.retire_after, plan.spares_unit, plan.crews)
        self.progress = Progress(plan.course.step, plan.replicas.count)
        self.state: State = frozenset()
        self._states = set[StateKey]()
        self._failures, self._joined, self._due = failures, list[Struck](), list[Struck]()
        self._returning = list[Failure]()
        self._policy, self._loads, self._replaced = POLICIES[plan.policy](), True, False
        self._missing, self._back = frozenset[int](), frozenset[int]()
        self._furthest = self._fruitless = self._at_least = 0
        self._level: CheckpointLevel | None = None
        self._stoppable = self._training = False
        self._job = self._run()
        self._process = self.env.process(self._job)

    def run(self, number: int) -> Replication:
        """Return what a run from its start to its end counts."""
        self.env.process(self._strike())
        self.env.run(until=self._process if self.plan.horizon is None else self.plan.horizon)
        self._job.close()  # books the time of what was going on
        healthy, beyond = self.progress.useful()
        self.times["steps"] += healthy
        for cause, time in beyond.items():
            self.times[cause] += time
        wall = self._now
        assert sum(self.times.values()) == wall, "every instant has one cause"
        mean, most = self.spares.usage(wall)
        return Replication(
            number,
            wall,
            self.progress.done,
            self.times,
            tuple(self.incidents),
            mean,
            most,
            self.spares.retired,
            Counter(incident.name for incident in self.incidents),
            frozenset(self._states),
            self._at_least,
            self.progress.lacking,
        )

    def stop(self, struck: Struck) -> None:
        """Stop the job, or join what it is stopped by."""
        if self._stoppable:
            self._stoppable = self._training = False
            self._process.interrupt(struck)
        elif self._process.is_alive:
            self._joined.append(struck)

    def pause(self, struck: Struck) -> None:
        """Stop the job as soon as it trains."""
        if self._training:
            self.stop(struck)
        else:
            self._due.append(struck)

    def change(self, state: State) -> None:
        """State which parts are slow from the next step on."""
        if state != self.state:
            self.state = state
            if self._training:
                self._process.interrupt(_CHANGE)

    @property
    def _now(self) -> int:
        """The time since the start of the run, in picoseconds; every delay is a whole number of them."""
        return int(self.env.now)

    def _run(self) -> Process:
        while True:
            struck = yield from self._train()
            while struck is not None:
                paused = struck.treatment.effect == "pauses"
                yield from self._pause(struck) if paused else self._recover(struck)
                struck = yield from self._restart(struck)
            if self.progress.done == self._last():
                return

    def _train(self) -> Stopped:
        """Train until the end or until something stops the job, which is returned."""
        while self._returning:
            self._open(again(self._returning.pop(), self._now))
        while self._due:
            due = self._due.pop(0)
            if self._back or due.treatment.lasts is not None:  # else the job has grown meanwhile
                return due
        while self.progress.done != self._last():
            struck = yield from self._train_at_one_speed()
            if struck is not None:
                return struck
        return None

    def _last(self, lacking: int = 0) -> int | None:
        """Return the number of the run's last step if all steps from now on lack a number of shares."""
        if self.plan.shares is None:
            return self.plan.course.last
        done, count = self.progress.done, self.plan.replicas.count
        left = max(self.plan.shares - done * count + self.progress.lacking, 0)
        return done + ceil_divide(left, count - lacking)

    def _course(self) -> TrainingStretch:
        healthy, missing = self.plan.course, self.plan.replicas.hit(self._missing)
        lacking = missing if self.plan.batch == "smaller" else 0
        last = self._last(lacking)
        if not self.state:
            return healthy if last == healthy.last else structs.replace(healthy, last=last)
        cause, step = "fewer_replicas" if missing else "slow_steps", self.plan.steps.of(self.state)
        return structs.replace(healthy, step=step, last=last, lacking=lacking, cause=cause)

    def _train_at_one_speed(self) -> Stopped:
        course, began, done = self._course(), self._now, self.progress.done
        simulated = self.plan.steps.simulated(self.state) if self.state else frozenset()
        self._states |= simulated
        lasts = None if course.last is None else course.time_to(done, course.last)
        self._stoppable = self._training = True
        try:
            while True:
                try:
                    left = None if lasts is None else began + lasts - self._now
                    yield self.env.event() if left is None else self.env.timeout(left)
                    return None
                except simpy.Interrupt as interrupt:
                    if isinstance(interrupt.cause, Struck):
                        return interrupt.cause
                    elapsed = self._now - began
                    rest = elapsed + course.rest(done, elapsed)
                    lasts = rest if lasts is None else min(rest, lasts)
        finally:
            self._stoppable = self._training = False
            self.times["checkpoints"] += self.progress.book(course, began, self._now)
            if len(simulated) > 1:
                self._at_least += self._now - began

    def _recover(self, struck: Struck) -> Process:
        """Go from a failure to the beginning of a restart."""
        treatment, drawn, incident = struck.treatment, struck.failure.uniforms, struck.incident
        nodes = self._lose(struck)
        self._require_progress()
        if treatment.effect in ("stops", "hangs"):
            cause = "hang" if treatment.effect == "hangs" else "detection"
            yield from self._spend(cause, treatment.detection.at(drawn[Draws.DETECTION]), incident)
        yield from self._spend("diagnosis", treatment.diagnosis.at(drawn[Draws.DIAGNOSIS]), incident)
        yield from self._replace(struck, nodes)

    def _pause(self, struck: Struck) -> Process:
        """Make a checkpoint and stand still for a planned time; the step that was going on is lost."""
        incident, lasts = struck.incident, struck.treatment.lasts or NOTHING
        levels = self.plan.course.levels
        self._count("rework", self.progress.lose(self.progress.done if levels else 0), incident)
        if levels:
            self._level = levels[-1]
            yield from self._spend("checkpoints", self._level.stall + self._level.write, incident)
            self.progress.hold(self.plan.course, self._now)
        yield from self._spend("maintenance", lasts.at(struck.failure.uniforms[Draws.LASTS]), incident)
        yield from self._replace(struck, 0)

    def _lose(self, struck: Struck, before: int = 0) -> int:
        """Go back to the last checkpoint; the time since then is rework. Return how many nodes are out.

        `before` is the number of nodes that are out already.
        """
        nodes = before + struck.treatment.nodes
        needed = PROCESSES if nodes == 0 else NODE if nodes == 1 else EVERYTHING
        since = self._now if struck.since is None else struck.since
        out = self._missing | frozenset(struck.treatment.places(struck.failure.part))
        policy = self._policy if self.plan.replicas.compute_all(out) else Restart()
        saved, self._level, self._loads = policy.kept(self.progress, since, needed)
        self._count("rework", self.progress.lose(saved), struck.incident)
        if self._loads:
            survives = self._level.survives if self._level else EVERYTHING
            self.progress.hold(self.plan.course, self._now, survives)
        return nodes

    def _require_progress(self) -> None:
        """Raise `CannotFinishError` after too many failures without a new checkpoint."""
        fruitful = self.progress.done > self._furthest
        self._fruitless = 0 if fruitful else self._fruitless + 1
        self._furthest = max(self._furthest, self.progress.done)
        if self._fruitless == _MOST_FRUITLESS:
            between = LongDuration(self._now // len(self.incidents) // PS_PER_US)
            raise CannotFinishError(
                f"the run does not progress: {_MOST_FRUITLESS:,} failures in a row, {between} apart on "
                f"average, left no new checkpoint behind step {self._furthest:,}"
            )

    def _spend(self, cause: str, duration: int, incident: Incident) -> Process:
        began = self._now
        try:
            yield self.env.timeout(duration)
        finally:
            self._count(cause, self._now - began, incident)

    def _count(self, cause: str, time: int, incident: Incident) -> None:
        if time:
            self.times[cause] += time
            incident.times[cause] = incident.times.get(cause, 0) + time

    def _replace(self, struck: Struck, nodes: int) -> Process:
        """Wait until other nodes stand in for those of all failures so far."""
        began = self._now
        self._miss(self._missing - self._back)
        self._back = frozenset()
        try:
            treated = [struck]
            while treated := treated + self._joined:
                self._joined = []
                wanted = [(place, each) for each in treated for place in self._released(each)]
                for each in treated:
                    if each is not struck:
                        nodes = self._lose(each, nodes)
                        if self.plan.horizon is None:
                            self._require_progress()
                self._replaced = bool(wanted)
                for place, each in wanted:
                    if self._shrinks(place):
                        self._miss(self._missing | {place})
                        self.env.process(self._grow(place, each))
                    elif self.plan.horizon is None and self.spares.never(place):
                        raise CannotFinishError("the run waits for a node that no repair gives back")
                    else:
                        yield from self.spares.take(place, each.failure.uniforms[Draws.START])
                treated = []
        finally:
            self._count("spare_wait", self._now - began, struck.incident)

    def _shrinks(self, place: int) -> bool:
        """Return whether the job goes on without the node at a place until another one is ready."""
        policy, replicas, out = self._policy, self.plan.replicas, self._missing | {place}
        waits = bool(self.plan.tiers) and (policy.with_spares or not self.spares.left(place))
        return policy.shrinks and waits and replicas.hit(out) < replicas.count and replicas.compute_all(out)

    def _miss(self, places: frozenset[int]) -> None:
        """State the places without a node."""
        self._missing = places
        slow = frozenset(each for each in self.state if each[0] != MISSING)
        hit = self.plan.replicas.hit(places) if places else 0
        self.change(slow | {(MISSING, hit)} if hit else slow)

    def _grow(self, place: int, struck: Struck) -> Process:
        """Wait for a node for a place, and let the job grow again."""
        yield from self.spares.take(place, struck.failure.uniforms[Draws.START])
        self._back |= {place}
        planned = structs.replace(struck.treatment, effect="pauses", lasts=None, nodes=0)
        self.pause(structs.replace(struck, treatment=planned))

    def _released(self, struck: Struck) -> range:
        """Send the nodes of a failure to repair, or wrong ones, and return their places."""
        failure, treatment = struck.failure, struck.treatment
        places = treatment.places(failure.part)
        if failure.uniforms[Draws.MISDIAGNOSIS] < treatment.misdiagnosis:
            self._returning.append(failure)
            wrong = int(failure.uniforms[Draws.WRONG] * max(self.plan.nodes - len(places), 1))
            places = range(wrong, wrong + len(places))
        self.spares.release(places, treatment.repair.at(failure.uniforms[Draws.REPAIR]))
        slow = [each for each in self.state if each[0] != MISSING]
        replaced = {each for each in slow if self.plan.treatments[each[0]].place(each[1]) in places}
        self.change(self.state - replaced - {(failure.fleet, failure.part)})
        return places

    def _restart(self, struck: Struck) -> Stopped:
        """Go through the phases of a restart; return what ends it before its end."""
        levels = self.plan.course.levels
        level = self._level or (levels[-1] if levels else None)
        load = level.load if level else None
        skipped = (frozenset() if self._replaced else self._policy.without) | (
            frozenset() if self._loads else {"load"}
        )
        self._stoppable = True
        try:
            for place, phase in enumerate(self.plan.phases):
                if phase in skipped:
                    continue
                time = self.plan.restart.get(phase) or load or NOTHING
                duration = time.at(struck.failure.uniforms[Draws.PHASES + place])
                yield from self._spend(f"restart_{phase}", duration, struck.incident)
        except simpy.Interrupt as interrupt:
            return _struck(interrupt)
        finally:
            self._stoppable = False
        return None

    def _strike(self) -> Process:
        for failure in self._failures:
            yield self.env.timeout(failure.at - self._now)
            if not self._process.is_alive:
                return
            self._open(failure)

    def _open(self, failure: Failure) -> None:
        treatment = self.plan.treatments[failure.fleet]
        incident = Incident(failure.at, treatment.name, failure.part)
        self.incidents.append(incident)
        self.env.process(EFFECTS[treatment.effect](self, Struck(failure, treatment, incident)))


def _struck(interrupt: simpy.Interrupt) -> Struck:
    """Return what interrupted a restart."""
    assert isinstance(interrupt.cause, Struck), "nothing else interrupts it"
    return interrupt.cause
