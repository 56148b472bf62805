"""Which of several routes a message takes; shared by every engine, so plain integers."""

from __future__ import annotations

_WORD, _GOLDEN = 0xFFFFFFFF, 0x61C88647
"""Constants of 32-bit multiplicative hashing: no product reaches 2**63."""


def message_hash(position: int, injected: int, task: int) -> int:
    """Return 32 bits of who sends a message: position of its rank, time of its injection, its task.

    >>> message_hash(3, 10**12, 0) == message_hash(3, 10**12, 0) != message_hash(3, 10**12, 1)
    True
    """
    state = ((injected & _WORD) * _GOLDEN >> 13) & _WORD
    state = ((state ^ (injected >> 32)) * _GOLDEN >> 13) & _WORD
    state = ((state ^ position) * _GOLDEN >> 13) & _WORD
    return ((state ^ task) * _GOLDEN >> 13) & _WORD


def column_of(number: int, place: int, minimal: int, count: int) -> int:
    """Return which column of a row is looked at: those that are no detours first, each from a number.

    >>> [column_of(7, place, 2, 5) for place in range(5)]
    [1, 0, 2, 3, 4]
    """
    return (number + place) % minimal if place < minimal else minimal + (number + place) % (count - minimal)
