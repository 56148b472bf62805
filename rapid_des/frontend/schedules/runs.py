"""Orders written as runs: a pattern of items and how often it is repeated."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache

from rapid_des.frontend.schedules.plan import LETTERS, Item, Order, Phase

Run = tuple[str, int]
"""A pattern such as "I1 W F1", and how often it comes (less than once: never)."""

_PHASES: dict[str, Phase] = {letter: phase for phase, letter in LETTERS.items()}


@lru_cache(maxsize=256)
def _parsed(pattern: str) -> tuple[tuple[Phase, int, bool], ...]:
    """Return phase, chunk and whether paired of each word; `F0&B1` are two."""
    words = [
        (word, place < len(group.split("&")) - 1)
        for group in pattern.split()
        for place, word in enumerate(group.split("&"))
    ]
    return tuple((_PHASES[word[0]], int(word[1:] or 0), paired) for word, paired in words)


def order_of(runs: Iterable[Run], micro_batches: Sequence[Sequence[int]]) -> Order:
    """Return the items of runs, each the next micro-batch of its chunk in its direction.

    `micro_batches` are those that each chunk passes, in order. `F0`, `B0` and `I0` name a chunk; `W` is the
    weight gradient of the oldest input gradient that waits for it. What is over is left out.

    >>> [str(item) for item in order_of([("F0", 1), ("F0 I0 W", 2)], [range(2)])]
    ['F0', 'F1', 'I0', 'W0', 'I1', 'W1']
    """
    left = {(way, chunk): deque(own) for chunk, own in enumerate(micro_batches) for way in "FB"}
    deferred: deque[tuple[int, int]] = deque()
    items: list[Item] = []
    for pattern, times in runs:
        for _ in range(times):
            for phase, chunk, paired in _parsed(pattern):
                if phase == "weight_gradient":
                    if deferred:
                        items.append(Item(phase, *deferred.popleft()))
                    continue
                own = left["F" if phase == "forward" else "B", chunk]
                if own:
                    items.append(Item(phase, own.popleft(), chunk, paired))
                    if phase == "input_gradient":
                        deferred.append(items[-1][1:3])
    return tuple(items)
