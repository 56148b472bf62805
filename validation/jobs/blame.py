"""Errors of jobs shared out over the parts of the predicted time.

No set here measures parts of its times. Which of them is off can be told in so far as rows differ in what
they consist of: of all factors of the parts that bring predictions to the measurements, those that differ
least from 1 (ridge regression) say what each part adds to the bias. It is a diagnosis, and enters no
prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

REST = "unexplained"
_FEWEST = 3
_RELUCTANCE = 0.01
"""Of ridge regression: a part of a tenth of the time takes half of an error that it alone could explain."""


@dataclass(frozen=True)
class Taken:
    """A measured time and the parts of its prediction, in one unit."""

    measured: float
    parts: Mapping[str, float]


def errors_by_part(rows: Sequence[Taken]) -> dict[str, float]:
    """Return what each part adds to the bias, percent of the measured time; of few rows nothing.

    Rows whose communication alone is short by half, which they show by how unlike they are:

    >>> rows = [Taken(8 + 4 * n, {"kernels": 8, "communication": 2 * n}) for n in (1, 2, 4, 8)]
    >>> {part: round(error) for part, error in errors_by_part(rows).items()}
    {'kernels': -4, 'communication': -23, 'unexplained': -2}
    """
    names = list(dict.fromkeys(name for row in rows for name, time in row.parts.items() if time))
    shares = np.array([[row.parts.get(name, 0.0) / row.measured for name in names] for row in rows])
    if len(rows) < _FEWEST or not shares.size:
        return {}
    missing = 1.0 - shares.sum(axis=1)
    ridge = _RELUCTANCE * len(rows) * np.eye(len(names))
    changes = np.linalg.solve(shares.T @ shares + ridge, shares.T @ missing)
    errors = -100 * shares.mean(axis=0) * changes
    rest = -100 * float(missing.mean()) - float(errors.sum())
    return dict(zip(names, map(float, errors), strict=True)) | {REST: rest}
