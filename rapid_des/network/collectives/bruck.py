"""Algorithms whose round k reaches members 2**k away, for any group size: dissemination and Bruck."""

from __future__ import annotations

import numpy as np

from rapid_des.network.collectives.draft import Draft
from rapid_des.network.collectives.schedule import Schedule
from rapid_des.network.collectives.task import Ints, Task


def dissemination_barrier(task: Task) -> Schedule:
    """In round k everybody tells the member 2**k further on that it, and all it has heard of, are there."""
    draft = Draft(task)
    member = np.arange(task.members)
    rounds: list[Ints] = []
    for round_ in range((task.members - 1).bit_length()):
        target = (member + (1 << round_)) % task.members
        sent = draft.add(member, target, draft.everything, reduces=True)
        for earlier, heard in enumerate(rounds):
            draft.wait(sent, heard[(member - (1 << earlier)) % task.members])
        rounds.append(sent)
    return draft.seal()


def bruck_all_gather(task: Task) -> Schedule:
    """In round k member r sends the blocks r, r + 1, … that it has to member r - 2**k.

    A run of blocks that wraps around the end of the buffer travels as two transfers.
    """
    draft = Draft(task)
    members, bounds = task.members, draft.bounds
    member = np.arange(members)
    arrivals: list[tuple[int, Ints]] = []
    for round_ in range((members - 1).bit_length()):
        distance = 1 << round_
        end = member + min(distance, members - distance)
        straight = (bounds[member], bounds[np.minimum(end, members)])
        wrapped = (0, bounds[np.maximum(end - members, 0)])
        sent = np.stack(
            [draft.add(member, (member - distance) % members, part) for part in (straight, wrapped)]
        )
        for earlier, heard in arrivals:
            draft.wait(sent[:, None, :], heard[None, :, (member + earlier) % members])
        arrivals.append((distance, sent))
    return draft.seal()
