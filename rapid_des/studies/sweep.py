"""Running a study: its points are simulated by an executor, and their rows are kept."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import Document, to_tree
from rapid_des.errors import InputError, RapidDesError
from rapid_des.executors import Executor, Failed, Outcome, attempt
from rapid_des.report.run_figures import RUN_FIGURES
from rapid_des.studies.points import (
    FIGURES,
    Rerun,
    content,
    kind_of,
    machine_content,
    measured,
    source_content,
)
from rapid_des.studies.results import Sweep
from rapid_des.studies.spaces import Case, Study, load_study
from rapid_des.studies.store import ResultStore, check_store
from rapid_des.studies.worker_pools import executor_of
from rapid_des.values import replace
from rapid_des.version import __version__

OnProgress = Callable[[str, int, int], None]
"""Called with the name of the work, the number of finished points and of all points (0: not counted yet)."""
_AT_FIRST_S, _SLICE_S, _SHARE = 0.5, 0.02, 0.05
"""The seconds for which points are counted before the first simulation, the seconds of each later count while
workers are busy, and the share of a point's time that counting may take in this process."""


def sweep(  # noqa: PLR0913 - what a study is asked, by name
    study: str | Path | Mapping[str, Any] | Study,
    *,
    folder: str | Path | None = None,
    executor: str | Executor = "processes",
    workers: int | None = None,
    address: str | None = None,
    limit: int | None = None,
    on_progress: OnProgress | None = None,
) -> Sweep:
    """Simulate the points of a study: a file, or a mapping as such a file holds (`rapid-des schema study`).

    Results are kept in `folder` (Parquet; points in it are not simulated again), or in memory without one.
    `executor` is one of `rapid_des.studies.worker_pools.EXECUTORS` with a number of `workers` (default: all
    cores; `address` is that of a Ray cluster), or an open executor; `limit` simulates the first points only.
    Points that fail have a row with their error; ^C keeps the finished points (`left` is the number of
    others). `ConfigError` for a wrong study, before anything is simulated.

    >>> axes = {"tp": [1, 2, 4, 8], "dp": [1, 2, 4]}
    >>> study = {"job": "llama2_7b_train", "on": "dgx_a100", "axes": axes, "where": "tp * dp * pp == 8"}
    >>> done = sweep({**study, "mode": "analytical"}, executor="local")
    >>> len(done), done.best(1)[0]["tp"]
    (3, 2)
    """
    read = load_study(study)
    if limit is not None and limit < 1:
        raise InputError(f"limit {limit}; allowed: from 1 on")
    if folder is not None:
        check_store(Path(folder))
    with (
        executor_of(executor, workers, address)
        if isinstance(executor, str)
        else nullcontext(executor) as opened
    ):
        opened.start()  # workers import what they need while the folder is read
        asked = Points(read, limit)
        if folder is None:
            rows, interrupted = _gathered(run(asked, opened, on_progress=on_progress))
            done = Sweep.of_rows(read.columns, read.spec.objective, rows, read.spec.compare)
        else:
            interrupted = _stored(asked, opened, Path(folder), on_progress=on_progress)
            done = Sweep.opened(folder)
    if not interrupted:
        return done
    left = max(asked.counted - len(done), not asked.whole)
    return replace(done, left=left, left_at_least=not asked.whole)


def _gathered(rows: Iterator[dict[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """Return all rows, or the rows before ^C and True; without any row the interrupt is raised."""
    gathered: list[dict[str, Any]] = []
    try:
        for row in rows:
            gathered.append(row)  # noqa: PERF402 - extend would lose what is finished
    except KeyboardInterrupt:
        if not gathered:
            raise
        return gathered, True
    return gathered, False


def _stored(asked: Points, executor: Executor, folder: Path, *, on_progress: OnProgress | None) -> bool:
    """Add rows to a folder as they finish; return whether ^C ended that."""
    with ResultStore.create(folder, manifest_of(asked.study), columns_of(asked.study)) as store:
        try:
            for row in run(asked, executor, done=store.done(), on_progress=on_progress):
                store.append(row)
        except KeyboardInterrupt:
            return True
    return False


class Points:
    """The points of a study up to a limit, counted in slices of time: conditions may leave few of billions.

    >>> asked = Points(load_study("splits_64"), limit=10)
    >>> asked.count_on(seconds=1.0), asked.counted, asked.whole
    (False, 10, True)
    """

    def __init__(self, study: Study, limit: int | None = None) -> None:
        self.study, self.limit = study, limit
        self.counted, self.whole = 0, False
        """The number of points that were counted, and whether these are all."""
        self._tally = study.tallied()

    def cases(self) -> Iterator[Case]:
        """Yield the points in order."""
        return islice(self.study.cases(), self.limit)

    def count_on(self, seconds: float = _SLICE_S) -> bool:
        """Count for some seconds; return whether there are more to count."""
        until = time.monotonic() + seconds
        while not self.whole and time.monotonic() < until:
            self._count_some()
        return not self.whole

    def _count_some(self) -> None:
        number = next(self._tally, None)
        self.counted += number or 0
        self.whole = number is None
        if self.limit is not None and self.counted >= self.limit:
            self.counted, self.whole = self.limit, True


def run(
    asked: Points,
    executor: Executor,
    *,
    done: set[int] | frozenset[int] = frozenset(),
    on_progress: OnProgress | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield rows of points as they finish, except for points that are `done`."""
    waiting: dict[int, Case] = {}

    def points() -> Iterator[Any]:
        left = (case for case in asked.cases() if case.id not in done)
        for place, case in enumerate(left):
            waiting[place] = case
            yield case.point

    asked.count_on(_AT_FIRST_S)
    finished = sum(asked.limit is None or identifier <= asked.limit for identifier in done)
    for place, outcome in executor.map(measured, points(), asked.count_on):
        finished += 1
        asked.count_on(outcome.wall_s * _SHARE)
        if on_progress is not None:
            on_progress(asked.study.name, finished, asked.counted if asked.whole else 0)
        yield _row(waiting.pop(place), outcome)


def _row(case: Case, outcome: Outcome[dict[str, Any]]) -> dict[str, Any]:
    faults = [to_tree(fault, "fault") for fault in case.point.faults]
    stated = {
        "id": case.id,
        **case.labels,
        "wall_s": outcome.wall_s,
        "point_settings": json.dumps(case.point.settings),
        "point_faults": json.dumps(faults),
    }
    if isinstance(outcome, Failed):
        return {**stated, "status": outcome.error, "error": outcome.text}
    return {**stated, **outcome.value}


def columns_of(study: Study) -> dict[str, str]:
    """Return the columns of a study's results and their types, as Arrow calls them."""
    columns = {"id": "int64"}
    for axis in study.axes:
        for name in axis.names:
            columns[name] = _kind([choice.labels[name] for choice in axis.choices])
    if study.spec.repeat > 1:
        columns["repeat"] = "int64"
    left_out = () if study.run is not None else RUN_FIGURES
    return columns | {name: kind_of(name) for name in FIGURES if name not in left_out}


def _kind(values: Sequence[Any]) -> str:
    """Return the narrowest type that holds all values of an axis."""
    kinds = {type(value) for value in values}
    if kinds <= {bool}:
        return "bool_"
    if kinds <= {int}:
        return "int64"
    return "float64" if kinds <= {int, float} else "string"


def manifest_of(study: Study) -> dict[str, Any]:
    """Return the manifest from which results can be made again: files, versions, seeds and hashes."""
    stated = to_tree(study.spec, "study") | {"job": study.job.tree, "on": study.machine.tree}
    if study.run is not None:
        stated["reliability"] = to_tree(study.run.reliability.spec, "reliability")
    faults = [
        *study.constant.faults,
        *(f for axis in study.axes for choice in axis.choices for f in choice.faults),
    ]
    return {
        "kind": "sweep",
        "name": study.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "objective": study.spec.objective,
        "axes": list(study.columns),
        "compare": study.spec.compare,
        "seeds": sorted({fault.seed for fault in faults if fault.seed is not None}),
        "repeats": study.spec.repeat,
        "study": {
            "rapid_des": __version__,
            "source": source_content(),
            "folder": str(study.reader.folder.absolute()),
            "files": {"job": str(study.job.path.absolute()), "on": str(study.machine.path.absolute())},
            "content": _contents(study),
            "stated": stated,
        },
    }


def _contents(study: Study) -> dict[str, str]:
    """Return hashes of a study's first job, machine and device constants, or the error of its first point."""
    case = next(study.cases())
    cache = BoundedCache()
    try:
        job, machine = case.point.resolved(cache)
    except RapidDesError as error:
        return {"first_point": str(error)}
    return {
        "job_of_first_point": content(job.spec),
        "machine_of_first_point": machine_content(machine, cache),
        "device_constants": content(machine.device.as_spec()),
    }


def study_of(store: ResultStore) -> Study:
    """Return the study that made some results, from their manifest alone (and files that it names in it)."""
    if store.manifest.get("kind") != "sweep":
        raise InputError(f"{store.folder}: results of {store.manifest.get('kind')}, not of a sweep")
    named = store.require(_SweepInputs)
    made = named.study
    study = load_study(made.stated, folder=Path(made.folder))
    job = Document(Path(made.files.job), made.stated["job"])
    machine = Document(Path(made.files.on), made.stated["on"])
    return replace(study, name=named.name, job=job, machine=machine)


class _Files(msgspec.Struct):
    job: str
    on: str


class _Made(msgspec.Struct):
    """The part of a manifest from which a study's points are made."""

    stated: dict[str, Any]
    folder: str
    files: _Files
    source: str


class _SweepInputs(msgspec.Struct):
    name: str
    study: _Made


def rerun(store: ResultStore, number: int) -> Rerun:
    """Simulate a point of some results again, from the manifest.

    A point that fails again with the same error has no differences.
    """
    row = store.row(number)
    case = next(islice(study_of(store).cases(), number - 1, None))
    again = _row(case, attempt(measured, case.point, BoundedCache()))
    names = [name for name in FIGURES if name not in ("key", "wall_s", "result")]
    differs = tuple(name for name in names if row.get(name) != again.get(name))
    same = row.get("key") == again.get("key") and store.manifest["study"]["source"] == source_content()
    return Rerun(row, again, same, differs)
