"""What is found out about candidates before it is asked for: the queue of a search, as far as one sees.

    queue ──► a closer look ──► parts, back in the queue
              a simulation  ──► the candidate, back in the queue with its step

Who decides takes what is `known` in order, and knows nothing of how far ahead others are.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Self

import msgspec
from msgspec import Struct

from rapid_des.report.result import Result
from rapid_des.studies.splits import Family

Why = Literal["memory", "bound", "refused"]
PLAIN, KERNELS, EXCHANGED, BOUNDED, ESTIMATED, FINAL = range(6)
"""The levels of knowledge: bounds of kernels (not run again, all), with their layers' messages, of the whole
step; then both simulated steps."""
_EARLY = 0.004
"""A share of its step by which a candidate is simulated to the end before others that may be as fast."""


@dataclass(order=True)
class Entry:
    """Candidates in the queue."""

    least: int
    """Picoseconds that each takes at least, by what is known."""
    number: tuple[int, ...]
    """The number of the family, and the place in it: ties are broken by the order of the space."""
    family: Family = field(compare=False)
    level: int = field(default=PLAIN, compare=False)
    result: Result | None = field(default=None, compare=False)

    @property
    def certain(self) -> bool:
        """Whether nothing is left to be found out."""
        return self.level == FINAL

    @property
    def flattened(self) -> int:
        """What its flattened steps take at least, in picoseconds."""
        bound = None if self.result is None else self.result.mode_bound
        return self.least if bound is None else min(self.least, bound.low)

    @property
    def key(self) -> tuple[tuple[int, ...], int]:
        """What identifies it among all entries there ever are."""
        return self.number, self.level

    def part(self, place: int, family: Family, *, level: int, least: int) -> Entry:
        """Return a part of these candidates, with a bound that holds for it."""
        return Entry(max(self.least, least), (*self.number, place), family, level)


class Out(Struct, frozen=True):
    """Candidates that are none, and why."""

    family: Family
    why: Why
    text: str


class Lookahead(Struct):
    """The queue as it is once all is known that is; iterating yields what is to be simulated next.

    An iterator that has nothing for now may have something after the next outcome.
    """

    closer: Callable[[Entry], Iterable[Entry | Out]]
    """What finds the parts of an entry."""
    top: int
    """The number of rows looked for: what comes after this number of certain ones is not simulated."""
    workers: int
    due: Callable[[], bool]
    queue: list[Entry] = msgspec.field(default_factory=list)
    """The entries that need no simulation for the next bound, and that nothing is being found out about."""
    ready: list[tuple[int, Entry]] = msgspec.field(default_factory=list)
    """The entries that do need one, each with the time by which it takes its turn."""
    asked: list[Entry] = msgspec.field(default_factory=list)
    """The entries that were handed out to be simulated, by position."""
    known: dict[tuple[tuple[int, ...], int], list[Entry | Out]] = msgspec.field(default_factory=dict)
    """The parts that were found of an entry, by its key."""
    rows: list[Entry] = msgspec.field(default_factory=list)
    """The entries that are certain, the fastest first."""

    def __iter__(self) -> Self:
        """Start to hand out positions again from 0."""
        self.asked = []
        return self

    def __next__(self) -> Entry:
        """Return what is to be simulated next, looking more closely at others until there is something."""
        while not self._first_is_ready() and not self.due() and self._look():
            pass
        if not self.ready or self.due():
            raise StopIteration
        self.asked.append(heapq.heappop(self.ready)[1])
        return self.asked[-1]

    def learn(self, position: int, found: Entry | Out) -> None:
        """Note what a simulation found."""
        self._note(self.asked[position], [found])

    def look_ahead(self) -> bool:
        """Look at one entry more closely if workers may soon need it; return whether there was any."""
        first = [entry for _, entry in self.ready if not self.queue or entry < self.queue[0]]
        return len(first) < self.workers and self._look()

    def _first_is_ready(self) -> bool:
        """Return whether what comes first needs a simulation; of several workers one may be early."""
        while self.ready and not self._counts(self.ready[0][1]):
            heapq.heappop(self.ready)
        return bool(self.ready) and (self.workers > 1 or not self.queue or self.ready[0][1] < self.queue[0])

    def _look(self) -> bool:
        """Look more closely at the first entry; return whether any can still be a row."""
        if not self.queue or not self._counts(self.queue[0]):
            return False
        entry = heapq.heappop(self.queue)
        self._note(entry, list(self.closer(entry)))
        return True

    def _note(self, entry: Entry, parts: list[Entry | Out]) -> None:
        self.known[entry.key] = parts
        self.add(part for part in parts if isinstance(part, Entry))

    def add(self, parts: Iterable[Entry]) -> None:
        """Put entries where they belong by what is known of them."""
        for part in parts:
            if part.certain:
                insort(self.rows, part)
            elif part.level < BOUNDED:
                heapq.heappush(self.queue, part)
            else:
                heapq.heappush(self.ready, (self._turn(part), part))

    def _turn(self, entry: Entry) -> int:
        """Return by what an entry takes its turn: what takes long begins early where others work beside."""
        early = self.workers > 1 and entry.level == ESTIMATED
        return entry.least - round(entry.least * _EARLY) if early else entry.least

    def _counts(self, entry: Entry) -> bool:
        """Return whether an entry may come before the last row."""
        return len(self.rows) < self.top or entry < self.rows[self.top - 1]
