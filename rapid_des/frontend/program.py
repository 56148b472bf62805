"""Writing one rank's program: placed pieces, messages to the neighbouring stages, segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rapid_des.chakra.trace import NodeKind, NodeTable
from rapid_des.frontend.pricing import message_node
from rapid_des.frontend.template import Column, Node, Writer
from rapid_des.frontend.traffic import GROUP_SLOTS

PREVIOUS, NEXT = 0, 1
"""Peer slots: the stages before and after, in a circle."""


@dataclass(frozen=True)
class Segment:
    """A stretch of one table that belongs together, for reports: rows start to stop."""

    name: str
    start: int
    stop: int
    micro_batch: int = 0
    chunk: int = 0
    step: int = 0
    """Inference: 0 is the prefill, 1 the first decode step."""
    kv_length: int = 0
    """Inference: positions that the last token of the pass attends to."""


@dataclass
class ProgramWriter:
    """Collects one rank's program in order."""

    writer: Writer = field(default_factory=Writer)
    segments: list[Segment] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.writer)

    def send(self, name: str, *, to: int, size: int, tag: int, after: int) -> int:
        """Append a send to a neighbouring stage; return its position."""
        node = Node(name, NodeKind.SEND, "pp-send", (), size=size, peer=to, tag=tag)
        return self.writer.append(node, (after,))

    def receive(self, name: str, *, source: int, size: int, tag: int, after: Sequence[int] = ()) -> int:
        """Append a receive from a neighbouring stage, asked for after given positions; return its own."""
        node = Node(name, NodeKind.RECV, "pp-recv", (), size=size, peer=source, tag=tag)
        return self.writer.append(node, after)

    def message(self, name: str, role: str, size: int, *, after: Sequence[int]) -> int:
        """Append a collective that waits for given positions; return its own."""
        return self.writer.append(message_node(name, role, size, ()), after)

    def segment(self, name: str, start: int, **what: int) -> None:
        """Close a segment that began at row `start`."""
        self.segments.append(Segment(name, start, len(self.writer), **what))

    def finish(self) -> FinishedProgram:
        """Return the table with only the groups that it uses."""
        rows = self.writer.rows
        used = np.unique(rows[:, Column.GROUP])
        used = used[used >= 0]
        slots = np.full(len(GROUP_SLOTS), -1, np.int64)
        slots[used] = np.arange(len(used))
        table = self.writer.table(slots, np.arange(2))
        groups = tuple(GROUP_SLOTS[slot] for slot in used)
        talks = bool((rows[:, Column.PEER] >= 0).any())
        return FinishedProgram(table, groups, talks, tuple(self.segments))


@dataclass(frozen=True)
class FinishedProgram:
    """A rank's table, the process groups behind its slots, and its segments."""

    table: NodeTable
    groups: tuple[str, ...]
    talks: bool
    """Whether it sends to or receives from its neighbours."""
    segments: tuple[Segment, ...]
