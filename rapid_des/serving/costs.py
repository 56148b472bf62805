"""What an iteration takes: kernels as static runs price them, and the rest as static runs simulate it.

    time(batch) = kernels that depend on token counts   exact, remembered by count
                + attention                             by kernel, linear between corners of the KV length
                + the rest                              linear between corners of the token count

The rest is what a simulated static pass takes beyond its kernels: communication, messages between stages,
the host where a graph is one issue. Passes that the host issues kernel by kernel last as long as their
kernels and the rest, or as the host needs to issue them all, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np
from msgspec import structs

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.device.operators import OperatorModel
from rapid_des.device.pricing import operator_model
from rapid_des.frontend.inference import Pass, captures, one_pass, pass_lists, serving_shard
from rapid_des.frontend.job import Job
from rapid_des.frontend.model import sampling
from rapid_des.frontend.operations import Group, Operation
from rapid_des.frontend.parts import EMBEDDING, HEAD, Section, stage_sections
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.modes.pricing import as_used, issued_on
from rapid_des.serving.corners import Refined, around, fineness, stretch, token_corners
from rapid_des.serving.jobs import in_a_row, of_replica
from rapid_des.serving.kernels import Body, Kernels, Opening, kind_of, of_all
from rapid_des.simulation import simulate
from rapid_des.units import Duration

_CORNERS, _FEW = 64, 1 << 14
"""Passes that are simulated, about; prices of chunks that are kept: few come twice."""
_USUAL = 64
"""Tokens of a decode step, of which stages have their shares."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What an iteration computes: one token each of `decodes` requests, and chunks of prompts."""

    decodes: int = 0
    keys: int = 0
    """Positions that the decoding requests attend to, all together, each one's own new token among them."""
    chunks: tuple[Group, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens that pass the model."""
        return self.decodes + sum(chunk.count * chunk.query_length for chunk in self.chunks)

    @property
    def sampled(self) -> int:
        """Requests for which a token comes out."""
        return self.decodes + sum(chunk.count * chunk.samples for chunk in self.chunks)

    def groups(self) -> tuple[Group, ...]:
        """Return it as a static run takes it, decoding requests at their mean length."""
        if not self.decodes:
            return self.chunks
        return (Group(self.decodes, 1, -(-self.keys // self.decodes) - 1), *self.chunks)


class Costs(Protocol):
    """What iterations take, in picoseconds."""

    def time(self, batch: Batch) -> int:
        """Return how long one lasts."""
        ...

    def ends(self, decodes: int, keys: int, steps: int) -> Int64s:
        """Return when each of so many pure decode steps ends, the first one's batch as given."""
        ...


class SharedCosts(Costs, Protocol):
    """What iterations of replicas take that share experts, each with a batch of its own."""

    def together(self, batches: Sequence[Batch]) -> int:
        """Return how long one lasts."""
        ...

    def ends_together(self, decoding: Sequence[tuple[int, int]], steps: int) -> Int64s:
        """Return when each of so many pure decode steps ends, given each one's requests and keys."""
        ...


class PassCosts:
    """Costs of a job's replica on a machine; of the last of `copies` alike that stand in a row."""

    def __init__(
        self, job: Job, machine: Machine, cache: BoundedCache | None = None, *, copies: int = 1
    ) -> None:
        self._machine, self._cache = machine, BoundedCache() if cache is None else cache
        self._copies = copies
        self._job = issued_on(of_replica(job), machine)
        self._idle = without_host(self._job)
        self._host = self._job.host
        self._graph = captures(self._job, 1)
        devices = {
            decoding: as_used(self._job, machine, machine.device, decoding=decoding)
            for decoding in (False, True)
        }
        self._operators = {key: operator_model(device, self._cache) for key, device in devices.items()}
        self._passing_operators = {
            key: operator_model(device, BoundedCache(_FEW)) for key, device in devices.items()
        }
        self._bodies: dict[tuple[int, bool], Body] = {}
        self._steps: dict[int, Kernels] = {}
        self._heads: dict[tuple[int, bool], Kernels] = {}
        self._rests = {decoding: Refined(partial(self._rest_at, decoding)) for decoding in (False, True)}
        self._attention: dict[tuple[Group, bool], Kernels] = {}
        self._lines: dict[tuple[int, int], Int64s] = {}

    def time(self, batch: Batch) -> int:
        """Return how long an iteration lasts."""
        decoding = not batch.chunks
        passed, seen = self._base(batch.tokens, batch.sampled, decoding), Kernels(0, 0)
        if batch.decodes:
            seen = self._decode_attention(batch.decodes, batch.keys, decoding)
        if batch.chunks:
            seen = seen.then(self._prompt_attention(batch.chunks, decoding))
        if decoding and self._graph:
            return passed.time + seen.time
        return self._issued(passed.then(seen), self._late(batch.tokens, seen.time, decoding))

    def ends(self, decodes: int, keys: int, steps: int) -> Int64s:
        """Return when each of so many pure decode steps ends; `keys` grow by one a request and step."""
        if decodes not in self._steps:
            self._steps[decodes] = self._base(decodes, decodes, decoding=True)
        base = self._steps[decodes]
        first = -(-keys // decodes)
        on_gpu = base.time + self._attention_from(decodes, first, steps)
        if not self._graph and self._host is not None:
            attention = on_gpu - base.time
            each = [self._late(decodes, int(value), decoding=True) for value in attention]
            issue = base.issue + self._attention_at(decodes, first, True).issue
            on_gpu = self._host.before() + np.maximum(on_gpu + each, issue)
        return np.cumsum(on_gpu)

    def together(self, batches: Sequence[Batch]) -> int:
        """Return how long an iteration lasts of replicas that share experts, each with its own batch.

        Attention and what else each computes for itself lasts as long as the longest; experts compute the
        tokens of all, and messages carry them. Captured graphs are padded to the largest batch.
        """
        at_work = [batch for batch in batches if batch.tokens]
        if not any(batch.chunks for batch in at_work) and self._graph:
            most = max(batch.decodes for batch in at_work)
            seen = (self._decode_attention(batch.decodes, batch.keys, True).time for batch in at_work)
            return self._base(most, most, decoding=True).time + max(seen)
        return max(self._beside(batch, len(batches), at_work) for batch in at_work)

    def _beside(self, batch: Batch, replicas: int, at_work: Sequence[Batch]) -> int:
        """Return how long an iteration lasts if this is the batch that all wait for."""
        decoding = not any(each.chunks for each in at_work)
        mean = -(-sum(each.tokens for each in at_work) // replicas)
        seen = Kernels(0, 0)
        if batch.decodes:
            seen = self._decode_attention(batch.decodes, batch.keys, decoding)
        if batch.chunks:
            seen = seen.then(self._prompt_attention(batch.chunks, decoding))
        own = self._body(batch.tokens, decoding).less(self._experts(batch.tokens, decoding))
        rest = Kernels(self._rests[decoding](self._passing(mean, decoding)), 0)
        passed = own.then(self._experts(mean, decoding)).then(self._head(batch.sampled, decoding)).then(rest)
        return self._issued(passed.then(seen), self._late(batch.tokens, seen.time, decoding))

    def ends_together(self, decoding: Sequence[tuple[int, int]], steps: int) -> Int64s:
        """Return when each of so many pure decode steps ends, given each replica's requests and keys."""
        most = max(decodes for decodes, _ in decoding)
        alone = {
            (decodes, -(-keys // decodes)): np.diff(self.ends(decodes, keys, steps), prepend=0)
            for decodes, keys in decoding
        }
        base = {decodes: self._steps[decodes].time for decodes, _ in alone}
        return np.cumsum(
            np.max([each + base[most] - base[decodes] for (decodes, _), each in alone.items()], axis=0)
        )

    def _attention_from(self, decodes: int, first: int, steps: int) -> Int64s:
        """Return decode attention of so many steps, the first at this mean KV length, each one longer."""
        tables, length = list[Int64s](), first
        while length < first + steps:
            below, above = stretch(length, fineness(length))
            tables.append(self._line(decodes, below, above)[length - below :])
            length = above + 1
        return (tables[0] if len(tables) == 1 else np.concatenate(tables))[:steps]

    def _line(self, decodes: int, below: int, above: int) -> Int64s:
        """Return decode attention of every mean KV length from one corner to the next."""
        key = decodes, below
        if key not in self._lines:
            low, high = (self._attention_at(decodes, corner, True).time for corner in (below, above))
            self._lines[key] = low + (high - low) * np.arange(above - below + 1) // (above - below)
        return self._lines[key]

    @property
    def shares(self) -> tuple[float, ...]:
        """Which part of an iteration each pipeline stage takes: as its kernels of a decode step do."""
        lists, times = pass_lists(self._job, _pass_of(_USUAL, decoding=True)), []
        for stage in range(self._job.stages):
            parts = [(count, lists[section]) for section, count in stage_sections(self._job, stage).items()]
            times.append(self._kernels(parts, self._operators[True], cached=False).time)
        return tuple(time / sum(times) for time in times)

    def parts(self, batch: Batch) -> dict[str, int]:
        """Return what kernels, communication and the host take of an iteration in which all decode."""
        tokens = batch.decodes
        messages = self._rests[True](self._passing(tokens, decoding=True))
        kernels = self._base(tokens, tokens, decoding=True).time - messages
        kernels += self._decode_attention(tokens, batch.keys, decoding=True).time
        return {
            "kernels": kernels,
            "communication": messages,
            "host": self.time(batch) - kernels - messages,
        }

    def _base(self, tokens: int, sampled: int, decoding: bool) -> Kernels:
        """Return all but attention."""
        rest = Kernels(self._rests[decoding](self._passing(tokens, decoding)), 0)
        return self._body(tokens, decoding).then(self._head(sampled, decoding)).then(rest)

    def _passing(self, tokens: int, decoding: bool) -> int:
        """Return how many tokens pass: where a captured graph is padded more than there are."""
        host = self._host
        return tokens + host.padding(tokens) if decoding and host is not None else tokens

    def _issued(self, passed: Kernels, late: int) -> int:
        """Return how long a pass lasts that the host issues kernel by kernel."""
        host = self._host
        return passed.time if host is None else host.before() + max(passed.time + late, passed.issue)

    def _late(self, tokens: int, attention: int, decoding: bool) -> int:
        """Return how long the GPU waits for its host until this is ahead: within the first layer.

        Attention and messages are taken as alike in all layers.
        """
        opening = self._body_at(token_corners(tokens)[1], decoding).opening
        message = self._rests[decoding](self._passing(tokens, decoding)) // opening.messages
        return opening.late(attention // self._layers, message)

    def _body(self, tokens: int, decoding: bool) -> Kernels:
        """Return the kernels of embedding and layers that no KV length changes.

        Linear between the corners of `_token_corners`.
        """
        below, above = token_corners(tokens)
        low = self._body_at(below, decoding).kernels
        if below == tokens:
            return low
        return low.between(self._body_at(above, decoding).kernels, tokens - below, above - below)

    def _experts(self, tokens: int, decoding: bool) -> Kernels:
        """Return those of them that compute the tokens of all replicas that share experts."""
        below, above = token_corners(tokens)
        low, high = (self._body_at(corner, decoding).experts for corner in (below, above))
        return low.between(high, tokens - below, max(1, above - below))

    def _body_at(self, tokens: int, decoding: bool) -> Body:
        key = tokens, decoding
        if key not in self._bodies:
            lists = pass_lists(self._job, _pass_of(tokens, decoding))
            parts = [(count, lists[section]) for section, count in self._sections if section != HEAD]
            operators = self._operators[decoding]
            self._bodies[key] = Body(
                self._kernels(parts, operators, cached=False),
                self._kernels([(count, of_all(each)) for count, each in parts], operators, cached=False),
                self._opening(lists, decoding),
            )
        return self._bodies[key]

    def _opening(self, lists: Mapping[Section, Sequence[Operation]], decoding: bool) -> Opening:
        """Return embedding and first layer in order."""
        first = next(section for section, _ in self._sections if section.name == "block")
        operations = [operation for section in (EMBEDDING, first) for operation in lists[section]]
        count = sum(
            n * sum(kind_of(operation) == "message" for operation in lists[each])
            for each, n in self._sections
        )
        kernels = [self._kernel(operation, self._operators[decoding]) for operation in operations]
        return Opening.of(kernels, [kind_of(operation) for operation in operations], max(1, count))

    def _head(self, sampled: int, decoding: bool) -> Kernels:
        """Return the kernels of the head, which choose so many tokens.

        They are the last, so that who is late with issuing still waits for them to end.
        """
        key = sampled, decoding
        if key not in self._heads:
            group = Group(max(1, sampled), 1, int(decoding), samples=int(sampled > 0))
            shard = serving_shard(self._job, Pass(1, (group,), 1))
            head = self._kernels([(1, sampling(shard))], self._operators[decoding], cached=False)
            ends = 0 if self._host is None else head.time + int(self._host.kernel)
            self._heads[key] = Kernels(head.time, max(head.issue, ends))
        return self._heads[key]

    def _kernels(
        self, parts: Iterable[tuple[int, Sequence[Operation]]], operators: OperatorModel, *, cached: bool
    ) -> Kernels:
        """Return what operator lists, each so many times, hold of operations that see the KV cache or not."""
        total = Kernels(0, 0)
        for count, operations in parts:
            for operation in operations:
                if operation.sees_cache == cached:
                    kernel = self._kernel(operation, operators)
                    total = total.then(Kernels(count * kernel.time, count * kernel.issue))
        return total

    def _kernel(self, operation: Operation, operators: OperatorModel) -> Kernels:
        host = self._host
        if operation.operator is None:
            return Kernels(0, 0 if host is None else int(host.collective))
        time = operators.estimate(operation.operator).duration
        return Kernels(time, 0 if host is None else host.of_kernel(operation.operator, time)[0])

    @cached_property
    def _layers(self) -> int:
        return sum(count for section, count in self._sections if section.name == "block")

    @cached_property
    def _sections(self) -> list[tuple[Section, int]]:
        return [
            item for stage in range(self._job.stages) for item in stage_sections(self._job, stage).items()
        ]

    def _decode_attention(self, decodes: int, keys: int, decoding: bool) -> Kernels:
        """Return attention of so many new tokens, linear between corners of their mean KV length."""
        length = -(-keys // decodes)
        below, above = around(length)
        low = self._attention_at(decodes, below, decoding)
        if below == length:
            return low
        high = self._attention_at(decodes, above, decoding)
        return low.between(high, length - below, above - below)

    def _attention_at(self, decodes: int, length: int, decoding: bool) -> Kernels:
        return self._remembered(Group(decodes, 1, length - 1), decoding)

    def _prompt_attention(self, chunks: tuple[Group, ...], decoding: bool) -> Kernels:
        """Return attention of chunks; of a whole prompt alone linear between corners of its length."""
        if len(chunks) > 1 or chunks[0].cached:
            return self._attend(chunks, decoding, self._passing_operators)
        (chunk,) = chunks
        below, above = around(chunk.query_length)
        low, high = (
            self._remembered(replace(chunk, query_length=corner, samples=1), decoding)
            for corner in (below, above)
        )
        return low.between(high, chunk.query_length - below, max(1, above - below))

    def _remembered(self, group: Group, decoding: bool) -> Kernels:
        key = group, decoding
        if key not in self._attention:
            self._attention[key] = self._attend((group,), decoding, self._operators)
        return self._attention[key]

    def _attend(
        self, groups: tuple[Group, ...], decoding: bool, operators: Mapping[bool, OperatorModel]
    ) -> Kernels:
        """Return the kernels that see the KV cache in one pass."""
        shard = serving_shard(self._job, Pass(0, groups, 0))
        kinds = self._job.kinds
        parts = (
            (count, kinds[section.kind].layer.on_cache(shard))
            for section, count in self._sections
            if section.name == "block"
        )
        return self._kernels(parts, operators[decoding], cached=True)

    def _rest_at(self, decoding: bool, tokens: int) -> tuple[int, int]:
        """Return what a simulated pass of so many tokens takes beyond its kernels, and what it takes."""
        groups = (Group(tokens, 1, 1),) if decoding else prompts_of(self._job, tokens)
        job = self._job if decoding and self._graph else self._idle
        result = simulate(
            one_pass(in_a_row(job, self._copies), groups),
            self._machine,
            mode="hierarchical",
            engine=EngineChoice(programs=_CORNERS),
            allow_oom=True,
            cache=self._cache,
        ).step_time
        sampled = sum(group.count for group in groups)
        kernels = self._body_at(tokens, decoding).kernels.time + self._head(sampled, decoding).time
        attention = self._attend(groups, decoding, self._operators).time
        return int(result) - kernels - attention, int(result)


def prompts_of(job: Job, tokens: int) -> tuple[Group, ...]:
    """Return so many tokens as prompts, as long as the model takes, and a part of one."""
    longest = min(tokens, job.model.spec.max_positions - 1)
    whole, rest = divmod(tokens, longest)
    return (Group(whole, longest), *((Group(1, rest),) if rest else ()))


def without_host(job: Job) -> Job:
    """Return a job that its host issues at once."""
    host = job.host
    if host is None:
        return job
    none = Duration(0)
    idle = structs.replace(host, kernel=none, collective=none, graph=None, step=None, request=None)
    return replace(job, spec=structs.replace(job.spec, host=idle))


def _pass_of(tokens: int, decoding: bool) -> Pass:
    """Return a pass of so many tokens, each of a request of its own."""
    return Pass(1, (Group(tokens, 1, int(decoding)),), 1)
