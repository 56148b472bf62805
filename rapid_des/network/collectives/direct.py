"""Direct algorithms: every member talks to every other at once, nothing is passed on."""

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
