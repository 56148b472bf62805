"""Parts of messages: each has a row of its own while it is in flight."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.flat import Array
from rapid_des.engines.compiled.pools import FREE_TRANSFER, Transfers


@compilable
def new_part(transfers: Transfers, counts: Array, other: int) -> int:
    """Take a free row for a part, with the columns that all parts of its message share; return it."""
    part = counts[FREE_TRANSFER]
    counts[FREE_TRANSFER] = transfers.next[part]
    transfers.instance[part] = transfers.instance[other]
    transfers.task[part] = transfers.task[other]
    transfers.hop[part] = transfers.begin[part] = transfers.begin[other]
    transfers.end[part] = transfers.end[other]
    transfers.injected[part] = transfers.injected[other]
    transfers.rank[part] = transfers.rank[other]
    transfers.visit[part] = transfers.visit[other]
    transfers.priority[part] = transfers.priority[other]
    transfers.sub[part] = transfers.sub[other]
    transfers.message[part] = transfers.message[other]
    transfers.crossed[part] = 0
    return part


@compilable
def next_part(transfers: Transfers, counts: Array, before: int) -> int:
    """Make the part of a message that follows one at its first link; return its row."""
    part = new_part(transfers, counts, before)
    transfers.last[part] = transfers.last[before]
    transfers.route[part] = transfers.route[before]
    transfers.number[part] = 0
    transfers.part[part] = transfers.part[before] + 1
    transfers.parts[part] = transfers.parts[before] - 1
    transfers.parts[before] = 0
    transfers.size[part] = transfers.size[before] if transfers.parts[part] > 0 else transfers.last[part]
    return part


@compilable
def part_arrives(transfers: Transfers, counts: Array, part: int) -> bool:
    """Free a part that has arrived; return whether its whole message has."""
    message = transfers.message[part]
    transfers.missing[message] -= 1
    if part != message:  # the first part's row holds what the message needs, so it is freed last
        transfers.next[part] = counts[FREE_TRANSFER]
        counts[FREE_TRANSFER] = part
    if transfers.missing[message] > 0:
        return False
    transfers.next[message] = counts[FREE_TRANSFER]
    counts[FREE_TRANSFER] = message
    return True
