"""What the trees see of a shape: logarithms, sums and differences of pairs, and a log-linear trend.

An operator's time is a product of powers of its sizes wherever one resource bounds it. The trend takes that
part (least squares of log time on the log sizes, or on their squares and products too); the trees learn what
is left: waves, alignment, changes of kernel. Between samples the trend interpolates, which bare trees cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trend:
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


def varying(values: Sequence[Sequence[float]], names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns that hold more than one value.

    >>> varying([[1, 5], [2, 5]], ["m", "k"])
    ('m',)
    """
    table = np.array(values)
    return tuple(name for i, name in enumerate(names) if len(np.unique(table[:, i])) > 1)


def _terms(logs: Floats, degree: int) -> Floats:
    columns = [np.ones((len(logs), 1)), logs]
    if degree == 2:
        count = logs.shape[1]
        columns += [(logs[:, i] * logs[:, j])[:, None] for i in range(count) for j in range(i + 1)]
    return np.hstack(columns)
