"""Which ranks run a block together, and which group of them is represented by one rank in the outer graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.frontend.job import Job

Groups = tuple[tuple[int, ...], ...]


def inner_axes(job: Job, *, exchanges: bool) -> frozenset[str]:
    """Return the axes whose messages stand inside blocks; with `exchanges` those among experts too.

    Ranks that share experts are inside where they are of one tp group.
    """
    axes = {"tp", "cp"} if job.spec.parallelism.passes_blocks else {"tp"}
    if exchanges:
        return frozenset(axes | {"etp", "ep"})
    of_tp = job.layout.group_numbers(("tp",))[job.expert_layout.rows(("etp",))]
    return frozenset(axes | {"etp"} if (of_tp == of_tp[:, :1]).all() else axes)


def followed_groups(job: Job) -> Groups:
    """Return groups of ranks of which the graph around blocks follows one each, ascending by first rank.

    Ranks of a tp group do the same there, unless experts are split otherwise than all else.
    """
    alike = not job.model.has_experts or job.spec.parallelism.expert_degree == job.members("tp")
    return job.layout.groups(("tp",)) if alike else tuple((rank,) for rank in range(job.gpus))


def groups_run_together(job: Job, axes: frozenset[str]) -> Groups:
    """Return for each rank those whose messages inside blocks are with it, or with each other, ascending."""
    dense = tuple(axis for axis in job.layout.axes if axis in axes)
    tables = [job.layout.rows(dense)]
    if job.model.has_experts:
        tables.append(job.expert_layout.rows(tuple(axes & {"etp", "ep"})))
    return _joined(job.gpus, tables)


def _joined(ranks: int, tables: Sequence[Int64s]) -> Groups:
    """Return for each rank all that groups of the tables join to it, step by step."""
    first = np.arange(ranks)
    while True:
        before = first.copy()
        for table in tables:
            first[table] = first[table].min(axis=1, keepdims=True)
        if np.array_equal(before, first):
            break
    order = np.argsort(first, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(first[order])) + 1)
    return _of_each(ranks, (tuple(part.tolist()) for part in parts))


def _of_each(ranks: int, groups: Iterable[tuple[int, ...]]) -> Groups:
    group_of = {rank: group for group in groups for rank in group}
    return tuple(group_of[rank] for rank in range(ranks))
