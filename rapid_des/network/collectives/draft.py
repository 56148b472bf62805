"""Writing a schedule: blocks of transfers are added as columns, then sealed."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rapid_des.network.collectives.relocation import relocate
from rapid_des.network.collectives.schedule import Schedule
from rapid_des.network.collectives.task import Ints, Task

Payload: TypeAlias = tuple[ArrayLike, ArrayLike]
"""Start and end of each transfer's interval in the draft's own (local) order of the blocks."""


class Draft:
    """A schedule in the making; its local buffer holds the task's blocks in `order`, one after the other.

    Transfers of 0 bytes are accepted and vanish, with the edges to them, when the draft is sealed.
    """

    def __init__(self, task: Task, *, order: Ints | None = None, switches: int = 0) -> None:
        self._offset = task.offset if order is None else task.offset[order]
        self._size = task.size if order is None else task.size[order]
        self.members = task.members
        self.bounds: Ints = np.concatenate(([0], np.cumsum(self._size)))
        """Boundaries of the blocks in the local buffer, in `order`."""
        self.everything: Payload = (0, int(self.bounds[-1]))
        self._switches = switches
        self._columns: list[tuple[NDArray[Any], ...]] = []
        self._edges: list[tuple[Ints, Ints]] = []
        self._length = 0

    def add(
        self, source: ArrayLike, destination: ArrayLike, payload: Payload, *, reduces: ArrayLike = False
    ) -> Ints:
        """Append transfers (all arguments broadcast against each other) and return their numbers."""
        start, end = payload
        ends = np.asarray(source, dtype=np.int32), np.asarray(destination, dtype=np.int32)
        columns = np.broadcast_arrays(
            *ends, start, np.subtract(end, start), np.asarray(reduces, dtype=np.bool_)
        )
        self._columns.append(tuple(column.reshape(-1) for column in columns))
        numbers = np.arange(self._length, self._length + columns[0].size, dtype=np.int64)
        self._length += columns[0].size
        return numbers.reshape(columns[0].shape)

    def join(self, member: ArrayLike) -> Ints:
        """Append joins: points in time at a member, on which many transfers can wait."""
        return self.add(member, member, (0, 0))

    def wait(self, transfers: ArrayLike, dependencies: ArrayLike) -> None:
        """Let `transfers` wait for `dependencies` (broadcast against each other)."""
        waiting, awaited = np.broadcast_arrays(transfers, dependencies)
        self._edges.append((waiting.reshape(-1).astype(np.int64), awaited.reshape(-1).astype(np.int64)))

    def seal(self) -> Schedule:
        """Return the schedule, its payloads where the task's blocks stand."""
        source, destination, offset, size, reduces = self._stacked()
        kept = size > 0
        self._keep_joins(kept, source == destination)
        starts, dependencies = _compressed(self._edges, kept)
        if not np.all(kept):
            source, destination, offset, size, reduces = (
                column[kept] for column in (source, destination, offset, size, reduces)
            )
        schedule = Schedule(
            self.members, source, destination, size, reduces, offset, starts, dependencies, self._switches
        )
        return relocate(schedule, self._offset, self._size)

    def _keep_joins(self, kept: NDArray[np.bool_], joins: NDArray[np.bool_]) -> None:
        """Mark the joins that still wait for something."""
        if np.any(joins):
            for waiting, awaited in self._edges:
                kept[waiting[joins[waiting] & kept[awaited]]] = True

    def _stacked(self) -> list[NDArray[Any]]:
        if not self._columns:
            return [np.zeros(0, dtype=kind) for kind in (np.int32, np.int32, np.int64, np.int64, np.bool_)]
        return [_stack(list(column)) for column in zip(*self._columns, strict=True)]


def _stack(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _compressed(edges: list[tuple[Ints, Ints]], kept: NDArray[np.bool_]) -> tuple[Ints, NDArray[np.int32]]:
    """Return the dependency table of the kept transfers, renumbered, rows in the order edges were added."""
    count = int(kept.sum())
    if not edges:
        return np.zeros(count + 1, dtype=np.int64), np.zeros(0, dtype=np.int32)
    waiting, awaited = (_stack(list(side)) for side in zip(*edges, strict=True))
    if count < len(kept):
        both = kept[waiting] & kept[awaited]
        number = np.cumsum(kept) - 1
        waiting, awaited = number[waiting[both]], number[awaited[both]]
    if np.any(waiting[1:] < waiting[:-1]):
        order = np.argsort(waiting, kind="stable")
        waiting, awaited = waiting[order], awaited[order]
    starts = np.concatenate(([0], np.cumsum(np.bincount(waiting, minlength=count))))
    return starts, awaited.astype(np.int32)
