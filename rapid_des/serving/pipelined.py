"""Replicas of several pipeline stages, and replicas that share experts and so step together.

A replica with stages works on as many batches at a time. Its engine plans a batch of whoever is in none,
until there is one a stage; then it waits for the oldest one, whose requests may be in the next: vLLM's
`step_with_batch_queue` (vllm/v1/engine/core.py), TensorRT-LLM's and SGLang's loops over a micro-batch a
stage. Who comes meanwhile is seen when that one ends. A batch passes a stage when it has passed the one
before and the stage is done with the batch before; chunks of a prompt may follow one another.

    stage 0   A A B B       A A B B          an iteration of A takes as long as alone,
    stage 1       A A B B       A A B B      and two of them pass in three halves of the time of two

Of replicas that share experts (data-parallel attention with expert parallelism) each plans a batch of its
own. In every layer with experts they wait for each other, so that an iteration lasts as long for all of them;
who has nothing to do takes part with an empty batch. So step the data-parallel ranks of vLLM
(`execute_dummy_batch`, vllm/v1/engine/core.py), SGLang (idle batches) and TensorRT-LLM.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import cast

import numpy as np
import simpy
from msgspec import Struct

from rapid_des.serving.batch import Batch, SharedCosts
from rapid_des.serving.engine import Process
from rapid_des.serving.policies import Selection
from rapid_des.serving.replica import Replica, passed
from rapid_des.serving.requests import Decoding, Request


class LockstepReplica(Replica):
    """A replica of a lockstep group, which the group advances."""

    group: LockstepGroup

    @property
    def mates(self) -> Sequence[Replica]:
        """The replicas that stop and restart with it: all that share its experts."""
        return self.group.members

    def resume(self) -> None:
        """Start serving, with only weights in memory."""
        self.alive = True
        self.group.start()

    def _halt(self) -> None:
        self.group.halt()

    def _wake(self) -> None:
        self.group.wake()


class LockstepGroup:
    """Replicas that step together."""

    def __init__(self, env: simpy.Environment, members: Sequence[LockstepReplica]) -> None:
        self._env, self.members = env, members
        self._come = env.event()
        self._process: simpy.Process | None = None
        for member in members:
            member.group = self

    def start(self) -> None:
        """Start serving, if it does not yet."""
        if self._process is None:
            self._process = self._env.process(self._serve())

    def halt(self) -> None:
        """Stop serving until `start`."""
        if self._process is not None:
            self._process.interrupt()
            self._process = None

    def wake(self) -> None:
        """End the wait for a request."""
        if not self._come.triggered:
            self._come.succeed()

    @property
    def _costs(self) -> SharedCosts:
        return cast(SharedCosts, self.members[0].costs)

    def _serve(self) -> Process:
        with suppress(simpy.Interrupt):
            yield from self._run()

    def _run(self) -> Process:
        while True:
            while not any(member.outstanding for member in self.members):
                self._come = self._env.event()
                yield self._come
            yield self._env.timeout(0)  # as a lone replica: whatever happens at this instant comes first
            selections = [member.look() for member in self.members]
            pause = max(member.paused() for member in self.members)
            if pause:
                yield self._env.timeout(pause)
            if any(
                member.iterates(selection) for member, selection in zip(self.members, selections, strict=True)
            ):
                yield from self._iterate(selections)
            elif any(member.decoding for member in self.members):
                yield from self._decode_on()

    def _iterate(self, selections: Sequence[Selection]) -> Process:
        """Run one iteration of all replicas."""
        begun = [member.begin(selection) for member, selection in zip(self.members, selections, strict=True)]
        batches = [batch for batch, _ in begun]
        if any(batch.tokens for batch in batches):
            duration = self._costs.together(batches) + max(besides for _, besides in begun)
            for member, batch in zip(self.members, batches, strict=True):
                if batch.tokens:
                    member.load.iteration(int(self._env.now), duration, batch, member)
            yield self._env.timeout(duration)
        for member, selection, batch in zip(self.members, selections, batches, strict=True):
            member.complete(selection, batch)

    def _decode_on(self) -> Process:
        """Advance decode steps until a request ends, pages run short, or a request arrives."""
        at_work = [member for member in self.members if member.decoding]
        steps = min(member.steps_at_once for member in at_work)
        ends = self._costs.ends_together([(member.decoding, member.keys_in(steps)) for member in at_work])
        ends = ends + np.max([member.added(steps) for member in at_work], axis=0)
        self._come = self._env.event()
        for member in at_work:
            member.decode_until(ends)
        seldom = self.members[0].engine.habits.looks_seldom
        steps = yield from passed(self._env, ends, None if seldom else self._come)
        for member in at_work:
            member.decoded(ends[:steps])


class Stages(Struct, dict=True):
    """The times at which each pipeline stage is done with the batches sent so far.

    >>> stages = Stages((0.5, 0.5))
    >>> stages.enter(0, 100), stages.enter(0, 100), stages.enter(0, 40), stages.enter(500, 100)
    (100, 150, 170, 600)
    """

    shares: Sequence[float]

    def __post_init__(self) -> None:
        self._free = [0] * len(self.shares)

    def enter(self, now: int, duration: int) -> int:
        """Send in a batch with a given total duration; return when it leaves the last stage."""
        cuts = [round(duration * share) for share in accumulate(self.shares, initial=0.0)]
        for stage, (begin, end) in enumerate(pairwise(cuts)):
            now = self._free[stage] = max(now, self._free[stage]) + end - begin
        return now


class _Flight(Struct):
    """A batch in the pipeline."""

    batch: Batch
    began: int
    end: int
    group: Decoding
    """The requests that get a token at its end."""
    complete: list[Request]
    """The requests whose prompt is computed at its end."""

    @property
    def requests(self) -> list[Request]:
        """The requests that wait for its end."""
        return [*self.complete, *self.group]


class PipelinedReplica(Replica):
    """A replica of several stages; the base class' decoding group holds requests in no batch."""

    def resume(self) -> None:
        """Start serving, with only weights in memory."""
        self._flights = deque[_Flight]()
        self._stages, self._ended = Stages(self.engine.shares), 0
        self.max_sequences = self.engine.max_sequences
        super().resume()

    @property
    def _flying(self) -> list[Request]:
        return [request for flight in self._flights for request in flight.requests]

    @property
    def to_come(self) -> int:
        """Number of tokens still to be made, including those of requests in a batch."""
        return super().to_come + sum(flight.group.to_come for flight in self._flights)

    @property
    def outstanding(self) -> int:
        """Number of requests not yet answered."""
        return super().outstanding + len(self._flying)

    @property
    def outstanding_tokens(self) -> int:
        """Number of tokens still to be computed and made for them."""
        flying = sum(request.output - request.generated for request in self._flying)
        return super().outstanding_tokens + flying

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of waiting requests, running requests, and held pages."""
        waiting, running, held = super().sizes
        return waiting, running + len(self._flying), held

    def stop(self) -> list[Request]:
        """Stop serving until `resume`; return the requests that it held."""
        flying = self._flying
        self._flights.clear()
        return [*super().stop(), *flying]

    def _is_stuck(self) -> bool:
        return not self._flights and super()._is_stuck()

    def _decode(self, request: Request) -> None:
        self._group.join(request)
        self.adapters.decode(request)

    def _decodes_no_more(self, request: Request) -> None:
        self.adapters.stop_decoding(request)

    def _pass(self, selection: Selection) -> Process:
        begins = bool(selection.chunks) or (selection.decodes and len(self._group) > 0)
        if begins:
            self._take_off(selection)
        if self._flights and (not begins or len(self._flights) == len(self.engine.shares)):
            yield from self._land()

    def _take_off(self, selection: Selection) -> None:
        """Start a batch in the first stage."""
        batch, group = self._batch(selection), self.engine.nobody()
        self._begin(selection)
        if batch.decodes:
            self._take_pages(1)
            group, self._group = self._group, group
        named = [request.adapter for request in (*(request for request, _ in selection.chunks), *group)]
        adapted = self.adapters.time(batch.tokens, named, decodes=False)
        duration, self._loading = self.costs.time(batch) + adapted + self._loading, 0
        end = self._stages.enter(self._now, duration)
        flight = _Flight(batch, self._now, end, group, self._computed(selection))
        self.max_sequences -= len(flight.requests)
        self._flights.append(flight)

    def _land(self) -> Process:
        """Wait for the oldest batch, and hand out its tokens."""
        flight = self._flights[0]
        yield self._env.timeout(max(0, flight.end - self._now))
        began, gap = max(flight.began, self._ended), flight.end - flight.began
        self.load.iteration(began, flight.end - began, flight.batch, self, gap=gap)
        self._flights.popleft()
        self._ended = flight.end
        self.max_sequences += len(flight.requests)
        self.calm += 1
        self._intake.passed(1, prompts=bool(flight.batch.chunks))
        for request in flight.group if self.engine.order == "fair" else ():
            self.fairness.make(request.user)
        ended = flight.group.advance(1)
        for request in ended:
            self._decodes_no_more(request)
        self._join(flight.group)
        self._end(ended)
        self._have_tokens(flight.complete)

    def _join(self, group: Decoding) -> None:
        """Move a batch's requests to the decoding group of those in no batch."""
        if not self._group:
            group, self._group = self._group, group
        for request in list(group):
            group.leave(request)
            self._group.join(request)
