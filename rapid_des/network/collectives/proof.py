"""The data property: play a schedule with symbols and see that everyone ends with exactly their data.

The logical buffer is cut into cells at every boundary that anything uses. `held[m, c, i]` says that what
member m has at cell c includes member i's contribution.
"""

from __future__ import annotations

import itertools
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s, starts_of
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives.schedule import ROOTED, SHARDED_INPUT, Demand, Schedule, intervals

Held: TypeAlias = Bools
_SUMMED = frozenset(
    {
        CollectiveType.ALL_REDUCE,
        CollectiveType.REDUCE,
        CollectiveType.REDUCE_SCATTER,
        CollectiveType.REDUCE_SCATTER_BLOCK,
        CollectiveType.BARRIER,
    }
)


class Cells(Struct, frozen=True, eq=False):
    """The cells of a demand's buffer as a schedule cuts it: where each starts and the block it is in."""

    start: Int64s
    block: Int64s


def prove(schedule: Schedule, demand: Demand) -> None:
    """Check that `schedule` does `demand`; `InputError` says what goes wrong.

    A transfer carries what its source has at the collective's start and by the transfers it waits for,
    nothing else, so that what is proved holds for every order in which transfers may arrive. Wrong are: a
    transfer of data that its source need not have yet, a contribution counted twice, and an end at which
    somebody lacks something or has a wrong sum.
    """
    cells = cut(schedule, demand)
    held = start_of(demand, cells, schedule.switches)
    _Flow(schedule, cells, held, idempotent=demand.collective is CollectiveType.BARRIER).run()
    compare(demand, cells, held)


def compare(demand: Demand, cells: Cells, held: Held) -> None:
    """Raise `InputError` unless `held` is what the members must have at the end."""
    wanted, matters = _end(demand, cells)
    wrong = np.argwhere((held[: demand.members] != wanted).any(axis=2) & matters)
    if len(wrong):
        member, cell = wrong[0]
        have = np.flatnonzero(held[member, cell]).tolist()
        want = np.flatnonzero(wanted[member, cell]).tolist()
        raise InputError(
            f"{demand.collective.name.lower()}: member {member} ends with the contributions of {have} "
            f"instead of {want} at byte {cells.start[cell]}"
        )


def cut(schedule: Schedule, demand: Demand) -> Cells:
    """Return the cells between all boundaries of the demand's blocks and the schedule's payloads."""
    _, offset, size = intervals(schedule)
    solid = demand.size > 0
    ends = [demand.offset[solid], (demand.offset + demand.size)[solid], offset, offset + size]
    bounds = np.unique(np.concatenate(ends))
    order = np.flatnonzero(solid)[np.argsort(demand.offset[solid], kind="stable")]
    block = order[np.maximum(np.searchsorted(demand.offset[order], bounds[:-1], side="right") - 1, 0)]
    inside = (bounds[:-1] >= demand.offset[block]) & (bounds[:-1] < (demand.offset + demand.size)[block])
    if np.any(size[size > 0]) and not _covered(offset[size > 0], size[size > 0], bounds, inside):
        raise InputError(f"{demand.collective.name.lower()}: a transfer carries bytes outside the buffer")
    return Cells(bounds[:-1][inside], block[inside])


def _covered(offset: Int64s, size: Int64s, bounds: Int64s, inside: Bools) -> bool:
    outside = starts_of((~inside).astype(np.int64))
    low, high = np.searchsorted(bounds, offset), np.searchsorted(bounds, offset + size)
    return bool(np.all(outside[high] == outside[low]))


def start_of(demand: Demand, cells: Cells, switches: int) -> Held:
    """Return what everybody holds at the start (switches: nothing)."""
    held = np.zeros((demand.members + switches, len(cells.start), demand.members), dtype=np.bool_)
    cell = np.arange(len(cells.start))
    if demand.collective in _SUMMED:
        for member in range(demand.members):
            held[member, :, member] = True
    elif demand.collective in SHARDED_INPUT:
        held[cells.block, cell, cells.block] = True
    elif demand.collective is CollectiveType.ALL_TO_ALL:
        source = cells.block // demand.members
        held[source, cell, source] = True
    else:
        held[demand.root, :, demand.root] = True
    return held


def _end(demand: Demand, cells: Cells) -> tuple[Held, Bools]:
    """Return the contents that every member must hold, and the (member, cell) pairs that are checked."""
    member = np.arange(demand.members)
    contribution = np.zeros((len(cells.start), demand.members), dtype=np.bool_)
    cell = np.arange(len(cells.start))
    if demand.collective in _SUMMED:
        contribution[:] = True
    elif demand.collective in SHARDED_INPUT:
        contribution[cell, cells.block] = True
    elif demand.collective is CollectiveType.ALL_TO_ALL:
        contribution[cell, cells.block // demand.members] = True
    else:
        contribution[:, demand.root] = True
    wanted = np.broadcast_to(contribution, (demand.members, *contribution.shape))
    matters = np.ones(wanted.shape[:2], dtype=np.bool_)
    if demand.collective in _BY_BLOCK:
        matters &= cells.block % demand.members == member[:, None]
    elif demand.collective in ROOTED and demand.collective is not CollectiveType.BROADCAST:
        matters &= (member == demand.root)[:, None]
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
    """The contents of every transfer, found in the schedule's own order (dependencies point back)."""

    def __init__(self, schedule: Schedule, cells: Cells, held: Held, *, idempotent: bool) -> None:
        self.schedule, self.held, self.idempotent = schedule, held, idempotent
        self.cells = carried(schedule, cells)
        self.payload: list[Held] = []
        self.received: list[frozenset[int]] = []
        """The transfers into its source that each transfer has waited for, also through joins."""

    def run(self) -> None:
        """Fill `payload`, then let everything land in `held`."""
        schedule, starts = self.schedule, self.schedule.dependency_starts.tolist()
        landing: list[list[int]] = [[] for _ in range(len(self.held))]
        ends = zip(schedule.source.tolist(), schedule.destination.tolist(), strict=True)
        for transfer, (source, destination) in enumerate(ends):
            awaited = schedule.dependencies[starts[transfer] : starts[transfer + 1]].tolist()
            received = frozenset(number for other in awaited for number in self._brings(other, source))
            self.received.append(received)
            self.payload.append(self._state(source, sorted(received))[self.cells[transfer]])
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
        return self.received[transfer] if is_join else frozenset({transfer})

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


def carried(schedule: Schedule, cells: Cells) -> list[Int64s]:
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
