"""Operators priced by regressors on measured samples, behind the interface of the native models.

A device file says `operators: learned:FILE`. Each operator that FILE has a regressor for, and whose sizes lie
in the sampled range, is priced by it; any other by the fallback that FILE declares (`native` or `roofline`).
Every estimate says in its detail which it was, and `sources` sums that up.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from rapid_des.device.learned_boosting import BOOSTERS
from rapid_des.device.learned_features import Trend
from rapid_des.device.learned_fit import LEAST_ROWS, Regressor, fit_regressor
from rapid_des.device.learned_samples import SIZES, read_samples, shape_of
from rapid_des.device.learned_trees import Forest
from rapid_des.device.operators import Estimate, Operator, OperatorModel
from rapid_des.errors import InputError

FORMAT = "rapid-des learned operators 1"

Fallback = Literal["native", "roofline"]
FALLBACKS: tuple[Fallback, ...] = ("native", "roofline")


@dataclass(frozen=True)
class LearnedFile:
    """Regressors by operator, where their samples came from, and what prices the rest."""

    regressors: Mapping[str, Regressor]
    source: str
    fallback: Fallback
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Operators with too few samples for a regressor, and how many they had."""

    def summary(self) -> dict[str, object]:
        """Return what was fitted, as plain data."""
        fitted = {
            name: {"regressor": each.kind, "rows": each.rows, "cross_validation_error": each.error}
            for name, each in self.regressors.items()
        }
        return {"operators": fitted, "left_out": dict(self.left_out), "fallback": self.fallback}

    def table(self) -> str:
        """Return what was fitted, a line an operator."""
        width = max(map(len, [*self.regressors, *self.left_out]), default=8)
        lines = [
            f"{name:{width}}  {each.kind:<18} {each.rows:5d} samples  cross-validation {each.error:6.2%}"
            for name, each in self.regressors.items()
        ]
        lines += [f"{name:{width}}  left out: {count} samples" for name, count in self.left_out.items()]
        return "\n".join([*lines, f"all else: {self.fallback}"])

    def save(self, path: Path) -> None:
        """Write a `.npz` of plain arrays and one JSON text: no code, the same bytes for the same model."""
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        described = {}
        for number, (name, regressor) in enumerate(self.regressors.items()):
            prefix = f"r{number}"
            arrays |= regressor.forest.arrays(prefix)
            arrays[f"{prefix}.coefficients"] = regressor.trend.coefficients
            described[name] = _describe(regressor, prefix)
        head = {"format": FORMAT, "source": self.source, "fallback": self.fallback, "operators": described}
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def fit_file(
    samples: Path, *, by: str = "operator", sizes: str = "", time: str = "time_us", **options: Any
) -> LearnedFile:
    """Return a regressor for each operator of a table; see `learned_samples.read_samples` for the columns.

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
    left_out = {name: len(group.sizes) for name, group in groups.items() if name not in regressors}
    return LearnedFile(regressors, samples.name, options["fallback"], left_out)


def load_learned(path: Path) -> LearnedFile:
    """Return a file's regressors; a file that is none, or is damaged, is an `InputError` naming it."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file of learned operators")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        head = json.loads(bytes(arrays["head"]).decode())
        if head["format"] != FORMAT:
            raise InputError(f"{path}: format {head['format']!r}, this version reads {FORMAT!r}")
        regressors = {name: _restore(entry, arrays) for name, entry in head["operators"].items()}
        return LearnedFile(regressors, head["source"], head["fallback"])
    except (ValueError, KeyError, OSError, EOFError) as error:
        raise InputError(f"{path}: no file of learned operators ({error})") from None


class LearnedOperators:
    """The price list of a device with learned operators; memoised."""

    def __init__(self, file: LearnedFile, name: str, fallback: OperatorModel) -> None:
        self._file, self._name, self._fallback = file, name, fallback
        self._used: Counter[str] = Counter()
        self.estimate: Callable[[Operator], Estimate] = lru_cache(maxsize=None)(self._price)

    def sources(self) -> list[str]:
        """Return a line for each model that priced operators so far: which, and how many distinct shapes."""
        return [f"{count} operators priced by {model}" for model, count in sorted(self._used.items())]

    def _price(self, operator: Operator) -> Estimate:
        below = self._fallback.estimate(operator)
        shape = shape_of(operator)
        regressor = self._file.regressors.get(shape.name) if shape else None
        if shape is None or regressor is None or not regressor.inside(shape.sizes):
            why = "no samples" if regressor is None else "outside the sampled range"
            self._used[f"the {self._file.fallback} model ({why})"] += 1
            return replace(below, detail={**below.detail, "fallback": why})
        self._used[f"{regressor.kind} of {self._name} ({shape.name})"] += 1
        seconds_us = float(regressor.predict(np.array([shape.sizes], dtype=np.float64))[0])
        detail = {
            "model": f"learned:{self._name}",
            "regressor": regressor.kind,
            "cross_validation_error": regressor.error,
            "native_duration_ps": below.duration,
        }
        return replace(below, duration=round(seconds_us * 1e6), detail=detail)


def _describe(regressor: Regressor, prefix: str) -> dict[str, object]:
    return {
        "prefix": prefix,
        "names": list(regressor.names),
        "low": regressor.low.tolist(),
        "high": regressor.high.tolist(),
        "kind": regressor.kind,
        "degree": regressor.trend.degree,
        "error": regressor.error,
        "rows": regressor.rows,
    }


def _restore(entry: Mapping[str, Any], arrays: dict[str, Any]) -> Regressor:
    prefix = entry["prefix"]
    return Regressor(
        names=tuple(entry["names"]),
        low=np.array(entry["low"]),
        high=np.array(entry["high"]),
        kind=entry["kind"],
        trend=Trend(entry["degree"], cast("Any", arrays[f"{prefix}.coefficients"])),
        forest=Forest.from_arrays(arrays, prefix),
        error=entry["error"],
        rows=entry["rows"],
    )
