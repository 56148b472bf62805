"""Fitting operator regressors to samples: tree ensembles on log time, chosen by cross-validation.

The method is that of arXiv 2509.22832 (a regressor an operator, random forest or boosting, the better in
cross-validation), with extra trees as a third kind, and a log-linear trend under the trees. Deterministic:
fixed seeds, folds by row number, one thread. Needs scikit-learn (extra `learned`); XGBoost and LightGBM join
the candidates where asked for (extra `boosting`), flattened from their text form. What is stored needs none.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.arrays import Floats
from rapid_des.config.documents import read_rows
from rapid_des.device.device import load_device
from rapid_des.device.operators import OperatorModel
from rapid_des.device.pricing import operator_model
from rapid_des.errors import InputError
from rapid_des.learned import SIZES, LearnedFile, LeftOut, number_in, read_samples, shape_of
from rapid_des.learned.decomposition import (
    COLUMNS,
    PARTS,
    AttentionSlice,
    Converted,
    TimedOperator,
    attention,
    convert,
)
from rapid_des.learned.regressors import LEAF, Forest, Regressor, Trend, features, positive

FOLDS = 3
LEAST_ROWS = 12
"""The number of samples below which no regressor is fitted."""
_TOO_FEW = f"a regressor needs {LEAST_ROWS} samples"

TREES: Mapping[str, Mapping[str, Any]] = {
    "random_forest": {"n_estimators": 100, "max_features": 0.6, "random_state": 0, "n_jobs": 1},
    "extra_trees": {"n_estimators": 100, "random_state": 0, "n_jobs": 1},
    "gradient_boosting": {
        "n_estimators": 250, "max_depth": 5, "learning_rate": 0.06, "subsample": 0.7, "max_features": 0.5,
        "random_state": 0,
    },
}  # fmt: skip
"""The candidates and their settings."""

BOOSTERS: Mapping[str, str] = {"xgboost": "xgboost", "lightgbm": "lightgbm"}
"""The names of the boosting candidates, each with the module that it needs."""

_ROUNDS = 250
_RATE = 0.06


def fit_file(
    samples: Path, *, by: str = "operator", sizes: str = "", time: str = "time_us", **options: Any
) -> LearnedFile:
    """Return a regressor for each operator of a table; see `samples.read_samples` for the columns.

    `options`: `fallback` (`native` or `roofline`), and `boosting`, which adds XGBoost and LightGBM.
    """
    columns = tuple(sizes.split(",")) if sizes else SIZES
    groups = read_samples(samples, by=by.split(","), sizes=columns, time=time)
    boosters = tuple(BOOSTERS) if options.get("boosting") else ()
    regressors = {
        name: fit_regressor(group.sizes, group.time_us, group.names, boosters=boosters)
        for name, group in groups.items()
        if len(group.sizes) >= LEAST_ROWS
    }
    left_out = {
        name: LeftOut(len(group.sizes), _TOO_FEW) for name, group in groups.items() if name not in regressors
    }
    return LearnedFile(regressors, samples.name, options["fallback"], left_out)


def fit_modules(samples: Path, device: str, **options: Any) -> LearnedFile:
    """Return `fit_decomposed` of a CSV with the columns op, phase, b, l, h, dim, mp, params, time_us."""
    rows = read_rows(samples, ("op", "phase", "time_us"))
    for line, row in enumerate(rows, start=2):
        for name in ("time_us", *COLUMNS):
            if row.get(name) or name == "time_us":
                number_in(samples, line, row[name] or "")
    return fit_decomposed(rows, samples.name, operator_model(load_device(device)), **options)


def fit_decomposed(
    samples: Iterable[Mapping[str, str]], source: str, native: OperatorModel, **options: Any
) -> LearnedFile:
    """Return a regressor for each of our operators that samples of arXiv 2509.22832 speak of.

    What is left out is named `op/phase` as in the samples, with the count of its rows and the reason.
    `native` shares out what is one sample and several operators; `options` as in `fit_file`.
    """
    converted = convert(samples, native)
    for phase, parts in converted.parts.items():
        _add_attention(converted, phase, parts)
    by_name: dict[str, list[TimedOperator]] = defaultdict(list)
    for timed in converted.timed:
        by_name[timed.shape.name].append(timed)
    boosters = tuple(BOOSTERS) if options.get("boosting") else ()
    regressors = {}
    for name, rows in by_name.items():
        if len(rows) >= LEAST_ROWS:
            table = np.array([row.shape.sizes for row in rows])
            times = np.array([row.time_us for row in rows])
            regressors[name] = fit_regressor(table, times, rows[0].shape.names, boosters=boosters)
    for name in by_name.keys() - regressors.keys():
        for sample in {row.sample for row in by_name[name]}:
            converted.leave_out(sample, _TOO_FEW)
    return LearnedFile(regressors, source, options["fallback"], converted.left_out)


def _add_attention(converted: Converted, phase: str, parts: Mapping[str, Sequence[AttentionSlice]]) -> None:
    """Add the samples of unfused attention, or say which of its parts has too few."""
    few = [f"{len(parts.get(name, ()))} of {name}" for name in PARTS if len(parts.get(name, ())) < LEAST_ROWS]
    if not few:
        converted.timed += _whole_attention(phase, parts)
    for name in parts if few else ():
        reason = f"unfused attention needs {LEAST_ROWS} samples of each of its parts, there are "
        converted.leave_out(f"{name}/{phase}", reason + ", ".join(few))


def _whole_attention(phase: str, parts: Mapping[str, Sequence[AttentionSlice]]) -> list[TimedOperator]:
    """Return unfused attention at the sizes of its products' samples, the sum of what its parts take."""
    where = sorted({part.attention for name in (PARTS[0], PARTS[2]) for part in parts[name]})
    total = np.zeros(len(where))
    for rows in parts.values():
        used = [
            place
            for place, values in enumerate(zip(*(row.attention for row in rows), strict=True))
            if any(values)
        ]
        sizes = np.array([row.attention for row in rows], np.float64)[:, used]
        times = np.array([row.time_us for row in rows])
        total += fit_regressor(sizes, times, [str(place) for place in used]).predict(
            np.array(where, np.float64)[:, used]
        )
    shapes = [shape_of(attention(sizes, phase, fused=False)) for sizes in where]
    name = f"{PARTS[0]}/{phase}"
    return [
        TimedOperator(shape, float(time), name) for shape, time in zip(shapes, total, strict=True) if shape
    ]


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
    for tested in range(FOLDS):
        train = fold != tested
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
        raise InputError("fitting needs: pip install scikit-learn (rapid-des's extra 'learned')") from None
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
    numbered = list(zip(parts, starts[:-1], strict=True))
    feature = np.concatenate([np.where(part.children_left < 0, LEAF, part.feature) for part in parts])
    return Forest(
        roots=starts[:-1].astype(np.int32),
        feature=feature.astype(np.int16),
        threshold=np.concatenate([part.threshold for part in parts]),
        left=np.concatenate([part.children_left + start for part, start in numbered]).astype(np.int32),
        right=np.concatenate([part.children_right + start for part, start in numbered]).astype(np.int32),
        value=np.concatenate([part.value[:, 0, 0] for part in parts]).astype(np.float32),
        scale=scale,
        offset=offset,
    )


def grow_booster(rows: Floats, target: Floats, kind: str) -> Forest:
    """Return the boosted trees as a flat forest; a package that is not installed is an `InputError`."""
    try:
        return _xgboost(rows, target) if kind == "xgboost" else _lightgbm(rows, target)
    except ImportError:
        raise InputError(f"{kind} is not there: pip install {kind} (rapid-des's extra 'boosting')") from None


def _xgboost(rows: Floats, target: Floats) -> Forest:
    import xgboost

    offset = float(np.mean(target))
    settings = {
        "max_depth": 5, "eta": _RATE, "subsample": 0.7, "colsample_bytree": 0.5, "seed": 0, "nthread": 1,
        "base_score": 0.0, "tree_method": "exact",
    }  # fmt: skip
    grown = xgboost.train(settings, xgboost.DMatrix(rows, target - offset), _ROUNDS)
    builder = _Builder()
    for text in grown.get_dump(dump_format="json"):
        builder.add(json.loads(text), _xgboost_node)
    return builder.forest(offset)


def _xgboost_node(node: dict[str, Any]) -> tuple[float, int, float, Any, Any]:
    if "leaf" in node:
        return node["leaf"], LEAF, 0.0, None, None
    children = {child["nodeid"]: child for child in node["children"]}
    # XGBoost goes left below the split, the flat forest at or below: the next float32 down.
    split = float(np.nextafter(np.float32(node["split_condition"]), np.float32(-np.inf)))
    return 0.0, int(node["split"][1:]), split, children[node["yes"]], children[node["no"]]


def _lightgbm(rows: Floats, target: Floats) -> Forest:
    import lightgbm

    offset = float(np.mean(target))
    settings = {
        "num_leaves": 24, "learning_rate": _RATE, "bagging_fraction": 0.7, "bagging_freq": 1,
        "feature_fraction_bynode": 0.5, "min_data_in_leaf": 3, "seed": 0, "num_threads": 1,
        "deterministic": True, "verbose": -1,
    }  # fmt: skip
    # Thresholds are found in float32, the precision in which they will be compared.
    data = lightgbm.Dataset(rows.astype(np.float32), target - offset)
    builder = _Builder()
    for tree in lightgbm.train(settings, data, _ROUNDS).dump_model()["tree_info"]:
        builder.add(tree["tree_structure"], _lightgbm_node)
    return builder.forest(offset)


def _lightgbm_node(node: dict[str, Any]) -> tuple[float, int, float, Any, Any]:
    if "leaf_value" in node:
        return node["leaf_value"], LEAF, 0.0, None, None
    return 0.0, node["split_feature"], node["threshold"], node["left_child"], node["right_child"]


class _Builder:
    """Flat arrays of trees that come as nested dicts."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []
        self.roots: list[int] = []

    def add(self, tree: dict[str, Any], read: Any) -> None:
        """Append one tree, its nodes in depth-first order."""
        self.roots.append(len(self.rows))
        self._place(tree, read)

    def _place(self, node: dict[str, Any], read: Any) -> int:
        value, feature, threshold, left, right = read(node)
        index = len(self.rows)
        self.rows.append([feature, threshold, 0, 0, value])
        if feature != LEAF:
            self.rows[index][2] = self._place(left, read)
            self.rows[index][3] = self._place(right, read)
        return index

    def forest(self, offset: float) -> Forest:
        """Return the forest; boosters fold their learning rate into the leaves."""
        table = np.array(self.rows)
        return Forest(
            roots=np.array(self.roots, np.int32),
            feature=table[:, 0].astype(np.int16),
            threshold=table[:, 1],
            left=table[:, 2].astype(np.int32),
            right=table[:, 3].astype(np.int32),
            value=table[:, 4].astype(np.float32),
            scale=1.0,
            offset=offset,
        )
