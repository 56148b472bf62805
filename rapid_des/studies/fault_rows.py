"""The costs of draws of faults: a row for each draw, and statistics for each configuration.

A folder of draws has a manifest from which they can be run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import to_tree
from rapid_des.errors import InputError
from rapid_des.frontend import load_job
from rapid_des.machine import Machine, load_machine
from rapid_des.network.faults import parse_fault
from rapid_des.network.faults.models import ROUND
from rapid_des.report.tables import Part, Report
from rapid_des.report.writing import require_extra
from rapid_des.studies.draw_statistics import SampleStatistics
from rapid_des.studies.points import Point, Rerun, evaluate, source_content
from rapid_des.studies.store import ResultStore
from rapid_des.units import seconds
from rapid_des.values import asdict, replace

if TYPE_CHECKING:
    import pandas

Sampling: TypeAlias = Literal["independent", "latin", "exact"]
NO_DRAW = -1


@dataclass(frozen=True)
class DrawRow:
    """One draw on one configuration; times in picoseconds."""

    configuration: str
    draw: int
    """The number of the draw; NO_DRAW: the healthy step cannot be run, and this is the only row."""
    faults: tuple[str, ...]
    """The faults as --fault takes them; none: a healthy machine."""
    step_time: int
    healthy: int
    critical_rank: int
    added: Mapping[str, int] = field(hash=False)
    """The picoseconds that each part of the critical rank's time adds to the healthy step."""
    weight: float = 1.0
    """The number of places that this row represents, if all places are enumerated."""
    faster: str = ""
    """The reason if the faults make the step faster; else empty."""
    error: str = ""
    """The reason if the draw could not be run (its times are 0); else empty."""

    @property
    def slowdown(self) -> float:
        """The step time over the healthy step time."""
        return self.step_time / max(self.healthy, 1)

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "configuration": self.configuration,
            "draw": self.draw,
            "faults": list(self.faults),
            "step_time_s": seconds(self.step_time),
            "step_time_ps": self.step_time,
            "healthy_s": seconds(self.healthy),
            "slowdown": self.slowdown,
            "critical_rank": self.critical_rank,
            "added_s": {name: seconds(time) for name, time in self.added.items()},
            "weight": self.weight,
            "faster": self.faster,
            "error": self.error,
        }


@dataclass(frozen=True, repr=False)
class FaultSample(Report):
    """The costs of draws of faults, by configuration.

    `faults_sample` makes one.

    >>> FaultSample(("a",), (), ("gpu=0 compute=0.5",), 0, "independent").spread("a") is None
    True
    """

    configurations: tuple[str, ...]
    rows: tuple[DrawRow, ...]
    """The draws, ordered by configuration, then by number."""
    models: tuple[str, ...]
    seed: int
    sampling: Sampling
    until: str = ""
    met: bool = True
    """Whether `until` was reached."""
    left: int = 0
    """The number of draws that ^C left out."""
    refused: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The configurations that are not valid jobs, and why."""

    def of(self, configuration: str) -> tuple[DrawRow, ...]:
        """Return the draws of a configuration that could be run."""
        return tuple(row for row in self.rows if row.configuration == configuration and not row.error)

    def spread(self, configuration: str) -> SampleStatistics | None:
        """Return the step's spread, in seconds; None without draws."""
        rows = self.of(configuration)
        if not rows:
            return None
        weights = [row.weight for row in rows] if self.sampling == "exact" else []
        rounds = ROUND if self.sampling == "latin" else 1
        return SampleStatistics.of([seconds(row.step_time) for row in rows], weights=weights, rounds=rounds)

    def as_json(self, top: int | None = None) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds, of each configuration its `top` slowest draws."""
        listed = [self._configuration(name, top) for name in self.configurations]
        return {
            "faults": list(self.models),
            "seed": self.seed,
            "sampling": self.sampling,
            "until": self.until,
            "met": self.met,
            "left": self.left,
            "refused": dict(self.refused),
            "configurations": listed,
        }

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row a draw; `InputError` without pandas."""
        require_extra("pandas", "notebook", "a DataFrame")
        import pandas

        return pandas.DataFrame([row.as_json() for row in self.rows])

    def report(self) -> Iterator[Part]:
        """Yield the report that `rapid-des faults sample` prints, with the slowest draw alone."""
        from rapid_des.report.study_text import sample_report

        return sample_report(self.as_json(top=1))

    def plot(self, path: str | Path | None = None) -> Any:
        """Return a figure of the draws' steps; written as PNG, SVG or PDF to a path."""
        from rapid_des.report.charts.studies import sample_charts
        from rapid_des.report.pictures.charts import draw_charts

        plain = self.as_json()
        title = "; ".join(plain["faults"])
        return draw_charts(sample_charts(plain), None if path is None else Path(path), title=title)

    def _configuration(self, name: str, top: int | None) -> dict[str, Any]:
        rows, spread = self.of(name), self.spread(name)
        failed = [row for row in self.rows if row.configuration == name and row.error]
        ordered = sorted(rows, key=lambda row: (-row.step_time, row.draw))
        fastest = [row for row in ordered[::-1] if row.faster][:1]
        return {
            "configuration": name,
            "healthy_s": seconds(rows[0].healthy) if rows else None,
            "step_time_s": None if spread is None else spread.as_json(),
            "slower": sum(row.weight for row in rows if row.step_time > row.healthy),
            "faster": sum(row.weight for row in rows if row.step_time < row.healthy),
            "failed": len(failed),
            "error": failed[0].error if failed else "",
            "rows": [row.as_json() for row in [*ordered[:top], *(fastest if top is not None else [])]],
        }


COLUMNS = {
    "id": "int64",
    "configuration": "string",
    "draw": "int64",
    "faults": "string",
    "step_time_ps": "int64",
    "step_time_s": "float64",
    "healthy_ps": "int64",
    "slowdown": "float64",
    "critical_rank": "int64",
    "added_ps": "string",
    "weight": "float64",
    "faster": "string",
    "error": "string",
}
"""The columns of a store and their Arrow types; `faults` and `added_ps` are JSON."""


def written(row: DrawRow) -> dict[str, Any]:
    """Return a draw as a row of a store, without its id."""
    stated = asdict(row) | {"step_time_ps": row.step_time, "healthy_ps": row.healthy}
    stated |= {"faults": json.dumps(row.faults), "added_ps": json.dumps(row.added)}
    stated |= {"step_time_s": seconds(row.step_time), "slowdown": row.slowdown}
    return {name: stated[name] for name in COLUMNS if name != "id"}


def read(row: Mapping[str, Any]) -> DrawRow:
    """Return the draw of a row of a store."""
    return DrawRow(
        row["configuration"],
        row["draw"],
        tuple(json.loads(row["faults"])),
        row["step_time_ps"],
        row["healthy_ps"],
        row["critical_rank"],
        json.loads(row["added_ps"]),
        row["weight"],
        row["faster"],
        row["error"],
    )


class _Configuration(msgspec.Struct):
    job: dict[str, Any]
    machine: int
    """The position of the machine in the manifest's list."""
    mode: str
    strict: bool
    allow_oom: bool


class _Drawn(msgspec.Struct):
    source: str
    faults: tuple[str, ...]
    seed: int
    sampling: Sampling
    points: dict[str, str]


class _FaultManifest(msgspec.Struct):
    """The manifest of a sample."""

    study: _Drawn
    configurations: dict[str, _Configuration]
    machines: list[dict[str, Any]]


def inputs_of(points: Mapping[str, Point], cache: BoundedCache) -> dict[str, Any]:
    """Return the part of a manifest from which draws can be run again: each job, and each machine once."""
    machines = list[Machine]()
    configurations = dict[str, Any]()
    for name, point in points.items():
        job, machine = point.resolved(cache)
        if machine not in machines:
            machines.append(machine)
        how = {"mode": point.mode, "strict": point.strict, "allow_oom": point.allow_oom}
        configurations[name] = {"job": to_tree(job.spec, "job"), "machine": machines.index(machine), **how}
    stated = [to_tree(machine.as_spec(), "machine") for machine in machines]
    return {"configurations": configurations, "machines": stated}


def kept_points(store: ResultStore) -> dict[str, Point]:
    """Return the configurations in a folder, by name."""
    manifest = store.require(_FaultManifest)
    machines = [load_machine(tree) for tree in manifest.machines]
    return {
        name: Point(
            load_job(stated.job),
            machines[stated.machine],
            mode=stated.mode,
            strict=stated.strict,
            allow_oom=stated.allow_oom,
        )
        for name, stated in manifest.configurations.items()
    }


def kept_sample(store: ResultStore) -> FaultSample:
    """Return the draws in a folder."""
    manifest = store.require(_FaultManifest)
    rows = tuple(read(row) for row in store.table().to_pylist())
    drawn = manifest.study
    return FaultSample(tuple(manifest.configurations), rows, drawn.faults, drawn.seed, drawn.sampling)


def rerun_draw(store: ResultStore, number: int) -> Rerun:
    """Simulate the draw of a row and its healthy step again, from the manifest."""
    row, cache = store.row(number), BoundedCache()
    name, manifest = row["configuration"], store.require(_FaultManifest)
    point = kept_points(store)[name]
    drawn = read(row)
    if drawn.error:
        raise InputError(f"{store.folder}: draw {drawn.draw} of {name} failed: {drawn.error}")
    healthy = evaluate(point, cache)
    faulty = evaluate(replace(point, faults=tuple(map(parse_fault, drawn.faults))), cache)
    again = {
        "step_time_ps": int(faulty.step_time),
        "step_time_s": seconds(faulty.step_time),
        "healthy_ps": int(healthy.step_time),
        "critical_rank": faulty.critical_rank,
    }
    same = manifest.study.source == source_content() and manifest.study.points.get(name) == point.key(cache)
    return Rerun(row, again, same, tuple(key for key, value in again.items() if row[key] != value))
