"""A pool of pages that all replicas share: memory or storage behind the network (Mooncake Store, LMCache).

A request looks into the pool when it comes to a replica; SGLang's HiCache prefetches then, too. What it finds
there beyond the pages of its replica is loaded before its first iteration. All loads share the pool's
bandwidth: one is served after the other. Writes take no time of GPUs and have a line of their own. The pages
of a node are found once all of them are written. Where the pool is full, the content that was used longest
ago makes room, the end of a path before its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from rapid_des.serving.requests import ContentSpan


class _Held(Struct):
    """The pages of one node of content that the pool holds."""

    first: int
    """The number of the first, counted from the beginning of the path."""
    end: int
    """The number of the last, plus one."""
    since: int
    """The time at which they are written, in picoseconds."""


class SharedPool(Struct, eq=False):
    """The pages of a pool by content.

    >>> pool = SharedPool("pool", pages=8, page_size=16, read=10, alone=0, through=True)
    >>> path = ContentSpan(7, 64), ContentSpan(-2, 128)
    >>> pool.write(path, 4, now=0)
    >>> pool.found(path, 8, now=39), pool.found(path, 8, now=40), pool.load(4, now=40), pool.load(1, now=50)
    (0, 4, 40, 40)
    """

    name: str
    pages: int
    """Largest number of pages that it holds."""
    page_size: int
    """Number of tokens of a page."""
    read: int
    """Picoseconds that it takes to read or to write a page."""
    alone: int
    """Picoseconds that a replica needs at least to load a page."""
    through: bool
    """Whether pages are written as they are computed, not as they leave a replica."""
    _ids: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """Numbers of nodes by the node above, the token at which they begin, and the key of their content."""
    _held: OrderedDict[int, _Held] = field(default_factory=OrderedDict)
    """The pages that are held, by the number of their node, in order of use."""
    _count: int = 0
    _reading: int = 0
    """The time at which all loads so far are done."""
    _writing: int = 0

    def found(self, path: Iterable[ContentSpan], pages: int, now: int) -> int:
        """Return how many of the first `pages` pages of a path the pool holds by now."""
        at, used = 0, list[int]()
        for node, first, end in self._nodes(path, pages):
            held = self._held.get(node)
            if first < end and (held is None or held.first > at or held.since > now):
                break
            if held is not None and held.end > at:
                used.append(node)
                at = min(held.end, end)
            if at < end:
                break
        for node in reversed(used):
            self._held.move_to_end(node)
        return at

    def load(self, pages: int, now: int) -> int:
        """Return how long it takes to load pages to a replica, after the loads before it."""
        self._reading = max(now, self._reading) + pages * self.read
        return max(self._reading - now, pages * self.alone)

    def write(self, path: Iterable[ContentSpan], pages: int, now: int) -> None:
        """Write those of the first pages of a path that the pool does not hold."""
        for node, first, end in reversed(list(self._nodes(path, pages))):
            self._put(node, first, end, now)
        self._shrink()

    def write_back(self, places: Iterable[tuple[int, int]], pages: tuple[int, int], now: int) -> None:
        """Write pages that leave a replica, from the first to before the second, of a node by its path."""
        node = -1
        for begin, key in places:
            node = self._number(node, begin, key)
        self._put(node, *pages, now)
        self._shrink()

    def _put(self, node: int, first: int, end: int, now: int) -> None:
        """Add pages of a node; those that do not touch what is held replace it."""
        if first >= end:
            return
        held = self._held.pop(node, None)
        before = 0 if held is None else held.end - held.first
        if held is None or first > held.end or end < held.first:
            new = end - first
            held = _Held(first, end, now)
        else:
            held.first, held.end = min(first, held.first), max(end, held.end)
            new = held.end - held.first - before
        if new:
            self._writing = held.since = max(now, self._writing) + new * self.read
        self._held[node] = held
        self._count += held.end - held.first - before

    def _shrink(self) -> None:
        while self._count > self.pages:
            node, held = next(iter(self._held.items()))
            pages = min(self._count - self.pages, held.end - held.first)
            held.end -= pages
            self._count -= pages
            if held.end == held.first:
                del self._held[node]

    def _nodes(self, path: Iterable[ContentSpan], pages: int) -> Iterator[tuple[int, int, int]]:
        """Yield the nodes of a path's first pages: number, first page, and last page plus one."""
        node, begin = -1, 0
        for key, end in path:
            first = begin // self.page_size
            if first >= pages:
                return
            node = self._number(node, begin, key)
            yield node, first, min(end // self.page_size, pages)
            begin = end

    def _number(self, above: int, begin: int, key: int) -> int:
        return self._ids.setdefault((above, begin, key), len(self._ids))
