"""Fitting operator regressors to samples: tree ensembles on log time, chosen by cross-validation.

The method is that of arXiv 2509.22832 (a regressor an operator, random forest or boosting, the better in
cross-validation), with extra trees as a third kind, and a log-linear trend under the trees. Deterministic:
fixed seeds, folds by row number, one thread. Needs scikit-learn (extra `learned`); XGBoost and LightGBM join
the candidates where asked for (extra `boosting`). What is stored needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rapid_des.device.learned_boosting import BOOSTERS, grow_booster
from rapid_des.device.learned_features import Trend, features, positive
from rapid_des.device.learned_trees import LEAF, Forest
from rapid_des.errors import InputError

Floats = npt.NDArray[np.float64]

FOLDS = 3
LEAST_ROWS = 12
"""Samples below which no regressor is fitted."""

TREES: Mapping[str, Mapping[str, Any]] = {
    "random_forest": {"n_estimators": 100, "max_features": 0.6, "random_state": 0, "n_jobs": 1},
    "extra_trees": {"n_estimators": 100, "random_state": 0, "n_jobs": 1},
    "gradient_boosting": {
        "n_estimators": 250, "max_depth": 5, "learning_rate": 0.06, "subsample": 0.7, "max_features": 0.5,
        "random_state": 0,
    },
}  # fmt: skip
"""The candidates and their settings."""


@dataclass(frozen=True)
class Regressor:
    """One operator's model: sizes to seconds."""

    names: tuple[str, ...]
    """The sizes, in order."""
    low: Floats
    high: Floats
    """The sampled range of each size."""
    kind: str
    trend: Trend
    forest: Forest
    error: float
    """Mean absolute relative error in cross-validation."""
    rows: int

    def inside(self, sizes: Sequence[float]) -> bool:
        """Return whether all sizes lie in the sampled range."""
        values = np.array(sizes, dtype=np.float64)
        return bool(np.all(values >= self.low) and np.all(values <= self.high))

    def predict(self, sizes: Floats) -> Floats:
        """Return microseconds, a number a row of `sizes`."""
        lifted = positive(sizes)
        log_time = self.trend.predict(lifted) + self.forest.predict(features(lifted, self.trend))
        return np.exp(log_time)


def fit_regressor(
    sizes: Floats, time_us: Floats, names: Sequence[str], *, boosters: Sequence[str] = ()
) -> Regressor:
    """Return the best of the candidates; an operator with too few samples is an `InputError`."""
    if len(sizes) < LEAST_ROWS:
        raise InputError(f"{len(sizes)} samples are too few for a regressor, {LEAST_ROWS} are the least")
    if not np.all(time_us > 0):
        raise InputError("times must be above 0 us")
    lifted, log_time = positive(sizes), np.log(time_us)
    by_degree = {degree: cross_validate(lifted, log_time, "extra_trees", degree) for degree in (1, 2)}
    degree = min(by_degree, key=lambda each: by_degree[each])
    errors = {"extra_trees": by_degree[degree]}
    for other in (*TREES, *boosters):
        if other not in errors:
            errors[other] = cross_validate(lifted, log_time, other, degree)
    kind = min(errors, key=lambda each: errors[each])
    trend = Trend.fit(lifted, log_time, degree)
    forest = _grow(features(lifted, trend), log_time - trend.predict(lifted), kind)
    return Regressor(
        tuple(names), sizes.min(axis=0), sizes.max(axis=0), kind, trend, forest, errors[kind], len(sizes)
    )


def cross_validate(sizes: Floats, log_time: Floats, kind: str, degree: int) -> float:
    """Return the mean absolute relative error over folds of every third row."""
    fold = np.arange(len(sizes)) % FOLDS
    wrong = np.zeros(len(sizes))
    for held in range(FOLDS):
        train = fold != held
        trend = Trend.fit(sizes[train], log_time[train], degree)
        forest = _grow(
            features(sizes[train], trend), log_time[train] - trend.predict(sizes[train]), kind, small=True
        )
        test = sizes[~train]
        wrong[~train] = trend.predict(test) + forest.predict(features(test, trend)) - log_time[~train]
    return float(np.mean(np.abs(np.exp(wrong) - 1)))


def _grow(rows: Floats, target: Floats, kind: str, *, small: bool = False) -> Forest:
    if kind in BOOSTERS:
        return grow_booster(rows, target, kind)
    try:
        from sklearn import ensemble
    except ImportError:
        raise InputError("fitting needs scikit-learn: pip install 'rapid-des[learned]'") from None
    settings = dict(TREES[kind])
    if small:
        settings["n_estimators"] = settings["n_estimators"] // 5
    classes = {
        "random_forest": ensemble.RandomForestRegressor,
        "extra_trees": ensemble.ExtraTreesRegressor,
        "gradient_boosting": ensemble.GradientBoostingRegressor,
    }
    model = classes[kind](**settings).fit(rows, target)
    if kind == "gradient_boosting":
        trees = [tree for (tree,) in model.estimators_]
        return _flatten(trees, scale=settings["learning_rate"], offset=float(np.mean(target)))
    return _flatten(model.estimators_, scale=1 / len(model.estimators_), offset=0.0)


def _flatten(trees: Sequence[Any], *, scale: float, offset: float) -> Forest:
    parts = [tree.tree_ for tree in trees]
    starts = np.cumsum([0, *(part.node_count for part in parts)])
    feature = np.concatenate([np.where(part.children_left < 0, LEAF, part.feature) for part in parts])
    return Forest(
        roots=starts[:-1].astype(np.int32),
        feature=feature.astype(np.int16),
        threshold=np.concatenate([part.threshold for part in parts]),
        left=np.concatenate(
            [part.children_left + start for part, start in zip(parts, starts, strict=False)]
        ).astype(np.int32),
        right=np.concatenate(
            [part.children_right + start for part, start in zip(parts, starts, strict=False)]
        ).astype(np.int32),
        value=np.concatenate([part.value[:, 0, 0] for part in parts]).astype(np.float32),
        scale=scale,
        offset=offset,
    )
