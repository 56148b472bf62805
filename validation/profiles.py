"""Profiles of real PyTorch runs: steps replayed, device time classed, and kernels beside their prediction."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rapid_des.errors import RapidDesError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.profiles import Profile, profile_report, read_profile, replay_step
from rapid_des.report.profile_comparison import compare_with_profile
from rapid_des.simulation import simulate
from rapid_des.units import seconds
from validation import grown_runs
from validation.measurements import DataFolder
from validation.scoring import Row, Topic

FOLDER = "profiles"


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `profiles/replay` and `profiles/predicted` in ms a step, `profiles/classified` in percent."""
    paths = sorted((data.path / FOLDER).glob("*.json*"))
    if paths:
        for name, score, unit in (("replay", _replayed, "ms"), ("classified", _classified, "percent")):
            rows = partial(_rows, paths, score)
            yield Topic(f"profiles/{name}", rows, unit=unit, split=False)
    if (jobs := data.path / FOLDER / "predicted.csv").exists():
        yield Topic("profiles/predicted", partial(_predicted, jobs), unit="ms", split=False)
    if any(map(data.find, grown_runs.FILES)):
        yield Topic("profiles/grown", partial(grown_runs.rows, data), unit="ratio", split=False)


def _rows(paths: Sequence[Path], score: Callable[[Profile], tuple[float, float]]) -> list[Row]:
    return [_row(path, score) for path in paths]


def _name(path: Path) -> str:
    return path.name.partition(".")[0]


def _row(path: Path, score: Callable[[Profile], tuple[float, float]]) -> Row:
    """Return a profile's row; unsupported where the file is none, or one of the host alone."""
    try:
        profile = read_profile(path)
    except RapidDesError as problem:
        return Row(_name(path), 0.0, None, unsupported=str(problem).removeprefix(f"{path}: "))
    if not len(profile.events):
        return Row(_name(path), 0.0, None, unsupported="the profile has no device events")
    return Row(_name(path), *score(profile))


def _replayed(profile: Profile) -> tuple[float, float]:
    found = replay_step(profile)
    return 1e3 * seconds(found.measured), 1e3 * seconds(found.simulated)


def _classified(profile: Profile) -> tuple[float, float]:
    return 100.0, 100 * profile_report([profile]).classified


def _predicted(jobs: Path) -> list[Row]:
    """Return the rows of profiles of which the job is known: products, attention, and all other kernels."""
    with jobs.open() as file:
        return [row for each in csv.DictReader(file) for row in _by_class(jobs.parent, each)]


def _by_class(folder: Path, said: dict[str, str]) -> Iterator[Row]:
    report = profile_report([read_profile(folder / f"{said['profile']}.json.gz")])
    job, machine = load_job(folder / f"{said['job']}.job.yaml"), load_machine(said["machine"])
    sums = defaultdict[str, list[float]](lambda: [0.0, 0.0])
    for row in compare_with_profile(report, simulate(job, machine)).operators:
        kind = row.classes[0] if row.classes in (("gemm",), ("attention",)) else "others"
        sums[kind][0] += row.difference.measured
        sums[kind][1] += row.difference.predicted
    for kind, (measured, predicted) in sorted(sums.items()):
        yield Row(f"{said['profile']} {kind}", 1e3 * measured, 1e3 * predicted)
