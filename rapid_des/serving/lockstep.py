"""Replicas that share experts, and so step together: data-parallel attention with expert parallelism.

Each plans a batch of its own. In every layer with experts they wait for each other, so that an iteration
lasts as long for all of them; who has nothing to do takes part with an empty batch. So step the data-parallel
ranks of vLLM (`execute_dummy_batch`, vllm/v1/engine/core.py), SGLang (idle batches) and TensorRT-LLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import numpy as np
import simpy

from rapid_des.serving.batch import SharedCosts
from rapid_des.serving.engine import Process
from rapid_des.serving.policies import Selection
from rapid_des.serving.replica import Replica, passed


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
