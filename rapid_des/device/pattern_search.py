"""A deterministic pattern search over named constants, for calibration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

Constants = dict[str, float]

_FIRST_STEP = 0.3
_LAST_STEP = 0.02
_SMALLEST_GAIN = 1e-5


def pattern_search(
    start: Mapping[str, float],
    loss: Callable[[Constants], float],
    names: Collection[str],
    *,
    shares: Collection[str] = (),
) -> Constants:
    """Return the constants with `names` fitted; those in `shares` stay at or below 1, the others as they are.

    Each pass tries every constant a step up and a step down (a factor), keeps what lowers the loss, goes on
    that way, and halves the step of a constant that nothing helped.

    >>> round(pattern_search({"x": 1.0}, lambda fit: (fit["x"] - 3.0) ** 2, ["x"])["x"], 1)
    3.0
    """
    best, least = dict(start), loss(dict(start))
    steps = dict.fromkeys(names, _FIRST_STEP)
    while max(steps.values()) >= _LAST_STEP:
        for name in names:
            if steps[name] < _LAST_STEP:
                continue
            trial = _along(best, least, (name, steps[name], name in shares), loss)
            if trial[1] < least:
                best, least = trial
            else:
                steps[name] /= 2
    return best


def _along(
    best: Constants, least: float, move: tuple[str, float, bool], loss: Callable[[Constants], float]
) -> tuple[Constants, float]:
    name, step, is_share = move
    for factor in (1 + step, 1 / (1 + step)):
        improved = False
        while True:
            value = best[name] * factor
            trial = {**best, name: min(value, 1.0) if is_share else value}
            if trial == best or (error := loss(trial)) >= least - _SMALLEST_GAIN:
                break
            best, least, improved = trial, error, True
        if improved:
            break
    return best, least
