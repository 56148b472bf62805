"""The check of collective algorithms: every member ends with exactly its data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from rapid_des.network.collectives.proof import prove
from rapid_des.network.collectives.registry import algorithm
from rapid_des.network.collectives.schedule import ROOTED, Demand, Schedule, demand


def check_collective(
    name: str, *, members: Sequence[int] = range(1, 10), sizes: Sequence[int] = (0, 1, 61, 1000)
) -> None:
    """Check an algorithm for all its collectives, groups and sizes, with each root, whole and in chunks.

    >>> check_collective("ring", members=(2, 3))
    """
    chosen = algorithm(name)
    for collective, count, size, chunks in product(chosen.does, members, sizes, (1, 3)):
        for root in range(count if collective in ROOTED else 1):
            schedule = chosen(collective, count, size, root=root, chunks=chunks)
            check_schedule(schedule, demand(collective, count, size, root=root))


def check_schedule(schedule: Schedule, whole: Demand) -> None:
    """Check that a schedule does a demand, that dependencies point back, and that only joins are empty."""
    prove(schedule, whole)
    rows = np.repeat(np.arange(len(schedule)), np.diff(schedule.dependency_starts))
    assert np.all(schedule.dependencies < rows), "a transfer waits for one that stands behind it"
    joins = schedule.source == schedule.destination
    assert np.all((schedule.size == 0) == joins), "a transfer between two members carries nothing"
