"""The state of a replica, as policies (`policies.View`) and routers see it, and what its requests share.

A prefix that all prompts begin with takes its pages once, as in engines whose pages have reference counts.
Requests whose parts of it differ share as much as the shorter part has. While nobody uses it, its pages make
room for others.

Idle sessions are kept on GPU and host until their memory is needed. What leaves the GPU stays in the host's
memory if that has room (LMCache: copied there when it becomes idle, beside the iterations; what was used
longest ago makes room). A session goes on from the longer of both.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

import numpy as np
import simpy
from msgspec import Struct, field

from rapid_des.serving.adapters import AdapterUse
from rapid_des.serving.engine import Engine
from rapid_des.serving.policies import Fairness, Intake
from rapid_des.serving.requests import Request
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


class ReplicaState:
    """Waiting and running requests, and the pages that they hold."""

    def __init__(self, env: simpy.Environment, engine: Engine) -> None:
        self._env, self.engine = env, engine
        self.pages, self.page_size = engine.pages, engine.page_size
        self.max_batched_tokens, self.max_sequences = engine.max_batched_tokens, engine.max_sequences
        self.waiting: deque[Request] = deque()
        self.prefilling: list[Request] = []
        self._intake = Intake(engine.habits)
        self.promised_pages = self.calm = self._queued = 0
        self._group = engine.nobody()
        self._free = engine.pages
        self._empty()
        self._under_way = 0, np.zeros(0, np.int64)

    def _empty(self) -> None:
        """Drop everything besides weights."""
        engine = self.engine
        self.sessions = IdleSessions(engine.page_size, engine.host_pages)
        self.prefix = SharedPrefix()
        self.fairness = Fairness(1.0 if engine.drafts is None else engine.drafts.tokens_a_step)
        self.adapters = AdapterUse(engine.lora)
        self._loading = 0

    @property
    def _now(self) -> int:
        return int(self._env.now)

    @property
    def candidates(self) -> Iterable[Request]:
        """Waiting requests that may run beside the running ones."""
        return self.adapters.candidates(self.waiting)

    @property
    def decoding(self) -> int:
        """Number of decoding requests."""
        return len(self._group)

    @property
    def decoding_tokens(self) -> int:
        """Number of their tokens in an iteration."""
        return len(self._group) * self._group.checked

    @property
    def to_come(self) -> int:
        """Number of tokens that they still have to make."""
        return self._group.to_come

    @property
    def free_pages(self) -> int:
        """Number of free pages after the decoding requests get theirs."""
        return self._free - self._group.new_pages()

    @property
    def shared_pages(self) -> int:
        """Number of pages that running requests share."""
        return self.prefix.pages

    @property
    def outstanding(self) -> int:
        """Number of requests not yet answered."""
        return len(self._intake) + len(self.waiting) + len(self.prefilling) + len(self._group)

    @property
    def outstanding_tokens(self) -> int:
        """Number of tokens still to be computed and made for them."""
        begun = sum(request.missing + request.output - request.generated for request in self.prefilling)
        return self._queued + begun + self._group.to_come_after(self._passed)

    @property
    def spare_pages(self) -> int:
        """Number of free pages, less those that waiting requests need."""
        wanted = self._group.pages_within(self._passed) + ceil_divide(self._queued, self.page_size)
        return self._free - wanted

    @property
    def _passed(self) -> int:
        """Number of the decode steps advanced at once that are over by now."""
        began, ends = self._under_way
        return int(np.searchsorted(ends, self._now - began, side="right"))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of waiting requests, running requests, and held pages."""
        running = len(self.prefilling) + len(self._group)
        return len(self._intake) + len(self.waiting), running, self.pages - self._free

    def pages_for(self, request: Request, tokens: int) -> int:
        """Return how many own pages a request needs in addition for this many further tokens."""
        return request.own_pages(request.computed + tokens, self.page_size) - request.pages
