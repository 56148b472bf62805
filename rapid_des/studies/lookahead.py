"""What is found out about candidates before a search needs it, so that no worker is idle.

    frontier ──► a closer look ──► parts, back in the frontier
    ready    ──► a simulation  ──► the candidate, back in its place with its step

The search takes what is `known` in its own order. How far ahead the workers are changes nothing in it.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterable
from typing import Self

from msgspec import Struct, field

from rapid_des.studies.entries import BOUNDED, Entry, Out


class Lookahead(Struct):
    """The queue of a search as it will be when all known outcomes are taken in.

    Iterating yields what to simulate next. An iterator that has ended may yield more after the next outcome.
    """

    closer: Callable[[Entry], Iterable[Entry | Out]]
    """Finds the parts of an entry."""
    top: int
    """The number of rows that are looked for: what comes behind them is not simulated."""
    workers: int
    over: Callable[[], bool]
    """Whether the time is up."""
    frontier: list[Entry] = field(default_factory=list)
    """The entries that are next looked at more closely; a heap."""
    ready: list[Entry] = field(default_factory=list)
    """The entries that are next simulated; a heap."""
    rows: list[Entry] = field(default_factory=list)
    """The entries that were simulated to the end, the fastest first."""
    asked: list[Entry] = field(default_factory=list)
    """The entries that were handed out to be simulated, by position."""
    known: dict[tuple[tuple[int, ...], int], list[Entry | Out]] = field(default_factory=dict)
    """The parts that were found of an entry, by its key, until they are taken in."""

    def __iter__(self) -> Self:
        """Count positions from 0 again."""
        self.asked = []
        return self

    def __next__(self) -> Entry:
        """Return what is to be simulated next; look more closely at others until there is something."""
        while not self._any_ready() and not self.over() and self._look():
            pass
        if not self.ready or self.over():
            raise StopIteration
        self.asked.append(heapq.heappop(self.ready))
        return self.asked[-1]

    def learn(self, entry: Entry, parts: Iterable[Entry | Out]) -> None:
        """Note what was found of an entry."""
        self.known[entry.key] = list(parts)
        self.add(part for part in self.known[entry.key] if isinstance(part, Entry))

    def add(self, parts: Iterable[Entry]) -> None:
        """Put entries where they belong by what is known of them."""
        for part in parts:
            if part.certain:
                insort(self.rows, part)
            else:
                heapq.heappush(self.ready if part.level >= BOUNDED else self.frontier, part)

    def look(self) -> bool:
        """Look at one entry more closely if workers may soon need it; return whether there was any."""
        first = [entry for entry in self.ready if not self.frontier or entry < self.frontier[0]]
        return len(first) < self.workers and self._look()

    def _any_ready(self) -> bool:
        """Return whether a simulation is worth its time: one alone simulates only what comes first."""
        if not self.ready or not self._may_be_row(self.ready[0]):
            self.ready = []
        return bool(self.ready) and (
            self.workers > 1 or not self.frontier or self.ready[0] < self.frontier[0]
        )

    def _look(self) -> bool:
        if not self.frontier or not self._may_be_row(self.frontier[0]):
            return False
        entry = heapq.heappop(self.frontier)
        self.learn(entry, self.closer(entry))
        return True

    def _may_be_row(self, entry: Entry) -> bool:
        return len(self.rows) < self.top or entry < self.rows[self.top - 1]
