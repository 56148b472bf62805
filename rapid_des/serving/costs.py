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
from typing import NamedTuple, Protocol

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


class PassCosts:
    """Costs of a job's replica on a machine."""

    def __init__(self, job: Job, machine: Machine, cache: BoundedCache | None = None) -> None:
        self._machine, self._cache = machine, BoundedCache() if cache is None else cache
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
        self._bodies: dict[tuple[int, bool], tuple[_Kernels, _Opening]] = {}
        self._steps: dict[int, _Kernels] = {}
        self._heads: dict[tuple[int, bool], _Kernels] = {}
        self._rests = {decoding: Refined(partial(self._rest_at, decoding)) for decoding in (False, True)}
        self._attention: dict[tuple[Group, bool], _Kernels] = {}
        self._lines: dict[tuple[int, int], Int64s] = {}

    def time(self, batch: Batch) -> int:
        """Return how long an iteration lasts."""
        decoding = not batch.chunks
        passed, seen = self._base(batch.tokens, batch.sampled, decoding), _Kernels(0, 0)
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

    def _base(self, tokens: int, sampled: int, decoding: bool) -> _Kernels:
        """Return all but attention."""
        rest = _Kernels(self._rests[decoding](self._passing(tokens, decoding)), 0)
        return self._body(tokens, decoding).then(self._head(sampled, decoding)).then(rest)

    def _passing(self, tokens: int, decoding: bool) -> int:
        """Return how many tokens pass: where a captured graph is padded more than there are."""
        host = self._host
        return tokens + host.padding(tokens) if decoding and host is not None else tokens

    def _issued(self, passed: _Kernels, late: int) -> int:
        """Return how long a pass lasts that the host issues kernel by kernel."""
        host = self._host
        return passed.time if host is None else host.before() + max(passed.time + late, passed.issue)

    def _late(self, tokens: int, attention: int, decoding: bool) -> int:
        """Return how long the GPU waits for its host until this is ahead: within the first layer.

        Attention and messages are taken as alike in all layers.
        """
        opening = self._body_at(token_corners(tokens)[1], decoding)[1]
        message = self._rests[decoding](self._passing(tokens, decoding)) // opening.messages
        return opening.late(attention // self._layers, message)

    def _body(self, tokens: int, decoding: bool) -> _Kernels:
        """Return the kernels of embedding and layers that no KV length changes.

        Linear between the corners of `_token_corners`.
        """
        below, above = token_corners(tokens)
        low = self._body_at(below, decoding)[0]
        if below == tokens:
            return low
        return low.between(self._body_at(above, decoding)[0], tokens - below, above - below)

    def _body_at(self, tokens: int, decoding: bool) -> tuple[_Kernels, _Opening]:
        key = tokens, decoding
        if key not in self._bodies:
            lists = pass_lists(self._job, _pass_of(tokens, decoding))
            parts = [(count, lists[section]) for section, count in self._sections if section != HEAD]
            kernels = self._kernels(parts, self._operators[decoding], cached=False)
            self._bodies[key] = kernels, self._opening(lists, decoding)
        return self._bodies[key]

    def _opening(self, lists: Mapping[Section, Sequence[Operation]], decoding: bool) -> _Opening:
        """Return embedding and first layer in order."""
        first = next(section for section, _ in self._sections if section.name == "block")
        operations = [operation for section in (EMBEDDING, first) for operation in lists[section]]
        count = sum(
            n * sum(_kind(operation) == "message" for operation in lists[each]) for each, n in self._sections
        )
        kernels = [self._kernel(operation, self._operators[decoding]) for operation in operations]
        return _Opening.of(kernels, [_kind(operation) for operation in operations], max(1, count))

    def _head(self, sampled: int, decoding: bool) -> _Kernels:
        """Return the kernels of the head, which choose so many tokens.

        They are the last, so that who is late with issuing still waits for them to end.
        """
        key = sampled, decoding
        if key not in self._heads:
            group = Group(max(1, sampled), 1, int(decoding), samples=int(sampled > 0))
            shard = serving_shard(self._job, Pass(1, (group,), 1))
            head = self._kernels([(1, sampling(shard))], self._operators[decoding], cached=False)
            ends = 0 if self._host is None else head.time + int(self._host.kernel)
            self._heads[key] = _Kernels(head.time, max(head.issue, ends))
        return self._heads[key]

    def _kernels(
        self, parts: Iterable[tuple[int, Sequence[Operation]]], operators: OperatorModel, *, cached: bool
    ) -> _Kernels:
        """Return what operator lists, each so many times, hold of operations that see the KV cache or not."""
        total = _Kernels(0, 0)
        for count, operations in parts:
            for operation in operations:
                if operation.sees_cache == cached:
                    kernel = self._kernel(operation, operators)
                    total = total.then(_Kernels(count * kernel.time, count * kernel.issue))
        return total

    def _kernel(self, operation: Operation, operators: OperatorModel) -> _Kernels:
        host = self._host
        if operation.operator is None:
            return _Kernels(0, 0 if host is None else int(host.collective))
        time = operators.estimate(operation.operator).duration
        return _Kernels(time, 0 if host is None else host.of_kernel(operation.operator, time)[0])

    @cached_property
    def _layers(self) -> int:
        return sum(count for section, count in self._sections if section.name == "block")

    @cached_property
    def _sections(self) -> list[tuple[Section, int]]:
        return [
            item for stage in range(self._job.stages) for item in stage_sections(self._job, stage).items()
        ]

    def _decode_attention(self, decodes: int, keys: int, decoding: bool) -> _Kernels:
        """Return attention of so many new tokens, linear between corners of their mean KV length."""
        length = -(-keys // decodes)
        below, above = around(length)
        low = self._attention_at(decodes, below, decoding)
        if below == length:
            return low
        high = self._attention_at(decodes, above, decoding)
        return low.between(high, length - below, above - below)

    def _attention_at(self, decodes: int, length: int, decoding: bool) -> _Kernels:
        return self._remembered(Group(decodes, 1, length - 1), decoding)

    def _prompt_attention(self, chunks: tuple[Group, ...], decoding: bool) -> _Kernels:
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

    def _remembered(self, group: Group, decoding: bool) -> _Kernels:
        key = group, decoding
        if key not in self._attention:
            self._attention[key] = self._attend((group,), decoding, self._operators)
        return self._attention[key]

    def _attend(
        self, groups: tuple[Group, ...], decoding: bool, operators: Mapping[bool, OperatorModel]
    ) -> _Kernels:
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
            one_pass(job, groups),
            self._machine,
            mode="hierarchical",
            engine=EngineChoice(programs=_CORNERS),
            allow_oom=True,
            cache=self._cache,
        ).step_time
        sampled = sum(group.count for group in groups)
        kernels = self._body_at(tokens, decoding)[0].time + self._head(sampled, decoding).time
        attention = self._attend(groups, decoding, self._operators).time
        return int(result) - kernels - attention, int(result)


class _Kernels(NamedTuple):
    """Some kernels of a pass."""

    time: int
    issue: int
    """What the host needs to issue them one by one."""

    def then(self, other: _Kernels) -> _Kernels:
        """Return these and others."""
        return _Kernels(self.time + other.time, self.issue + other.issue)

    def between(self, other: _Kernels, part: int, whole: int) -> _Kernels:
        """Return what lies that part of the way between these and others."""
        return _Kernels(self.time + (other.time - self.time) * part // whole, self.issue)


class _Opening(NamedTuple):
    """What a pass begins with, until its first layer is over: of each kernel what came before it, and it."""

    issued: Int64s
    """What the host needs until it has issued the kernel."""
    kernels: Int64s
    """What the GPU needs for the kernels before, but attention."""
    attention: Int64s
    """How many attention kernels are before."""
    message: Int64s
    """How many messages."""
    messages: int
    """Of a whole pass."""

    @classmethod
    def of(cls, kernels: Sequence[_Kernels], kinds: Sequence[str], messages: int) -> _Opening:
        """Return what these kernels, in order, come to."""
        kind = np.array(kinds)
        times = np.array([kernel.time for kernel in kernels], np.int64)
        before = [
            np.cumsum(each) - each
            for each in (np.where(kind == "kernel", times, 0), kind == "attention", kind == "message")
        ]
        issued = np.cumsum(np.array([kernel.issue for kernel in kernels], np.int64))
        return cls(issued, before[0], before[1], before[2], messages)

    def late(self, attention: int, message: int) -> int:
        """Return how long the GPU waits in all, given what each attention kernel and message takes."""
        passed = self.kernels + self.attention * attention + self.message * message
        return max(0, int((self.issued - passed).max()))


def of_replica(job: Job) -> Job:
    """Return the job of one replica: data parallelism is how many there are.

    Replicas that share experts are run together, as if all had the same batch at once.
    """
    split = job.spec.parallelism
    together = max(1, split.ep * split.expert_ways // (split.tp * split.cp))
    if split.dp == together:
        return job
    return replace(job, spec=structs.replace(job.spec, parallelism=structs.replace(split, dp=together)))


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


def _kind(operation: Operation) -> str:
    if operation.operator is None:
        return "message"
    return "attention" if operation.sees_cache else "kernel"
