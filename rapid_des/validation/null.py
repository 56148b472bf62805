"""Null models: what a prediction must clearly beat to prove anything."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_STEPS = np.array([2.0, 1.3, 1.1, 1.03, 1.01])


def fit_roofline(flops: Floats, moved: Floats, measured: Floats) -> Floats:
    """Return launch (µs), FLOP/µs and bytes/µs of the roofline that fits best in mean absolute log error.

    The three-parameter roofline is `launch + max(flops / rate, bytes / bandwidth)`; it is fitted by a
    descending coordinate search, so the result does not depend on anything but the data.
    """
    start = [float(np.min(measured)), float(np.max(flops / measured)), float(np.max(moved / measured))]
    best: Floats = np.maximum(np.array(start), 1e-9)
    least = _log_error(best, flops, moved, measured)
    for step in np.repeat(_STEPS, 12):
        for index in range(3):
            for factor in (step, 1 / step):
                trial = best.copy()
                trial[index] *= factor
                error = _log_error(trial, flops, moved, measured)
                if error < least:
                    best, least = trial, error
    return best


def roofline(parameters: Floats, flops: Floats, moved: Floats) -> Floats:
    """Return the times (µs) of a fitted three-parameter roofline."""
    launch, rate, bandwidth = parameters
    predicted: Floats = launch + np.maximum(flops / rate, moved / bandwidth)
    return predicted


def _log_error(parameters: Floats, flops: Floats, moved: Floats, measured: Floats) -> float:
    return float(np.mean(np.abs(np.log(roofline(parameters, flops, moved) / measured))))
