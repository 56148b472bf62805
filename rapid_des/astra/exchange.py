"""Everyone's messages to everyone else, in the order that each member sends them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rapid_des.arrays import Bools, Int32s, Int64s
from rapid_des.astra.phases import Phase


@dataclass(frozen=True)
class Exchange:
    """Everyone to everyone: task j·n + m is member m's message j; pairs ascend by (source, destination)."""

    members: int
    source: Int32s
    destination: Int32s
    pair: Int32s
    pair_source: Int32s
    pair_destination: Int32s

    @staticmethod
    def of(phase: Phase) -> Exchange:
        """Return the messages of a phase's members."""
        n = phase.members
        member = np.arange(n, dtype=np.int32)
        number = np.arange(1, n, dtype=np.int32)[:, None]
        peer = (member + phase.step * number) % n
        others = np.arange(n - 1, dtype=np.int32)
        return Exchange(
            members=n,
            source=np.tile(member, n - 1),
            destination=peer.ravel().astype(np.int32),
            pair=(member * (n - 1) + peer - (peer > member)).ravel().astype(np.int32),
            pair_source=np.repeat(member, n - 1),
            pair_destination=(others + (others >= member[:, None])).ravel().astype(np.int32),
        )

    def edges(self, tasks: int, lag: int) -> tuple[Int64s, Int32s, Int64s, Bools]:
        """Return (lengths of rows, targets, lags, at injection) of edges that count towards `tasks` + member.

        A message counts for its destination when it arrives, and a member's first message, which is sent
        together with all its others, stands for having asked for what it receives.
        """
        n, count = self.members, len(self.source)
        lengths = np.ones(count, np.int64)
        lengths[:n] = 2
        target = np.empty(count + n, np.int32)
        target[0 : 2 * n : 2] = self.destination[:n]
        target[1 : 2 * n : 2] = self.source[:n]
        target[2 * n :] = self.destination[n:]
        target += tasks
        at_injection = np.zeros(count + n, np.bool_)
        at_injection[1 : 2 * n : 2] = True
        return lengths, target, np.full(count + n, lag, np.int64), at_injection
