"""Monte Carlo over draws of faults: their cost to one job or several, which all see the same draws.

    draws ──► (configuration, some draws) ──► executor ──► a row a draw ──► mean, percentiles, CVaR

A draw is a function of seed, id and fabric alone (`rapid_des.network.faults.models`). Each is run beside the
healthy step of its configuration and compared at the rank that it makes critical.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct, field

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import InfeasibleJobError, InputError, RapidDesError
from rapid_des.executors import Done, Executor, InProcess, Outcome
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.network.faults.models import Draw, FaultDraws, FaultModel, Variates, parse_model
from rapid_des.report.result import Result
from rapid_des.simulation import simulate, timed
from rapid_des.studies.criticality import PLURALS, alike_places
from rapid_des.studies.draw_statistics import Until
from rapid_des.studies.fault_rows import (
    COLUMNS,
    NO_DRAW,
    DrawRow,
    FaultSample,
    Sampling,
    inputs_of,
    read,
    written,
)
from rapid_des.studies.faults import How, why_faster
from rapid_des.studies.points import Point, source_content
from rapid_des.studies.spaces import load_study
from rapid_des.studies.store import ResultStore, check_store
from rapid_des.units import seconds
from rapid_des.values import replace
from rapid_des.version import __version__

SAMPLINGS: tuple[Sampling, ...] = ("independent", "latin", "exact")
_BATCH = 30
"""The least number of draws in a task."""
_BATCH_S = 10.0
"""The seconds that a task should take, once the time of a draw is known: long tasks share a healthy run, but
^C loses the tasks under way."""
_MANY = 1 << 10
_BYTES = 1 << 22
"""The bytes that a healthy run takes in a cache besides its records, about."""
OnProgress: TypeAlias = Callable[[str, int, int], None]


class _Task(Struct, frozen=True):
    """Some draws of one configuration."""

    name: str
    point: Point
    draws: tuple[tuple[int, Draw, float], ...]
    alone: bool
    """Whether this is the only configuration, so that its failure ends the study."""

    def without(self, present: Collection[tuple[str, int]]) -> _Task:
        """Return the task without draws that were run before."""
        return replace(self, draws=tuple(draw for draw in self.draws if (self.name, draw[0]) not in present))


_PLACES = 10_000_000


def study_points(reference: str | Path) -> dict[str, Point]:
    """Return the points of a study file by the labels of their axes, as in `tp=8 pp=4`."""
    study = load_study(reference)
    return {
        " ".join(f"{name}={value}" for name, value in case.labels.items()): case.point
        for case in study.cases()
    }


def faults_sample(  # noqa: PLR0913 - what a study is asked, by name
    configurations: Job | Mapping[str, Job | Point],
    machine: Machine | None = None,
    faults: Sequence[str | FaultModel] = (),
    *,
    draws: int = 300,
    seed: int = 0,
    first: int = 0,
    sampling: Sampling = "independent",
    until: str | Until | None = None,
    mode: str = "hierarchical",
    folder: Path | None = None,
    executor: Executor | None = None,
    on_progress: OnProgress | None = None,
) -> FaultSample:
    """Run draws of fault models (--fault with distributions) on a job, or on jobs and points by name.

    Draw `first` is the first of up to `draws`; with `until` (as in "mean ±0.5%") fewer, if all configurations
    have such an interval before. `sampling` "latin" takes rounds of 30 draws that fall once into each
    thirtieth of every variate; "exact" runs all places and stated values instead of drawing them, those that
    symmetry makes alike once. ^C leaves what is finished, in `folder` (Parquet) too, where the same study
    goes on. Errors as those of `simulate` are in the rows; a job that cannot be run healthy has one row.

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> job, machine = load_job("llama2_7b_train"), load_machine("dgx_a100")
    >>> slow = "random=gpus count=1 compute=uniform(0.5,0.9)"
    >>> sample = faults_sample(job, machine, [slow], draws=3, mode="analytical")
    >>> len(sample.rows), sample.rows[0].slowdown > 1.05
    (3, True)
    """
    points = _points(configurations, machine, mode)
    stated = [faults] if isinstance(faults, str) else faults
    models = tuple(parse_model(fault) if isinstance(fault, str) else fault for fault in stated)
    if draws < 1 or sampling not in SAMPLINGS:
        allowed = f"draws from 1 on, sampling one of {', '.join(SAMPLINGS)}"
        raise InputError(f"draws {draws}, sampling {sampling!r}; allowed: {allowed}")
    if not models:
        raise InputError("faults sample needs at least one --fault 'KEY=VALUE …'")
    wanted = Until.parse(until) if isinstance(until, str) else until
    study = _FaultStudy(
        points, models, Variates(seed, first, "latin" if sampling == "latin" else "independent")
    )
    tasks = study.exact() if sampling == "exact" else None
    text = "" if wanted is None else f"{wanted.figure} ±{wanted.share:.3%}"
    if folder is not None:
        check_store(folder)
    with executor or InProcess() as opened, study.stored(folder, sampling) as store:
        rows, left, met = study.run(opened, draws, wanted, on_progress, tasks, store)
    texts = tuple(model.text for model in models)
    names = tuple(study.points)
    return FaultSample(names, tuple(rows), texts, seed, sampling, text, met, left, study.refused)


def _points(
    configurations: Job | Mapping[str, Job | Point], machine: Machine | None, mode: str
) -> dict[str, Point]:
    named = {configurations.name: configurations} if isinstance(configurations, Job) else configurations
    points = dict[str, Point]()
    for name, fault_model in named.items():
        if isinstance(fault_model, Point):
            points[name] = fault_model
        elif machine is None:
            raise InputError("faults_sample of jobs needs a machine")
        else:
            points[name] = Point(fault_model, machine, mode=mode)
    return points


class _FaultStudy:
    """The points, and the draws for each of their machines."""

    def __init__(self, points: Mapping[str, Point], models: tuple[FaultModel, ...], first: Variates) -> None:
        self.models, self.first = models, first
        self.points: dict[str, Point] = {}
        self.refused: dict[str, str] = {}
        self.unfit: set[str] = set()
        """The configurations whose healthy step is known to fail."""
        self.cache = BoundedCache(1 << 26)
        self.draw_s = _BATCH_S / _BATCH
        known: list[tuple[Machine, FaultDraws]] = []
        self.draws: dict[str, FaultDraws] = {}
        for name, point in points.items():
            try:
                machine = point.resolved(self.cache)[1]
            except RapidDesError as error:
                if len(points) == 1:
                    raise
                self.refused[name] = str(error)
                continue
            self.points[name] = point
            same = [stored for other, stored in known if other.healthy == machine.healthy]
            if not same:
                same = [FaultDraws(models, machine.healthy, machine.spec.gpus_per_node)]
                known.append((machine, same[0]))
            self.draws[name] = same[0]

    def tasks(self, begin: int, end: int, workers: int) -> Iterator[_Task]:
        """Yield tasks of the draws from one place to another, a configuration after the other."""
        first, left = self.first.number, (end - begin) * len(self.points)
        for name, point in self.points.items():
            start = begin
            while start < end:
                wanted = min(int(_BATCH_S / self.draw_s), left // (2 * workers))
                last = min(start + max(_BATCH, wanted), end)
                drawn = [
                    (number, self.draws[name].draw(replace(self.first, number=number)))
                    for number in range(first + start, first + last)
                ]
                start, left = last, left - (last - start)
                weighted = tuple((number, draw, 1.0) for number, draw in drawn)
                yield _Task(name, point, weighted, alone=len(self.points) == 1)

    @contextmanager
    def stored(self, folder: Path | None, sampling: Sampling) -> Iterator[ResultStore | None]:
        """Give the store that keeps rows in a folder; None without a folder."""
        if folder is None:
            yield None
            return
        drawn = {
            "faults": [model.text for model in self.models],
            "seed": self.first.seed,
            "sampling": sampling,
        }
        drawn["first"] = self.first.number
        points = {name: point.key(self.cache) for name, point in self.points.items()}
        manifest = {
            "kind": "faults",
            "study": {"rapid_des": __version__, "source": source_content(), **drawn, "points": points},
            **inputs_of(self.points, self.cache),
        }
        with ResultStore.create(folder, manifest, COLUMNS) as store:
            yield store

    def _present(self, store: ResultStore | None) -> list[DrawRow]:
        table = [] if store is None else store.table().to_pylist()
        return [read(row) for row in table if row["configuration"] in self.points]

    def _keep(self, store: ResultStore | None, rows: Iterable[DrawRow]) -> None:
        names = list(self.points)
        for row in rows if store is not None else ():
            place = names.index(row.configuration)
            assert store is not None
            store.append({"id": place * _PLACES + row.draw + 1, **written(row)})

    def run(  # noqa: PLR0913 - what a study runs with
        self,
        executor: Executor,
        most: int,
        until: Until | None,
        on_progress: OnProgress | None,
        tasks: list[_Task] | None,
        store: ResultStore | None = None,
    ) -> tuple[list[DrawRow], int, bool]:
        """Return the rows, the number of draws that ^C left out, and whether there are enough draws."""
        rows = self._present(store)
        self.unfit.update(row.configuration for row in rows if row.draw == NO_DRAW)
        present = {(row.configuration, row.draw) for row in rows}
        counts = {task.name: len(task.draws) for task in tasks} if tasks else dict.fromkeys(self.points, most)
        stages = [most] if until is None or tasks is not None else [*range(_BATCH, most, _BATCH), most]
        begin, met = 0, until is None or tasks is not None
        try:
            for end in stages:
                every = tasks or self.tasks(begin, end, executor.workers)
                wanted = (task.without(present) for task in every if task.name not in self.unfit)
                for _, outcome in executor.map(simulate_draws, (task for task in wanted if task.draws)):
                    new = self._of(outcome)
                    self._keep(store, new)
                    rows += new
                    if on_progress is not None:
                        on_progress("faults", *self._done(rows, counts))
                begin = end
                fit = (name for name in self.points if name not in self.unfit)
                met = until is None or all(until.met(self._steps(rows, name)) for name in fit)
                if met:
                    break
        except KeyboardInterrupt:
            if not rows:
                raise
            done, total = self._done(rows, counts)
            return self._ordered(rows), total - done, met
        return self._ordered(rows), 0, met

    def _of(self, outcome: Outcome[list[DrawRow]]) -> list[DrawRow]:
        """Return a task's rows; a configuration that cannot be run has rows of its first task only."""
        if not isinstance(outcome, Done):
            refusal = InfeasibleJobError if outcome.error == InfeasibleJobError.__name__ else InputError
            raise refusal(outcome.text)
        rows = [row for row in outcome.value if row.configuration not in self.unfit]
        without = {row.configuration for row in rows if row.draw == NO_DRAW}
        self.unfit |= without
        if rows and not without:
            self.draw_s = max(outcome.wall_s / len(rows), 1e-6)
        return rows

    def _done(self, rows: Sequence[DrawRow], counts: Mapping[str, int]) -> tuple[int, int]:
        """Return how many draws were run, and how many configurations that can be run have."""
        total = sum(count for name, count in counts.items() if name not in self.unfit)
        return sum(row.draw != NO_DRAW for row in rows), total

    def _steps(self, rows: Sequence[DrawRow], name: str) -> list[float]:
        return [seconds(row.step_time) for row in rows if row.configuration == name and not row.error]

    def _ordered(self, rows: list[DrawRow]) -> list[DrawRow]:
        order = {name: place for place, name in enumerate(self.points)}
        return sorted(rows, key=lambda row: (order[row.configuration], row.draw))

    def exact(self) -> list[_Task]:
        """Return a task of each place with each value; places that symmetry makes equal are run once."""
        (model, *others) = self.models
        numbers = [(key, drawn_number) for key, drawn_number in model.numbers if key != "count"]
        if others or model.count != 1 or model.kind not in PLURALS or model.within is not None:
            kinds = ", ".join(PLURALS)
            raise InputError(f"sampling exact: allowed: one --fault with random one of {kinds} and count=1")
        if len(numbers) > 1 or any(not drawn_number.values for _, drawn_number in numbers):
            raise InputError(
                "sampling exact: allowed: constants, and one number of choice(…) or empirical(…)"
            )
        return [self._exact(name, model, numbers) for name in self.points]

    def _exact(self, name: str, model: FaultModel, numbers: Sequence[tuple[str, Any]]) -> _Task:
        point, parts = self.points[name], self.draws[name].parts(0)
        job, machine = point.resolved(self.cache)
        names = [str(part[1]) for part in parts]
        classes = alike_places(job, machine, PLURALS[str(model.kind)], names, How(point.mode))
        stated = [
            (key, value, share) for key, drawn_number in numbers for value, share in drawn_number.values
        ]
        drawn = list[tuple[int, Draw, float]]()
        for alike in classes:
            for place, (key, value, share) in enumerate(stated or [("", 0.0, 1.0)]):
                values = {key: dict(model.numbers)[key].measure.written(value)} if key else {}
                fault = model.fault(parts[alike[0]], values, 0)
                drawn.append((place * len(parts) + alike[0], (fault,), share * len(alike)))
        return _Task(name, point, tuple(drawn), alone=len(self.points) == 1)


def simulate_draws(task: _Task, cache: BoundedCache) -> list[DrawRow]:
    """Return the rows of some draws; errors are in the rows, one row for all if the healthy step fails."""
    job, machine = task.point.resolved(cache)
    choice = EngineChoice(task.point.engine, programs=_MANY)

    point = task.point
    how: dict[str, Any] = {"mode": point.mode, "strict": point.strict, "allow_oom": point.allow_oom}

    def run(on: Machine) -> Result:
        return timed(job, on, engine=choice, cache=cache, **how)

    def whole() -> Result:
        return simulate(job, machine, engine=choice, cache=cache, **how)

    key = ("healthy", job, machine, task.point.mode, task.point.engine)
    try:
        healthy = cache.get_or_make(key, whole, weight=_weight)
    except RapidDesError as error:
        if task.alone:
            raise
        return [_failed(task.name, (NO_DRAW, (), 1.0), 0, f"{type(error).__name__}: {error}")]
    beside = _Healthy(task.name, machine, healthy)
    return [_row(draw, beside, run) for draw in task.draws]


def _weight(result: Result) -> int:
    seen = result.run or (result.blocks and result.blocks.run)
    return _BYTES + (seen.nbytes if seen else 0)


class _Healthy(Struct, frozen=True, eq=False):
    """The healthy run with which draws of one configuration are compared."""

    name: str
    machine: Machine
    result: Result
    breakdowns: dict[int, Mapping[str, int]] = field(default_factory=dict)

    def breakdown(self, rank: int) -> Mapping[str, int]:
        """Return the breakdown of a rank's time, which is kept: draws have few critical ranks."""
        if rank not in self.breakdowns:
            self.breakdowns[rank] = self.result.rank_breakdown(rank)
        return self.breakdowns[rank]


def _row(draw: tuple[int, Draw, float], beside: _Healthy, run: Callable[[Machine], Result]) -> DrawRow:
    (number, faults, weight), healthy, machine = draw, beside.result, beside.machine
    words = tuple(fault.words for fault in faults)
    try:
        hurt = machine.with_faults(faults) if faults else machine
        faulty = run(hurt) if faults else healthy
    except Exception as error:  # noqa: BLE001 - one draw that fails is recorded and does not stop the others
        return _failed(beside.name, draw, int(healthy.step_time), f"{type(error).__name__}: {error}")
    rank = faulty.critical_rank
    before = beside.breakdown(rank)
    parts = {**before, **faulty.breakdown}
    added = {part: int(faulty.breakdown.get(part, 0)) - int(before.get(part, 0)) for part in parts}
    why = why_faster(healthy, faulty, machine, hurt) if faulty.step_time < healthy.step_time else ""
    positive = {part: time for part, time in added.items() if time}
    times = int(faulty.step_time), int(healthy.step_time)
    return DrawRow(beside.name, number, words, *times, rank, positive, weight, faster=why)


def _failed(name: str, draw: tuple[int, Draw, float], healthy: int, error: str) -> DrawRow:
    number, faults, weight = draw
    return DrawRow(
        name, number, tuple(fault.words for fault in faults), 0, healthy, -1, {}, weight, error=error
    )
