"""One operator's regressor: a log-linear trend and, on what is left of it, trees as flat arrays without code.

An operator's time is a product of powers of its sizes wherever one resource bounds it. The trend takes that
part (least squares of log time on the log sizes, or on their squares and products too); the trees learn what
is left: waves, alignment, changes of kernel. Between samples the trend interpolates, which bare trees cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from rapid_des.arrays import Floats, Int32s

LEAF = -1
"""The feature index of a leaf."""


class Regressor(Struct, frozen=True):
    """One operator's model: sizes to microseconds."""

    names: tuple[str, ...]
    """The names of the sizes, in order."""
    low: Floats
    high: Floats
    """The upper end of the sampled range of each size; `low` holds the lower end."""
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

    def check(self) -> None:
        """Raise `ValueError` for what no fit makes: parts that do not match, numbers that are none."""
        count, degree = len(self.names), self.trend.degree
        terms = 1 + count + (count * (count + 1) // 2 if degree == 2 else 0)
        if degree not in (1, 2) or self.trend.coefficients.shape != (terms,):
            raise ValueError(f"a trend of degree {degree} with {self.trend.coefficients.size} coefficients")
        if not self.low.shape == self.high.shape == (count,) or not count:
            raise ValueError(f"{count} sizes with a range for {self.low.size}")
        numbers = (self.low, self.high, self.trend.coefficients, np.array([self.error]))
        if not all(np.isfinite(part).all() for part in numbers):
            raise ValueError("a number that is not finite")
        self.forest.check(features=count * count + 1)

    def predict(self, sizes: Floats) -> Floats:
        """Return microseconds, a number a row of `sizes`."""
        lifted = positive(sizes)
        log_time = self.trend.predict(lifted) + self.forest.predict(features(lifted, self.trend))
        return np.exp(log_time)


class Trend(Struct, frozen=True):
    """Least-squares coefficients of log time: constant, log sizes, and (quadratic) their products."""

    degree: int
    coefficients: Floats

    @classmethod
    def fit(cls, sizes: Floats, log_time: Floats, degree: int) -> Trend:
        """Return the trend of one operator's samples; `sizes` has a row a sample."""
        terms = _terms(np.log(sizes), degree)
        coefficients: Floats = np.linalg.lstsq(terms, log_time, rcond=None)[0].astype(np.float64)
        return cls(degree, coefficients)

    def predict(self, sizes: Floats) -> Floats:
        """Return the log time that the trend says."""
        result: Floats = _terms(np.log(sizes), self.degree) @ self.coefficients
        return result


def features(sizes: Floats, trend: Trend) -> Floats:
    """Return the trees' features, a row a sample: logs, pair sums and differences, the trend."""
    logs = np.log(sizes)
    count = logs.shape[1]
    pairs = [(i, j) for i in range(count) for j in range(i)]
    columns = [logs]
    columns += [(logs[:, i] + logs[:, j])[:, None] for i, j in pairs]
    columns += [(logs[:, i] - logs[:, j])[:, None] for i, j in pairs]
    columns.append(trend.predict(sizes)[:, None])
    return np.hstack(columns)


def positive(sizes: Floats) -> Floats:
    """Return sizes with zeros lifted to one half: their logarithm must exist."""
    return np.where(sizes > 0, sizes, 0.5)


def _terms(logs: Floats, degree: int) -> Floats:
    columns = [np.ones((len(logs), 1)), logs]
    if degree == 2:
        count = logs.shape[1]
        columns += [(logs[:, i] * logs[:, j])[:, None] for i in range(count) for j in range(i + 1)]
    return np.hstack(columns)


class Forest(Struct, frozen=True):
    """Trees laid one after the other; node i goes to `left[i]` if its feature is at most the threshold.

    The prediction is `offset` plus `scale` times the sum of one leaf of every tree (a mean of trees has scale
    1/n, boosting its learning rate). Features are compared in float32, as the trees were grown.
    """

    roots: Int32s
    feature: npt.NDArray[np.int16]
    threshold: Floats
    left: Int32s
    right: Int32s
    value: npt.NDArray[np.float32]
    scale: float
    offset: float

    def predict(self, features: Floats) -> Floats:
        """Return one number for each row of `features`."""
        rows = features.astype(np.float32)
        # [row, tree] the node at which each row stands in each tree; all go down one level at a time
        nodes = np.repeat(self.roots[None, :], len(rows), axis=0)
        index = np.arange(len(rows))[:, None]
        while True:
            feature = self.feature[nodes]
            inner = feature != LEAF
            if not inner.any():
                break
            # leaves have no feature: 0 stands in for it, and they stay where they are
            low = rows[index, np.where(inner, feature, 0)] <= self.threshold[nodes]
            nodes = np.where(inner, np.where(low, self.left[nodes], self.right[nodes]), nodes)
        total: Floats = self.value[nodes].astype(np.float64).sum(axis=1)
        return self.offset + self.scale * total

    def check(self, features: int) -> None:
        """Raise `ValueError` unless the trees are trees: every node leads to later ones, leaves end it."""
        columns = [getattr(self, name) for name in _COLUMNS if name != "roots"]
        count = len(self.feature)
        if any(column.shape != (count,) for column in columns) or self.roots.ndim != 1:
            raise ValueError("the trees' columns differ in length")
        inner, here = self.feature != LEAF, np.arange(count)
        if not ((self.feature >= LEAF) & (self.feature < features)).all():
            raise ValueError("a tree asks for a feature that there is not")
        for child in (self.left[inner], self.right[inner]):
            if not ((child > here[inner]) & (child < count)).all():
                raise ValueError("a tree's node leads nowhere, or back")
        if not ((self.roots >= 0) & (self.roots < count)).all():
            raise ValueError("a tree has no root")
        numbers = (self.threshold[inner], self.value, np.array([self.scale, self.offset]))
        if not all(np.isfinite(part).all() for part in numbers):
            raise ValueError("a tree holds a number that is not finite")

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[np.generic]]:
        """Return what a file holds of the forest, under names that start with `prefix`."""
        fields = {f"{prefix}.{name}": getattr(self, name) for name in _COLUMNS}
        return {**fields, f"{prefix}.ends": np.array([self.scale, self.offset])}

    @classmethod
    def from_arrays(cls, stored: Mapping[str, npt.NDArray[np.generic]], prefix: str) -> Forest:
        """Return the forest that `arrays` described."""
        scale, offset = (float(number) for number in stored[f"{prefix}.ends"])
        columns: dict[str, Any] = {
            name: stored[f"{prefix}.{name}"].astype(dtype) for name, dtype in _COLUMNS.items()
        }
        return cls(**columns, scale=scale, offset=offset)


_COLUMNS = {
    "roots": np.int32, "feature": np.int16, "threshold": np.float64, "left": np.int32, "right": np.int32,
    "value": np.float32,
}  # fmt: skip
