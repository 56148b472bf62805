"""Remembering what was worked out before, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

_Value = TypeVar("_Value")


class Recall:
    """Values by key, each with what it weighs; those that were asked for longest ago are forgotten first.

    What a key stands for must follow from the key alone: then remembering changes no result. It belongs to
    one process; a copy that goes to another one starts empty.

    >>> memory = Recall(room=2)
    >>> [memory.of(key, lambda: print("made") or key) for key in (1, 1)]
    made
    [1, 1]
    """

    def __init__(self, room: int) -> None:
        self.room = room
        """What all values together may weigh."""
        self.held = 0
        self._entries: dict[Hashable, tuple[Any, int]] = {}

    def of(
        self, key: Hashable, make: Callable[[], _Value], *, weight: Callable[[_Value], int] | None = None
    ) -> _Value:
        """Return the value of a key, made if it is not remembered; one too heavy is made every time."""
        known = self._entries.pop(key, None)
        if known is None:
            value = make()
            known = value, 1 if weight is None else weight(value)
            self.held += known[1]
        if known[1] > self.room:
            self.held -= known[1]
            found: _Value = known[0]
            return found
        self._entries[key] = known
        self._forget()
        found = known[0]
        return found

    def _forget(self) -> None:
        while self.held > self.room:
            oldest = next(iter(self._entries))
            self.held -= self._entries.pop(oldest)[1]

    def __len__(self) -> int:
        return len(self._entries)

    def __reduce__(self) -> tuple[type[Recall], tuple[int]]:
        return Recall, (self.room,)
