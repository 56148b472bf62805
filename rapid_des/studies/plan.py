"""The best ways to split a job over GPUs, by successive refinement.

    bounds (of kernels, with messages, by a walk), memory ──► analytical ──► hierarchical: a row of the plan

All ways stand in one queue, the least first, each at what is known of it: no later figure of it is below. Who
comes first is refined one step further; who comes first with its last figure is the next best for certain.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import InfeasibleJobError, InputError
from rapid_des.frontend import Job, check_memory, memory
from rapid_des.frontend.memory import in_passes, shortage, shown
from rapid_des.machine import Machine
from rapid_des.report.result import Result
from rapid_des.studies.executors import Done, Executor, InProcess
from rapid_des.studies.floors import Floors
from rapid_des.studies.points import Point, evaluate
from rapid_des.studies.splits import Candidate, Space, checked
from rapid_des.units import Duration, seconds

Told = Callable[[str, int, int], None]
_S_PER_HOUR = 3600


@dataclass(frozen=True)
class PlanRow:
    """One way to split the job, simulated."""

    job: Job = field(repr=False)
    settings: Mapping[str, Any] = field(hash=False)
    result: Result = field(repr=False)
    certain: bool
    """Whether no way that is not listed before it is faster, in this mode."""

    @property
    def step_time(self) -> Duration:
        """Of one step, or of all requests."""
        return self.result.step_time

    @property
    def memory_bytes(self) -> int:
        """Of the fullest GPU."""
        assert self.result.figures is not None, "rows are of jobs"
        return self.result.figures.memory.fullest.peak

    def as_json(self, price: float | None = None) -> dict[str, Any]:
        """Return plain data; `price` of a GPU for an hour gives the cost of a step."""
        plain = self.result.as_json()
        found = {
            "step_time_s": plain["step_time_s"],
            "memory_bytes": self.memory_bytes,
            "mfu": plain["mfu"],
            "tokens_per_s": plain["tokens_per_s"],
            "tokens_per_s_per_gpu": plain["tokens_per_s"] / self.job.gpus,
            "bound": self.result.bound,
            "energy_j": (plain["energy"] or {}).get("joules"),
        }
        if price is not None:
            found["cost"] = price * self.job.gpus * seconds(self.step_time) / _S_PER_HOUR
        return {**found, **self.settings, "mode": self.result.mode, "certain": self.certain}


@dataclass(frozen=True)
class Pruned:
    """A way that was not simulated, and why."""

    settings: Mapping[str, Any] = field(hash=False)
    why: Literal["memory", "bound", "refused"]
    text: str


@dataclass(frozen=True)
class Plan:
    """The best ways to split a job over GPUs, best first; `plan` makes one.

    >>> sorted(Plan.__dataclass_fields__)[:3]
    ['counts', 'gpus', 'interrupted']
    """

    gpus: int
    rows: tuple[PlanRow, ...]
    ways: int
    """How many there are."""
    counts: Mapping[str, int] = field(hash=False)
    """How many were refused, too large, or simulated in which mode."""
    refused: Mapping[str, int] = field(hash=False)
    """What the frontend refused, by reason, and how many splits or ways that cut off."""
    pruned: tuple[Pruned, ...] = ()
    """Why each other way was not simulated to the end, if asked for."""
    price: float | None = None
    """Of a GPU for an hour."""
    interrupted: bool = False

    @property
    def job(self) -> Job:
        """The best way as a job."""
        return self.rows[0].job

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "gpus": self.gpus,
            "rows": [
                {**row.as_json(self.price), "told_apart": self.rows[0].result.told_apart(row.result)}
                for row in self.rows
            ],
            "ways": self.ways,
            "counts": dict(self.counts),
            "refused": dict(self.refused),
            "pruned": [{**one.settings, "why": one.why, "text": one.text} for one in self.pruned],
            "interrupted": self.interrupted,
        }

    def to_pandas(self) -> Any:
        """Return the rows as a DataFrame (needs pandas)."""
        import pandas

        return pandas.DataFrame([row.as_json(self.price) for row in self.rows])

    def _repr_html_(self) -> str:
        from rapid_des.report.plan_text import plan_html

        return plan_html(self.as_json())


@dataclass(frozen=True)
class Wanted:
    """What is asked of a plan.

    >>> Wanted(top=1).mode
    'hierarchical'
    """

    gpus: int | None = None
    """Unset: all of the machine."""
    top: int = 5
    """How many rows are to be certain."""
    vary: Mapping[str, Sequence[Any] | None] = field(default_factory=dict, hash=False)
    """By choice (`splits.CHOICES`) the values to take; None: all. Others take their usual ones."""
    mode: str = "hierarchical"
    """Of the rows."""
    pruned: bool = False
    """Whether to say of every other way why it was left out."""
    price: float | None = None
    told: Told = lambda _what, _done, _all: None
    """Told how far the plan is."""


def plan(
    job: Job,
    machine: Machine,
    wanted: Wanted = Wanted(),
    executor: Executor | None = None,  # noqa: B008 - frozen
) -> Plan:
    """Return the best ways to split a job over GPUs of a machine, best first; model and batch stay.

    ^C ends it with the best so far, if there is one. `InfeasibleJobError` if none fits into memory, with the
    one that misses by least.

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> wanted = Wanted(top=1, vary={"tp": [1], "recompute": ["none"], "micro_batch": [1], "zero_stage": [0]})
    >>> found = plan(load_job("llama2_7b_train"), load_machine("dgx_a100"), wanted)
    >>> found.rows[0].settings["tp"]
    1
    """
    gpus = wanted.gpus or machine.fabric.gpus
    if gpus > machine.fabric.gpus:
        raise InputError(f"{gpus} GPUs, the machine has {machine.fabric.gpus}")
    space = Space(job, machine, gpus, wanted.vary)
    search = _Search(machine, wanted, space)
    with executor or nullcontext(InProcess(search.cache)) as crew:
        return search.run(crew)


_PLAIN, _KERNELS, _FLOOR, _WALKED, _ESTIMATED, _FINAL = range(6)
"""What is known of a way: bounds of kernels (not run again, all), with messages, by a walk; both steps."""


@dataclass(order=True)
class _Entry:
    """A way in the queue."""

    least: int
    """Picoseconds that it takes at least, by what is known."""
    number: int
    level: int = field(default=_PLAIN, compare=False)
    candidate: Candidate = field(default=None, compare=False)  # type: ignore[assignment]
    result: Result | None = field(default=None, compare=False)


@dataclass(frozen=True)
class _TooLarge:
    """What a way needs that does not fit into memory."""

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


def _at_least(needed: int, capacity: int) -> str:
    return f"stage 0 needs at least {shown(needed)} a GPU, there are {shown(capacity)}"


@dataclass
class _Search:
    machine: Machine
    wanted: Wanted
    space: Space
    cache: BoundedCache = field(default_factory=lambda: BoundedCache(1 << 28))
    queue: list[_Entry] = field(default_factory=list)
    rows: list[_Entry] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    pruned: list[Pruned] = field(default_factory=list)
    nearest: tuple[int, Job] | None = None
    """Of those that do not fit: the least need, and who has it."""

    def __post_init__(self) -> None:
        self.floors = Floors(self.machine, self.cache)
        self.capacity = int(self.machine.device.spec.hbm.capacity)
        self.bounded = self.space.job.spec.training is not None and not self.machine.faults

    def run(self, executor: Executor) -> Plan:
        """Search, and return what was found."""
        interrupted, ways = False, 0
        try:
            ways = self._fill()
            while self.queue and len(self.rows) < self.wanted.top:
                self._refine(executor)
        except KeyboardInterrupt:
            interrupted = True
        if not self.rows and not interrupted:
            self._nothing_fits(ways)
        rows = [self._row(entry, certain=True) for entry in self.rows]
        if interrupted:
            rows += [self._row(entry, certain=False) for entry in self._so_far()]
            if not rows:
                raise KeyboardInterrupt
        if self.wanted.pruned:
            self._say_why()
        return Plan(self.space.gpus, tuple(rows), ways, self.counts, self.space.refused, tuple(self.pruned),
                    self.wanted.price, interrupted)  # fmt: skip

    def _fill(self) -> int:
        """Put all ways in the queue, at what they take at least."""
        ways, told = list(self.space), self.wanted.told
        for number, candidate in enumerate(ways):
            if number % 256 == 0:
                told("bounds from below", number, len(ways))
            least = self.floors.passes(candidate.job, again=False) if self.bounded else 0
            self.queue.append(_Entry(least, number, _PLAIN, candidate))
        heapq.heapify(self.queue)
        return len(ways)

    def _refine(self, executor: Executor) -> None:
        """Take those who come first one step further: as many simulations as there are workers."""
        batch: list[_Entry] = []
        while self.queue and len(batch) < executor.workers:
            entry = heapq.heappop(self.queue)
            if entry.level < _WALKED:
                self._bound(entry)
            elif entry.level < _FINAL:
                batch.append(entry)
            elif batch:
                heapq.heappush(self.queue, entry)
                break
            else:
                self.rows.append(entry)
                return
        points = [
            Point(entry.candidate.job, self.machine, mode=self._mode(entry), allow_oom=True)
            for entry in batch
        ]
        for place, outcome in executor.map(_fitting, points):
            self._take(batch[place], outcome)
        self.wanted.told("simulating", len(self.rows), self.wanted.top)

    def _mode(self, entry: _Entry) -> str:
        return "analytical" if entry.level < _ESTIMATED else self.wanted.mode

    def _bound(self, entry: _Entry) -> None:
        """Put a way back with the next tighter bound, if the frontend takes it and it may fit into memory."""
        job = entry.candidate.job
        if entry.level != _KERNELS:
            level = _KERNELS if entry.level == _PLAIN else _WALKED
            return self._put(entry, level, self._tighter(job, level) if self.bounded else 0)
        needed = self.floors.memory(job) if job.spec.training is not None else 0
        if needed > self.capacity:
            return self._too_large(job, needed, _at_least(needed, self.capacity))
        legal = checked(entry.candidate, lambda why: self._drop(entry.candidate, "refused", why))
        if legal is None:
            return None
        return self._put(
            replace(entry, candidate=Candidate(legal)), _FLOOR, self.floors.step(legal) if self.bounded else 0
        )

    def _tighter(self, job: Job, level: int) -> int:
        return self.floors.passes(job, again=True) if level == _KERNELS else self.floors.walked(job)

    def _put(self, entry: _Entry, level: int, tighter: int) -> None:
        heapq.heappush(self.queue, replace(entry, level=level, least=max(entry.least, tighter)))

    def _too_large(self, job: Job, needed: int, text: str) -> None:
        """Drop a way that does not fit into memory."""
        self._drop(Candidate(job), "memory", text)
        if self.nearest is None or needed < self.nearest[0]:
            self.nearest = needed, job

    def _take(self, entry: _Entry, outcome: Any) -> None:
        """Put a way back with what a simulation says of it."""
        mode = self._mode(entry)
        if not isinstance(outcome, Done):
            self._drop(entry.candidate, "refused", f"{mode}: {outcome.text}")
        elif isinstance(outcome.value, _TooLarge):
            self._too_large(entry.candidate.job, outcome.value.needed, outcome.value.text)
        else:
            self.counts[mode] += 1
            step, last = int(outcome.value.step_time), mode == self.wanted.mode
            entry = replace(entry, result=outcome.value, least=step if last else max(entry.least, step))
            self._put(entry, _FINAL if last else _ESTIMATED, 0)

    def _drop(self, candidate: Candidate, why: Literal["memory", "bound", "refused"], text: str) -> None:
        self.counts[why] += 1
        if why == "refused":
            self.space.refused[text] += 1
        if self.wanted.pruned:
            self.pruned.append(Pruned(candidate.settings, why, text))

    def _so_far(self) -> list[_Entry]:
        """Return what was simulated and is not certain, the last mode's first."""
        known = [entry for entry in self.queue if entry.result is not None]
        known.sort(key=lambda entry: (-entry.level, entry.least))
        return known[: self.wanted.top - len(self.rows)]

    def _row(self, entry: _Entry, *, certain: bool) -> PlanRow:
        assert entry.result is not None, "it was simulated"
        return PlanRow(entry.candidate.job, entry.candidate.settings, entry.result, certain)

    def _say_why(self) -> None:
        """Say of all that is left in the queue why it is no row."""
        for entry in sorted(self.queue):
            known = "at least" if entry.result is None else "simulated"
            if entry.level <= _KERNELS and entry.candidate.job.spec.training is not None:
                needed = self.floors.memory(entry.candidate.job)
                if needed > self.capacity:
                    self._drop(entry.candidate, "memory", _at_least(needed, self.capacity))
                    continue
            self._drop(entry.candidate, "bound", f"{known} {Duration(entry.least)}")

    def _nothing_fits(self, ways: int) -> None:
        """Raise what is missing, with the way that misses by least."""
        if self.nearest is None:
            first = next(iter(self.space.refused), "")
            raise InfeasibleJobError(
                f"{self.space.job.name}: no legal way to split it over {self.space.gpus} GPUs (--gpus)"
                + (f"; as in {first}" if first else "")
            )
        least, job = self.nearest
        split = ", ".join(
            f"{key} {value}" for key, value in Candidate(job).settings.items() if key != "layers"
        )
        try:
            check_memory(job, self.capacity)
        except InfeasibleJobError as error:
            raise InfeasibleJobError(
                f"none of {ways:,} ways to split it over {self.space.gpus} GPUs fits; nearest "
                f"({split}): {error}"
            ) from None
