"""Forecasts that learn from a machine's own steps: each published cell from a few others of its source.

A source's cells of one software and GPU family stand for one cluster. The source is left out of what the
forecast knows; six of its other cells, evenly spaced, are the steps that `rapid-des calibrate --step` would
be given. The null model is the forecast without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rapid_des.report.forecast import Cell, Posterior, posterior_of, table
from validation.measurements import DataFolder
from validation.scoring import Row, Topic

FEW, LEAST, MOST = 6, 3, 30
"""The steps that a forecast is given; and the cells of a source from which and up to which it is scored."""


def topics(_data: DataFolder) -> Iterator[Topic]:
    """Yield `calibration/own-steps`, in percent of the simulated step."""
    yield Topic("calibration/own-steps", _rows, unit="percent of the simulated step", split=False)


def _rows() -> list[Row]:
    known, rows = table(), list[Row]()
    for source in sorted({cell.source for cell in known.cells}):
        cells = [cell for cell in known.cells if cell.source == source]
        if len(cells) >= LEAST:
            others = posterior_of(known, without=[source])
            rows += [_row(cell, cells, others) for cell in cells[:: max(1, len(cells) // MOST)]]
    return rows


def _row(cell: Cell, cells: Sequence[Cell], others: Posterior) -> Row:
    alike = [each for each in cells if each is not cell and _machine(each) == _machine(cell)]
    own = alike[:: max(1, len(alike) // FEW)][:FEW]
    (before, _), (after, spread) = others.ratio(cell.kind), others.ratio(cell.kind, own)
    half = others.table.scales.half(cell.kind, spread)
    case = f"{cell.source} {cells.index(cell)}"
    measured, predicted, null = (100 * math.exp(error) for error in (cell.error, after, before))
    return Row(case, measured, predicted, null=null, covered=abs(cell.error - after) <= half)


def _machine(cell: Cell) -> tuple[str, str]:
    return cell.kind.software, cell.kind.family
