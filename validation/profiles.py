"""Profiles of real PyTorch runs: their steps replayed, and the device time whose kernels are classed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rapid_des.errors import RapidDesError
from rapid_des.profiles import Profile, profile_report, read_profile, replay_step
from rapid_des.units import seconds
from validation.measurements import DataFolder
from validation.scoring import Row, Topic

FOLDER = "profiles"


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `profiles/replay` in milliseconds a step, and `profiles/classified` in percent of device time."""
    paths = sorted((data.path / FOLDER).glob("*.json*"))
    if paths:
        for name, score, unit in (("replay", _replayed, "ms"), ("classified", _classified, "percent")):
            rows = partial(_rows, paths, score)
            yield Topic(f"profiles/{name}", rows, unit=unit, split=False)


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
