"""Keys and values that requests of a replica share: a common prefix, and what idle sessions leave.

A prefix that all prompts begin with takes its pages once, as in engines whose pages have reference counts.
Requests whose parts of it differ share as much as the shorter part has. While nobody uses it, its pages make
room for others.

Idle sessions are kept on GPU and host until their memory is needed. What leaves the GPU stays in the host's
memory if that has room (LMCache: copied there when it becomes idle, beside the iterations; what was used
longest ago makes room). A session goes on from the longer of both.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct, field

from rapid_des.units import ceil_divide


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
        """Add a request that uses the first `pages` pages; return how many of them nobody held."""
        before, self.pages = self.pages, max(self.pages, pages)
        self._users[pages] += 1
        return self.pages - before

    def leave(self, pages: int) -> int:
        """Remove a request; return how many pages nobody holds any more."""
        self._users[pages] -= 1
        if self._users[pages]:
            return 0
        del self._users[pages]
        before, self.pages = self.pages, max(self._users, default=0)
        return before - self.pages


class IdleSessions(Struct):
    """The idle sessions that a replica keeps, their shared pages left out.

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
