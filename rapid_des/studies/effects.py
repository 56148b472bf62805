"""Summaries of a table of points: the best, the front of two figures, and the effects of axes.

Columns are arrays by name, one entry a point; points that failed have NaN figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Floats, Int64s, levels_of
from rapid_des.studies.points import FIGURES

Columns = Mapping[str, Any]
"""The columns of a table: one array for each name."""


class Level(Struct, frozen=True):
    """The points with one value of an axis.

    Attributes:
        value: of the axis, as its column shows it.
        points: how many points succeeded.
        typical: the geometric mean of their objective.
        best: the best of them.
    """

    value: Any
    points: int
    typical: float
    best: float


class Effect(Struct, frozen=True):
    """The share of the objective's variance over all points that one axis explains.

    >>> columns = {"tp": np.array([1, 1, 2, 2]), "step_time_s": np.array([4.0, 4.0, 2.0, 2.0])}
    >>> one = main_effects(columns, ["tp"], "step_time_s")[0]
    >>> one.axis, round(one.share, 9), [level.best for level in one.levels]
    ('tp', 1.0, [4.0, 2.0])
    """

    axis: str
    share: float
    """The part of the variance of the objective's logarithm that lies between the axis' values."""
    levels: tuple[Level, ...]


class Interaction(Struct, frozen=True):
    """The share of the variance that two axes explain together beyond what they explain one by one."""

    axes: tuple[str, str]
    share: float


def better(objective: str, values: Floats) -> Floats:
    """Return values of a figure such that less is better; NaN (a failed point) becomes infinite."""
    signed = -values if FIGURES[objective] == "more" else values
    return np.where(np.isnan(signed), np.inf, signed)


def ranked(columns: Columns, objective: str) -> Int64s:
    """Return the places of the points that succeeded, the best first, the first of equals first."""
    values = better(objective, columns[objective])
    order = np.argsort(values, kind="stable")
    return order[np.isfinite(values[order])]


def best_by(columns: Columns, objective: str, name: str) -> Int64s:
    """Return the place of the best point for every value of a column, in the order of the values."""
    places = ranked(columns, objective)
    _, first = np.unique(columns[name][places], return_index=True)
    return places[first]


def front(columns: Columns, figure: str, other: str) -> Int64s:
    """Return the places that no other point beats in both figures, the best of the first figure first.

    >>> columns = {"step_time_s": np.array([1.0, 2.0, 3.0]), "memory_bytes": np.array([9.0, 5.0, 7.0])}
    >>> front(columns, "step_time_s", "memory_bytes").tolist()
    [0, 1]
    """
    first, second = (better(name, columns[name]) for name in (figure, other))
    places = np.lexsort((second, first))
    places = places[np.isfinite(first[places]) & np.isfinite(second[places])]
    least = np.minimum.accumulate(second[places])
    before = np.concatenate(([np.inf], least[:-1]))
    return places[second[places] < before]


def main_effects(columns: Columns, axes: Sequence[str], objective: str) -> list[Effect]:
    """Return the effect of each axis that has several values, the largest first."""
    places = _positive(columns, objective)
    logs = np.log(columns[objective][places])
    effects = []
    for axis in axes:
        values, level = levels_of(columns[axis][places])
        if len(values) > 1:
            levels = tuple(
                _level(value, logs[level == number], objective)
                for number, value in enumerate(values.tolist())
            )
            effects.append(Effect(axis, _explained(logs, [level]), levels))
    return sorted(effects, key=lambda effect: -effect.share)


def interactions(columns: Columns, axes: Sequence[str], objective: str) -> list[Interaction]:
    """Return the interactions of pairs of axes, the largest first."""
    places = _positive(columns, objective)
    logs = np.log(columns[objective][places])
    level = {axis: np.unique(columns[axis][places], return_inverse=True)[1] for axis in axes}
    pairs = []
    for first, second in combinations([axis for axis in axes if level[axis].any()], 2):
        pair = np.unique(level[first] * (level[second].max() + 1) + level[second], return_inverse=True)[1]
        share = _explained(logs, [pair]) - _explained(logs, [level[first], level[second]])
        pairs.append(Interaction((first, second), max(share, 0.0)))
    return sorted(pairs, key=lambda pair: -pair.share)


def _positive(columns: Columns, objective: str) -> Bools:
    values: Floats = columns[objective]
    positive: Bools = np.isfinite(values) & (values > 0)
    return positive


def _level(value: Any, logs: Floats, objective: str) -> Level:
    best = logs.max() if FIGURES[objective] == "more" else logs.min()
    return Level(value, len(logs), float(np.exp(logs.mean())), float(np.exp(best)))


def _explained(logs: Floats, levels: Sequence[Int64s]) -> float:
    """Return the share of the variance that a sum of one term for each level leaves explained."""
    whole = float(((logs - logs.mean()) ** 2).sum()) if len(logs) else 0.0
    if whole <= 0:
        return 0.0
    fitted = _means(logs, levels[0])[levels[0]] if len(levels) == 1 else _sums(logs, *levels)
    return 1 - float(((logs - fitted) ** 2).sum()) / whole


def _means(logs: Floats, level: Int64s) -> Floats:
    means: Floats = np.bincount(level, weights=logs) / np.bincount(level)
    return means


def _sums(logs: Floats, levels: Int64s, other: Int64s) -> Floats:
    """Return the least squares' sums of a term for a level of each of two axes.

    The axis with more levels is eliminated from the normal equations: a table of all points and levels would
    not fit into memory where there are many of both.
    """
    if levels.max() < other.max():
        levels, other = other, levels
    counts = np.zeros((int(levels.max()) + 1, int(other.max()) + 1))
    np.add.at(counts, (levels, other), 1.0)
    means, shares = _means(logs, levels), counts / counts.sum(axis=1)[:, None]
    matrix = np.diag(counts.sum(axis=0)) - counts.T @ shares
    terms = np.linalg.lstsq(matrix, np.bincount(other, weights=logs) - counts.T @ means, rcond=None)[0]
    fitted: Floats = (means - shares @ terms)[levels] + terms[other]
    return fitted
