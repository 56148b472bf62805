"""The best layouts of a job over GPUs, by successive refinement.

    memory, lower bounds ──► analytical ──► flattened, or hierarchical: a row of the plan

`refinement` finds the rows; here stand what is asked, and what is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from msgspec import Struct

from rapid_des.errors import CannotFinishError, InfeasibleJobError, InputError
from rapid_des.executors import Executor, InProcess
from rapid_des.frontend import Job, check_memory
from rapid_des.frontend.build import in_passes
from rapid_des.machine import Machine
from rapid_des.report.result import Result
from rapid_des.report.tables import Part, Report
from rapid_des.report.writing import require_extra
from rapid_des.simulation import FINEST, FLATTENED, MODES, require_kind
from rapid_des.studies.deadline import Deadline
from rapid_des.studies.entries import Entry, Why
from rapid_des.studies.refinement import Refinement
from rapid_des.studies.splits import Candidate, Family, Space
from rapid_des.units import Duration, seconds

if TYPE_CHECKING:
    import pandas

OnProgress = Callable[[str, int, int], None]
_S_PER_HOUR = 3600
_FIGURES = ("step_time_s", "forecast_s", "mode_bound_s", "intervals", "mfu", "mfu_forecast", "tokens_per_s",
            "tokens_per_s_forecast", "memory_forecast_bytes", "fits", "bound", "breakdown_s")  # fmt: skip
"""What a row has as the result has it."""
AUTO = "auto"
HEADROOM = 0.9
"""Up to this share of memory 145 of 145 layouts of nanotron's sweep on H100 ran, up to all of it 149 of 150
(every eighth of `memory/nanotron`'s source); torchtitan's peaks are 0.94 to 1.37 times what is simulated."""
_MOST_GPUS = 512
"""GPUs up to which rows are simulated unasked: a hierarchical run may take minutes beyond."""


@dataclass(frozen=True)
class PlanRow:
    """One layout of the job, simulated."""

    job: Job = field(repr=False)
    settings: Mapping[str, Any] = field(hash=False)
    result: Result = field(repr=False)
    certain: bool
    """Whether no layout that is not listed before it is faster, as far as simulated steps show."""

    @property
    def step_time(self) -> Duration:
        """Of one step, or of all requests."""
        return self.result.step_time

    @property
    def flattened(self) -> tuple[int, int] | None:
        """Where the flattened step lies, both ends in picoseconds; None if its mode bounds nothing."""
        bound, step = self.result.mode_bound, int(self.result.step_time)
        if bound is not None:
            return bound.low, bound.high
        return (step, step) if self.result.mode == FLATTENED else None

    def may_be_faster(self, other: PlanRow) -> bool | None:
        """Return whether this row, listed later, may be the faster one; None where a mode bounds nothing."""
        mine, others = self.flattened, other.flattened
        return None if mine is None or others is None else mine[0] < others[1]

    @property
    def memory_bytes(self) -> int:
        """Of the fullest GPU."""
        assert self.result.figures is not None, "rows are of jobs"
        return self.result.figures.memory.fullest.peak

    def as_json(self, price: float | None = None) -> dict[str, Any]:
        """Return plain data; `price` of a GPU for an hour gives the cost of a step."""
        plain, expected = self.result.as_json(), self.result.forecast
        figures = {name: plain[name] for name in _FIGURES}
        figures |= {
            "memory_bytes": self.memory_bytes,
            "tokens_per_s_per_gpu": plain["tokens_per_s"] / self.job.gpus,
            "energy_j": (plain["energy"] or {}).get("joules"),
        }
        if price is not None:
            second = price * self.job.gpus / _S_PER_HOUR
            figures["cost"] = second * seconds(self.step_time)
            figures["cost_forecast"] = expected and {
                end: second * time for end, time in expected.forecast().items()
            }
        return {**figures, **self.settings, "mode": self.result.mode, "certain": self.certain}


@dataclass(frozen=True)
class Pruned:
    """A candidate that was not simulated, and why."""

    settings: Mapping[str, Any] = field(hash=False)
    why: Why
    text: str


@dataclass(frozen=True, repr=False)
class Plan(Report):
    """The best layouts of a job over GPUs, best first; `plan` makes one.

    >>> sorted(Plan.__match_args__)[0]
    'counts'
    """

    gpus: int
    rows: tuple[PlanRow, ...]
    ways: int
    """How many there are."""
    counts: Mapping[str, int] = field(hash=False)
    """How many were refused, too large, or simulated in which mode."""
    refused: Mapping[str, int] = field(hash=False)
    """What the frontend refused, by reason, and how many splits or candidates that cut off."""
    pruned: tuple[Pruned, ...] = ()
    """Why each other candidate was not simulated to the end, if asked for."""
    price: float | None = None
    """The price of a GPU for an hour."""
    interrupted: bool = False
    floor: Duration | None = None
    """What every candidate that is no row takes at least, if it stopped before its rows were certain."""
    others: Duration | None = None
    """What every candidate that is no row takes at least, flattened; None where there is none."""

    @property
    def job(self) -> Job:
        """The best candidate as a job."""
        return self.rows[0].job

    @property
    def mode(self) -> str:
        """The coarsest mode in which a row was simulated."""
        return max((row.result.mode for row in self.rows), key=MODES.index, default=FLATTENED)

    @property
    def within(self) -> float | None:
        """By which share of it another layout can be faster than the first, flattened; None: not known."""
        first, *rows = [row.flattened for row in self.rows] or [None]
        if first is None or None in rows or self.others == 0:
            return None
        least = [row[0] for row in rows if row is not None]
        least += [] if self.others is None else [int(self.others)]
        return max(0.0, 1 - min(least, default=first[1]) / first[1])

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        first = self.rows[0] if self.rows else None
        return {
            "gpus": self.gpus,
            "rows": [
                {
                    **row.as_json(self.price),
                    "told_apart": first.result.distinguishable(row.result) if first else None,
                    "may_be_faster": row is not first and first is not None and row.may_be_faster(first),
                }
                for row in self.rows
            ],
            "ways": self.ways,
            "counts": dict(self.counts),
            "refused": dict(self.refused),
            "pruned": [
                {**candidate.settings, "why": candidate.why, "text": candidate.text}
                for candidate in self.pruned
            ],
            "interrupted": self.interrupted,
            "mode": self.mode,
            "within": self.within,
            "floor_s": None if self.floor is None else seconds(self.floor),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row a layout; `InputError` without pandas."""
        require_extra("pandas", "notebook", "a DataFrame")
        import pandas

        return pandas.DataFrame([row.as_json(self.price) for row in self.rows])

    def report(self) -> Iterator[Part]:
        """Yield the report that `rapid-des plan` prints."""
        from rapid_des.report.plan_text import plan_report

        return plan_report(self.as_json(), self.job.name, self.rows[0].result.title)

    def plot(self, path: str | Path | None = None, *, title: str = "") -> Any:
        """Return a figure of the rows as bars, stacked by where the time goes, and of their memory."""
        from rapid_des.report.charts.studies import plan_charts
        from rapid_des.report.pictures.charts import draw_charts

        charts = plan_charts(self.as_json())
        return draw_charts(charts, None if path is None else Path(path), title=title or self.job.name)


@dataclass(frozen=True)
class Wanted:
    """What is asked of a plan.

    >>> Wanted(top=1).mode
    'auto'
    """

    gpus: int | None = None
    """Unset: all of the machine."""
    top: int = 5
    """The number of rows."""
    vary: Mapping[str, Sequence[Any] | None] = field(default_factory=dict, hash=False)
    """The values of each choice (`splits.CHOICES`); None: all. Other choices take their usual ones."""
    mode: str = AUTO
    """The mode of the rows; auto: flattened where that takes seconds, else hierarchical, but closed forms for
    more than 512 GPUs."""
    pruned: bool = False
    """Whether to say of every other candidate why it was left out."""
    price: float | None = None
    headroom: float = HEADROOM
    """The share of a GPU's memory that layouts for training may take."""
    within_s: float | None = None
    """Seconds after which it stops with what is known; without any step by then one is estimated."""
    on_progress: OnProgress = lambda _what, _done, _all: None
    """Called with what is going on, how much of it is done and how much there is."""
    on_start: Callable[[Callable[[], list[PlanRow]]], None] = lambda _so_far: None
    """Called once with a function that returns the best rows so far, for any thread."""

    def __post_init__(self) -> None:
        """Refuse numbers of GPUs or rows that are none."""
        for name, number in (("gpus", self.gpus), ("top", self.top)):
            if number is not None and (not isinstance(number, int) or number < 1):
                raise InputError(f"{name} {number!r} is no number of them; allowed: a whole number from 1 on")
        if not isinstance(self.headroom, int | float) or not 0 < self.headroom <= 1:
            raise InputError(f"headroom {self.headroom!r} is no share of memory; allowed: above 0, at most 1")
        if self.mode not in (AUTO, *MODES):
            raise InputError(f"mode {self.mode!r} is not one of {', '.join((AUTO, *MODES))}")


def plan(
    job: Job,
    machine: Machine,
    wanted: Wanted = Wanted(),
    executor: Executor | None = None,  # noqa: B008 - frozen
) -> Plan:
    """Return the best layouts of a job over GPUs of a machine, best first; model and batch stay.

    ^C, or the end of `wanted.within_s`, ends it with the best so far, if there is one. `InfeasibleJobError`
    if none fits into memory, with the one that misses by least; `CannotFinishError` if the time is up before
    anything is known.

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> wanted = Wanted(top=1, vary={"tp": [1], "recompute": ["none"], "micro_batch": [1], "zero_stage": [0]})
    >>> found = plan(load_job("llama2_7b_train"), load_machine("dgx_a100"), wanted)
    >>> found.rows[0].settings["tp"]
    1
    """
    require_kind(job, Job, "load_job")
    require_kind(machine, Machine, "load_machine")
    gpus = wanted.gpus or machine.fabric.gpus
    if gpus > machine.fabric.gpus:
        raise InputError(f"gpus: {gpus} is more than the machine has; allowed: 1 to {machine.fabric.gpus}")
    space = Space(job, machine, gpus, wanted.vary)
    search = _Search(machine, wanted, space)
    with executor or InProcess(search.refinement.cache) as crew:
        return search.run(crew)


class _Search(Struct, dict=True):
    """A plan in the making."""

    machine: Machine
    wanted: Wanted
    space: Space
    pruned: list[Pruned] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        usual = FINEST if self.space.gpus <= _MOST_GPUS else "analytical"
        mode = usual if self.wanted.mode == AUTO else self.wanted.mode
        deadline = Deadline(self.wanted.within_s)
        self.refinement = Refinement(
            self.space, self.machine, mode, self._dropped, self.wanted.headroom, deadline
        )

    def run(self, executor: Executor) -> Plan:
        """Search, and return what was found."""
        interrupted, candidates, refinement = False, 0, self.refinement
        self.wanted.on_start(self._rows_so_far)
        try:
            executor.start()
            candidates = refinement.fill(self.wanted.on_progress)
            for _ in refinement.search(executor, self.wanted.top):
                self.wanted.on_progress("simulating", len(refinement.rows), self.wanted.top)
            if not refinement.rows:
                refinement.estimate_one()
        except KeyboardInterrupt:
            interrupted = True
        left = bool(refinement.queue) or not refinement.all_seen
        stopped = left and len(refinement.rows) < self.wanted.top
        if not refinement.rows and not left and not interrupted:
            self._nothing_fits(candidates)
        others = self._so_far() if stopped else []
        rows = [
            *(_row(entry, certain=refinement.is_certain(entry)) for entry in refinement.rows),
            *(_row(entry, certain=False) for entry in others),
        ]
        if not rows:
            raise KeyboardInterrupt if interrupted else self._nothing_known()
        if self.wanted.pruned:
            refinement.say_why()
        least = self._others() if left else None
        return Plan(self.space.gpus, tuple(rows), candidates, refinement.counts, self.space.refused,
                    tuple(self.pruned), self.wanted.price, interrupted, least if stopped else None,
                    least)  # fmt: skip

    def _nothing_known(self) -> CannotFinishError:
        return CannotFinishError(
            f"{self.space.job.name}: {self.wanted.within_s:g} s (--within) were over before any layout was "
            "simulated that fits into memory"
        )

    def _dropped(self, family: Family, why: Why, text: str) -> None:
        if self.wanted.pruned:
            self.pruned += (Pruned(candidate.settings, why, text) for candidate in family)

    def _rows_so_far(self) -> list[PlanRow]:
        """Return the best that is known, and certain where nothing can be faster."""
        rows = [_row(entry, certain=True) for entry in list(self.refinement.rows)]
        return rows + [_row(entry, certain=False) for entry in self._known()]

    def _known(self) -> list[Entry]:
        """Return what was simulated and is uncertain, the last mode's first, as far as they would be rows."""
        known = [entry for entry in list(self.refinement.queue) if entry.result is not None]
        known.sort(key=lambda entry: (not entry.certain, entry))
        return known[: self.wanted.top - len(self.refinement.rows)]

    def _so_far(self) -> list[Entry]:
        """Take what was simulated and is not certain out of the queue."""
        refinement, listed = self.refinement, self._known()
        numbers = {entry.number for entry in listed}
        refinement.queue = [entry for entry in refinement.queue if entry.number not in numbers]
        return listed

    def _others(self) -> Duration | None:
        """Return what all that are left in the queue take at least, flattened; 0 of those not looked at."""
        if not self.refinement.all_seen:
            return Duration(0)
        left = self.refinement.queue
        return Duration(min(entry.flattened for entry in left)) if left else None

    def _nothing_fits(self, candidates: int) -> NoReturn:
        """Raise what is missing, with the candidate that misses by least, or why none is simulated."""
        job = self.refinement.nearest()
        if job is None:
            first = next(iter(self.space.refused), "")
            stated = ", ".join(f"{name} {values}" for name, values in self.wanted.vary.items() if values)
            raise InfeasibleJobError(
                f"{self.space.job.name}: no legal layout over {self.space.gpus} GPUs (--gpus)"
                + (f" with {stated} (--vary)" if stated else "")
                + (f"; as in {first}" if first else "")
            )
        share = self.refinement.share
        into = "" if share == 1 else f" into {share:.0%} of memory (--headroom)"
        split = ", ".join(
            f"{key} {value}" for key, value in Candidate(job).settings.items() if key != "layers"
        )
        try:
            check_memory(in_passes(job, self.refinement.capacity), self.refinement.capacity)
        except InfeasibleJobError as error:
            raise InfeasibleJobError(
                f"none of {candidates:,} layouts over {self.space.gpus} GPUs fits{into}; "
                f"nearest ({split}): {error}"
            ) from None
        why = list(self.space.refused)[-1]
        raise InfeasibleJobError(f"none of {candidates:,} layouts can be simulated; as in {why}")


def _row(entry: Entry, *, certain: bool) -> PlanRow:
    assert entry.result is not None, "it was simulated"
    job = entry.family.job
    return PlanRow(job, Candidate(job).settings, entry.result, certain)
