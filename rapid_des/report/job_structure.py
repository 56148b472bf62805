"""What a job comes down to, for people who check it against theory: groups, stages, and every message."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, NodeTable
from rapid_des.frontend.shard import GROUP_SLOTS, GROUPS
from rapid_des.frontend.trace import JobTrace

_LAYER = re.compile(r"\bL\d+\.")


@dataclass(frozen=True)
class GroupKind:
    """One kind of process group."""

    name: str
    axes: tuple[str, ...]
    members: int
    count: int
    first: tuple[int, ...]
    """The ranks of the first group."""


@dataclass(frozen=True)
class MessageKind:
    """Messages of a stage's rank that are alike: the same in every layer and micro-batch."""

    stage: int
    name: str
    """With `L*` for the layer."""
    what: str
    """The collective, `send` or `recv`."""
    group: str
    """The kind of process group; empty for a send or receive."""
    members: int
    size: int
    """comm_size in bytes: the input buffer of one member."""
    count: int
    """In one step (or batch of requests)."""


@dataclass(frozen=True)
class Explanation:
    """A job's derived structure."""

    groups: tuple[GroupKind, ...]
    layers: tuple[int, ...]
    """Of each part of the model; part c·pp + s is chunk c of stage s."""
    messages: tuple[MessageKind, ...]


def explain(trace: JobTrace) -> Explanation:
    """Return the process groups, the layers of each part, and all messages as the trace has them."""
    job = trace.job
    kinds = {name.partition(".")[0] for name in trace.traces.groups}
    groups = []
    for name in GROUP_SLOTS:
        if name in kinds:
            first = trace.traces.groups[f"{name}.0"]
            count = sum(other.startswith(f"{name}.") for other in trace.traces.groups)
            groups.append(GroupKind(name, GROUPS[name], job.members(name), count, first))
    return Explanation(tuple(groups), job.layers, _messages(trace))


def _messages(trace: JobTrace) -> tuple[MessageKind, ...]:
    found: list[MessageKind] = []
    for stage, table in enumerate(trace.tables):
        entry = trace.traces.ranks[trace.stage_of_rank.index(stage)]
        slots = [name.partition(".")[0] for name in entry.groups]
        for (name, kind, collective, slot, size), count in _alike(table).items():
            if kind == NodeKind.COLLECTIVE:
                group = slots[slot]
                what = CollectiveType(collective).name.lower()
                number = trace.job.members(group)
            else:
                group, what, number = "", NodeKind(kind).name.lower(), 2
            found.append(MessageKind(stage, name, what, group, number, size, count))
    return tuple(found)


def _alike(table: NodeTable) -> Counter[tuple[str, int, int, int, int]]:
    """Return how often each kind of message occurs, in order of first occurrence."""
    rows = np.flatnonzero(np.isin(table.kind, (NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV)))
    names = [_LAYER.sub("L*.", name) for name in table.names]
    columns = (table.name, table.kind, table.collective, table.group, table.size)
    counts: Counter[tuple[str, int, int, int, int]] = Counter()
    for name, kind, collective, group, size in zip(
        *(column[rows].tolist() for column in columns), strict=True
    ):
        slot = group if kind == NodeKind.COLLECTIVE else UNSTATED
        counts[names[name], kind, collective, slot, size] += 1
    return counts
