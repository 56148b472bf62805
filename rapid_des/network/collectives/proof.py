"""The data property: play a schedule with symbols and see that everyone ends with exactly their data.

The logical buffer is cut into cells at every boundary that anything uses. `held[m, c, i]` says that what
member m has at cell c includes member i's contribution.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives.relocation import intervals
from rapid_des.network.collectives.schedule import Schedule
from rapid_des.network.collectives.task import ROOTED, SHARDED_INPUT, Task

Held: TypeAlias = NDArray[np.bool_]
_SUMMED = frozenset(
    {
        CollectiveType.ALL_REDUCE,
        CollectiveType.REDUCE,
        CollectiveType.REDUCE_SCATTER,
        CollectiveType.REDUCE_SCATTER_BLOCK,
        CollectiveType.BARRIER,
    }
)


@dataclass(frozen=True)
class Cells:
    """The cells of a task's buffer as a schedule cuts it: where each starts and the block it is in."""

    start: NDArray[np.int64]
    block: NDArray[np.int64]


def prove(schedule: Schedule, task: Task) -> None:
    """Check that `schedule` does `task`; `InputError` says what goes wrong.

    A transfer carries what its source has at the collective's start and by the transfers it waits for,
    nothing else, so that what is proved holds for every order in which transfers may arrive. Wrong are: a
    transfer of data that its source need not have yet, a contribution counted twice, and an end at which
    somebody lacks something or has a wrong sum.
    """
    cells = cut(schedule, task)
    held = start_of(task, cells, schedule.switches)
    _Flow(schedule, cells, held, idempotent=task.collective is CollectiveType.BARRIER).run()
    compare(task, cells, held)


def compare(task: Task, cells: Cells, held: Held) -> None:
    """Raise `InputError` unless `held` is what the members must have at the end."""
    wanted, matters = _end(task, cells)
    wrong = np.argwhere((held[: task.members] != wanted).any(axis=2) & matters)
    if len(wrong):
        member, cell = wrong[0]
        have = np.flatnonzero(held[member, cell]).tolist()
        want = np.flatnonzero(wanted[member, cell]).tolist()
        raise InputError(
            f"{task.collective.name.lower()}: member {member} ends with the contributions of {have} "
            f"instead of {want} at byte {cells.start[cell]}"
        )


def cut(schedule: Schedule, task: Task) -> Cells:
    """Return the cells between all boundaries of the task's blocks and the schedule's payloads."""
    _, offset, size = intervals(schedule)
    solid = task.size > 0
    ends = [task.offset[solid], (task.offset + task.size)[solid], offset, offset + size]
    bounds = np.unique(np.concatenate(ends))
    order = np.flatnonzero(solid)[np.argsort(task.offset[solid], kind="stable")]
    block = order[np.maximum(np.searchsorted(task.offset[order], bounds[:-1], side="right") - 1, 0)]
    inside = (bounds[:-1] >= task.offset[block]) & (bounds[:-1] < (task.offset + task.size)[block])
    if np.any(size[size > 0]) and not _covered(offset[size > 0], size[size > 0], bounds, inside):
        raise InputError(f"{task.collective.name.lower()}: a transfer carries bytes outside the buffer")
    return Cells(bounds[:-1][inside], block[inside])


def _covered(
    offset: NDArray[np.int64], size: NDArray[np.int64], bounds: NDArray[np.int64], inside: NDArray[np.bool_]
) -> bool:
    outside = np.concatenate(([0], np.cumsum(~inside)))
    low, high = np.searchsorted(bounds, offset), np.searchsorted(bounds, offset + size)
    return bool(np.all(outside[high] == outside[low]))


def start_of(task: Task, cells: Cells, switches: int) -> Held:
    """Return what everybody holds at the start (switches: nothing)."""
    held = np.zeros((task.members + switches, len(cells.start), task.members), dtype=np.bool_)
    cell = np.arange(len(cells.start))
    if task.collective in _SUMMED:
        for member in range(task.members):
            held[member, :, member] = True
    elif task.collective in SHARDED_INPUT:
        held[cells.block, cell, cells.block] = True
    elif task.collective is CollectiveType.ALL_TO_ALL:
        source = cells.block // task.members
        held[source, cell, source] = True
    else:
        held[task.root, :, task.root] = True
    return held


def _end(task: Task, cells: Cells) -> tuple[Held, NDArray[np.bool_]]:
    """Return what every member must hold and the (member, cell) for which that is asked."""
    member = np.arange(task.members)
    contribution = np.zeros((len(cells.start), task.members), dtype=np.bool_)
    cell = np.arange(len(cells.start))
    if task.collective in _SUMMED:
        contribution[:] = True
    elif task.collective in SHARDED_INPUT:
        contribution[cell, cells.block] = True
    elif task.collective is CollectiveType.ALL_TO_ALL:
        contribution[cell, cells.block // task.members] = True
    else:
        contribution[:, task.root] = True
    wanted = np.broadcast_to(contribution, (task.members, *contribution.shape))
    matters = np.ones(wanted.shape[:2], dtype=np.bool_)
    if task.collective in _BY_BLOCK:
        matters &= cells.block % task.members == member[:, None]
    elif task.collective in ROOTED and task.collective is not CollectiveType.BROADCAST:
        matters &= (member == task.root)[:, None]
    return wanted, matters


_BY_BLOCK = frozenset(
    {
        CollectiveType.REDUCE_SCATTER,
        CollectiveType.REDUCE_SCATTER_BLOCK,
        CollectiveType.SCATTER,
        CollectiveType.ALL_TO_ALL,
    }
)


class _Flow:
    """What every transfer carries, found in the schedule's own order (dependencies point back)."""

    def __init__(self, schedule: Schedule, cells: Cells, held: Held, *, idempotent: bool) -> None:
        self.schedule, self.held, self.idempotent = schedule, held, idempotent
        self.cells = carried(schedule, cells)
        self.payload: list[Held] = []
        self.heard: list[frozenset[int]] = []
        """The transfers into its source that each transfer has waited for, also by way of joins."""

    def run(self) -> None:
        """Fill `payload`, then let everything land in `held`."""
        schedule, starts = self.schedule, self.schedule.dependency_starts.tolist()
        landing: list[list[int]] = [[] for _ in range(len(self.held))]
        ends = zip(schedule.source.tolist(), schedule.destination.tolist(), strict=True)
        for transfer, (source, destination) in enumerate(ends):
            awaited = schedule.dependencies[starts[transfer] : starts[transfer + 1]].tolist()
            heard = frozenset(number for other in awaited for number in self._brings(other, source))
            self.heard.append(heard)
            self.payload.append(self._state(source, sorted(heard))[self.cells[transfer]])
            if not self.payload[-1].any(axis=1).all():
                raise InputError(f"{name(schedule, transfer)} carries data that its source need not have yet")
            if source != destination:
                landing[destination].append(transfer)
        for member, transfers in enumerate(landing):
            self.held[member] = self._state(member, transfers)

    def _brings(self, transfer: int, member: int) -> frozenset[int]:
        if self.schedule.destination[transfer] != member:
            return frozenset()
        is_join = self.schedule.source[transfer] == member
        return self.heard[transfer] if is_join else frozenset({transfer})

    def _state(self, member: int, arrived: list[int]) -> Held:
        state: Held = self.held[member].copy()
        for transfer in arrived:
            payload, cells = self.payload[transfer], self.cells[transfer]
            if self.schedule.reduces[transfer]:
                if not self.idempotent and (state[cells] & payload).any():
                    raise InputError(
                        f"{name(self.schedule, transfer)} adds a contribution that is there already"
                    )
                payload = state[cells] | payload
            state[cells] = payload
        return state


def carried(schedule: Schedule, cells: Cells) -> list[NDArray[np.int64]]:
    """Return the cells of every transfer's payload."""
    owner, offset, size = intervals(schedule)
    first = np.searchsorted(cells.start, offset)
    last = np.searchsorted(cells.start, offset + size)
    rows = np.searchsorted(owner, np.arange(len(schedule) + 1))
    ranges = [np.arange(low, high) for low, high in zip(first, last, strict=True)]
    return [
        np.concatenate([np.arange(0), *ranges[low:high]]) for low, high in itertools.pairwise(rows.tolist())
    ]


def name(schedule: Schedule, transfer: int) -> str:
    """Return how errors call a transfer."""
    source, destination = schedule.source[transfer], schedule.destination[transfer]
    return f"transfer {transfer} from member {source} to member {destination}"
