"""Measured networks: collectives beside an alpha-beta null model, and references packet by packet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rapid_des.errors import InputError
from validation.scoring import Row, Topic


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement, the bytes that the null model multiplies, and how it is predicted."""

    case_id: str
    time: float
    wire: float
    predict: Callable[[], float]
    unsupported: str = ""


def alpha_beta(measured: Sequence[Measured]) -> tuple[float, float]:
    """Return the latency and the time a byte that fit best, in relative least squares (not negative)."""
    times = np.array([row.time for row in measured])
    wires = np.array([row.wire for row in measured])
    table = np.stack([1 / times, wires / times], axis=1)
    alpha, beta = np.linalg.lstsq(table, np.ones(len(times)), rcond=None)[0]
    return max(float(alpha), 0.0), max(float(beta), 0.0)


def rows(measured: Sequence[Measured]) -> list[Row]:
    """Return predictions beside measurements; the null model is fitted to these very rows.

    What the model refuses is not supported, for the reason that it gives.
    """
    alpha, beta = alpha_beta(measured)
    return [_row(row, alpha + beta * row.wire) for row in measured]


def _row(row: Measured, null: float) -> Row:
    try:
        predicted = None if row.unsupported else row.predict()
    except InputError as why:
        return Row(row.case_id, row.time, None, unsupported=str(why))
    if predicted is None:
        return Row(row.case_id, row.time, None, unsupported=row.unsupported)
    return Row(row.case_id, row.time, predicted, null)


def grouped(
    measured: Iterable[tuple[str, Measured]],
    *,
    unit: str = "us",
    floor: Callable[[str], float] = lambda _: 0.0,
    constants: Callable[[str], Mapping[str, object]] = lambda _: {},
) -> Iterator[Topic]:
    """Yield a topic for every name, in order of first appearance."""
    groups: dict[str, list[Measured]] = defaultdict(list)
    for name, row in measured:
        groups[name].append(row)
    for name, members in groups.items():
        yield Topic(
            name=name,
            rows=_later(members),
            floor_us=floor(name),
            unit=unit,
            constants=constants(name),
        )


def _later(members: Sequence[Measured]) -> Callable[[], Sequence[Row]]:
    return lambda: rows(members)
