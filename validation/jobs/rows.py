"""Topics of measured jobs: predictions from runs, null models of one constant, parts of the time."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import TypeAlias

from rapid_des.device.calibration import is_calibration
from rapid_des.frontend import StageMemory
from rapid_des.report.evidence import FIRST_TOKEN, PER_TOKEN, STEP
from rapid_des.values import replace
from validation.jobs.blame import Taken, errors_by_part
from validation.jobs.cases import FIRST, TOO_LARGE, Case, Outcome
from validation.jobs.sources import memory_ratios_of, ratios_of
from validation.jobs.workers import Runs, Watch
from validation.measurements import Record, UnsupportedRow
from validation.scoring import JobError, Row, Topic

Figure = Callable[[Outcome], float]
MEMORY = "memory"
"""The figure of peaks."""
_GIB = 1 << 30


def step_s(outcome: Outcome) -> float:
    """Return the step's seconds."""
    return outcome.step_s


def step_ms(outcome: Outcome) -> float:
    """Return the milliseconds from the first token in to the last one out."""
    return 1e3 * outcome.step_s


def first_token_ms(outcome: Outcome) -> float:
    """Return the milliseconds to the first token."""
    return 1e3 * outcome.first_token_s


def per_token_ms(outcome: Outcome) -> float:
    """Return the mean milliseconds of the tokens after the first."""
    return 1e3 * outcome.per_token_s


def tokens_per_s(outcome: Outcome) -> float:
    """Return what a server puts out."""
    return outcome.tokens_per_s


def memory_gb(outcome: Outcome) -> float:
    """Return the fullest GPU's 1e9 bytes."""
    return outcome.memory_bytes / 1e9


def first_stage(outcome: Outcome) -> StageMemory:
    """Return the memory of the first stage's ranks, of a case of memory alone."""
    assert outcome.memory is not None
    return outcome.memory


def allocated_gib(outcome: Outcome) -> float:
    """Return what PyTorch has handed out at most while a first stage's optimizer runs."""
    return first_stage(outcome).timeline[-1].allocated / _GIB


def reserved_gib(outcome: Outcome) -> float:
    """Return what PyTorch holds on a first stage after a step."""
    return first_stage(outcome).reserved / _GIB


def most_reserved_gib(outcome: Outcome) -> float:
    """Return what PyTorch holds on the stage where that is most."""
    return outcome.reserved_bytes / _GIB


_NAMES: Mapping[Figure, str] = {
    step_s: STEP,
    step_ms: STEP,
    first_token_ms: FIRST_TOKEN,
    per_token_ms: PER_TOKEN,
    reserved_gib: MEMORY,
    most_reserved_gib: MEMORY,
}
"""Figures that are forecast."""


@dataclass(frozen=True)
class MeasuredJob:
    """One measurement of a topic and the runs that predict it."""

    topic: str
    case_id: str
    measured: float
    figure: Figure = step_s
    cases: tuple[Case, ...] = ()
    """What is run; of several the best is what is predicted, as a paper prints its best layout."""
    unsupported: str = ""
    basis: float = 0.0
    """What the null model multiplies by its one constant; 0: there is none."""
    alike: str = ""
    """Rows with one constant of the null model, as GPU and precision."""
    alone: Case | None = None
    """The job as the table and the software's profile say it; None: as `cases`, or it cannot be said."""


Reader: TypeAlias = Callable[[Record], MeasuredJob | Iterable[MeasuredJob]]
"""Returns the measurement of a row, for every reading of what the row leaves open."""
Named: TypeAlias = Callable[[Record], tuple[str, str]]
"""Returns the topic and the case of a row."""


def read_rows(
    records: Iterable[Record], read: Reader, named: Named, alone: Callable[[Record], Case] | None = None
) -> Iterator[MeasuredJob]:
    """Yield what `read` makes of each row of a file; what it does not know is unsupported with the reason.

    `alone` returns a row's job without the recipe behind its table, where a source has one.
    """
    for record in records:
        try:
            made = read(record)
            rows = [made] if isinstance(made, MeasuredJob) else list(made)
            yield from rows if alone is None else _beside(alone, record, rows)
        except UnsupportedRow as why:
            topic, case_id = named(record)
            yield MeasuredJob(topic, case_id, 1.0, unsupported=str(why))


def _beside(
    alone: Callable[[Record], Case], record: Record, rows: Iterable[MeasuredJob]
) -> Iterator[MeasuredJob]:
    try:
        case = alone(record)
    except UnsupportedRow:
        yield from rows
    else:
        yield from (replace(row, alone=case) for row in rows)


def job_topics(
    measured: Iterable[MeasuredJob], runs: Runs, *, unit: str, split: bool, ranked: bool = False
) -> Iterator[Topic]:
    """Yield a topic for every name in order of first appearance, and `NAME/parts` beside those of times."""
    by_topic: dict[str, list[MeasuredJob]] = defaultdict(list)
    for row in measured:
        by_topic[row.topic].append(row)
    for name, members in by_topic.items():
        begin = partial(_begin, runs, members)
        rows = partial(_rows, runs, members, split=split)
        errors = partial(_job_errors, runs, members)
        yield Topic(
            name, rows, unit=unit, begin=begin, abandon=runs.abandon, ranked=ranked, job_errors=errors,
            layouts=partial(_layouts, members),
        )  # fmt: skip
        figure = next((row.figure for row in members if row.cases), None)
        if figure in (step_s, step_ms, per_token_ms) or _first_of_served(members):
            shares, blamed = partial(_shares, runs, members), partial(_blamed, runs, members)
            yield Topic(
                f"{name}/parts",
                list,
                unit="%",
                begin=begin,
                abandon=runs.abandon,
                shares=shares,
                blamed=blamed,
            )


def _first_of_served(members: Sequence[MeasuredJob]) -> bool:
    """Tell whether rows are first tokens of servers, whose parts are known."""
    served = any(case.served is not None for row in members for case in row.cases)
    return served and next(row.figure for row in members if row.cases) is first_token_ms


def _begin(runs: Runs, members: Sequence[MeasuredJob], watch: Watch) -> None:
    runs.watch = watch
    runs.begin(case for row in members for case in (*row.cases, *([row.alone] if row.alone else ())))


def _rows(runs: Runs, members: Sequence[MeasuredJob], *, split: bool) -> list[Row]:
    nulls = _constants(members, split=split)
    return [_row(runs, row, nulls.get(row.alike, 0.0) * row.basis or None) for row in members]


def _row(runs: Runs, row: MeasuredJob, null: float | None) -> Row:
    outcome = _best(runs, row)
    if isinstance(outcome, str):
        return Row(row.case_id, row.measured, None, unsupported=outcome)
    predicted = row.figure(outcome)
    alone = None if row.alone is None else runs.outcome(row.alone)
    simple = None if alone is None or alone.refusal else row.figure(alone)
    found = Row(row.case_id, row.measured, predicted, null, alone=simple)
    if _NAMES.get(row.figure) == MEMORY and outcome.origin is not None:
        middle, low, high = memory_ratios_of(outcome.origin.software)
    elif outcome.kind is not None and outcome.origin is not None and row.figure is step_s:
        middle, low, high = ratios_of(row.topic, outcome.kind)
    else:
        return found
    covered = low <= row.measured / predicted <= high
    return replace(found, covered=covered, forecast=middle * predicted)


def _job_errors(runs: Runs, members: Sequence[MeasuredJob], wanted: Callable[[str], bool]) -> list[JobError]:
    """Return the errors of wanted rows whose figure is forecast."""
    chosen = [row for row in members if row.figure in _NAMES and wanted(row.case_id)]
    runs.begin(case for row in chosen for case in row.cases)
    outcomes = [(row, _best(runs, row)) for row in chosen]
    return [
        JobError(
            row.case_id,
            replace(outcome.origin, figure=_NAMES[row.figure]),
            row.figure(outcome),
            math.log(row.measured / row.figure(outcome)),
            outcome.work,
            _alike(row.cases[0]),
            json.dumps(json.loads(row.cases[0].job)["model"], sort_keys=True),
            outcome.kind,
        )
        for row, outcome in outcomes
        if not isinstance(outcome, str) and outcome.origin is not None
    ]


def _layouts(members: Sequence[MeasuredJob]) -> Mapping[str, str]:
    """Return each case's job: what its layouts have in common, formats included."""
    cases = {row.case_id: row.cases[0] for row in members if row.cases}
    formats = {name: json.loads(case.job).get("precision") for name, case in cases.items()}
    return {name: _alike(case) + json.dumps(formats[name], sort_keys=True) for name, case in cases.items()}


def _alike(case: Case) -> str:
    """Return what layouts of one job on one machine have in common: the model and the place."""
    job = json.loads(case.job)
    axes = job.get("parallelism", {})
    gpus = math.prod(axes.get(axis, 1) for axis in ("tp", "cp", "pp", "dp"))
    training = job.get("training", {})
    stated = [training.get(key) for key in ("global_batch", "sequence_length")]
    return json.dumps([job["model"], gpus, case.place.machine, *stated])


def _best(runs: Runs, row: MeasuredJob) -> Outcome | str:
    """Return the outcome that predicts a row, or why there is none."""
    if row.unsupported:
        return row.unsupported
    outcomes = [runs.outcome(case) for case in row.cases]
    feasible = [outcome for outcome in outcomes if not outcome.refusal]
    if not feasible:
        return next(
            (outcome.refusal for outcome in outcomes if outcome.refusal != TOO_LARGE), outcomes[0].refusal
        )
    return min(feasible, key=row.figure)


def _constants(members: Sequence[MeasuredJob], *, split: bool) -> dict[str, float]:
    """Return the null model's constant by rows alike: the median on calibration rows, where there are any."""
    known: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    for row in members:
        if row.basis and row.cases:
            known[row.alike].append((split and is_calibration(row.case_id), row.measured / row.basis))
    return {
        alike: median([ratio for fitted, ratio in ratios if fitted] or [ratio for _, ratio in ratios])
        for alike, ratios in known.items()
    }


def _shares(runs: Runs, members: Sequence[MeasuredJob]) -> Mapping[str, float]:
    """Return the mean percent of the predicted time by part, over all rows."""
    known = [(row, outcome) for row in members if not isinstance(outcome := _best(runs, row), str)]
    shared = [_parts(row, outcome) for row, outcome in known]
    names = dict.fromkeys(name for parts, _ in shared for name in parts)
    return {name: fmean(100 * parts.get(name, 0.0) / whole for parts, whole in shared) for name in names}


def _parts(row: MeasuredJob, outcome: Outcome) -> tuple[Mapping[str, float], float]:
    """Return the parts that a row's figure is of, and their whole, in seconds."""
    if row.figure is first_token_ms:
        return outcome.first_parts_s, outcome.first_token_s
    return outcome.parts_s, outcome.step_s


def _blamed(runs: Runs, members: Sequence[MeasuredJob]) -> Mapping[str, float]:
    """Return what each part of the predicted time adds to the bias, percent.

    Of a token the parts are those of the request, but for the wait for its first token: what decodes is most.
    """
    known = [(row, outcome) for row in members if not isinstance(outcome := _best(runs, row), str)]
    return errors_by_part([_taken(row, outcome) for row, outcome in known])


def _taken(row: MeasuredJob, outcome: Outcome) -> Taken:
    parts = {name: time for name, time in _parts(row, outcome)[0].items() if name != FIRST}
    scale = row.figure(outcome) / (sum(parts.values()) or 1.0)
    return Taken(row.measured, {name: scale * time for name, time in parts.items()})


def slope_topic(name: str, ladders: Sequence[Sequence[tuple[float, MeasuredJob]]], runs: Runs) -> Topic:
    """Return a topic of times over that of a ladder's first rung; rungs come with the null model's ratio."""
    members = [row for ladder in ladders for _, row in ladder]
    rows = partial(_slopes, runs, ladders)
    return Topic(name, rows, unit="ratio", begin=partial(_begin, runs, members), abandon=runs.abandon)


def _slopes(runs: Runs, ladders: Sequence[Sequence[tuple[float, MeasuredJob]]]) -> list[Row]:
    return [_slope(runs, ladder[0][1], row, null) for ladder in ladders for null, row in ladder[1:]]


def _slope(runs: Runs, first: MeasuredJob, row: MeasuredJob, null: float) -> Row:
    before, after = _best(runs, first), _best(runs, row)
    measured = row.measured / first.measured
    if isinstance(before, str) or isinstance(after, str):
        why = before if isinstance(before, str) else after
        return Row(row.case_id, measured, None, unsupported=str(why))
    return Row(row.case_id, measured, row.figure(after) / row.figure(before), null)
