"""Templates in which every member sends one message a round: written as rounds, columns only for an engine.

A ring of 1,024 members has two million transfers in 2,046 rounds that are all alike; 4,096 members that send
to all others have 17 million. Folding needs the rounds only, and what is left of them after folding is one
member.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s
from rapid_des.program.program import Template, edges, joined


class Rounds(Struct, frozen=True):
    """In round k member m sends to `partner[k % patterns, m]` over pair `pair[k % patterns, m]`.

    It sends round k + 1 once it has received the message of round k and `lag[k + 1]` has passed since it sent
    and received that; `lag[0]` comes before the first round.
    """

    partner: Int32s
    pair: Int32s
    size: Int32s
    """[round] row of the hop tables."""
    lag: Int64s

    def columns(self) -> dict[str, Any]:
        """Return the template's columns, task k·members + m for round k of member m."""
        rounds, (patterns, members) = len(self.size), self.partner.shape
        tasks = rounds * members
        pattern = np.arange(rounds) % patterns
        member = np.arange(members, dtype=np.int32)
        target = np.empty((rounds, members, 2), np.int32)
        following = (np.arange(1, rounds + 1, dtype=np.int32) * members)[:, None]
        # Task k of a member leads to round k + 1 of its receiver, by its arrival, and of itself, by its
        # injection. After the last round the targets are the members themselves (T + m).
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


class RoundsAtOnce(Rounds, frozen=True):
    """Every member sends all its messages at once, `lag[0]` after it arrived, one to each partner.

    It is done once `lag[1]` has passed since it sent its first message and received as many as it sends.
    """

    def columns(self) -> dict[str, Any]:
        """Return the template's columns, task k·members + m for message k of member m."""
        rounds, members = self.partner.shape
        tasks, member = rounds * members, np.arange(members, dtype=np.int32)
        task, done, last = np.arange(tasks, dtype=np.int32), tasks + member, int(self.lag[1])
        # A message leads to its receiver's end, by its arrival; a member's first one also to its own.
        awaited = [
            edges(task, tasks + self.partner.ravel(), last),
            edges(member, done, last, at_start=True),
        ]
        starts, target, lag, at_injection = joined(awaited).by_origin(tasks)
        return {
            "pair": self.pair.ravel(),
            "source": np.tile(member, rounds),
            "size": np.repeat(self.size, members),
            "need": np.ones(tasks, np.int32),
            "edge_starts": starts,
            "edge_target": target,
            "edge_lag": lag,
            "edge_at_injection": at_injection,
            "arrival_starts": np.arange(0, tasks + 1, rounds, dtype=np.int64),
            "arrival_target": (member[:, None] + members * np.arange(rounds, dtype=np.int32)).ravel(),
            "arrival_lag": np.broadcast_to(self.lag[0], tasks),
            "member_need": np.full(members, rounds + 1, np.int32),
        }


class RoundsTemplate(Template, frozen=True, eq=False, kw_only=True):
    """A template made of rounds: its own task columns are empty, `expanded` returns them."""

    rounds: Rounds

    def __len__(self) -> int:
        return len(self.rounds.size) * self.members

    def expanded(self) -> Template:
        """Return the template with its columns."""
        return Template(
            members=self.members,
            pair_source=self.pair_source,
            pair_destination=self.pair_destination,
            name=self.name,
            ahead=self.ahead,
            **self.rounds.columns(),
        )


def rounds_template(
    rounds: Rounds, pair_source: Int32s, pair_destination: Int32s, name: str, *, ahead: bool = False
) -> RoundsTemplate:
    """Return the template of rounds among the members that their patterns name."""
    none, no_times = np.zeros(0, np.int32), np.zeros(0, np.int64)
    return RoundsTemplate(
        members=rounds.partner.shape[1], name=name, rounds=rounds, ahead=ahead,
        pair_source=pair_source, pair_destination=pair_destination,
        pair=none, source=none, size=none, need=none,
        edge_starts=no_times, edge_target=none, edge_lag=no_times, edge_at_injection=np.zeros(0, np.bool_),
        arrival_starts=no_times, arrival_target=none, arrival_lag=no_times, member_need=none,
    )  # fmt: skip
