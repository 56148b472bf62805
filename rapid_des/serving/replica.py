"""A replica: a process that picks a batch, lets its iteration pass, and hands out tokens.

Iterations in which only decoding requests take part, the same ones until one ends, pages run short or
somebody comes, pass at once: their times are added up as if each had been waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import numpy as np
import simpy

from rapid_des.frontend.operations import Group
from rapid_des.serving.adapters import AdapterUse
from rapid_des.serving.costs import Batch, Costs
from rapid_des.serving.engine import MOST_STEPS, Engine, Process
from rapid_des.serving.intake import Intake
from rapid_des.serving.order import Fairness, in_turn
from rapid_des.serving.policies import Plan
from rapid_des.serving.prefixes import Prefixes
from rapid_des.serving.records import Load
from rapid_des.serving.requests import NEVER, Decoding, Request
from rapid_des.units import ceil_divide

Deliver = Callable[[Request], None]


class Replica:
    """One replica, which policies look at (`policies.View`)."""

    def __init__(
        self,
        env: simpy.Environment,
        number: int,
        engine: Engine,
        deliver: Deliver,
        hand_over: Deliver | None = None,
    ) -> None:
        self.number, self.engine = number, engine
        self.pages, self.page_size = engine.pages, engine.page_size
        self.max_batched_tokens, self.max_sequences = engine.max_batched_tokens, engine.max_sequences
        self.waiting: deque[Request] = deque()
        self.prefilling: list[Request] = []
        self._intake, self.load = Intake(engine.habits), Load()
        self.promised_pages = self.calm = self._queued = self._pause = 0
        self._group = Decoding(engine.page_size)
        self._free = engine.pages
        self._empty()
        self._under_way = 0, np.zeros(0, np.int64)
        self._env, self._deliver, self._hand_over = env, deliver, hand_over
        self._come = env.event()
        self.costs = engine.costs
        self.resume()

    def _empty(self) -> None:
        """Hold nothing besides weights."""
        engine = self.engine
        self.prefixes, self.fairness = Prefixes(engine.page_size, engine.host_pages), Fairness()
        self.adapters = AdapterUse(engine.lora)
        self._loading = 0

    @property
    def candidates(self) -> Iterable[Request]:
        """Who waits and may run beside those that run."""
        return self.adapters.candidates(self.waiting)

    @property
    def decoding(self) -> int:
        """How many requests decode."""
        return len(self._group)

    @property
    def to_come(self) -> int:
        """Tokens that those have still to make."""
        return self._group.to_come

    @property
    def free_pages(self) -> int:
        """Pages that are free once the decoding requests have theirs."""
        return self._free - self._group.new_pages()

    @property
    def outstanding(self) -> int:
        """Requests that it has and has not answered."""
        return len(self._intake) + len(self.waiting) + len(self.prefilling) + len(self._group)

    @property
    def outstanding_tokens(self) -> int:
        """Tokens that it has to compute and to make for those."""
        begun = sum(request.missing + request.output - request.generated for request in self.prefilling)
        return self._queued + begun + self._group.to_come - self._passed * len(self._group)

    @property
    def spare_pages(self) -> int:
        """Pages that are free, less those that waiting requests want."""
        wanted = self._group.pages_within(self._passed) + ceil_divide(self._queued, self.engine.page_size)
        return self._free - wanted

    @property
    def _passed(self) -> int:
        """Of the decode steps that pass at once, how many have by now."""
        began, ends = self._under_way
        return int(np.searchsorted(ends, self._now - began, side="right"))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Requests that wait, requests that run, pages held."""
        running = len(self.prefilling) + len(self._group)
        return len(self._intake) + len(self.waiting), running, self.engine.pages - self._free

    def pages_for(self, request: Request, tokens: int) -> int:
        """Return how many more pages a request needs for so many further tokens."""
        return ceil_divide(request.computed + tokens, self.engine.page_size) - request.pages

    def submit(self, request: Request) -> None:
        """Take a request."""
        request.replica = self.number
        if not request.carried:
            request.computed = self._hit(request)
        self._intake.add(request)
        self.fairness.arrive(request.user, self._group.step)
        self._queued += request.to_do
        if not self._come.triggered:
            self._come.succeed()

    def resume(self) -> None:
        """Serve, with nothing in memory but weights."""
        self.alive = True
        self.process = self._env.process(self._serve())

    def stop(self) -> list[Request]:
        """Serve no more until `resume`; return the requests that it had."""
        had = [*self.waiting, *self._intake.clear(), *self.prefilling, *self._group]
        self.waiting.clear()
        self.prefilling.clear()
        self._group, self._free = Decoding(self.engine.page_size), self.engine.pages
        self.promised_pages = self.calm = self._queued = self._pause = 0
        self._empty()
        self._under_way = 0, np.zeros(0, np.int64)
        self.alive = False
        self.process.interrupt()
        return had

    def price(self, costs: Costs) -> None:
        """Have iterations take what these costs say, from the next one on."""
        self.costs = costs
        if not self._come.triggered:
            self._come.succeed()

    def _serve(self) -> Process:
        with suppress(simpy.Interrupt):
            yield from self._run()

    def _hit(self, request: Request) -> int:
        """Return how many tokens of a prompt need not be computed; the last one always is."""
        most = request.prompt - 1
        return max(min(request.prefix, most), self.prefixes.hit(request.session, most))

    @property
    def _now(self) -> int:
        return int(self._env.now)

    def _run(self) -> Process:
        while True:
            while not self.outstanding:
                self._come = self._env.event()
                yield self._come
            yield self._env.timeout(0)  # whatever happens at this instant happens before the choice
            self.waiting.extend(self._intake.take(decodes=bool(self._group), idle=not self.prefilling))
            self._make_room()
            in_turn(self.waiting, self.engine.order, self.fairness, self._group.step)
            self._admit_carried()
            plan = self._intake.gathered(self.engine.policy.plan(self), len(self._group), self.prefilling)
            if self._pause:
                pause, self._pause = self._pause, 0
                yield self._env.timeout(pause)
            yield from self._pass(plan)

    def _pass(self, plan: Plan) -> Process:
        """Let what was planned pass."""
        unsteady = bool(self.waiting) and (self._intake.waited > 0 or not self.engine.is_steady)
        if plan.chunks or unsteady or self.engine.stepwise:
            yield from self._iterate(plan)
        elif self._group:
            yield from self._decode_on()

    def _admit_carried(self) -> None:
        """Let decode on who comes with keys and values, as far as there are pages."""
        while self.waiting and self.waiting[0].carried:
            request = self.waiting[0]
            full = len(self._group) + len(self.prefilling) >= self.max_sequences
            placed = list(self.adapters.candidates((request,)))
            if full or not placed or self.pages_for(request, 1) > self.free_pages:
                return
            self._admit(request)
            self._hold(request, self.pages_for(request, 0))
            self._pause += request.computed * self.engine.swap
            request.carried = False
            self._decode(request)

    def _admit(self, request: Request) -> None:
        """Take a request out of the queue."""
        self.waiting.remove(request)
        self.promised_pages += request.pages_at_end(self.page_size)
        self._queued -= request.to_do
        self._fetch(request)
        self.prefixes.take(request.session)
        self.fairness.take_up(request.user, request.missing)

    def _fetch(self, request: Request) -> None:
        """Begin to load what a request needs from the host: its adapter, and its session."""
        self._loading += self.adapters.admit(request)
        if request.session != NEVER and not request.carried:
            self._loading += self.engine.fetch * self.prefixes.fetched(request.session, request.computed)

    def _hold(self, request: Request, pages: int) -> None:
        """Give pages to a request; idle sessions make room."""
        request.pages += pages
        self._free -= pages
        self._forget()

    def _forget(self) -> None:
        """Drop idle sessions whose pages are needed; who waits for them computes what is nowhere else."""
        dropped = self.prefixes.shrink(self._free)
        if dropped:
            for request in (*self.waiting, *self._intake):
                if request.session in dropped and not request.carried:
                    self._queued -= request.to_do
                    request.computed = min(request.computed, self._hit(request))
                    self._queued += request.to_do

    def _decode(self, request: Request) -> None:
        self._group.join(request)
        self.adapters.decode(request)
        self.fairness.join(request.user, self._group.step)

    def _make_room(self) -> None:
        """Preempt who came last until the others can decode on, or compute their prompts."""
        while self.free_pages < 0 or self._is_stuck():
            self._preempt(self.engine.policy.victim(self.prefilling or self._group))

    def _is_stuck(self) -> bool:
        """Tell whether prompts that are half computed hold all pages and nobody decodes."""
        held = not self._group and len(self.prefilling) > 1
        return held and self.pages_for(self.prefilling[0], 1) > self._free

    def _preempt(self, request: Request) -> None:
        """Take a request's pages: it is computed again from the start when its turn comes."""
        decoded = request not in self.prefilling
        if decoded:
            self._leave(request)
        else:
            self.prefilling.remove(request)
        self._free += request.pages
        request.pages = 0
        self.adapters.leave(request)
        request.carried = decoded and self.engine.swap > 0
        if request.carried:
            self._pause += request.computed * self.engine.swap
        else:
            request.computed = self._hit(request)
        request.preemptions += 1
        self.promised_pages -= request.pages_at_end(self.page_size)
        self.calm = 0
        self.waiting.appendleft(request)
        self._queued += request.to_do

    def _leave(self, request: Request) -> None:
        """Take a request out of those that decode."""
        self._decodes_no_more(request)
        self._group.leave(request)

    def _decodes_no_more(self, request: Request) -> None:
        self.fairness.leave(request.user, request.joined, self._group.step)
        self.adapters.stop_decoding(request)

    def _iterate(self, plan: Plan) -> Process:
        """Compute chunks of prompts, and a token each of who decodes."""
        batch, began = self._batch(plan), self._now
        self._begin(plan)
        prompts = (request.adapter for request, _ in plan.chunks)
        adapted = self.adapters.time(batch.tokens, prompts, decodes=batch.decodes > 0)
        duration, self._loading = self.costs.time(batch) + adapted + self._loading, 0
        self.load.iteration(began, duration, batch, self)
        yield self._env.timeout(duration)
        self.calm += 1
        self._intake.passed(1, prompts=bool(plan.chunks))
        if batch.decodes:
            self._take_pages(1)
            self._end(self._advance(1))
        self._have_tokens(self._computed(plan))

    def _batch(self, plan: Plan) -> Batch:
        """Return what costs are asked for."""
        chunks = tuple(
            Group(1, tokens, request.computed, samples=tokens == request.missing)
            for request, tokens in plan.chunks
        )
        decodes = len(self._group) if plan.decodes else 0
        return Batch(decodes, self._group.keys if decodes else 0, chunks)

    def _begin(self, plan: Plan) -> None:
        for request, tokens in plan.chunks:
            pages = self.pages_for(request, tokens)
            if request not in self.prefilling:
                self._admit(request)
                self.prefilling.append(request)
            if request.started == NEVER:
                request.started = self._now
            self._hold(request, pages)

    def _computed(self, plan: Plan) -> list[Request]:
        """Bring chunks to account; return whose prompt is complete."""
        for request, tokens in plan.chunks:
            request.computed += tokens
        complete = [request for request, _ in plan.chunks if not request.missing]
        self.prefilling = [request for request in self.prefilling if request.missing]
        return complete

    def _have_tokens(self, complete: Iterable[Request]) -> None:
        """Give those whose prompt is complete their next token."""
        for request in complete:
            request.generated += 1
            if request.first_token == NEVER:
                request.first_token = self._now
            if request.generated == request.output:
                self._end([request])
            elif self._hand_over is not None:
                self._give_back(request)
                self._hand_over(request)
            else:
                self._decode(request)

    def _decode_on(self) -> Process:
        """Let decode steps pass until one of the requests ends, pages run short, or somebody comes."""
        group, env = self._group, self._env
        steps = group.steps_within(self._free, min(group.steps_to_end(), self._intake.steps, MOST_STEPS))
        began, keys = self._now, group.keys
        ends = self.costs.ends(len(group), keys, steps)
        ends = ends + self.adapters.time(len(group)) * np.arange(1, steps + 1) + self._loading
        self._loading = 0
        self._under_way = began, ends
        self._come = env.event()
        last = env.timeout(int(ends[-1]))
        yield last if self.engine.habits.looks_seldom else last | self._come
        if self._now < began + ends[-1]:
            steps = 1 + int(np.searchsorted(ends, self._now - began))
            if began + int(ends[steps - 1]) > self._now:
                yield env.timeout(began + int(ends[steps - 1]) - self._now)
        self._under_way = began, ends[:0]
        self.load.steps(began, ends[:steps], Batch(len(group), keys), self)
        self.calm += steps
        self._intake.passed(steps)
        self._take_pages(steps)
        self._end(self._advance(steps))

    def _take_pages(self, steps: int) -> None:
        self._free -= self._group.pages_within(steps)
        self._forget()

    def _advance(self, steps: int) -> list[Request]:
        """Let so many decode steps pass; return who then has all tokens."""
        ended = self._group.advance(steps)
        for request in ended:
            self._decodes_no_more(request)
        return ended

    def _end(self, ended: Sequence[Request]) -> None:
        for request in ended:
            self._give_back(request)
            if request.session != NEVER:
                self.prefixes.keep(request.session, request.computed)
                self._forget()
            request.finished = self._now
            self._deliver(request)

    def _give_back(self, request: Request) -> None:
        """Take the pages of a request that is done here."""
        self._free += request.pages
        request.pages = 0
        self.adapters.leave(request)
        self.promised_pages -= request.pages_at_end(self.page_size)
        self.fairness.answer(request.user)
