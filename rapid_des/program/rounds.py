"""Templates in which every member sends one message a round: kept as rounds, columns only when asked for.

A ring of 1,024 members has two million transfers in 2,046 rounds that are all alike. Folding needs the rounds
only, and what is left of them after folding is one member.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rapid_des.arrays import Int32s, Int64s
from rapid_des.program.program import Template


@dataclass(frozen=True)
class Rounds:
    """In round k member m sends to `partner[k % patterns, m]` over pair `pair[k % patterns, m]`.

    It sends round k + 1 once it has received the message of round k and `lag[k + 1]` has passed since it sent
    and received that; `lag[0]` comes before the first round.
    """

    partner: Int32s
    pair: Int32s
    size: Int32s
    """Row of the hop tables by round."""
    lag: Int64s

    def columns(self) -> dict[str, Any]:
        """Return the template's columns, task k·members + m for round k of member m."""
        rounds, (patterns, members) = len(self.size), self.partner.shape
        tasks = rounds * members
        pattern = np.arange(rounds) % patterns
        member = np.arange(members, dtype=np.int32)
        target = np.empty((rounds, members, 2), np.int32)
        following = (np.arange(1, rounds + 1, dtype=np.int32) * members)[:, None]
        target[:, :, 0] = following + self.partner[pattern]
        target[:, :, 1] = following + member
        need = np.full(tasks, 2, np.int32)
        need[:members] = 1
        return {
            "pair": self.pair[pattern].ravel(),
            "source": np.tile(member, rounds),
            "size": np.repeat(self.size, members),
            "need": need,
            "edge_starts": np.arange(0, 2 * tasks + 1, 2, dtype=np.int64),
            "edge_target": target.ravel(),
            "edge_lag": np.repeat(self.lag[1:], 2 * members),
            "edge_at_injection": np.tile(np.array([False, True]), tasks),
            "arrival_starts": np.arange(members + 1, dtype=np.int64),
            "arrival_target": member,
            "arrival_lag": np.full(members, self.lag[0]),
            "member_need": np.full(members, 2, np.int32),
        }


class RoundsTemplate(Template):
    """A template that is rounds; its columns come into being when one of them is first read."""

    rounds: Rounds

    def __init__(self, rounds: Rounds, pair_source: Int32s, pair_destination: Int32s, name: str) -> None:
        members = rounds.partner.shape[1]
        vars(self).update(
            rounds=rounds,
            members=members,
            pair_source=pair_source,
            pair_destination=pair_destination,
            name=name,
        )

    def __getattr__(self, name: str) -> Any:
        """Make the columns; they stay."""
        if name.startswith("__") or "edge_target" in vars(self):
            raise AttributeError(name)
        vars(self).update(self.rounds.columns())
        return getattr(self, name)

    def __len__(self) -> int:
        return len(self.rounds.size) * self.members
