"""A cache of bounded size: what was worked out before and need not be worked out again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

_Value = TypeVar("_Value")


class BoundedCache:
    """Values by key, each with a weight; the least recently used are dropped first.

    What a key stands for must follow from the key alone: then the cache changes no result. It belongs to one
    process; a copy that goes to another one starts empty.

    >>> cache = BoundedCache(limit=2)
    >>> [cache.get_or_make(key, lambda: print("made") or key) for key in (1, 1)]
    made
    [1, 1]
    """

    def __init__(self, limit: int = 1 << 24) -> None:
        self.limit = limit
        """What all values together may weigh; those of simulations weigh about their bytes."""
        self.weight = 0
        self._entries: dict[Hashable, tuple[Any, int]] = {}

    def get_or_make(
        self, key: Hashable, make: Callable[[], _Value], *, weight: Callable[[_Value], int] | None = None
    ) -> _Value:
        """Return a key's value, made if the cache does not hold it; one too heavy for it is made every time.

        `weight` of a value is 1 if not given.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            made = make()
            entry = made, 1 if weight is None else weight(made)
            if entry[1] > self.limit:
                return made
            self.weight += entry[1]
        self._entries[key] = entry
        while self.weight > self.limit:
            least_recent = next(iter(self._entries))
            self.weight -= self._entries.pop(least_recent)[1]
        value: _Value = entry[0]
        return value

    def __len__(self) -> int:
        return len(self._entries)

    def __reduce__(self) -> tuple[type[BoundedCache], tuple[int]]:
        return BoundedCache, (self.limit,)
