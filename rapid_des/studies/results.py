"""The results of a study: columns of all points, the whole result of one point, and summaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s, as_they_come
from rapid_des.config.texts import parse_json
from rapid_des.errors import ConfigError, InputError
from rapid_des.report.evidence import unmeasured_in
from rapid_des.report.run_figures import RUN_FIGURES, failures_matter
from rapid_des.report.tables import Part, Report
from rapid_des.report.writing import require_extra
from rapid_des.studies import effects
from rapid_des.studies.effects import Columns, Effect, Interaction
from rapid_des.studies.expressions import Expression
from rapid_des.studies.points import FIGURES, OK, PARTS, kind_of
from rapid_des.studies.store import ResultStore
from rapid_des.studies.ties import marked
from rapid_des.values import asdict, replace

if TYPE_CHECKING:
    import pandas

Places: TypeAlias = Sequence[int] | Int64s
"""Positions of points among the points of some results."""
_SHOWN = ("step_time_s", "tokens_per_s", "mfu", "memory_bytes", "bound")


class _SweepColumns(msgspec.Struct):
    """The columns in the manifest of a sweep."""

    axes: tuple[str, ...]
    objective: str
    compare: str = ""


class Sweep(Report, Struct, frozen=True):
    """The results of a study.

    `len` is the number of points; `to_pandas` has a row for each; `result` returns all data of one.

    >>> rows = [{"id": n, "tp": n, "status": "ok", "step_time_s": 1.0 / n} for n in (1, 2)]
    >>> Sweep.of_rows(["tp"], "step_time_s", rows).best(1)[0]["tp"]
    2
    """

    axes: tuple[str, ...]
    """The columns whose values identify a point."""
    objective: str
    columns: Columns
    """An array for each name of a column, with an entry for every point, ordered by id."""
    store: ResultStore | None = None
    rows: tuple[Mapping[str, Any], ...] = ()
    """The whole rows, if there is no store."""
    left: int = 0
    """The number of points that an interrupt left out."""
    left_at_least: bool = False
    """Whether `left` may be too small: the interrupt came before all points were counted."""
    compare: str = ""
    """The axis whose values are compared; empty: none."""

    @classmethod
    def opened(cls, folder: str | Path) -> Sweep:
        """Return the results that a folder holds."""
        store = ResultStore.open(Path(folder))
        if store.manifest.get("kind") != "sweep":
            raise InputError(f"{folder}: results of {store.manifest.get('kind')}, not of a sweep")
        stated = store.require(_SweepColumns)
        figures = [name for name in FIGURES if name not in RUN_FIGURES or name in store.columns]
        missing = {*stated.axes, stated.objective, *figures} - store.columns.keys()
        if missing or not FIGURES.get(stated.objective):
            problem = f"no column {min(missing)!r}" if missing else f"{stated.objective!r} ranks nothing"
            raise ConfigError(problem, file=str(store.folder / "manifest.json"), key="columns")
        wrong = [name for name in figures if store.columns[name] != kind_of(name)]
        if wrong:
            problem = f"{wrong[0]}: {store.columns[wrong[0]]} is not {kind_of(wrong[0])}"
            raise ConfigError(problem, file=str(store.folder / "manifest.json"), key="columns")
        table = store.table()
        columns = {name: _array(table[name], store.columns[name]) for name in table.column_names}
        return cls(stated.axes, stated.objective, columns, store, compare=stated.compare)

    @classmethod
    def of_rows(
        cls, axes: Sequence[str], objective: str, rows: Sequence[Mapping[str, Any]], compare: str = ""
    ) -> Sweep:
        """Return results that are in memory."""
        ordered = sorted(rows, key=lambda row: int(row["id"]))
        left_out = {"result"} if any("goodput" in row for row in rows) else {"result", *RUN_FIGURES}
        names = ("id", *axes, *(name for name in FIGURES if name not in left_out))
        columns = {name: _filled([row.get(name) for row in ordered], name) for name in names}
        return cls(tuple(axes), objective, columns, None, tuple(ordered), compare=compare)

    def __len__(self) -> int:
        return len(self.columns["id"])

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The classes of errors: how many points, and the text of the first; the most first."""
        statuses, errors = self.columns["status"], self.columns["error"]
        failed = []
        for name, count in Counter(status for status in statuses.tolist() if status != OK).most_common():
            place = int(np.flatnonzero(statuses == name)[0])
            first = int(self.columns["id"][place])
            failed.append({"error": name, "points": count, "first": first, "text": str(errors[place])})
        return failed

    def where(self, condition: str) -> Sweep:
        """Return the points that meet a condition on columns, such as `tp <= 8 and mfu > 0.4`."""
        expression = Expression.parse(condition, known=tuple(self.columns), file="where")
        used = [self.columns[name].tolist() for name in expression.names]
        rows = zip(*used, strict=True) if used else (() for _ in range(len(self)))
        columns = np.array(
            [bool(expression(dict(zip(expression.names, row, strict=True)))) for row in rows], bool
        )
        return replace(self, columns={name: values[columns] for name, values in self.columns.items()})

    def sorted_by(self, column: str, names: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return points ordered by a column, for `-column` the largest first; missing values come last."""
        key = column.removeprefix("-")
        self._check_columns(key, *names)
        values = self.columns[key]
        missing = np.array([value is None or value != value for value in values.tolist()], bool)  # noqa: PLR0124
        there = np.flatnonzero(~missing)
        order = np.argsort(values[there], kind="stable")
        places = np.concatenate([there[order[::-1] if column[0] == "-" else order], np.flatnonzero(missing)])
        return self.at(places, tuple(dict.fromkeys(("id", *names))) if names else ())

    def _check_columns(self, *names: str) -> None:
        unknown = next((name for name in names if name not in self.columns), None)
        if unknown is not None:
            raise InputError(f"no column {unknown!r}; there are {', '.join(self.columns)}")

    def result(self, number: int) -> dict[str, Any]:
        """Return all data of a point: its row, and as `result` the data that `run --json` prints."""
        row = self.store.row(number) if self.store is not None else self._row_of(number)
        return {**row, "result": whole_result(row)}

    def _row_of(self, number: int) -> Mapping[str, Any]:
        wanted = next((row for row in self.rows if row["id"] == number), None)
        if wanted is None:
            raise InputError(f"no point {number}; there are 1 to {int(self.columns['id'].max(initial=0))}")
        return wanted

    def at(self, places: Places, names: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the points at some positions as rows of `names`: by default id, axes and usual figures."""
        shown = names or tuple(dict.fromkeys(("id", *self.axes, self.objective, "gpus", *_SHOWN)))
        chosen = np.asarray(places, np.int64)
        picked = {name: _values(name, self.columns[name][chosen]) for name in shown}
        return [dict(zip(picked, values, strict=True)) for values in zip(*picked.values(), strict=True)]

    def best(self, count: int = 10) -> list[dict[str, Any]]:
        """Return the best points, the best first."""
        return self.at(effects.ranked(self.columns, self.objective)[:count])

    def best_by(self, column: str = "gpus") -> list[dict[str, Any]]:
        """Return the best point for each value of a column."""
        self._check_columns(column)
        return self.at(effects.best_by(self.columns, self.objective, column))

    def compared(self) -> list[dict[str, Any]]:
        """Return the best point for each value of the compared axis, with `gain` and `breakdown_s`.

        Values stand in the order of their first points; `gain` is how many times as good as the first of
        them a point is by the objective, above 1 if it is better; None beside a figure of 0.
        """
        if not self.compare:
            return []
        values, _ = as_they_come(self.columns[self.compare])
        best = {row[self.compare]: row for row in self.best_by(self.compare)}
        rows = [best[value] for value in values.tolist() if value in best]
        parts = [f"{part}_s" for part in PARTS]
        for row in rows:
            one, other = rows[0][self.objective], row[self.objective]
            more, less = (other, one) if FIGURES[self.objective] == "more" else (one, other)
            row["gain"] = more / less if less else None
            (spent,) = self.at(np.flatnonzero(self.columns["id"] == row["id"]), parts)
            row["breakdown_s"] = {part: spent[f"{part}_s"] for part in PARTS if spent[f"{part}_s"]}
        return rows

    def failures_matter(self) -> dict[str, Any] | None:
        """Return the best point with failures and without; None: the study asks for no runs."""
        if "tokens_per_day" not in self.columns:
            return None
        done = np.flatnonzero(self.columns["status"] == OK)
        return failures_matter(self.at(done, ("id", "tokens_per_s", "tokens_per_day")))

    def front(self, one: str = "step_time_s", two: str = "memory_bytes") -> list[dict[str, Any]]:
        """Return the points that no other beats in both figures."""
        self._check_columns(one, two)
        names = dict.fromkeys(("id", *self.axes, one, two, self.objective))
        return self.at(effects.front(self.columns, one, two), tuple(names))

    def effects(self) -> list[Effect]:
        """Return the share of the objective's variance that each axis explains, the largest first."""
        return effects.main_effects(self.columns, self.axes, self.objective)

    def interactions(self) -> list[Interaction]:
        """Return the share that pairs of axes explain beyond what each explains, the largest first."""
        return effects.interactions(self.columns, self.axes, self.objective)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row a point; `InputError` without pandas."""
        require_extra("pandas", "notebook", "a DataFrame")
        import pandas

        return pandas.DataFrame({name: values for name, values in self.columns.items()})

    def as_json(
        self, top: int = 10, pareto: tuple[str, str] = ("step_time_s", "memory_bytes")
    ) -> dict[str, Any]:
        """Return plain data for JSON: the best, the best by GPUs, the front, effects and interactions."""
        best, failed = marked(self.best(top), self.result), self.failures
        succeeded = len(self) - sum(item["points"] for item in failed)
        return {
            "points": len(self),
            "succeeded": succeeded,
            "failed": failed,
            "left": self.left,
            "left_at_least": self.left_at_least,
            "objective": self.objective,
            "best": best,
            "failures_matter": self.failures_matter(),
            "best_by_gpus": self.best_by("gpus") if succeeded else [],
            "compare": self.compare,
            "compared": self.compared() if succeeded else [],
            "pareto": {"columns": list(pareto), "points": self.front(*pareto)},
            "main_effects": [asdict(item) for item in self.effects()],
            "interactions": [asdict(item) for item in self.interactions()[:top]],
            "not_validated": self.not_validated(int(row["id"]) for row in best),
        }

    def not_validated(self, points: Iterable[int]) -> list[str]:
        """Return the devices of some points for which there are no measurements as they are stated."""
        wholes = (self.result(number)["result"] for number in points)
        return list(dict.fromkeys(name for whole in wholes for name in unmeasured_in(whole)))

    def report(self) -> Iterator[Part]:
        """Yield the report that `rapid-des sweep` prints."""
        from rapid_des.report.sweep_text import sweep_report

        return sweep_report(self.as_json(top=20), "study")

    def plot(self, path: str | Path | None = None, *, title: str = "study") -> Any:
        """Return a figure of what the study's page draws; written as PNG, SVG or PDF to a path."""
        from rapid_des.report.charts.studies import sweep_charts
        from rapid_des.report.pictures.charts import draw_charts

        charts = sweep_charts(self.as_json(), self.columns)
        return draw_charts(charts, None if path is None else Path(path), title=title)


def whole_result(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the data that `run --json` prints for a row's point; None for a point that failed."""
    place = Path(f"the result of point {row['id']}")
    whole: dict[str, Any] | None = parse_json(row.get("result") or "null", place)
    return whole


def _values(name: str, values: Any) -> list[Any]:
    """Return a column's values as Python has them: whole numbers as such, None where there is none."""
    if values.dtype.kind != "f":
        return list(values.tolist())
    whole = name in FIGURES and kind_of(name) == "int64"
    return [None if np.isnan(value) else int(value) if whole else value for value in values.tolist()]


def _array(column: Any, kind: str) -> Any:
    """Return an Arrow column as an array: numbers with NaN where there is none, if there is one."""
    if kind in ("string", "bool_") or column.null_count == 0:
        return (
            column.to_numpy(zero_copy_only=False)
            if kind != "string"
            else np.array(column.to_pylist(), object)
        )
    return column.cast("float64").to_numpy(zero_copy_only=False)


def _filled(values: list[Any], name: str) -> Any:
    """Return values of rows as an array, as `_array` does."""
    if name in FIGURES and kind_of(name) == "string":
        return np.array(values, object)
    if {type(value) for value in values} - {type(None)} == {str}:
        return np.array(values, object)
    if any(value is None for value in values):
        return np.array([np.nan if value is None else float(value) for value in values])
    return np.array(values)
