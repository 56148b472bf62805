"""Playing a schedule in one buffer a member, in a random order that its dependencies allow."""

from __future__ import annotations

import numpy as np

from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives import Demand, Schedule
from rapid_des.network.collectives.proof import carried, compare, cut, start_of


def play_in_place(schedule: Schedule, demand: Demand, random: np.random.Generator) -> None:
    """Transfers read their source's buffer when they start and write their destination's when they land."""
    cells = cut(schedule, demand)
    held = start_of(demand, cells, schedule.switches)
    where = carried(schedule, cells)
    idempotent = demand.collective is CollectiveType.BARRIER
    missing = np.diff(schedule.dependency_starts)
    followers: list[list[int]] = [[] for _ in range(len(schedule))]
    waiting = np.repeat(np.arange(len(schedule)), missing)
    for transfer, awaited in zip(waiting.tolist(), schedule.dependencies.tolist(), strict=True):
        followers[awaited].append(transfer)
    missing = missing.copy()
    ready: list[int] = []
    payload: dict[int, np.ndarray] = {}

    def leave(transfer: int) -> None:
        payload[transfer] = held[schedule.source[transfer], where[transfer]]
        assert payload[transfer].any(axis=1).all(), f"transfer {transfer} carries what is not there"

    under_way = np.flatnonzero(missing == 0).tolist()
    for transfer in under_way:
        leave(transfer)
    landed = 0
    while ready or under_way:
        if ready and random.random() < 0.5:
            transfer = ready.pop(int(random.integers(len(ready))))
            leave(transfer)
            under_way.append(transfer)
            continue
        if not under_way:
            continue
        transfer = under_way.pop(int(random.integers(len(under_way))))
        landed += 1
        spot = (schedule.destination[transfer], where[transfer])
        if schedule.reduces[transfer]:
            assert idempotent or not (held[spot] & payload[transfer]).any(), f"{transfer} counts twice"
            payload[transfer] |= held[spot]
        held[spot] = payload.pop(transfer)
        for follower in followers[transfer]:
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    assert landed == len(schedule)
    compare(demand, cells, held)
