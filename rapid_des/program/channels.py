"""The channels of messages, bound for all ranks together: one pass over columns, not one object a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from rapid_des.arrays import (
    Bools,
    Int32s,
    Int64s,
    as_they_come,
    distinct,
    entries_of,
    rows_of,
    starts_by,
    starts_of,
)
from rapid_des.chakra.trace import RankTrace
from rapid_des.errors import TraceError

_NO_ROWS = np.zeros(0, np.int64)


class ChannelSlots(Struct, frozen=True):
    """The slots of messages of one or more rank programs, one program after the other."""

    starts: Int64s = np.zeros(2, np.int64)
    """[program] its first slot; one entry more holds the total."""
    peer: Int64s = _NO_ROWS
    """[slot] the slot in `RankTrace.peers` of the other rank."""
    sends: Bools = _NO_ROWS.astype(np.bool_)
    use_starts: Int64s = np.zeros(1, np.int64)
    """[slot] its first row of `use_template`; one entry more holds the total."""
    use_template: Int32s = _NO_ROWS.astype(np.int32)
    """[use] a template that runs in the slot; those of a slot ascend."""

    @staticmethod
    def used(peer: Int64s, sends: Bools, slot: Int64s, template: Int32s) -> ChannelSlots:
        """Return the slots of one program, given the slot and the template of each of its messages."""
        first, templates = _distinct_pairs(slot, template, len(peer))
        return ChannelSlots(np.array([0, len(peer)]), peer, sends, first, templates)

    def rows(self) -> Iterator[tuple[int, bool, list[int]]]:
        """Yield of each slot the peer, whether it sends, and the templates."""
        templates = np.split(self.use_template, self.use_starts[1:-1])
        for peer, sends, used in zip(self.peer.tolist(), self.sends.tolist(), templates, strict=False):
            yield peer, sends, used.tolist()

    def bind(self, traces: Sequence[RankTrace], of_trace: Int64s, gpus: int) -> BoundChannels:
        """Return the channels of ranks, given the program of each; `TraceError` for a peer that is none."""
        slot = entries_of(self.starts, of_trace)
        lengths = np.diff(self.starts)[of_trace]
        position = rows_of(lengths)
        ranks = np.array([trace.rank for trace in traces], np.int64)
        first_peer = starts_of([len(trace.peers) for trace in traces])
        peers = np.array([peer for trace in traces for peer in trace.peers] or [0], np.int64)
        here, there = ranks[position], peers[first_peer[position] + self.peer[slot]]
        wrong = np.flatnonzero((here == there) | (there < 0) | (there >= gpus))
        if len(wrong):
            where = f"rank {here[wrong[0]]}: a message to or from rank {there[wrong[0]]}"
            raise TraceError(f"{where}; allowed: another rank from 0 to {gpus - 1}")
        sends = self.sends[slot]
        # A channel is one integer, source * gpus + destination.
        channels, group = as_they_come(np.where(sends, here * gpus + there, there * gpus + here))
        use, counts = entries_of(self.use_starts, slot), np.diff(self.use_starts)[slot]
        used = _distinct_pairs(np.repeat(group, counts), self.use_template[use], len(channels))
        return BoundChannels(
            source=channels // gpus,
            destination=channels % gpus,
            use_starts=used[0],
            use_template=used[1],
            starts=starts_of(lengths),
            group=group.astype(np.int32),
            member=(~sends).astype(np.int32),
        )


class BoundChannels(Struct, frozen=True):
    """The channels that ranks use, and which of them each slot of each rank is."""

    source: Int64s
    """[channel] the rank that sends; `destination` is the one that receives."""
    destination: Int64s
    use_starts: Int64s
    """[channel] its first row of `use_template`; one entry more holds the total."""
    use_template: Int32s
    """[use] a template that runs in the channel; those of a channel ascend."""
    starts: Int64s
    """[rank] its first row of `group` and `member`; one entry more holds the total."""
    group: Int32s
    member: Int32s

    def templates(self) -> list[tuple[int, ...]]:
        """Return the templates that run in each channel."""
        templates, starts = self.use_template.tolist(), self.use_starts.tolist()
        return [tuple(templates[begin:end]) for begin, end in pairwise(starts)]

    def of_ranks(self, column: Int32s) -> list[Int32s]:
        """Return each rank's part of a column with one row a slot."""
        return [column[begin:end] for begin, end in pairwise(self.starts.tolist())]


def _distinct_pairs(row: Int64s, template: Int32s, rows: int) -> tuple[Int64s, Int32s]:
    """Return the templates of each row, ascending and each once: where they start, and their numbers."""
    pairs = distinct((row << 32) + template)
    return starts_by(pairs >> 32, rows), (pairs & (2**32 - 1)).astype(np.int32)
