"""A replica: a process that picks a batch, lets its iteration pass, and hands out tokens.

Iterations in which only decoding requests take part, the same ones until one ends, pages run short or
somebody comes, pass at once: their times are added up as if each had been waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import simpy

from rapid_des.arrays import Int64s
from rapid_des.frontend.operations import RequestGroup
from rapid_des.serving.batch import Batch, Costs
from rapid_des.serving.engine import MOST_STEPS, Engine, Process
from rapid_des.serving.policies import Selection, in_turn, least_important
from rapid_des.serving.records import Batches, Load
from rapid_des.serving.replica_state import ReplicaState
from rapid_des.serving.requests import NEVER, Request

Deliver = Callable[[Request], None]


class Replica(ReplicaState):
    """One replica of a server."""

    def __init__(
        self,
        env: simpy.Environment,
        number: int,
        engine: Engine,
        deliver: Deliver,
        hand_over: Deliver | None = None,
    ) -> None:
        super().__init__(env, engine)
        self.number, self.load, self._pause = number, Load(), 0
        self.alive = self.draining = False
        self._deliver, self._hand_over = deliver, hand_over
        self._come = env.event()
        self.costs = engine.costs

    @property
    def mates(self) -> Sequence[Replica]:
        """The replicas that stop and restart with it, itself included."""
        return (self,)

    def submit(self, request: Request) -> None:
        """Accept a request."""
        request.replica = self.number
        self.accepted += 1
        self.content.meet(request)
        self._intake.add(request)
        self.fairness.arrive(request.user, self._group.step)
        self._queued += request.to_do
        self._queued_answers += request.to_make
        self._wake()

    def _wake(self) -> None:
        """End the wait for a request."""
        if not self._come.triggered:
            self._come.succeed()

    def resume(self) -> None:
        """Start serving, with only weights in memory."""
        self.alive = True
        self.process = self._env.process(self._serve())

    def _halt(self) -> None:
        self.process.interrupt()

    def stop(self) -> list[Request]:
        """Stop serving until `resume`; return the requests that it held."""
        had = [*self.waiting, *self._intake.clear(), *self.prefilling, *self._group]
        self.waiting.clear()
        self.prefilling.clear()
        self._group, self._free = self.engine.nobody(), self.engine.pages
        self.promised_pages = self.calm = self._queued = self._queued_answers = self._pause = 0
        self._empty()
        self._under_way = 0, np.zeros(0, np.int64)
        self.alive = False
        self._halt()
        return had

    def price(self, costs: Costs) -> None:
        """Use these costs from the next iteration on."""
        self.costs = costs
        self._wake()

    def _serve(self) -> Process:
        with suppress(simpy.Interrupt):
            yield from self._run()

    def _run(self) -> Process:
        while True:
            while not self.outstanding:
                self._come = self._env.event()
                yield self._come
            yield self._env.timeout(0)  # whatever happens at this instant happens before the choice
            selection = self.look()
            pause = self.paused()
            if pause:
                yield self._env.timeout(pause)
            yield from self._pass(selection)

    def look(self) -> Selection:
        """Admit requests that have arrived, and plan the next iteration."""
        self.waiting.extend(self._intake.take(decodes=bool(self._group), idle=not self.prefilling))
        self._make_room()
        in_turn(self.waiting, self.engine.order, self.fairness, self._group.step)
        self._admit_carried()
        return self._intake.gathered(self.engine.policy.select(self), len(self._group), self.prefilling)

    def paused(self) -> int:
        """Return the time that swapped keys and values need before the next iteration."""
        pause, self._pause = self._pause, 0
        return pause

    def _pass(self, selection: Selection) -> Process:
        """Run the planned iteration."""
        if self.iterates(selection):
            yield from self._iterate(selection)
        elif self._group:
            yield from self._decode_on()

    def iterates(self, selection: Selection) -> bool:
        """Return whether the next iteration is run by itself, not as one of many decode steps."""
        unsteady = bool(self.waiting) and (self._intake.waited > 0 or not self.engine.is_steady)
        return bool(selection.chunks) or unsteady or self.engine.stepwise

    def _admit_carried(self) -> None:
        """Start decoding requests that bring keys and values, as far as pages suffice."""
        while (request := next(iter(self.candidates), None)) and request.carried:
            full = len(self._group) + len(self.prefilling) >= self.max_sequences
            shared = max(0, request.shared - self.shared_pages)
            if full or self.pages_for(request, self._group.checked) + shared > self.free_pages:
                return
            self._admit(request)
            self._hold(request, self.pages_for(request, 0))
            self._pause += request.computed * self.engine.swap
            request.carried = False
            self._decode(request)

    def _admit(self, request: Request) -> None:
        """Take a request out of the queue."""
        self.waiting.remove(request)
        self._queued -= request.to_do
        self._queued_answers -= request.to_make
        pages, load = self.content.admit(request)
        self._free -= pages
        self._loading += self.adapters.admit(request) + load
        self.promised_pages += request.pages_at_end(self.page_size)
        self.fairness.take_up(request.user, request.missing)

    def _hold(self, request: Request, pages: int) -> None:
        """Give pages to a request; idle sessions make room."""
        request.pages += pages
        self._free -= pages
        self._forget()

    def _forget(self) -> None:
        """Drop idle sessions whose pages are needed; requests that counted on them compute the rest."""
        dropped = self.content.shrink(self._free)
        if dropped:
            for request in (*self.waiting, *self._intake):
                if request.session in dropped and not request.carried:
                    self._queued -= request.to_do
                    request.computed = min(request.computed, self.content.found(request))
                    self._queued += request.to_do

    def _decode(self, request: Request) -> None:
        self._group.join(request)
        self.adapters.decode(request)
        self.fairness.join(request.user, self._group.step)

    def _make_room(self) -> None:
        """Preempt requests until the others can continue."""
        while self.free_pages < 0 or self._is_stuck():
            if self.engine.order == "priority":
                self._preempt(least_important((*self.prefilling, *self._group)))
            else:
                self._preempt(self.engine.policy.victim(self.prefilling or self._group))

    def _is_stuck(self) -> bool:
        """Return whether partly computed prompts hold all pages and no request decodes."""
        held = not self._group and len(self.prefilling) > 1
        return held and self.pages_for(self.prefilling[0], 1) > self._free

    def _preempt(self, request: Request) -> None:
        """Take a request's pages: it is computed again from the start when its turn comes."""
        decoded = request not in self.prefilling
        if decoded:
            self._leave(request)
        else:
            self.prefilling.remove(request)
        self._release(request)
        request.carried = decoded and self.engine.swap > 0
        if request.carried:
            self._pause += request.computed * self.engine.swap
        else:
            self.content.meet(request)
        request.preemptions += 1
        self.calm = 0
        self.waiting.appendleft(request)
        self._queued += request.to_do
        self._queued_answers += request.to_make

    def _leave(self, request: Request) -> None:
        """Remove a request from the decoding ones."""
        self._decodes_no_more(request)
        self._group.leave(request)

    def _decodes_no_more(self, request: Request) -> None:
        self.fairness.leave(request.user, request.joined, self._group.step)
        self.adapters.stop_decoding(request)

    def _iterate(self, selection: Selection) -> Process:
        """Compute chunks of prompts, and one token of each decoding request."""
        batch, besides = self.begin(selection)
        duration = self.costs.time(batch) + besides
        self.load.iteration(self._now, duration, batch, self)
        yield self._env.timeout(duration)
        self.complete(selection, batch)

    def begin(self, selection: Selection) -> tuple[Batch, int]:
        """Begin an iteration; return the batch to price, and the time of adapters and loads."""
        batch = self._batch(selection)
        self._begin(selection)
        prompts = (request.adapter for request, _ in selection.chunks)
        adapted = self.adapters.time(batch.tokens, prompts, decodes=batch.decodes > 0)
        besides, self._loading = adapted + self._loading, 0
        return batch, besides

    def complete(self, selection: Selection, batch: Batch) -> None:
        """Hand out the tokens of a finished iteration."""
        self.calm += 1
        self._intake.passed(1, prompts=bool(selection.chunks))
        if batch.decodes:
            self._take_pages(1)
            self._end(self._advance(1))
        self._have_tokens(self._computed(selection))

    def _batch(self, selection: Selection) -> Batch:
        """Return the batch to price."""
        chunks = tuple(
            RequestGroup(
                1, tokens, request.computed, samples=int(self.engine.samples and tokens == request.missing)
            )
            for request, tokens in selection.chunks
        )
        decodes = len(self._group) if selection.decodes else 0
        return Batch(decodes, self._group.keys if decodes else 0, chunks, self._group.checked)

    def _begin(self, selection: Selection) -> None:
        images = sum(request.images for request, _ in selection.chunks if request.started == NEVER)
        if images and self.engine.encoding is not None:
            self._loading += self.engine.encoding(images)
        for request, _ in selection.chunks:  # all, before room for one drops what another found
            if request not in self.prefilling:
                self._admit(request)
                self._loading += request.computed * self.engine.swap * request.carried
                request.carried = False
                self.prefilling.append(request)
        for request, tokens in selection.chunks:
            if request.started == NEVER:
                request.started = self._now
            self._hold(request, self.pages_for(request, tokens))

    def _computed(self, selection: Selection) -> list[Request]:
        """Record computed chunks; return the requests whose prompt is complete."""
        for request, tokens in selection.chunks:
            request.computed += tokens
            self._free += self._grown(request)
        complete = [request for request, _ in selection.chunks if not request.missing]
        self.prefilling = [request for request in self.prefilling if request.missing]
        return complete

    def _have_tokens(self, complete: Iterable[Request]) -> None:
        """Give the requests with complete prompts their next token."""
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
        """Advance decode steps until a request ends, pages run short, or a request arrives."""
        steps = self.steps_at_once
        ends = self.costs.ends(len(self._group), self._group.keys_in(steps)) + self.added(steps)
        self._come = self._env.event()
        self.decode_until(ends)
        steps = yield from passed(self._env, ends, None if self.engine.habits.looks_seldom else self._come)
        self.decoded(ends[:steps])

    @property
    def steps_at_once(self) -> int:
        """Number of decode steps before a request ends, or pages run short."""
        group = self._group
        return group.steps_within(self._free, min(group.steps_to_end(), self._intake.steps, MOST_STEPS))

    def keys_in(self, steps: int) -> Int64s:
        """Return the number of positions that tokens attend to, for each of the next decode steps."""
        return self._group.keys_in(steps)

    def added(self, steps: int) -> Int64s:
        """Return the delay of each of the next decode steps due to adapters and loads."""
        loading, self._loading = self._loading, 0
        return self.adapters.time(self.decoding_tokens) * np.arange(1, steps + 1) + loading

    def decode_until(self, ends: Int64s) -> None:
        """Record the start of decode steps that will end so long from now."""
        self._under_way, self._sizes = (self._now, ends), self.sizes

    def decoded(self, ends: Int64s) -> None:
        """Hand out the tokens of decode steps, given their ends after the start."""
        began, _ = self._under_way
        self._under_way = began, ends[:0]
        group, steps = self._group, len(ends)
        batches = Batches(len(group), group.keys_in(steps), group.pages_in(steps))
        self.load.steps(began, ends, batches, self._sizes)
        self.calm += len(ends)
        self._intake.passed(len(ends))
        self._take_pages(len(ends))
        self._end(self._advance(len(ends)))

    def _take_pages(self, steps: int) -> None:
        self._free -= self._group.pages_within(steps)
        self._forget()

    def _advance(self, steps: int) -> list[Request]:
        """Advance by this many decode steps; return the requests that have all tokens."""
        ended = self._group.advance(steps)
        for request in ended:
            self._decodes_no_more(request)
        return ended

    def _end(self, ended: Sequence[Request]) -> None:
        for request in ended:
            self._give_back(request)
            self.content.keep(request)
            self._forget()
            request.finished = self._now
            self._deliver(request)

    def _give_back(self, request: Request) -> None:
        """Free the pages of a request that is done here."""
        self._release(request)
        self.fairness.answer(request.user)

    def _release(self, request: Request) -> None:
        """Free the pages and the adapter of a request."""
        self._free += self._grown(request)
        self.promised_pages -= request.pages_at_end(self.page_size)
        self._free += request.pages + self.content.leave(request)
        request.pages = 0
        self.adapters.leave(request)

    def _grown(self, request: Request) -> int:
        """Share what a request has computed; return how many pages are free by that."""
        before = request.shared
        freed = self.content.grow(request)
        self.promised_pages -= request.shared - before
        return freed


def passed(
    env: simpy.Environment, ends: Int64s, come: simpy.Event | None
) -> Generator[simpy.Event, Any, int]:
    """Run steps with these ends until the end of the one in which a request arrives; return how many."""
    began, steps = int(env.now), len(ends)
    last = env.timeout(int(ends[-1]))
    yield last if come is None else last | come
    if env.now < began + ends[-1]:
        steps = 1 + int(np.searchsorted(ends, int(env.now) - began))
        if began + int(ends[steps - 1]) > env.now:
            yield env.timeout(began + int(ends[steps - 1]) - int(env.now))
    return steps
