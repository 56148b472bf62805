"""A deterministic pattern search over named constants, for calibration."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

Constants = dict[str, float]
Bounds = Mapping[str, tuple[float, float]]
"""The least and the greatest value of a constant, by name."""

_FIRST_STEP = 0.3
_LAST_STEP = 0.02
_SMALLEST_GAIN = 1e-5
_FIRST_SHARE_OF_RANGE = 0.01
_UNLIMITED = (-math.inf, math.inf)


def pattern_search(
    start: Mapping[str, float],
    loss: Callable[[Constants], float],
    names: Collection[str],
    *,
    shares: Collection[str] = (),
    bounds: Bounds | None = None,
) -> Constants:
    """Return the constants with `names` fitted; the others stay as they are.

    Those in `shares` stay at or below 1, those in `bounds` within them.

    Each pass tries every constant a step up and a step down (a factor), keeps what lowers the loss, goes on
    that way, and halves the step of a constant that nothing helped. A bounded constant leaves 0 by a
    hundredth of its greatest value.

    >>> round(pattern_search({"x": 1.0}, lambda fit: (fit["x"] - 3.0) ** 2, ["x"])["x"], 1)
    3.0
    """
    limits = {name: (-math.inf, 1.0) for name in shares} | dict(bounds or {})
    best = {name: _within(value, limits.get(name, _UNLIMITED)) for name, value in start.items()}
    least = loss(dict(best))
    steps = dict.fromkeys(names, _FIRST_STEP)
    while max(steps.values()) >= _LAST_STEP:
        for name in names:
            if steps[name] < _LAST_STEP:
                continue
            trial = _along(best, least, (name, steps[name], limits.get(name, _UNLIMITED)), loss)
            if trial[1] < least:
                best, least = trial
            else:
                steps[name] /= 2
    return best


def _along(
    best: Constants,
    least: float,
    move: tuple[str, float, tuple[float, float]],
    loss: Callable[[Constants], float],
) -> tuple[Constants, float]:
    name, step, limits = move
    for factor in (1 + step, 1 / (1 + step)):
        improved = False
        while True:
            trial = {**best, name: _within(_moved(best[name], factor, limits[1]), limits)}
            if trial == best or (error := loss(trial)) >= least - _SMALLEST_GAIN:
                break
            best, least, improved = trial, error, True
        if improved:
            break
    return best, least


def _moved(value: float, factor: float, greatest: float) -> float:
    if value == 0 and factor > 1 and greatest < math.inf:
        return _FIRST_SHARE_OF_RANGE * greatest
    return value * factor


def _within(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])
