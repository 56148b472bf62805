"""Keys and values that requests find in a replica's KV cache when they come, and how long these stay.

`ResidentContent` holds a prefix and idle sessions, and identifies them by their names alone. The prefix that
all prompts begin with is there from the start, and its pages are held once, as in engines that count the
references to a page. Two requests that use different lengths of it share the shorter length. While no request
uses the prefix, its pages are free for others.

Idle sessions stay on the GPU until their memory is needed. A copy stays in the host's memory if that has
room, as in LMCache: the session is copied when it becomes idle, while iterations run, and the least recently
used copy is dropped first. The next turn of a session uses the longer of both.

`prefix_cache.PrefixCache` finds by content what earlier requests have computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Protocol

from msgspec import Struct, field

from rapid_des.serving.engine import Engine
from rapid_des.serving.requests import NEVER, Request
from rapid_des.units import ceil_divide


class FoundContent(Protocol):
    """What a replica asks of the content of its KV cache; all numbers of pages count pages on the GPU."""

    @property
    def shared_pages(self) -> int:
        """Number of pages that running requests share."""
        ...

    def found(self, request: Request) -> int:
        """Return how many tokens of a request need not be computed here now; the last one always is."""
        ...

    def meet(self, request: Request) -> None:
        """Set what a request that has come to the replica finds: `computed` and `shared`."""
        ...

    def look_again(self, request: Request) -> None:
        """Update what a waiting request finds, before a policy looks at it."""
        ...

    def admit(self, request: Request) -> tuple[int, int]:
        """Let a request use what it found.

        Return the pages that nobody held before, and the picoseconds that loading from the host takes.
        """
        ...

    def grow(self, request: Request) -> int:
        """Share what a request has computed by now; return how many pages become free."""
        ...

    def leave(self, request: Request) -> int:
        """End the use by a request that is preempted or done here; return how many shared pages are free."""
        ...

    def keep(self, request: Request) -> None:
        """Keep an answered request's content for the next turn of its session."""
        ...

    def shrink(self, room: int) -> Collection[int]:
        """Drop unused pages until the rest fits into `room` pages; return the sessions that were dropped."""
        ...


class SharedPrefix(Struct):
    """The pages of a prefix that running requests share.

    >>> prefix = SharedPrefix()
    >>> prefix.take(3), prefix.take(5), prefix.leave(5), prefix.pages
    (3, 2, 2, 3)
    """

    pages: int = 0
    _users: Counter[int] = field(default_factory=Counter)
    """Number of running requests by how many pages of the prefix they use."""

    def take(self, pages: int) -> int:
        """Add a request that uses the first `pages` pages; return how many of them no request held."""
        before, self.pages = self.pages, max(self.pages, pages)
        self._users[pages] += 1
        return self.pages - before

    def leave(self, pages: int) -> int:
        """Remove a request; return how many pages no request holds any more."""
        self._users[pages] -= 1
        if self._users[pages]:
            return 0
        del self._users[pages]
        before, self.pages = self.pages, max(self._users, default=0)
        return before - self.pages


class IdleSessions(Struct):
    """The idle sessions that a replica keeps, without the pages of the shared prefix.

    >>> kept = IdleSessions(page_size=16)
    >>> kept.keep(7, 40, shared=0)
    >>> kept.pages, kept.hit(7, 1000), kept.hit(7, 20), kept.shrink(2), kept.hit(7, 1000)
    (3, 32, 16, [7], 0)

    >>> kept = IdleSessions(page_size=16, host_pages=3)
    >>> kept.keep(7, 40, shared=0)
    >>> kept.shrink(2), kept.hit(7, 1000), kept.fetched(7, 32)
    ([7], 32, 32)
    """

    page_size: int
    host_pages: int = 0
    """Number of pages in the host's memory."""
    pages: int = 0
    _tokens: dict[int, int] = field(default_factory=dict)
    """Tokens on the GPU by session, the least recently used first."""
    _pages: dict[int, int] = field(default_factory=dict)
    """Own pages on the GPU by session."""
    _host: dict[int, int] = field(default_factory=dict)
    """Tokens in the host's memory by session, the least recently used first."""
    _hosted: int = 0

    def hit(self, session: int, most: int) -> int:
        """Return the cached tokens of a session's next prompt: whole pages, at most `most` tokens."""
        held = max(self._tokens.get(session, 0), self._host.get(session, 0))
        return min(held, most) // self.page_size * self.page_size

    def fetched(self, session: int, tokens: int) -> int:
        """Return how many of the hit tokens come from the host."""
        there = self._tokens.get(session, 0) // self.page_size * self.page_size
        held = self._host.get(session, 0) // self.page_size * self.page_size
        return max(0, min(tokens, held) - there)

    def keep(self, session: int, tokens: int, *, shared: int) -> None:
        """Keep the tokens of a session that has become idle, `shared` of whose pages are not its own."""
        self.take(session)
        self._tokens[session] = tokens
        self._pages[session] = ceil_divide(tokens, self.page_size) - shared
        self.pages += self._pages[session]
        self._copy(session, tokens)

    def take(self, session: int) -> None:
        """Hand a session's pages to the request that goes on with it."""
        self._tokens.pop(session, None)
        self.pages -= self._pages.pop(session, 0)

    def shrink(self, room: int) -> list[int]:
        """Drop sessions from the GPU until the rest fits into this many pages; return those dropped."""
        dropped = []
        while self.pages > room:
            dropped.append(next(iter(self._tokens)))
            self.take(dropped[-1])
        return dropped

    def _copy(self, session: int, tokens: int) -> None:
        """Copy a session to the host, dropping the least recently used there."""
        size = ceil_divide(tokens, self.page_size)
        if size > self.host_pages:
            return
        self._hosted -= ceil_divide(self._host.pop(session, 0), self.page_size)
        while self._hosted + size > self.host_pages:
            oldest = next(iter(self._host))
            self._hosted -= ceil_divide(self._host.pop(oldest), self.page_size)
        self._host[session] = tokens
        self._hosted += size


class ResidentContent:
    """A prefix that is always there, and the idle sessions of a replica."""

    def __init__(self, engine: Engine) -> None:
        self._page_size, self._fetch = engine.page_size, engine.fetch
        self._sessions = IdleSessions(engine.page_size, engine.host_pages)
        self._prefix = SharedPrefix()

    @property
    def shared_pages(self) -> int:
        """Number of pages that running requests share."""
        return self._prefix.pages

    def found(self, request: Request) -> int:
        """Return the number of prompt tokens found in the cache; the last one is always computed."""
        most = request.prompt - 1
        return max(min(request.prefix, most), self._sessions.hit(request.session, most))

    def meet(self, request: Request) -> None:
        """Set what a request that has come to the replica finds."""
        request.shared = min(request.prefix, request.prompt - 1) // self._page_size
        if not request.carried:
            request.computed = self.found(request)

    def look_again(self, request: Request) -> None:
        """Do nothing: `shrink` names the sessions whose requests find less."""

    def admit(self, request: Request) -> tuple[int, int]:
        """Let a request use what it found; return newly held pages, and the time of loads from the host."""
        pages, load = self._prefix.take(request.shared), 0
        if request.session != NEVER and not request.carried:
            load = self._fetch * self._sessions.fetched(request.session, request.computed)
        self._sessions.take(request.session)
        return pages, load

    def grow(self, request: Request) -> int:
        """Share nothing: what a request computes is its own."""
        del request
        return 0

    def leave(self, request: Request) -> int:
        """End the use of the prefix; return how many of its pages are free."""
        return self._prefix.leave(request.shared)

    def keep(self, request: Request) -> None:
        """Keep an answered request's content for the next turn of its session."""
        if request.session != NEVER:
            self._sessions.keep(request.session, request.computed, shared=request.shared)

    def shrink(self, room: int) -> Collection[int]:
        """Drop idle sessions until the rest fits into `room` pages; return those that were dropped."""
        return self._sessions.shrink(room)
