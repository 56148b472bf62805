"""Rounds at doubling distances (halving and doubling, dissemination, Bruck), and direct algorithms.

A direct algorithm has every member talk to every other at once; nothing is passed on.
"""

from __future__ import annotations

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives.schedule import Demand, Draft, Schedule


def _pairs(members: int) -> tuple[Int64s, Int64s]:
    """Return sources and destinations [distance, member]: in every round each member receives once."""
    member = np.broadcast_to(np.arange(members), (members - 1, members))
    return member, (member + np.arange(1, members)[:, None]) % members


def direct_exchange(demand: Demand) -> Schedule:
    """Reduce-scatter, all-gather, all-to-all or barrier in one round."""
    draft = Draft(demand)
    source, destination = _pairs(demand.members)
    if demand.collective is CollectiveType.BARRIER:
        draft.add(source, destination, draft.everything, reduces=True)
        return draft.seal()
    block = {
        CollectiveType.ALL_GATHER: source,
        CollectiveType.ALL_TO_ALL: source * demand.members + destination,
    }.get(demand.collective, destination)
    reduces = demand.collective not in (CollectiveType.ALL_GATHER, CollectiveType.ALL_TO_ALL)
    draft.add(source, destination, (draft.bounds[block], draft.bounds[block + 1]), reduces=reduces)
    return draft.seal()


def direct_all_reduce(demand: Demand) -> Schedule:
    """Direct reduce-scatter, then direct all-gather of a block once all of it has been reduced (two-shot)."""
    draft = Draft(demand)
    source, destination = _pairs(demand.members)
    bounds = draft.bounds
    reduced = draft.add(source, destination, (bounds[destination], bounds[destination + 1]), reduces=True)
    joins = draft.join(np.arange(demand.members))
    draft.wait(joins[destination], reduced)
    copied = draft.add(source, destination, (bounds[source], bounds[source + 1]))
    draft.wait(copied, joins[source])
    return draft.seal()


def one_shot_all_reduce(demand: Demand) -> Schedule:
    """Every member sends its whole input to every other, and each reduces for itself (one-shot)."""
    draft = Draft(demand)
    source, destination = _pairs(demand.members)
    draft.add(source, destination, draft.everything, reduces=True)
    return draft.seal()


def linear(demand: Demand) -> Schedule:
    """Broadcast, scatter, gather or reduce with the root talking to each member itself."""
    draft = Draft(demand)
    others = (demand.root + np.arange(1, demand.members)) % demand.members
    to_root = demand.collective in (CollectiveType.GATHER, CollectiveType.REDUCE)
    per_member = demand.collective in (CollectiveType.GATHER, CollectiveType.SCATTER)
    payload = (draft.bounds[others], draft.bounds[others + 1]) if per_member else draft.everything
    root = np.full_like(others, demand.root)
    source, destination = (others, root) if to_root else (root, others)
    draft.add(source, destination, payload, reduces=demand.collective is CollectiveType.REDUCE)
    return draft.seal()


class _Core:
    """The members that take part in the core, what they have waited for, and the blocks they stand for."""

    def __init__(self, demand: Demand) -> None:
        self.draft = Draft(demand)
        self.rounds = demand.members.bit_length() - 1
        self.size = 1 << self.rounds
        # Recursive halving needs a power of two. Of the first 2 · `folded` members the even ones stand for
        # their odd neighbours too; all later ones stand for themselves.
        folded = demand.members - self.size
        index = np.arange(self.size)
        self.member = np.where(index < folded, 2 * index, index + folded)
        self.even = 2 * np.arange(folded)
        self.odd = self.even + 1
        self.bounds: Int64s = self.draft.bounds[np.append(self.member, demand.members)]
        """Boundaries of the core members' blocks, a folded pair's as one."""
        self.arrivals: list[tuple[Int64s, Int64s]] = []
        """Core indices and the transfers that arrive at them, round by round."""

    def exchange(self, distance: int, low: Int64s, high: Int64s, *, reduces: bool) -> None:
        """Add the transfer of interval low[i]..high[i] from core member i to the member at `distance`."""
        index = np.arange(self.size)
        partner = index ^ distance  # the member whose number differs in one bit
        sent = self.draft.add(self.member, self.member[partner], (low, high), reduces=reduces)
        for at, transfers in self.arrivals:
            self.draft.wait(sent[at], transfers)
        self.arrivals.append((partner, sent))

    def fold_in(self, low: Int64s, high: Int64s, *, reduces: bool) -> None:
        """Add transfers of an interval from the odd members to their even partners."""
        sent = self.draft.add(self.odd, self.even, (low, high), reduces=reduces)
        self.arrivals.append((np.arange(len(self.even)), sent))

    def unfold(self, low: Int64s, high: Int64s) -> None:
        """Add transfers of a finished interval from the even members back to the odd ones."""
        sent = self.draft.add(self.even, self.odd, (low, high))
        folded = len(self.even)
        for at, transfers in self.arrivals:
            chosen = at < folded  # who stands for a pair
            self.draft.wait(sent[at[chosen]], transfers[chosen])

    def everything(self) -> tuple[Int64s, Int64s]:
        """Return the interval of the whole buffer, for every folded pair."""
        zero = np.zeros(len(self.even), dtype=np.int64)
        return zero, zero + self.bounds[-1]

    def halve(self) -> None:
        """Reduce-scatter in the core: send away the half of the remaining blocks that the partner is in."""
        index = np.arange(self.size)
        for round_ in reversed(range(self.rounds)):
            # the partner's half: its number with the bits below this round's at 0
            first = (index ^ (1 << round_)) >> round_ << round_
            self.exchange(1 << round_, self.bounds[first], self.bounds[first + (1 << round_)], reduces=True)

    def double(self) -> None:
        """All-gather in the core: send all blocks that have been gathered so far."""
        index = np.arange(self.size)
        for round_ in range(self.rounds):
            first = index >> round_ << round_
            self.exchange(1 << round_, self.bounds[first], self.bounds[first + (1 << round_)], reduces=False)


def reduction(demand: Demand) -> Schedule:
    """Reduce-scatter by halving, all-gather by doubling, all-reduce by both."""
    core = _Core(demand)
    bounds = core.draft.bounds
    if demand.collective is CollectiveType.ALL_GATHER:
        core.fold_in(bounds[core.odd], bounds[core.odd + 1], reduces=False)
        core.double()
        core.unfold(np.zeros_like(core.odd), bounds[core.odd])
        core.unfold(bounds[core.odd + 1], np.full_like(core.odd, bounds[-1]))
        return core.draft.seal()
    core.fold_in(*core.everything(), reduces=True)
    core.halve()
    if demand.collective is CollectiveType.ALL_REDUCE:
        core.double()
        core.unfold(*core.everything())
    else:
        core.unfold(bounds[core.odd], bounds[core.odd + 1])
    return core.draft.seal()


def exchange_all_reduce(demand: Demand) -> Schedule:
    """All-reduce (or barrier) by recursive doubling: partners exchange the whole buffer in every round."""
    core = _Core(demand)
    core.fold_in(*core.everything(), reduces=True)
    zero = np.zeros(core.size, dtype=np.int64)
    for round_ in range(core.rounds):
        core.exchange(1 << round_, zero, zero + core.bounds[-1], reduces=True)
    core.unfold(*core.everything())
    return core.draft.seal()


def dissemination_barrier(demand: Demand) -> Schedule:
    """In round k each member signals the member 2**k further on that all members known to it are there."""
    draft = Draft(demand)
    member = np.arange(demand.members)
    rounds: list[Int64s] = []
    for round_ in range((demand.members - 1).bit_length()):
        target = (member + (1 << round_)) % demand.members
        sent = draft.add(member, target, draft.everything, reduces=True)
        for earlier, arrived in enumerate(rounds):
            draft.wait(sent, arrived[(member - (1 << earlier)) % demand.members])
        rounds.append(sent)
    return draft.seal()


def bruck_all_gather(demand: Demand) -> Schedule:
    """In round k member r sends the blocks r, r + 1, … that it has to member r - 2**k.

    A run of blocks that wraps around the end of the buffer travels as two transfers.
    """
    draft = Draft(demand)
    members, bounds = demand.members, draft.bounds
    member = np.arange(members)
    arrivals: list[tuple[int, Int64s]] = []
    for round_ in range((members - 1).bit_length()):
        distance = 1 << round_
        end = member + min(distance, members - distance)
        straight = (bounds[member], bounds[np.minimum(end, members)])
        wrapped = (0, bounds[np.maximum(end - members, 0)])
        sent = np.stack(
            [draft.add(member, (member - distance) % members, part) for part in (straight, wrapped)]
        )
        for earlier, arrived in arrivals:
            draft.wait(sent[:, None, :], arrived[None, :, (member + earlier) % members])
        arrivals.append((distance, sent))
    return draft.seal()
