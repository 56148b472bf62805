"""Hosts that wait for each kernel and collective that they launch (CUDA_LAUNCH_BLOCKING=1).

Nothing of a rank then runs beside anything else, and each launch stands before its kernel: a node of the host
is put before every row, and waits for the last kernel or collective before it. Messages between stages do not
hold the host up, as two stages that wait for each other's would never go on.
"""

from __future__ import annotations

import numpy as np

from rapid_des.arrays import Int64s, frozen, rows_of
from rapid_des.chakra.trace import UNSTATED, NodeKind
from rapid_des.frontend.template import HOST, PieceColumn, TableRows

_BLOCKS = (NodeKind.COMPUTE, NodeKind.COLLECTIVE)


def blocking(table: TableRows, name: int) -> tuple[TableRows, Int64s]:
    """Return rows with a node of the host, called `name`, before each that is not one, and where each begins.

    Rows keep their order. The last of the places is the number of all.
    """
    rows, (counts, targets) = table.rows, table.dependencies
    ours = rows[:, PieceColumn.STREAM] == HOST
    ends = np.cumsum(np.where(ours, 1, 2))
    places = ends - 1
    first = ends - np.where(ours, 1, 2)
    made = np.zeros((int(ends[-1]) if len(ends) else 0, rows.shape[1]), np.int64)
    launches = first[~ours]
    made[launches] = _launch(name)
    made[places] = rows
    made[places, PieceColumn.LEAD] = 0
    # The last row before each that the host waits for; -1: there is none.
    blocks = np.isin(rows[:, PieceColumn.KIND], _BLOCKS) & ~ours
    latest = np.maximum.accumulate(np.where(blocks, places, -1))
    before = np.concatenate(([-1], latest[:-1])) if len(latest) else latest
    # Edges as pairs: what rows waited for, each row for its launch, and each launch for what blocks it.
    waits = before >= 0
    pairs = np.concatenate((
        np.stack((places[rows_of(counts)], places[targets]), axis=1),
        np.stack((places[~ours], launches), axis=1),
        np.stack((first[waits], before[waits]), axis=1),
    ))  # fmt: skip
    pairs = np.unique(pairs, axis=0)
    counted = np.bincount(pairs[:, 0], minlength=len(made))
    return TableRows(made, (counted, pairs[:, 1].copy())), np.append(first, len(made))


def _launch(name: int) -> Int64s:
    row = np.zeros(len(PieceColumn), np.int64)
    row[[PieceColumn.COLLECTIVE, PieceColumn.GROUP, PieceColumn.PEER, PieceColumn.BOUND]] = UNSTATED
    row[[PieceColumn.KIND, PieceColumn.NAME, PieceColumn.STREAM]] = NodeKind.COMPUTE, name, HOST
    return frozen(row)
