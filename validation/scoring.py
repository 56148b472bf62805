"""How a prediction is scored, rows to cases to one topic, and the null models that it must clearly beat.

A row's error is `max(0, |predicted - measured| - floor) / measured`; rows are averaged within their case and
cases within the topic, so one long sweep does not outvote the rest. The split is by the case's name alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from rapid_des.arrays import Floats
from rapid_des.device.calibration import is_calibration
from rapid_des.report.evidence import Origin
from rapid_des.report.forecast import JobKind

Report = dict[str, Any]

RANKED = 3
"""Predictions that make a ranking, at least."""
_STEPS = np.array([2.0, 1.3, 1.1, 1.03, 1.01])
"""The factors of the null model's coordinate search."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement beside its prediction, both in the topic's unit.

    `predicted` None says that the model does not represent this row; `unsupported` then says why.
    """

    case_id: str
    measured: float
    predicted: float | None
    null: float | None = None
    """What the null model says; None where there is none."""
    unsupported: str = ""
    covered: bool | None = None
    """Whether the measurement lies in the interval of the prediction; None where there is none."""
    forecast: float | None = None
    """What the other sources forecast; None where there is no evidence."""
    alone: float | None = None
    """The prediction of the job that the table and the software's profile say, without a recipe."""


@dataclass(frozen=True)
class JobError:
    """How far a predicted time of a whole job is off, and what it is made of."""

    case_id: str
    origin: Origin
    predicted: float
    error: float
    """ln(measured / predicted)."""
    work: Mapping[str, int]
    """Picoseconds of the critical rank by class."""
    alike: str
    """Equal for layouts of one job."""
    model: str = ""
    """The job's model."""
    kind: JobKind | None = None
    """What a forecast of the job depends on; None where there is none."""


def _nothing(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Topic:
    """One line of the validation table; `rows` is called only when somebody asks for the topic."""

    name: str
    rows: Callable[[], Sequence[Row]]
    floor_us: float = 0.0
    """Differences below this are measurement noise; stated only where rows are in microseconds."""
    unit: str = "us"
    split: bool = True
    """False: the provider splits by itself, and every row that it hands over is test."""
    constants: Mapping[str, object] = field(default_factory=dict)
    """Frozen constants behind the predictions, by file or name; merged over all topics in the report."""
    begin: Callable[[Callable[[int, int], None]], None] = _nothing
    """Begins what takes long; called for all topics that are asked for before the first is scored. It is
    given whom to tell, while somebody waits, how much of that is done, and of how much."""
    abandon: Callable[[], None] | None = None
    """Drops what was begun and is not done; a topic that has this can be scored then, as far as it is."""
    ranked: bool = False
    """Whether rows are configurations to choose from: the rank correlation is reported too."""
    job_errors: Callable[[Callable[[str], bool]], Sequence[JobError]] | None = None
    """Of measured jobs: the errors of wanted cases with what these may come from; for fits of intervals."""
    layouts: Callable[[], Mapping[str, str]] | None = None
    """Of measured jobs: each case's job, which layouts of one job have in common; nothing is run."""
    correlations: Callable[[], Mapping[str, float]] | None = None
    """Rank correlations by name, of rows that are jobs with several layouts."""
    shares: Callable[[], Mapping[str, float]] | None = None
    """Percent of the predicted time by part, of a topic `…/parts`, which has no rows."""
    blamed: Callable[[], Mapping[str, float]] | None = None
    """What each part adds to the bias of the rows, percent (`jobs.blame`)."""


def score(topic: Topic, *, split: bool = True) -> Report:
    """Return a topic's figures; with `split` the top level holds the test split, else every row."""
    rows = topic.rows()
    split = split and topic.split
    held = [row for row in rows if not (split and is_calibration(row.case_id))]
    fitted = [row for row in rows if split and is_calibration(row.case_id)]
    report = _figures(held, topic.floor_us)
    if split:
        report["calibration"] = _figures(fitted, topic.floor_us)
    report["unit"], report["floor_us"] = topic.unit, topic.floor_us
    report["residuals"] = [_residual(row, topic.floor_us) for row in held if row.predicted is not None]
    if topic.ranked:
        pairs = [(row.measured, row.predicted) for row in held if row.predicted is not None]
        report["rank_correlation"] = rank_correlation(pairs) if len(pairs) >= RANKED else None
    if topic.correlations is not None:
        report |= topic.correlations()
    if topic.shares is not None:
        report["shares_pct"] = dict(topic.shares())
    if topic.blamed is not None:
        report["bias_by_part_pct"] = dict(topic.blamed())
    return report


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's coefficient of pairs of a measurement and a prediction; 0 if either is one number."""
    if any(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        return 0.0
    measured, predicted = (_ranks(np.array(side, float)) for side in zip(*pairs, strict=True))
    return float(np.corrcoef(measured, predicted)[0, 1])


def _ranks(values: Floats) -> Floats:
    """Return each value's rank from 0, the mean of theirs for equal ones."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = ((ends - counts + ends - 1) / 2)[place]
    return ranks


def error_pct(row: Row, predicted: float, floor: float) -> float:
    """Return a row's error in percent beyond the floor, with the sign of the difference.

    >>> error_pct(Row("c", 10.0, 15.0), 15.0, 2.0)
    30.0
    """
    difference = predicted - row.measured
    beyond = max(0.0, abs(difference) - floor)
    return 100.0 * (beyond if difference > 0 else -beyond) / row.measured


def _figures(rows: Sequence[Row], floor: float) -> Report:
    signed = [
        (row.case_id, error_pct(row, row.predicted, floor)) for row in rows if row.predicted is not None
    ]
    null = [(row.case_id, abs(error_pct(row, row.null, floor))) for row in rows if row.null is not None]
    means = _case_means((case, abs(error)) for case, error in signed)
    absolute = np.abs([error for _, error in signed])
    return {
        "rows": len(signed),
        "cases": len(means),
        "mean_abs_pct": _mean(means),
        "bias_pct": _mean(_case_means(signed)),
        "median_abs_pct": float(np.median(absolute)) if signed else None,
        "p90_abs_pct": float(np.quantile(absolute, 0.9)) if signed else None,
        "max_abs_pct": max(means) if means else None,
        "null_mean_abs_pct": _mean(_case_means(null)),
        "worst_row_pct": float(max(absolute)) if signed else None,
        "profile_alone_mean_abs_pct": _row_mean(rows, "alone"),
        "forecast_mean_abs_pct": _row_mean(rows, "forecast"),
        "covered_pct": _mean([100.0 * row.covered for row in rows if row.covered is not None]),
        "unsupported": dict(
            sorted(Counter(row.unsupported for row in rows if row.predicted is None).items())
        ),
    }


def _row_mean(rows: Sequence[Row], figure: str) -> float | None:
    """Return the mean over rows of another figure's error in percent; None where no row has it."""
    errors = [
        abs(error_pct(row, getattr(row, figure), 0.0)) for row in rows if getattr(row, figure) is not None
    ]
    return _mean(errors)


def by_source(rows: Sequence[Row]) -> Report:
    """Return a source's figures over all of its rows: by row, whatever the split, each reading a row.

    The null model is in-sample: its constants are medians of the rows themselves.
    """
    known = [row for row in rows if row.predicted is not None]
    errors = np.array([error_pct(row, row.predicted or 0.0, 0.0) for row in known])
    null = [abs(error_pct(row, row.null, 0.0)) for row in known if row.null is not None]
    forecast = [error_pct(row, row.forecast, 0.0) for row in known if row.forecast is not None]
    return {
        "rows": len(known),
        "mean_abs_pct": float(np.mean(np.abs(errors))) if known else None,
        "bias_pct": float(np.mean(errors)) if known else None,
        "median_abs_pct": float(np.median(np.abs(errors))) if known else None,
        "p90_abs_pct": float(np.quantile(np.abs(errors), 0.9)) if known else None,
        "worst_row_pct": float(np.max(np.abs(errors))) if known else None,
        "profile_alone_mean_abs_pct": _row_mean(known, "alone"),
        "forecast_mean_abs_pct": _row_mean(known, "forecast"),
        "forecast_bias_pct": _mean(forecast),
        "covered_pct": _mean([100.0 * row.covered for row in known if row.covered is not None]),
        "in_sample_null_mean_abs_pct": _mean(null),
        "null_is_better": bool(null) and bool(known) and fmean(null) < float(np.mean(np.abs(errors))),
        "not_run": len(rows) - len(known),
    }


def _case_means(errors: Iterable[tuple[str, float]]) -> list[float]:
    cases: dict[str, list[float]] = {}
    for case, error in errors:
        cases.setdefault(case, []).append(error)
    return [fmean(values) for values in cases.values()]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _residual(row: Row, floor: float) -> Report:
    assert row.predicted is not None
    stated = {key: getattr(row, key) for key in ("null", "covered", "forecast", "alone")}
    return {
        "case_id": row.case_id,
        "measured": row.measured,
        "predicted": row.predicted,
        "pct": abs(error_pct(row, row.predicted, floor)),
        "raw_pct": abs(error_pct(row, row.predicted, 0.0)),
        **{key: value for key, value in stated.items() if value is not None},
    }


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


def roofline_null(
    basis: Sequence[tuple[float, float]], rows: Sequence[tuple[str, float]], *, split: bool
) -> list[float]:
    """Return the null model's microseconds for (FLOP, bytes) of every row, given its case and measurement.

    It is fitted to the calibration rows where the data are split and there are any, else to all.
    """
    flops, moved = np.array(basis, float).reshape(-1, 2).T
    times = np.array([time for _, time in rows])
    fitted = np.array([split and is_calibration(case) for case, _ in rows])
    if not fitted.any():
        fitted[:] = True
    parameters = fit_roofline(flops[fitted], moved[fitted], times[fitted])
    return [float(time) for time in roofline(parameters, flops, moved)]


def roofline(parameters: Floats, flops: Floats, moved: Floats) -> Floats:
    """Return the times (µs) of a fitted three-parameter roofline."""
    launch, rate, bandwidth = parameters
    predicted: Floats = launch + np.maximum(flops / rate, moved / bandwidth)
    return predicted


def _log_error(parameters: Floats, flops: Floats, moved: Floats, measured: Floats) -> float:
    return float(np.mean(np.abs(np.log(roofline(parameters, flops, moved) / measured))))
