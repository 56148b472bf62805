"""A cache of prefixes: a request finds pages of keys and values by their content.

The cache is a tree of pages, as in SGLang's RadixAttention (Zheng et al., 2024) and vLLM's automatic prefix
caching. A node holds content that follows all content above it, so a page is identified by everything up to
its end. The pages of a node form stretches: the requests that use one page of a stretch use all of it. A
request finds whole pages only, and always computes its last prompt token. Others find what it has computed
after that iteration. If two requests compute the same page at once, the cache keeps one copy.

Pages that running requests use are never evicted. An unused page is evicted when its room is needed: the
pages that were released longest ago go first, and the end of a path goes before its beginning. An evicted
page moves to the tier below the GPU, if there is one; a full tier passes its oldest pages on to the next. A
request that finds pages in a lower tier waits until they are loaded to the GPU. Moving pages down takes no
time of the GPU, because engines copy while iterations run. Below all tiers there may be a pool that replicas
share (`shared_pool`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field, structs

from rapid_des.serving.requests import NEVER, Request
from rapid_des.serving.shared_pool import SharedPool

GPU = 0
"""The place of the GPU among the tiers."""


class LowerTier(NamedTuple):
    """Memory below the GPU's, of one replica."""

    name: str
    pages: int
    load: int
    """Picoseconds to bring a token's keys and values to the GPU."""


class PoolAccess(NamedTuple):
    """A pool that other replicas share, and the clock by which its loads wait for one another."""

    pool: SharedPool
    now: Callable[[], int]


class PrefixHits(Struct, frozen=True):
    """What the requests of a fleet found in its caches of prefixes, when they were first admitted."""

    prompt_tokens: int
    found_tokens: Mapping[str, int]
    """Number of prompt tokens that were found, by tier."""
    evicted_pages: int
    """Number of pages that left GPUs to make room."""

    @classmethod
    def of(cls, contents: Iterable[object]) -> PrefixHits | None:
        """Return the sum over the replicas of a fleet; None if they have no cache of prefixes."""
        caches = [content for content in contents if isinstance(content, PrefixCache)]
        if not caches:
            return None
        found = Counter[str]()
        for cache in caches:
            found.update(dict(zip(cache.names, cache.hits, strict=True)))
        evicted = sum(cache.evicted for cache in caches)
        return cls(sum(cache.asked for cache in caches), dict(found), evicted)

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were found."""
        return sum(self.found_tokens.values()) / max(self.prompt_tokens, 1)

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"hit_rate": self.hit_rate, **structs.asdict(self)}


class _Node(Struct, eq=False):
    """Content that follows all content above it in the tree."""

    parent: _Node | None
    place: tuple[int, int]
    """The token at which it begins, and the key of its content."""
    stretches: list[_Stretch] = field(default_factory=list)
    """Its pages that some tier holds, in order."""
    children: dict[tuple[int, int], _Node] = field(default_factory=dict)
    """The nodes below it, by their places."""


class _Stretch(Struct, eq=False):
    """Pages that follow each other, counted from the beginning of the path."""

    node: _Node
    first: int
    ends: list[int]
    """The end of the pages by tier: a tier holds those from the end of the tier above to its own."""
    users: int = 0
    """Number of running requests that use the stretch. If there are any, the GPU holds all of it."""

    @property
    def stop(self) -> int:
        """The number of its last page, plus one."""
        return self.ends[-1]

    def held(self, tier: int) -> int:
        """Return how many pages a tier holds."""
        return self.ends[tier] - (self.ends[tier - 1] if tier else self.first)


class PrefixCache:
    """The pages of one replica's requests, by content (`resident_content.FoundContent`).

    >>> from rapid_des.serving.requests import ContentSpan
    >>> cache = PrefixCache(16)
    >>> spans = [(ContentSpan(7, 32), ContentSpan(-2 - number, 48)) for number in (0, 1)]
    >>> first, second = (Request(number, 0, 40, 8, path=path) for number, path in enumerate(spans))
    >>> cache.meet(first); first.computed = 40  # as an engine does when it has computed the prompt
    >>> cache.grow(first), first.shared, cache.found(second), cache.leave(first), cache.idle
    (0, 2, 32, 2, 2)
    """

    def __init__(
        self, page_size: int, tiers: Sequence[LowerTier] = (), shared: PoolAccess | None = None
    ) -> None:
        self._page_size, self._tiers, self._shared = page_size, tiers, shared
        self.names = ("gpu", *(tier.name for tier in tiers), *([shared.pool.name] if shared else []))
        """The names of the tiers."""
        self._levels = range(1 + len(tiers))
        self._root = _Node(None, (0, 0))
        self._order: list[OrderedDict[_Stretch, None]] = [OrderedDict() for _ in self._levels]
        """For each tier its stretches with unused pages, in the order of their release."""
        self._below = [0] * len(self._levels)
        """Number of pages in each tier; 0 for the GPU."""
        self.idle = 0
        """Number of pages on the GPU that no running request uses."""
        self.shared_pages = 0
        """Number of pages that running requests use."""
        self.asked = 0
        """Number of prompt tokens of the requests that were admitted."""
        self.hits = [0] * len(self.names)
        """Number of these tokens that were found, by tier."""
        self.evicted = 0
        """Number of pages that left the GPU to make room."""

    def found(self, request: Request) -> int:
        """Return how many tokens of a request need not be computed here now."""
        return sum(self._found(request)) * self._page_size

    def _found(self, request: Request) -> list[int]:
        """Return the number of leading pages that are found, by tier."""
        counts, pages = [0] * len(self.names), (request.target - 1) // self._page_size
        for stretch, end in self._stretches(request, pages):
            at = stretch.first
            for tier, held in enumerate(stretch.ends):
                counts[tier] += max(0, min(held, end) - at)
                at = max(at, min(held, end))
        if self._shared is not None:
            counts[-1] = max(0, min(request.pooled, pages) - sum(counts))
        return counts

    def _stretches(self, request: Request, pages: int) -> Iterator[tuple[_Stretch, int]]:
        """Yield the stretches of a request's first `pages` pages, up to the first page that no tier holds.

        Beside each is the end of the request's pages in its node: it may use a part of the last one.
        """
        at = 0
        for node, end in self._nodes(request, pages):
            for stretch in node.stretches:
                if stretch.first != at or at >= end:
                    break
                yield stretch, end
                at = min(stretch.stop, end)
            if at < end:
                return

    def _nodes(self, request: Request, pages: int) -> Iterator[tuple[_Node, int]]:
        """Yield the nodes of a request's first `pages` pages, and the end of its pages in each."""
        node, begin = self._root, 0
        for key, end in request.path:
            child = node.children.get((begin, key))
            if child is None or begin // self._page_size >= pages:
                return
            yield child, min(end // self._page_size, pages)
            node, begin = child, end

    def meet(self, request: Request) -> None:
        """Set what a request finds when it comes; one that brings its own keys shares no page."""
        request.shared = 0
        if self._shared is not None:
            pages = (request.target - 1) // self._page_size
            request.pooled = self._shared.pool.found(request.path, pages, self._shared.now())
        if not request.carried:
            self.look_again(request)

    def look_again(self, request: Request) -> None:
        """Update what a waiting request finds; `shared` counts its pages that running requests use."""
        pages = sum(self._found(request))
        request.computed = pages * self._page_size
        request.shared = sum(
            min(stretch.stop, end) - stretch.first
            for stretch, end in self._stretches(request, pages)
            if stretch.users
        )

    def admit(self, request: Request) -> tuple[int, int]:
        """Let a request use what it found; return newly used pages, and the time of loads from below."""
        if request.carried:
            return 0, 0
        counts = self._found(request)
        if request.started == NEVER:
            self.asked += request.prompt
            self.hits = [
                hits + self._page_size * pages for hits, pages in zip(self.hits, counts, strict=True)
            ]
        below = zip(self._tiers, counts[1:], strict=False)
        load = sum(tier.load * self._page_size * pages for tier, pages in below)
        request.shared = sum(counts)
        if self._shared is not None and counts[-1]:
            load += self._shared.pool.load(counts[-1], self._shared.now())
            self._plant(request, request.shared)
        return self._pin(request, 0, request.shared), load

    def grow(self, request: Request) -> int:
        """Share what a request has computed by now; return how many pages others share, which become free."""
        covered = request.path[-1].end if request.path else 0
        pages = min(request.computed, covered) // self._page_size
        moved = pages - request.shared
        if moved <= 0:
            return 0
        self._plant(request, pages)
        if self._shared is not None and self._shared.pool.through:
            self._shared.pool.write(request.path, pages, self._shared.now())
        newly = self._pin(request, request.shared, pages)
        request.shared, request.pages = pages, request.pages - moved
        return moved - newly

    def _plant(self, request: Request, pages: int) -> None:
        """Add those of the first pages of a request to the tree that are not in it."""
        node, begin = self._root, 0
        for key, end in request.path:
            first, place = begin // self._page_size, (begin, key)
            if first >= pages:
                return
            node, begin = node.children.setdefault(place, _Node(node, place)), end
            self._fill(node, first, min(end // self._page_size, pages))

    def _fill(self, node: _Node, at: int, end: int) -> None:
        """Have the GPU hold those of a node's pages from `at` to `end` that no tier holds."""
        number = 0
        while at < end:
            known = node.stretches[number] if number < len(node.stretches) else None
            if known is None or known.first > at:
                stop = end if known is None else min(end, known.first)
                known = _Stretch(node, at, [stop] * len(self._levels))
                node.stretches.insert(number, known)
                self.idle += stop - at
            at, number = known.stop, number + 1

    def _pin(self, request: Request, before: int, after: int) -> int:
        """Let a request use its pages `before` to `after`; return how many of them no request used before."""
        newly = 0
        for stretch, end in list(self._stretches(request, after)):
            if min(stretch.stop, end) <= before:
                continue
            pinned = stretch if stretch.stop <= end else self._head(stretch, end)
            if not pinned.users:
                self._raise(pinned)
                newly += pinned.stop - pinned.first
            pinned.users += 1
        self.idle -= newly
        self.shared_pages += newly
        return newly

    def _head(self, stretch: _Stretch, at: int) -> _Stretch:
        """Split a stretch; return the first part. The rest keeps its place in the order of eviction."""
        head = _Stretch(stretch.node, stretch.first, [min(end, at) for end in stretch.ends], stretch.users)
        stretch.first, stretch.ends = at, [max(end, at) for end in stretch.ends]
        stretch.node.stretches.insert(stretch.node.stretches.index(stretch), head)
        return head

    def _raise(self, stretch: _Stretch) -> None:
        """Have the GPU hold all of an unused stretch, and take the stretch out of the orders of eviction."""
        self.idle += stretch.stop - stretch.ends[GPU]
        for tier in self._levels[1:]:
            self._below[tier] -= stretch.held(tier)
        stretch.ends = [stretch.stop] * len(self._levels)
        for order in self._order:
            order.pop(stretch, None)

    def leave(self, request: Request) -> int:
        """End the use of shared pages; return how many of them no request uses any more."""
        freed = 0
        for stretch, _ in reversed(list(self._stretches(request, request.shared))):  # ends make room first
            stretch.users -= 1
            if not stretch.users:
                freed += stretch.stop - stretch.first
                self._order[GPU][stretch] = None
        self.idle += freed
        self.shared_pages -= freed
        request.shared = 0
        return freed

    def keep(self, request: Request) -> None:
        """Do nothing: what a request has computed stays until room is needed."""

    def shrink(self, room: int) -> Collection[int]:
        """Evict unused pages until the rest fits into `room` pages; it names no sessions."""
        before = self.idle
        self.idle = self._cut(GPU, self.idle, max(room, 0))
        self.evicted += before - self.idle
        return ()

    def _cut(self, tier: int, held: int, room: int) -> int:
        """Move the oldest pages of a tier down until it holds at most `room`; return what it holds."""
        below = tier + 1 if tier + 1 < len(self._levels) else None
        while held > room:
            oldest = next(iter(self._order[tier]))
            pages = min(oldest.held(tier), held - room)
            oldest.ends[tier] -= pages
            held -= pages
            if not oldest.held(tier):
                del self._order[tier][oldest]
            if below is not None:
                self._order[below].setdefault(oldest)
                self._below[below] += pages
            else:
                self._write_back(oldest, pages)
                if oldest.stop == oldest.first:
                    self._remove(oldest)
        if below is not None:
            self._below[below] = self._cut(below, self._below[below], self._tiers[tier].pages)
        return held

    def _write_back(self, stretch: _Stretch, pages: int) -> None:
        """Write the last pages of a stretch, which no tier holds any more, to the pool."""
        if self._shared is None or self._shared.pool.through:
            return
        places, node = list[tuple[int, int]](), stretch.node
        while node.parent is not None:
            places.append(node.place)
            node = node.parent
        span = stretch.stop, stretch.stop + pages
        self._shared.pool.write_back(reversed(places), span, self._shared.now())

    def _remove(self, stretch: _Stretch) -> None:
        """Remove a stretch that no tier holds, and the nodes that are empty then."""
        node = stretch.node
        node.stretches.remove(stretch)
        while node.parent is not None and not node.children and not node.stretches:
            del node.parent.children[node.place]
            node = node.parent
