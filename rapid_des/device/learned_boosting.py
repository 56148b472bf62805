"""XGBoost and LightGBM as further candidates: grown by them, flattened from their text form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rapid_des.device.learned_trees import LEAF, Forest
from rapid_des.errors import InputError

Floats = npt.NDArray[np.float64]

BOOSTERS: Mapping[str, str] = {"xgboost": "xgboost", "lightgbm": "lightgbm"}
"""Names of the candidates, and the module that each needs."""

_ROUNDS = 250
_RATE = 0.06


def grow_booster(rows: Floats, target: Floats, kind: str) -> Forest:
    """Return the boosted trees as a flat forest; a package that is not installed is an `InputError`."""
    try:
        return _xgboost(rows, target) if kind == "xgboost" else _lightgbm(rows, target)
    except ImportError:
        raise InputError(f"{kind} is not installed: pip install 'rapid-des[boosting]'") from None


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
