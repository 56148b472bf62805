"""The state of a replica, as policies (`policies.View`) and routers see it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import simpy

from rapid_des.serving.adapters import AdapterUse
from rapid_des.serving.engine import Engine
from rapid_des.serving.policies import Fairness, Intake
from rapid_des.serving.prefix_cache import PoolAccess, PrefixCache
from rapid_des.serving.requests import NEVER, Request
from rapid_des.serving.resident_content import FoundContent, ResidentContent
from rapid_des.units import ceil_divide


def content_of(engine: Engine, env: simpy.Environment) -> FoundContent:
    """Return an empty KV cache, as far as requests find something in it."""
    if engine.prefix_tiers is None:
        return ResidentContent(engine)
    pool = engine.prefix_pool
    shared = None if pool is None else PoolAccess(pool, lambda: int(env.now))
    return PrefixCache(engine.page_size, engine.prefix_tiers, shared)


class ReplicaState:
    """Waiting and running requests, and the pages that they hold."""

    def __init__(self, env: simpy.Environment, engine: Engine) -> None:
        self._env, self.engine = env, engine
        self.pages, self.page_size = engine.pages, engine.page_size
        self.max_batched_tokens, self.max_sequences = engine.max_batched_tokens, engine.max_sequences
        self.waiting: deque[Request] = deque()
        self.prefilling: list[Request] = []
        self._intake = Intake(engine.habits)
        self.promised_pages = self.calm = self._queued = self._queued_answers = self.accepted = 0
        """`_queued`: tokens of requests that wait; `_queued_answers`: those of them that are to make."""
        self._group = engine.nobody()
        self._free = engine.pages
        self._empty()
        self._under_way = 0, np.zeros(0, np.int64)

    def _empty(self) -> None:
        """Drop everything besides weights."""
        engine = self.engine
        self.content: FoundContent = content_of(engine, self._env)
        self.fairness = Fairness(1.0 if engine.drafts is None else engine.drafts.tokens_a_step)
        self.adapters = AdapterUse(engine.lora)
        self._loading = 0

    @property
    def _now(self) -> int:
        return int(self._env.now)

    @property
    def candidates(self) -> Iterator[Request]:
        """Waiting requests that may run beside the running ones, with what they find by now."""
        for request in self.adapters.candidates(self.waiting):
            if not request.carried:
                self._queued -= request.to_do
                self.content.look_again(request)
                self._queued += request.to_do
            yield request

    @property
    def unstarted(self) -> Iterator[Request]:
        """Requests that no iteration has computed a part of yet."""
        return (request for request in (*self.waiting, *self._intake) if request.started == NEVER)

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
        return self.content.shared_pages

    @property
    def outstanding(self) -> int:
        """Number of requests not yet answered."""
        return len(self._intake) + len(self.waiting) + len(self.prefilling) + len(self._group)

    @property
    def outstanding_tokens(self) -> int:
        """Number of tokens still to be computed and made for them."""
        begun = sum(request.to_do for request in self.prefilling)
        return self._queued + begun + self._group.to_come_after(self._passed)

    def time_with(self, request: Request) -> float:
        """Return about how many picoseconds it takes for its tokens and those of one more request."""
        begun = sum(each.to_make for each in self.prefilling)
        answers = self._queued_answers + begun + self._group.to_come_after(self._passed)
        prompts = self.outstanding_tokens - answers
        paces = self.engine.paces
        return (prompts + request.missing) * paces.prompt + (answers + request.to_make) * paces.answer

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
