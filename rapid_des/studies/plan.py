"""The best ways to split a job over GPUs, by successive refinement.

    floor (bounds from below) ──► memory ──► analytical ──► hierarchical: a row of the plan

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

from msgspec import structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import InfeasibleJobError, InputError
from rapid_des.frontend import Job, check_memory, memory
from rapid_des.frontend.memory import shortage, shown
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
        tree = {
            "step_time_s": plain["step_time_s"],
            "memory_bytes": self.memory_bytes,
            "mfu": plain["mfu"],
            "tokens_per_s": plain["tokens_per_s"],
            "tokens_per_s_per_gpu": plain["tokens_per_s"] / self.job.gpus,
            "bound": self.result.bound,
            "energy_j": (plain["energy"] or {}).get("joules"),
        }
        if price is not None:
            tree["cost"] = price * self.job.gpus * seconds(self.step_time) / _S_PER_HOUR
        return {**tree, **self.settings, "mode": self.result.mode, "certain": self.certain}


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
            "rows": [row.as_json(self.price) for row in self.rows],
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


_FLOOR, _FITS, _FINAL = 0, 1, 3


@dataclass(order=True)
class _Entry:
    """A way in the queue."""

    least: int
    """Picoseconds that it takes at least, by what is known."""
    number: int
    level: int = field(default=_FLOOR, compare=False)
    candidate: Candidate = field(default=None, compare=False)  # type: ignore[assignment]
    result: Result | None = field(default=None, compare=False)


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
    fits: dict[Any, tuple[int, str]] = field(default_factory=dict)
    """Memory of ways that differ in where ranks stand alone."""

    def __post_init__(self) -> None:
        self.floors = Floors(self.machine, self.cache)
        self.capacity = int(self.machine.device.spec.hbm.capacity)
        self.modes = dict.fromkeys(("analytical", self.wanted.mode))

    def run(self, executor: Executor) -> Plan:
        """Search, and return what was found."""
        interrupted, count = False, 0
        try:
            count = self._fill()
            while self.queue and len(self.rows) < self.wanted.top:
                self._refine(executor)
        except KeyboardInterrupt:
            interrupted = True
        if not self.rows and not interrupted:
            self._nothing_fits(count)
        rows = [self._row(entry, certain=True) for entry in self.rows]
        if interrupted:
            rows += [self._row(entry, certain=False) for entry in self._so_far()]
            if not rows:
                raise KeyboardInterrupt
        if self.wanted.pruned:
            self._say_why()
        return Plan(self.space.gpus, tuple(rows), count, self.counts, self.space.refused, tuple(self.pruned),
                    self.wanted.price, interrupted)  # fmt: skip

    def _fill(self) -> int:
        """Put all ways in the queue, at what they take at least."""
        candidates, told = list(self.space), self.wanted.told
        bounded = self.space.job.spec.training is not None and not self.machine.faults
        for number, candidate in enumerate(candidates):
            if number % 256 == 0:
                told("bounds from below", number, len(candidates))
            least = self.floors.step(candidate.job) if bounded else 0
            self.queue.append(_Entry(least, number, _FLOOR, candidate))
        heapq.heapify(self.queue)
        return len(candidates)

    def _refine(self, executor: Executor) -> None:
        """Take those who come first one step further: as many simulations as there are workers."""
        batch: list[_Entry] = []
        while self.queue and len(batch) < executor.workers:
            entry = heapq.heappop(self.queue)
            if entry.level == _FLOOR:
                self._check(entry)
            elif entry.level == _FINAL and not batch:
                self.rows.append(entry)
                return
            elif entry.level == _FINAL:
                heapq.heappush(self.queue, entry)
                break
            else:
                batch.append(entry)
        points = [Point(entry.candidate.job, self.machine, mode=self._mode(entry)) for entry in batch]
        for place, outcome in executor.map(evaluate, points):
            self._take(batch[place], outcome)
        self.wanted.told("simulating", len(self.rows), self.wanted.top)

    def _mode(self, entry: _Entry) -> str:
        return "analytical" if entry.level == _FITS else self.wanted.mode

    def _check(self, entry: _Entry) -> None:
        """Put a way back if the frontend takes it and it fits into memory."""
        job = checked(entry.candidate, lambda why: self._drop(entry.candidate, "refused", why))
        if job is None:
            return
        least = self.floors.memory(job) if job.spec.training is not None else 0
        text = f"stage 0 needs at least {shown(least)} a GPU, there are {shown(self.capacity)}"
        if least <= self.capacity:
            least, text = self._needs(job)
        if least > self.capacity:
            self._drop(entry.candidate, "memory", text)
            if self.nearest is None or least < self.nearest[0]:
                self.nearest = least, job
            return
        heapq.heappush(self.queue, replace(entry, level=_FITS, candidate=Candidate(job)))

    def _needs(self, job: Job) -> tuple[int, str]:
        split = structs.replace(job.spec.parallelism, order=("tp", "cp", "ep", "dp", "pp"))
        key = split, job.spec.training, job.spec.inference
        if key not in self.fits:
            needed = memory(job)
            peak = needed.fullest.peak
            self.fits[key] = peak, shortage(needed, self.capacity) if peak > self.capacity else ""
        return self.fits[key]

    def _take(self, entry: _Entry, outcome: Any) -> None:
        """Put a way back with what a simulation says of it."""
        mode = self._mode(entry)
        self.counts[mode] += 1
        if not isinstance(outcome, Done):
            self._drop(entry.candidate, "refused", f"{mode}: {outcome.text}")
            return
        last = mode == self.wanted.mode
        least = max(entry.least, int(outcome.value.step_time)) if not last else int(outcome.value.step_time)
        level = _FINAL if last else _FITS + 1
        heapq.heappush(self.queue, replace(entry, least=least, level=level, result=outcome.value))

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
            known = "simulated" if entry.level > _FITS else "at least"
            if entry.level == _FLOOR and entry.candidate.job.spec.training is not None:
                least = self.floors.memory(entry.candidate.job)
                if least > self.capacity:
                    text = f"stage 0 needs at least {shown(least)} a GPU, there are {shown(self.capacity)}"
                    self._drop(entry.candidate, "memory", text)
                    continue
            self._drop(entry.candidate, "bound", f"{known} {Duration(entry.least)}")

    def _nothing_fits(self, count: int) -> None:
        """Raise what is missing, with the way that misses by least."""
        if self.nearest is None:
            first = next(iter(self.space.refused), "")
            raise InfeasibleJobError(
                f"{self.space.job.name}: no legal way to split it over {self.space.gpus} GPUs (--gpus)"
                + (f"; as in {first}" if first else "")
            )
        least, job = self.nearest
        settings = Candidate(job).settings
        split = ", ".join(f"{key} {value}" for key, value in settings.items() if key != "layers")
        try:
            check_memory(job, self.capacity)
        except InfeasibleJobError as error:
            raise InfeasibleJobError(
                f"none of {count:,} ways to split it over {self.space.gpus} GPUs fits; nearest "
                f"({split}): {error}"
            ) from None
