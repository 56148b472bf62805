"""Ring algorithms: data goes round in one or both directions, so that every link carries the same load."""

from __future__ import annotations

import numpy as np

from rapid_des.arrays import Int64s, ranges
from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives.schedule import Demand, Draft, Schedule


def ring_reduction(demand: Demand) -> Schedule:
    """Reduce-scatter, all-gather or all-reduce clockwise: block b ends reduced at member b."""
    draft = Draft(demand)
    _circulate(draft, demand.collective, draft.bounds[:-1], draft.bounds[1:], direction=1)
    return draft.seal()


def bidirectional_ring_reduction(demand: Demand) -> Schedule:
    """Like `ring_reduction` with half of every block clockwise and the other half anticlockwise."""
    draft = Draft(demand)
    low, high = draft.bounds[:-1], draft.bounds[1:]
    middle = high - (high - low) // 2
    _circulate(draft, demand.collective, low, middle, direction=1)
    _circulate(draft, demand.collective, middle, high, direction=-1)
    return draft.seal()


def _circulate(
    draft: Draft, collective: CollectiveType, low: Int64s, high: Int64s, *, direction: int
) -> None:
    """In step k member r passes block r - k - 1 on: reduced during n - 1 steps, then copied during n - 1."""
    members = draft.members
    first = members - 1 if collective is CollectiveType.ALL_GATHER else 0
    last = 2 * (members - 1) if collective in _WITH_GATHER else members - 1
    step = np.arange(first, last)[:, None]
    member = np.arange(members)[None, :]
    block = (member - direction * (step + 1)) % members
    transfers = draft.add(
        np.broadcast_to(member, block.shape),
        (member + direction) % members,
        (low[block], high[block]),
        reduces=step < members - 1,
    )
    draft.wait(transfers[1:], np.roll(transfers[:-1], direction, axis=1))


_WITH_GATHER = frozenset({CollectiveType.ALL_GATHER, CollectiveType.ALL_REDUCE})


def ring_all_to_all(demand: Demand) -> Schedule:
    """Every member passes on, clockwise, what is meant for members further along."""
    return _relayed_all_to_all(demand, clockwise=demand.members - 1)


def bidirectional_ring_all_to_all(demand: Demand) -> Schedule:
    """All-to-all in which blocks take the shorter direction (clockwise on a tie)."""
    return _relayed_all_to_all(demand, clockwise=demand.members // 2)


def _relayed_all_to_all(demand: Demand, *, clockwise: int) -> Schedule:
    """Blocks for distances 1..clockwise go up, the others down; local order: by source, then distance."""
    members = demand.members
    member = np.arange(members)
    order = (member[:, None] * members + (member[:, None] + member) % members).reshape(-1)
    draft = Draft(demand, order=order)
    for direction, reach in ((1, clockwise), (-1, members - 1 - clockwise)):
        if reach == 0:
            continue
        hop = np.arange(reach)[:, None]
        origin = (member - direction * hop) % members * members
        low, high = (hop + 1, clockwise + 1) if direction == 1 else (clockwise + 1, members - hop)
        payload = (draft.bounds[origin + low], draft.bounds[origin + high])
        transfers = draft.add(np.broadcast_to(member, origin.shape), (member + direction) % members, payload)
        draft.wait(transfers[1:], np.roll(transfers[:-1], direction, axis=1))
    return draft.seal()


def chain_broadcast(demand: Demand) -> Schedule:
    """Broadcast from neighbour to neighbour; chunks of the buffer pipeline."""
    draft = Draft(demand)
    _walk(draft, demand.root, 1, draft.members - 1, (0, draft.bounds[-1]))
    return draft.seal()


def bidirectional_chain_broadcast(demand: Demand) -> Schedule:
    """Broadcast to half of the ring clockwise and to the other half anticlockwise."""
    draft = Draft(demand)
    up = draft.members // 2
    _walk(draft, demand.root, 1, up, (0, draft.bounds[-1]))
    _walk(draft, demand.root, -1, draft.members - 1 - up, (0, draft.bounds[-1]))
    return draft.seal()


def _walk(draft: Draft, start: int, direction: int, hops: int, payload: tuple[int, int]) -> None:
    hop = np.arange(hops)
    source = (start + direction * hop) % draft.members
    transfers = draft.add(source, (source + direction) % draft.members, payload)
    draft.wait(transfers[1:], transfers[:-1])


def chain_reduce(demand: Demand) -> Schedule:
    """Reduce with partial sums that pass from the root's successor round the ring to the root."""
    draft = Draft(demand)
    _fold(draft, demand.root, 1, draft.members - 1)
    return draft.seal()


def bidirectional_chain_reduce(demand: Demand) -> Schedule:
    """Partial sums come to the root from both sides."""
    draft = Draft(demand)
    up = draft.members // 2
    _fold(draft, demand.root, 1, up)
    _fold(draft, demand.root, -1, draft.members - 1 - up)
    return draft.seal()


def _fold(draft: Draft, root: int, direction: int, hops: int) -> None:
    source = (root - direction * np.arange(hops, 0, -1)) % draft.members
    transfers = draft.add(source, (source + direction) % draft.members, draft.everything, reduces=True)
    draft.wait(transfers[1:], transfers[:-1])


def chain_scatter(demand: Demand) -> Schedule:
    """Scatter the farthest member's block first; members between pass blocks on."""
    draft = Draft(demand)
    _relay(draft, demand.root, 1, demand.members - 1, outwards=True)
    return draft.seal()


def bidirectional_chain_scatter(demand: Demand) -> Schedule:
    """Scatter in which each block takes the shorter direction."""
    draft = Draft(demand)
    up = demand.members // 2
    _relay(draft, demand.root, 1, up, outwards=True)
    _relay(draft, demand.root, -1, demand.members - 1 - up, outwards=True)
    return draft.seal()


def chain_gather(demand: Demand) -> Schedule:
    """Every block is passed on clockwise to the root, the nearest first."""
    draft = Draft(demand)
    _relay(draft, demand.root, 1, demand.members - 1, outwards=False)
    return draft.seal()


def bidirectional_chain_gather(demand: Demand) -> Schedule:
    """Gather in which each block takes the shorter direction to the root."""
    draft = Draft(demand)
    up = demand.members // 2
    _relay(draft, demand.root, 1, up, outwards=False)
    _relay(draft, demand.root, -1, demand.members - 1 - up, outwards=False)
    return draft.seal()


def _relay(draft: Draft, root: int, direction: int, reach: int, *, outwards: bool) -> None:
    """Move the blocks of the members within `reach` between them and the root, one hop a transfer."""
    distances = np.arange(reach, 0, -1) if outwards else np.arange(1, reach + 1)
    distance = np.repeat(distances, distances)
    hop = ranges(0, distances)
    source = (root + direction * (hop if outwards else hop - distance)) % draft.members
    owner = (root + direction * (distance if outwards else -distance)) % draft.members
    payload = (draft.bounds[owner], draft.bounds[owner + 1])
    transfers = draft.add(source, (source + direction) % draft.members, payload)
    later = np.flatnonzero(hop > 0)
    draft.wait(transfers[later], transfers[later - 1])
