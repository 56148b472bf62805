"""Which of many ways to split a job is the fastest: a queue of all of them, each at what is known of it.

    families: memory, kernels ──► one recomputation: memory ──► one order: messages ──► one: a walk ──► steps

The least comes first: what is known of it is never above any step of it that a simulation finds. It is taken
apart or looked at more closely; who comes first with its last figure is the next best for certain.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rapid_des.bounded_cache import BoundedCache
from rapid_des.frontend import Job, memory
from rapid_des.frontend.build import in_passes
from rapid_des.frontend.memory import shortage, shown
from rapid_des.machine import Machine
from rapid_des.report.result import Result
from rapid_des.studies.earliest import fullest_stages
from rapid_des.studies.executors import Done, Executor, Meanwhile
from rapid_des.studies.floors import Floors
from rapid_des.studies.points import Point, evaluate
from rapid_des.studies.splits import Candidate, Family, Space, checked
from rapid_des.units import Duration

Told = Callable[[str, int, int], None]
Why = Literal["memory", "bound", "refused"]
_PLAIN, _KERNELS, _EXCHANGED, _FLOOR, _WALKED, _ESTIMATED, _FINAL = range(7)
"""What is known: bounds of kernels (not run again, all), with their layers' messages, those of replicas too,
by a walk; both steps."""

_LEAST_BATCH = 4
"""Candidates that are simulated at a time at least: so that one worker looks at the same ones as two, and two
seldom wait for each other."""


_ROUNDED, _BESIDE = 1e-6, 0.0025


@dataclass(order=True)
class Entry:
    """Candidates in the queue."""

    least: int
    """Picoseconds that each takes at least, by what is known."""
    number: tuple[int, ...]
    """Of the family, and where in it: ties are broken by the order of the space."""
    family: Family = field(compare=False)
    level: int = field(default=_PLAIN, compare=False)
    result: Result | None = field(default=None, compare=False)

    @property
    def certain(self) -> bool:
        """Whether nothing is left to be found out."""
        return self.level == _FINAL

    def part(self, place: int, family: Family, *, level: int, least: int) -> Entry:
        """Return a part of these candidates, with a bound that holds for it."""
        return Entry(max(self.least, least), (*self.number, place), family, level)


@dataclass(frozen=True)
class _Out:
    """Candidates that are none, and why."""

    family: Family
    why: Why
    text: str
    needed: int = 0
    """Bytes, where there are too few."""


@dataclass(frozen=True)
class _TooLarge:
    """What a candidate needs that does not fit into memory."""

    needed: int
    text: str


def _fitting(point: Point, cache: BoundedCache) -> Result | _TooLarge:
    """Return the result of a point, or what its job needs where that is not there."""
    job, machine = point.resolved(cache)
    capacity = int(machine.device.spec.hbm.capacity)
    needed = cache.get_or_make(("memory", job, None), lambda: memory(in_passes(job, capacity)))
    if needed.fullest.peak > capacity:
        return _TooLarge(needed.fullest.peak, shortage(needed, capacity))
    return evaluate(point, cache)


@dataclass
class Refinement:
    """The search for the fastest candidates of a space."""

    space: Space
    machine: Machine
    mode: str
    """Of the last figures."""
    dropped: Callable[[Family, Why, str], None]
    """Told of candidates that are none, and why."""
    due: Callable[[], bool] = lambda: False
    """Asked whether it is time to stop."""
    cache: BoundedCache = field(default_factory=lambda: BoundedCache(1 << 28))
    queue: list[Entry] = field(default_factory=list)
    rows: list[Entry] = field(default_factory=list)
    """The fastest, in order."""
    counts: Counter[str] = field(default_factory=Counter)
    nearest: tuple[int, Job] | None = None
    """Of those that do not fit: the least need, and who has it."""
    ahead: dict[tuple[tuple[int, ...], int], list[Entry | _Out]] = field(default_factory=dict)
    """What a closer look will find, by number and level: looked at while workers simulated."""

    def __post_init__(self) -> None:
        self.floors = Floors(self.machine, self.cache)
        self.capacity = int(self.machine.device.spec.hbm.capacity)
        self.trains = self.space.job.spec.training is not None
        self.bounded = self.trains and not self.machine.faults

    def fill(self, told: Told) -> int:
        """Put all candidates in the queue that may fit into memory, by family; return how many there are.

        A larger micro-batch needs no less memory: fewer are held, of as many sequences together or more.
        """
        candidates, full = 0, dict[Hashable, str]()
        for number, family in enumerate(self.space.families()):
            candidates += len(family)
            told("bounds from below", candidates, candidates)
            alike = _but_micro_batch(family.base)
            if alike not in full:
                needed = self._least_memory(family)
                if needed <= self.capacity:
                    least = self._passes(family, again=False)
                    heapq.heappush(self.queue, Entry(least, (number,), family))
                    continue
                full[alike] = self._at_least(needed, family.base)
                self._near(needed, family.base)
            self._drop(family, "memory", full[alike])
        return candidates

    def next(self, executor: Executor) -> None:
        """Look more closely at who comes first, at as many as there are workers, or take the next row."""
        batch: list[Entry] = []
        while self.queue and len(batch) < max(_LEAST_BATCH, executor.workers) and not self.due():
            entry = heapq.heappop(self.queue)
            if entry.level < _WALKED:
                self._look(entry)
            elif not entry.certain:
                batch.append(entry)
            elif batch:
                heapq.heappush(self.queue, entry)
                break
            else:
                self.rows.append(entry)
                return
        batch.sort(key=lambda entry: entry.level < _ESTIMATED)  # what takes long begins first
        points = [
            Point(entry.family.job, self.machine, mode=self._mode(entry), allow_oom=True) for entry in batch
        ]
        waiting = dict(enumerate(batch))
        try:
            for place, outcome in executor.map(_fitting, points, self._look_ahead(executor.workers)):
                self._take(waiting.pop(place), outcome)
        finally:
            for entry in waiting.values():  # ^C came before them
                heapq.heappush(self.queue, entry)

    def say_why(self) -> None:
        """Say of all that is left in the queue why it is no row."""
        for entry in sorted(self.queue):
            known = "at least" if entry.result is None else "simulated"
            for family in self._left(entry):
                self._drop(family, "bound", f"{known} {Duration(entry.least)}")

    def _look(self, entry: Entry) -> None:
        """Put the parts of an entry in its place, each with the next tighter bound."""
        for part in self.ahead.pop((entry.number, entry.level), None) or self._closer(entry):
            if isinstance(part, Entry):
                heapq.heappush(self.queue, part)
            else:
                self._leave_out(part)

    def _look_ahead(self, workers: int) -> Meanwhile:
        """Return what looks at one entry a call, those first that will come first, until a batch is found.

        Nothing but the time that `next` takes depends on how far it got.
        """
        queue, wanted = list(self.queue), max(_LEAST_BATCH, workers)

        def step() -> bool:
            nonlocal wanted
            looked = False
            while queue and wanted and not looked:
                entry = heapq.heappop(queue)
                key = entry.number, entry.level
                if entry.level >= _WALKED:
                    wanted -= 1
                    continue
                looked = key not in self.ahead
                if looked:
                    self.ahead[key] = list(self._closer(entry))
                for part in self.ahead[key]:
                    if isinstance(part, Entry):
                        heapq.heappush(queue, part)
            return looked

        return step

    def _left(self, entry: Entry) -> list[Family]:
        """Return the parts of an entry that may fit into memory; others are dropped."""
        if entry.level >= _FLOOR:
            return [entry.family]
        families = []
        for whole in entry.family.along("recomputes"):
            for part in self._fitting_parts(whole):
                if isinstance(part, Family):
                    families.append(part)
                else:
                    self._leave_out(part)
        return families

    def _mode(self, entry: Entry) -> str:
        return "analytical" if entry.level < _ESTIMATED else self.mode

    def _closer(self, entry: Entry) -> Iterator[Entry | _Out]:
        """Yield the parts of an entry, each with the next tighter bound, or why it is none."""
        if entry.level == _PLAIN:
            for place, family in enumerate(entry.family.along("recomputes")):
                yield entry.part(place, family, level=_KERNELS, least=self._passes(family, again=True))
        elif entry.level == _KERNELS:
            parts = list(self._fitting_parts(entry.family))
            yield from (part for part in parts if isinstance(part, _Out))
            stages = tuple(part.zero_stages[0] for part in parts if isinstance(part, Family))
            orders = replace(entry.family, zero_stages=stages).along("orders") if stages else ()
            for place, family in enumerate(orders):
                least = self.floors.exchanged(family.job) if self.bounded else 0
                yield entry.part(place, family, level=_EXCHANGED, least=least)
        elif entry.level == _EXCHANGED:
            for place, part in enumerate(entry.family.along("zero_stages")):
                yield _refused(part) or self._in_steps(entry, place, part)
        else:
            least = self.floors.walked(entry.family.job) if self.bounded else 0
            yield replace(entry, level=_WALKED, least=max(entry.least, least))

    def _in_steps(self, entry: Entry, place: int, part: Family) -> Entry:
        least = self.floors.step(part.job) if self.bounded else 0
        return entry.part(place, part, level=_FLOOR, least=least)

    def _passes(self, family: Family, *, again: bool) -> int:
        return self.floors.passes(family.job, again=again) if self.bounded else 0

    def _least_memory(self, family: Family) -> int:
        """Return bytes that no candidate of a family can do without."""
        if not self.trains:
            return 0
        needed = 0
        for stage in fullest_stages(family.job):
            needed = max(needed, self._of_stage(family, stage))
            if needed > self.capacity:
                break
        return needed

    def _of_stage(self, family: Family, stage: int) -> int:
        """Return bytes that no candidate of a family can do without on a stage, or of one that fits."""
        needed = min(self.floors.standing(part.job, stage) for part in family.along("zero_stages"))
        moving = 0
        for part in reversed(list(family.along("recomputes"))) if needed <= self.capacity else ():
            moving = min(moving or self.capacity, self.floors.moving(part.job, stage))
            if needed + moving <= self.capacity:
                break
            kept = self.floors.kept(part.job, stage) if _keeps_least(part.job) else 0
            if needed + kept > self.capacity:
                return needed + kept
        return needed + moving

    def _fitting_parts(self, family: Family) -> Iterator[Family | _Out]:
        """Yield the parts of one recomputation, or that they do not fit into memory."""
        for part in family.along("zero_stages"):
            needed = self.floors.memory(part.job) if self.trains else 0
            if needed <= self.capacity:
                yield part
            else:
                yield _Out(part, "memory", self._at_least(needed, part.job), needed)

    def _at_least(self, needed: int, job: Job) -> str:
        """Return what is said of a job that does not fit."""
        each = f"a stage needs at least {shown(needed)} a GPU, there are {shown(self.capacity)}"
        return f"{each} (micro-batch {job.training.micro_batch})" if self.trains else each

    def _take(self, entry: Entry, outcome: Any) -> None:
        """Put a candidate back with what a simulation says of it."""
        mode = self._mode(entry)
        if not isinstance(outcome, Done):
            self._drop(entry.family, "refused", f"{mode}: {outcome.text}")
        elif isinstance(outcome.value, _TooLarge):
            self._leave_out(_Out(entry.family, "memory", outcome.value.text, outcome.value.needed))
        else:
            self.counts[mode] += 1
            step, last = int(outcome.value.step_time), mode == self.mode
            level = _FINAL if last else _ESTIMATED
            least = step if last else max(entry.least, step - round(step * margin(entry.family.job)))
            heapq.heappush(self.queue, replace(entry, result=outcome.value, level=level, least=least))

    def _leave_out(self, out: _Out) -> None:
        self._drop(out.family, out.why, out.text)
        if out.why == "memory":
            self._near(out.needed, out.family.job)

    def _near(self, needed: int, job: Job) -> None:
        """Note a job that does not fit, which may be the nearest."""
        if self.nearest is None or needed < self.nearest[0]:
            self.nearest = needed, job

    def _drop(self, family: Family, why: Why, text: str) -> None:
        self.counts[why] += len(family)
        if why == "refused":
            self.space.refused[text] += len(family)
        self.dropped(family, why, text)


def _refused(family: Family) -> _Out | None:
    """Return why the frontend refuses a candidate, if it does."""
    why: list[str] = []
    return None if checked(Candidate(family.job), why.append) is not None else _Out(family, "refused", why[0])


def _keeps_least(job: Job) -> bool:
    """Tell whether no other recomputation keeps less of a micro-batch: every layer's input alone."""
    return job.training.recompute == "full" and job.training.recompute_layers is None


def margin(job: Job) -> float:
    """Return by which part of it a step by closed forms may be longer than a finer one, at most.

    Paces of collectives are rounded. Where messages slow kernels beside them, a message that comes late may
    meet fewer of these: of 735 ways that were simulated in both modes four were longer, by 0.11 % at most.
    """
    return _BESIDE if job.spec.training is not None and job.sharding.each else _ROUNDED


def _but_micro_batch(base: Job) -> Hashable:
    """Return what families have in common that differ in their micro-batch alone."""
    training = base.training if base.spec.training is not None else None
    return base.spec.parallelism, None if training is None else training.schedule
