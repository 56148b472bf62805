"""Optuna over a study file: it has the axes and conditions of a sweep, but only some points are simulated.

    points ──► analytical estimates rank them ──► the best are asked first ──► a sampler chooses the others

The space is the study's list of points: combinations that conditions exclude are not in it. Points that fail
(such as jobs that do not fit into memory) are reported to the sampler as failed and never tried again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rapid_des.errors import InputError
from rapid_des.executors import Done, Executor, Failed
from rapid_des.report.evidence import unmeasured_in
from rapid_des.report.run_figures import RUN_FIGURES, failures_matter
from rapid_des.report.writing import require_extra
from rapid_des.studies.database import altered, check_database, checked_row, digest_of, storage_named
from rapid_des.studies.points import FIGURES, measured
from rapid_des.studies.spaces import Case, Study, load_study
from rapid_des.studies.store import first_difference
from rapid_des.studies.sweep import OnProgress, manifest_of
from rapid_des.studies.worker_pools import executor_of
from rapid_des.values import replace

SAMPLERS: Mapping[str, str] = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "nsga2": "NSGAIISampler",
    "cmaes": "CmaEsSampler",
    "gp": "GPSampler",
}
"""Names of Optuna's samplers."""
_PACKAGES: Mapping[str, tuple[str, ...]] = {"cmaes": ("cmaes",), "gp": ("scipy", "torch")}
"""The packages that a sampler imports at its first use, besides Optuna."""
PRUNERS: Mapping[str, str] = {
    "none": "NopPruner",
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "successive_halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
}
"""Names of Optuna's pruners: a simulation has one intermediate value, its analytical estimate."""
_ONE_ONLY = ("cmaes", "gp")
_PATIENCE = 50
"""The number of pruned suggestions after which the next point by estimate is taken."""


@dataclass(frozen=True)
class Search:
    """What a search found: the points that it simulated, in order.

    >>> Search(("step_time_s",), 8, (), {}).best is None
    True
    """

    objectives: tuple[str, ...]
    points: int
    """The number of points of the study."""
    rows: tuple[Mapping[str, Any], ...] = field(hash=False)
    """The labels and figures of each simulated point, in the order in which they were chosen."""
    estimates: Mapping[int, float] = field(default_factory=dict, hash=False)
    """The estimate of the first objective by the id of a point; empty if points were not estimated."""
    interrupted: bool = False
    """Whether ^C ended the search before all its trials."""

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The best point by the first objective."""
        done = [row for row in self.rows if row["status"] == "ok"]
        return min(done, key=lambda row: (_cost(row, self.objectives[0]), row["id"]), default=None)

    @property
    def front(self) -> tuple[Mapping[str, Any], ...]:
        """The points that no other one beats in all objectives, by the first."""
        done = [row for row in self.rows if row["status"] == "ok"]
        costs = [tuple(_cost(row, name) for name in self.objectives) for row in done]
        better = [
            row
            for row, cost in zip(done, costs, strict=True)
            if not any(
                all(a <= b for a, b in zip(other, cost, strict=True)) and other != cost for other in costs
            )
        ]
        return tuple(sorted(better, key=lambda row: (_cost(row, self.objectives[0]), row["id"])))

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "objectives": list(self.objectives),
            "points": self.points,
            "simulated": len(self.rows),
            "estimated": len(self.estimates),
            "interrupted": self.interrupted,
            "best": self.best,
            "failures_matter": failures_matter([row for row in self.rows if row["status"] == "ok"]),
            "not_validated": list(
                dict.fromkeys(n for row in self.rows for n in row.get("not_validated", ()))
            ),
            "front": list(self.front),
            "rows": list(self.rows),
        }


def _cost(row: Mapping[str, Any], objective: str) -> float:
    """Return a figure, negated if more of it is better."""
    value = row.get(objective)
    cost = float("inf") if value is None else float(value)
    return cost if FIGURES[objective] == "less" else -cost


def search(  # noqa: PLR0913 - what a search is asked, by name
    study: str | Path | Mapping[str, Any] | Study,
    *,
    trials: int | None = None,
    objectives: Sequence[str] = (),
    sampler: str = "tpe",
    pruner: str = "none",
    seed: int = 0,
    storage: str | None = None,
    warm: int = 3,
    executor: str | Executor = "local",
    workers: int | None = None,
    address: str | None = None,
    on_progress: OnProgress | None = None,
) -> Search:
    """Look for a study's best points with Optuna, simulating at most `trials` of them (default: a tenth).

    `objectives` are figures (default: the study's); several give a front. `warm` points that are best by
    analytical estimates come first, 0 for none; a `pruner` leaves out points by their estimates. `storage` is
    any Optuna storage URL; with one the study goes on where it was, which must be the same one: its file, job
    and machine, and this version of rapid_des. `InputError` says what Optuna cannot do, or what to install.

    >>> axes = {"tp": [1, 2, 4, 8], "dp": [1, 2, 4]}
    >>> study = {"job": "llama2_7b_train", "on": "dgx_a100", "axes": axes, "where": "tp * dp * pp == 8"}
    >>> found = search({**study, "mode": "analytical"}, trials=2)
    >>> found.points, len(found.rows), found.best["tp"]
    (3, 2, 2)
    """
    read = load_study(study)
    if warm < 0:
        raise InputError(f"--warm {warm}: allowed: 0 and more")
    wanted = _checked(tuple(objectives) or (read.spec.objective,), sampler, pruner, warm)
    if read.run is None and any(name in RUN_FIGURES for name in wanted):
        raise InputError(f"--objective {wanted[0]} is for runs with failures: it needs --reliability")
    cases = list(read.cases())
    count = min(trials or -(-len(cases) // 10), len(cases))
    opened = executor_of(executor, workers, address) if isinstance(executor, str) else executor
    check_database(storage)
    with storage_named(storage):
        optuna_study = _study(read, wanted, (sampler, pruner, seed), storage)
    with opened as running, storage_named(storage):
        estimates = _estimates(cases, running, wanted[0], on_progress) if warm else {}
        asked = _SearchState(read, cases, wanted, estimates, optuna_study)
        asked.load_known(storage, running)
        interrupted = asked.run(running, count, warm, on_progress)
    return Search(wanted, len(cases), tuple(asked.rows), estimates, interrupted)


def _checked(objectives: tuple[str, ...], sampler: str, pruner: str, warm: int) -> tuple[str, ...]:
    require_extra("optuna", "search", "rapid-des search")
    wrong = [name for name in objectives if not FIGURES.get(name)]
    if wrong:
        ranked = ", ".join(name for name, better in FIGURES.items() if better)
        raise InputError(f"--objective {wrong[0]!r}: allowed: {ranked}")
    if sampler not in SAMPLERS:
        raise InputError(f"--sampler {sampler!r}: allowed: {', '.join(SAMPLERS)}")
    if len(objectives) > 1 and sampler in _ONE_ONLY:
        raise InputError(f"--sampler {sampler}: takes one objective; for several: tpe, random or nsga2")
    if pruner not in PRUNERS:
        raise InputError(f"--pruner {pruner!r}: allowed: {', '.join(PRUNERS)}")
    if pruner != "none" and (len(objectives) > 1 or not warm):
        raise InputError(f"--pruner {pruner}: prunes by estimates (--warm 1 or more) of one objective")
    lacking = next((name for name in _PACKAGES.get(sampler, ()) if find_spec(name) is None), None)
    if lacking is not None:
        raise InputError(f"--sampler {sampler} needs {lacking}: pip install {lacking}")
    return objectives


def _study(study: Study, objectives: Sequence[str], how: tuple[str, str, int], storage: str | None) -> Any:
    """Return the Optuna study; one in the storage is continued."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler, pruner, seed = how
    made = getattr(optuna.samplers, SAMPLERS[sampler])(seed=seed)
    prunes = (25.0,) if pruner == "percentile" else ()
    pruning = getattr(optuna.pruners, PRUNERS[pruner])(*prunes)
    directions: Any = ["minimize"] * len(objectives)
    name = f"rapid-des {study.name} {' '.join(objectives)}"
    opened = optuna.create_study(
        sampler=made,
        pruner=pruning,
        storage=storage,
        study_name=name,
        directions=directions,
        load_if_exists=True,
    )
    if storage is not None:
        _check_same(opened, study, storage)
    return opened


def _check_same(opened: Any, study: Study, storage: str) -> None:
    """Raise `InputError` if a storage holds the points of another study, or of a file that has changed."""
    made = manifest_of(study)["study"]
    own = json.loads(json.dumps({key: made[key] for key in ("rapid_des", "stated", "content", "source")}))
    if not opened.get_trials(deepcopy=False):
        opened.set_user_attr("study", own)
        return
    differs = first_difference(opened.user_attrs.get("study", {}), own)
    if differs:
        raise InputError(f"--storage {storage}: holds the points of another study ({differs}); name another")


def _estimates(
    cases: Sequence[Case], executor: Executor, objective: str, on_progress: OnProgress | None
) -> dict[int, float]:
    """Return the cost in mode analytical of every point that fits, by id."""
    estimates = dict[int, float]()
    points = [replace(case.point, mode="analytical") for case in cases]
    for done, (place, outcome) in enumerate(executor.map(measured, points), start=1):
        if on_progress is not None:
            on_progress("estimates", done, len(cases))
        if isinstance(outcome, Done):
            estimates[cases[place].id] = _cost(outcome.value, objective)
    return estimates


class _SearchState:
    """The points that were simulated, and Optuna's study of them."""

    def __init__(
        self,
        study: Study,
        cases: Sequence[Case],
        objectives: tuple[str, ...],
        estimates: Mapping[int, float],
        optuna_study: Any,
    ) -> None:
        self.study, self.objectives, self.optuna = study, objectives, optuna_study
        self.estimates = estimates
        self.by_id = {case.id: case for case in cases}
        self.by_labels = {tuple(case.labels[name] for name in study.columns): case for case in cases}
        self.ranked = sorted(cases, key=lambda case: (estimates.get(case.id, float("inf")), case.id))
        if estimates:  # what does not fit by its estimate, which knows memory, fits in no mode
            self.ranked = [case for case in self.ranked if case.id in estimates] or self.ranked
        self.choices = {  # of all points, as a storage's choices may not change
            name: sorted(
                {labels[place] for labels in self.by_labels}, key=lambda value: (str(type(value)), value)
            )
            for place, name in enumerate(study.columns)
        }
        self.open = {case.id for case in self.ranked}
        self.by_labels = {labels: case for labels, case in self.by_labels.items() if case.id in self.open}
        self.rows: list[dict[str, Any]] = []
        self.known = set[int]()
        self.identity = optuna_study.user_attrs.get("study")

    def run(self, executor: Executor, count: int, warm: int, on_progress: OnProgress | None) -> bool:
        """Simulate up to `count` points; return whether ^C ended that. Finished points are kept."""
        try:
            while len(self.rows) < count and self.open - self.known:
                left = min(count - len(self.rows), len(self.open - self.known))
                batch = [self._next(warm) for _ in range(min(left, executor.workers))]
                for place, outcome in executor.map(measured, [case.point for case, _ in batch]):
                    self._record(*batch[place], outcome)
                    if on_progress is not None:
                        on_progress("search", len(self.rows), count)
        except KeyboardInterrupt:
            if not self.rows:
                raise
            return True
        return False

    def load_known(self, storage: str | None, executor: Executor) -> None:
        """Load the points in the storage; `InputError` for rows that were changed."""
        for trial in self.optuna.get_trials(deepcopy=False):
            if "row" not in trial.user_attrs:
                continue
            row = checked_row(trial.user_attrs, self.by_id, self.identity, storage)
            if trial.values not in (None, [_cost(row, name) for name in self.objectives]):
                raise altered(storage, f"point {row['id']} has other values than its trial")
            if row["id"] not in self.known:
                self.known.add(row["id"])
                self.rows.append(row)
        self._simulate_best_again(storage, executor)

    def _simulate_best_again(self, storage: str | None, executor: Executor) -> None:
        """Simulate the best points of the storage again: a digest can be forged with its row."""
        best = Search(self.objectives, len(self.by_id), tuple(self.rows)).front
        for place, outcome in executor.map(measured, [self.by_id[row["id"]].point for row in best]):
            again = outcome.value if isinstance(outcome, Done) else {"status": outcome.error}
            was = {name: best[place].get(name) for name in again if name != "result"}
            found = first_difference(was, {name: again[name] for name in was})
            if found:
                raise altered(storage, f"point {best[place]['id']}: {found}")

    def _next(self, warm: int) -> tuple[Case, Any]:
        """Return the point to be simulated next, and its trial."""
        fresh = (case for case in self.ranked if case.id not in self.known)
        if len(self.known) < warm:
            return self._enqueued(next(fresh))
        for _ in range(_PATIENCE):
            trial = self.optuna.ask()
            labels = self._suggested(trial)
            case = self._nearest(labels)
            if labels != self._labels(case):
                self.optuna.tell(trial, state=_state("FAIL"))
                case, trial = self._enqueued(case)
            self.known.add(case.id)
            if not self._pruned(case, trial):
                return case, trial
            self.known.remove(case.id)
            self.optuna.tell(trial, state=_state("PRUNED"))
        return self._enqueued(next(fresh))

    def _suggested(self, trial: Any) -> tuple[Any, ...]:
        """Return the labels that a trial is about.

        A sampler chooses positions on axes: it learns from neighbouring positions, which names do not have,
        and cmaes takes numbers only.
        """
        return tuple(
            values[trial.suggest_int(_place_of(name), 0, len(values) - 1)]
            for name, values in self.choices.items()
        )

    def _nearest(self, labels: Sequence[Any]) -> Case:
        """Return the new point that differs from these labels in the fewest axes, and there by the least.

        Conditions exclude most combinations: a sampler would learn nothing from combinations that are no
        points.
        """
        named = self.by_labels.get(tuple(labels))
        if named is not None and named.id not in self.known:
            return named
        places = {
            name: {value: place for place, value in enumerate(self.choices[name])} for name in self.choices
        }

        def distance(case: Case) -> tuple[int, int]:
            pairs = zip(self.study.columns, labels, self._labels(case), strict=True)
            steps = [abs(places[name][before] - places[name][after]) for name, before, after in pairs]
            return sum(map(bool, steps)), sum(steps)

        return min((case for case in self.ranked if case.id not in self.known), key=distance)

    def _labels(self, case: Case) -> tuple[Any, ...]:
        return tuple(case.labels[name] for name in self.study.columns)

    def _pruned(self, case: Case, trial: Any) -> bool:
        """Return whether the pruner rejects a point by its estimate."""
        if len(self.objectives) > 1 or case.id not in self.estimates:
            return False
        trial.report(self.estimates[case.id], 0)
        return bool(trial.should_prune())

    def _enqueued(self, case: Case) -> tuple[Case, Any]:
        self.known.add(case.id)
        labels = dict(zip(self.choices, self._labels(case), strict=True))
        places = {_place_of(name): self.choices[name].index(label) for name, label in labels.items()}
        self.optuna.enqueue_trial(places)
        trial = self.optuna.ask()
        self._suggested(trial)
        return case, trial

    def _record(self, case: Case, trial: Any, outcome: Done[dict[str, Any]] | Failed) -> None:
        row: dict[str, Any] = {"id": case.id, "labels": dict(case.labels), **case.labels}
        if isinstance(outcome, Failed):
            row |= {"status": outcome.error, "error": outcome.text}
        else:
            row |= {name: value for name, value in outcome.value.items() if name != "result"}
            row["not_validated"] = unmeasured_in(json.loads(outcome.value["result"]))
        trial.set_user_attr("row", row)
        trial.set_user_attr("digest", digest_of(row, self.identity))
        self.rows.append(row)
        if isinstance(outcome, Failed):
            self.optuna.tell(trial, state=_state("FAIL"))
        else:
            self.optuna.tell(trial, [_cost(outcome.value, name) for name in self.objectives])


def _place_of(name: str) -> str:
    """Return the parameter that is the place of a value among those of an axis."""
    return f"place of {name}"


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]
