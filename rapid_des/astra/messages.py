"""Single transfers: a message from one rank to another, and a visit to a shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from rapid_des.program.program import Template
from rapid_des.program.services import Sizes


class Messages:
    """Templates of single transfers, which differ in nothing but their size and share all other columns."""

    def __init__(self, rows: Sizes) -> None:
        self._rows = rows
        self._message = _columns(
            members=2,
            ends=(0, 1),
            edges=(1, 2),
            arrivals=((0, 1), (2,)),
            member_need=(2, 2),
        )
        self._visit = _columns(members=1, ends=(0, 0), edges=(1,), arrivals=((0, 1),), member_need=(2,))

    def message(self, size: int) -> Template:
        """Return one message: both sides are done when it has arrived, the receiver not before it asked."""
        row = np.array([self._rows.row(size)], np.int32)
        return Template(**self._message, size=row, name=f"a message of {size} B", alike=self._message)

    def visit(self, size: int) -> Template:
        """Return a lone member's use of one shared server."""
        row = np.array([self._rows.row(size)], np.int32)
        return Template(**self._visit, size=row, name=f"{size} B from or to remote memory", alike=self._visit)


def _columns(
    *,
    members: int,
    ends: tuple[int, int],
    edges: tuple[int, ...],
    arrivals: tuple[tuple[int, ...], ...],
    member_need: tuple[int, ...],
) -> dict[str, Any]:
    """Return the columns of a template of one task, but for its size and name."""
    starts = np.cumsum([0, *(len(targets) for targets in arrivals)])
    flat = [target for targets in arrivals for target in targets]
    return {
        "members": members,
        "pair": np.zeros(1, np.int32),
        "pair_source": np.array(ends[:1], np.int32),
        "pair_destination": np.array(ends[1:], np.int32),
        "source": np.zeros(1, np.int32),
        "need": np.ones(1, np.int32),
        "edge_starts": np.array([0, len(edges)], np.int64),
        "edge_target": np.array(edges, np.int32),
        "edge_lag": np.zeros(len(edges), np.int64),
        "edge_at_injection": np.zeros(len(edges), np.bool_),
        "arrival_starts": starts.astype(np.int64),
        "arrival_target": np.array(flat, np.int32),
        "arrival_lag": np.zeros(len(flat), np.int64),
        "member_need": np.array(member_need, np.int32),
    }
