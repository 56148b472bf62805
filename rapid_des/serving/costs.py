"""What an iteration takes: kernels as static runs price them, and the rest as static runs simulate it.

    time(batch) = kernels that depend on token counts   exact, remembered by count
                + attention                             by kernel, linear between corners of the KV length
                + the rest                              linear between corners of the token count

The rest is what a simulated static pass takes beyond its kernels: communication, messages between stages,
the host where a graph is one issue. Passes that the host issues kernel by kernel last as long as their
kernels and the rest, or as the host needs to issue them all, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple, Protocol

import numpy as np
from msgspec import structs

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.device.pricing import operator_model
from rapid_des.frontend.inference import Pass, captures, one_pass, pass_lists, serving_shard
from rapid_des.frontend.job import Job
from rapid_des.frontend.model import sampling
from rapid_des.frontend.operations import Operation
from rapid_des.frontend.parts import EMBEDDING, HEAD, Section, stage_sections
from rapid_des.frontend.shard import Group
from rapid_des.machine import Machine
from rapid_des.modes.pricing import as_used, issued_on
from rapid_des.simulation import simulate
from rapid_des.units import Duration, ceil_divide

_KEYS, _FINE = 64, 32
"""Decode kernels take keys in blocks of so many; corners of long KV lengths in each doubling."""
_EXACT_TOKENS, _MANY_TOKENS = 256, 2048
"""Tokens up to which every count is a corner, and from which on corners are farther apart."""
_FEW_ROWS, _MANY_ROWS = 16, 64
"""Tiles of matrix products end at such multiples of rows: first and last row of each are corners."""
_TOLERANCE = 0.002
"""Of a pass: how far the rest may be from the line between two corners, in their middle."""


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
        self._graph = captures(self._job, 1)
        self._operators = {
            decoding: operator_model(
                as_used(self._job, machine, machine.device, decoding=decoding), self._cache
            )
            for decoding in (False, True)
        }
        self._bodies: dict[tuple[int, bool], _Kernels] = {}
        self._heads: dict[tuple[int, bool], _Kernels] = {}
        self._rests = {decoding: Refined(partial(self._rest_at, decoding)) for decoding in (False, True)}
        self._openings: dict[tuple[int, bool], tuple[list[tuple[_Kernels, str]], int]] = {}
        self._attention: dict[tuple[tuple[Group, ...], bool], _Kernels] = {}

    def time(self, batch: Batch) -> int:
        """Return how long an iteration lasts."""
        decoding = not batch.chunks
        passed, seen = self._base(batch.tokens, batch.sampled, decoding), _Kernels(0, 0)
        if batch.decodes:
            seen = self._decode_attention(batch.decodes, batch.keys, decoding)
        if batch.chunks:
            seen = seen.then(self._attend(batch.chunks, decoding))
        if decoding and self._graph:
            return passed.time + seen.time
        return self._issued(passed.then(seen), self._late(batch.tokens, seen.time, decoding))

    def ends(self, decodes: int, keys: int, steps: int) -> Int64s:
        """Return when each of so many pure decode steps ends; `keys` grow by one a request and step."""
        base = self._base(decodes, decodes, decoding=True)
        first = -(-keys // decodes)
        lengths = first + np.arange(steps)
        corners = _corners(first, first + steps - 1)
        attention = [self._attention_at(decodes, corner, True) for corner in corners]
        values = np.array([each.time for each in attention], np.int64)
        place = np.searchsorted(corners, lengths)
        below = np.maximum(place - 1, 0)
        at = np.array(corners, np.int64)
        span = np.maximum(at[place] - at[below], 1)
        between = values[below] + (values[place] - values[below]) * (lengths - at[below]) // span
        on_gpu = base.time + between
        if not self._graph and self._job.host is not None:
            each = [self._late(decodes, int(value), decoding=True) for value in between]
            on_gpu = self._job.host.before() + np.maximum(on_gpu + each, base.issue + attention[0].issue)
        return np.cumsum(on_gpu)

    def _base(self, tokens: int, sampled: int, decoding: bool) -> _Kernels:
        """Return all but attention."""
        rest = _Kernels(self._rests[decoding](self._passing(tokens, decoding)), 0)
        return self._body(tokens, decoding).then(self._head(sampled, decoding)).then(rest)

    def _passing(self, tokens: int, decoding: bool) -> int:
        """Return how many tokens pass: where a captured graph is padded more than there are."""
        host = self._job.host
        return tokens + host.padding(tokens) if decoding and host is not None else tokens

    def _issued(self, passed: _Kernels, late: int) -> int:
        """Return how long a pass lasts that the host issues kernel by kernel."""
        host = self._job.host
        return passed.time if host is None else host.before() + max(passed.time + late, passed.issue)

    def _late(self, tokens: int, attention: int, decoding: bool) -> int:
        """Return how long the GPU waits for its host until this is ahead: within the first layer.

        Attention and messages are taken as alike in all layers.
        """
        layers = sum(count for section, count in self._sections if section.name == "block")
        rest = self._rests[decoding](self._passing(tokens, decoding))
        late = issued = passed = 0
        opening, messages = self._opening(tokens, decoding)
        for kernel, kind in opening:
            issued += kernel.issue
            late = max(late, issued - passed)
            passed += {"kernel": kernel.time, "attention": attention // layers, "message": rest // messages}[
                kind
            ]
        return late

    def _opening(self, tokens: int, decoding: bool) -> tuple[list[tuple[_Kernels, str]], int]:
        """Return embedding and first layer in order, and how many messages there are in a pass."""
        key = _token_corners(tokens)[1], decoding
        if key not in self._openings:
            lists = pass_lists(self._job, _pass_of(key[0], decoding))
            first = next(section for section, _ in self._sections if section.name == "block")
            kinds = [
                (self._kernel(one, decoding), _kind(one))
                for section in (EMBEDDING, first)
                for one in lists[section]
            ]
            count = sum(n * sum(_kind(one) == "message" for one in lists[each]) for each, n in self._sections)
            self._openings[key] = kinds, max(1, count)
        return self._openings[key]

    def _body(self, tokens: int, decoding: bool) -> _Kernels:
        """Return the kernels of embedding and layers that no KV length changes.

        Linear between the corners of `_token_corners`.
        """
        below, above = _token_corners(tokens)
        low = self._body_at(below, decoding)
        if below == tokens:
            return low
        return low.between(self._body_at(above, decoding), tokens - below, above - below)

    def _body_at(self, tokens: int, decoding: bool) -> _Kernels:
        key = tokens, decoding
        if key not in self._bodies:
            lists = pass_lists(self._job, _pass_of(tokens, decoding))
            parts = [(count, lists[section]) for section, count in self._sections if section != HEAD]
            self._bodies[key] = self._kernels(parts, decoding, cached=False)
        return self._bodies[key]

    def _head(self, sampled: int, decoding: bool) -> _Kernels:
        """Return the kernels of the head, which choose so many tokens.

        They are the last, so that who is late with issuing still waits for them to end.
        """
        key = sampled, decoding
        if key not in self._heads:
            group = Group(max(1, sampled), 1, int(decoding), samples=int(sampled > 0))
            shard = serving_shard(self._job, Pass(1, (group,), 1))
            head = self._kernels([(1, sampling(shard))], decoding, cached=False)
            ends = 0 if self._job.host is None else head.time + int(self._job.host.kernel)
            self._heads[key] = _Kernels(head.time, max(head.issue, ends))
        return self._heads[key]

    def _kernels(
        self, parts: Iterable[tuple[int, Sequence[Operation]]], decoding: bool, *, cached: bool
    ) -> _Kernels:
        """Return what operator lists, each so many times, hold of operations that see the KV cache or not."""
        found = _Kernels(0, 0)
        for count, operations in parts:
            for one in operations:
                if one.sees_cache == cached:
                    kernel = self._kernel(one, decoding)
                    found = found.then(_Kernels(count * kernel.time, count * kernel.issue))
        return found

    def _kernel(self, operation: Operation, decoding: bool) -> _Kernels:
        host = self._job.host
        if operation.operator is None:
            return _Kernels(0, 0 if host is None else int(host.collective))
        time = self._operators[decoding].estimate(operation.operator).duration
        return _Kernels(time, 0 if host is None else host.of_kernel(operation.operator, time)[0])

    @cached_property
    def _sections(self) -> list[tuple[Section, int]]:
        return [
            item for stage in range(self._job.stages) for item in stage_sections(self._job, stage).items()
        ]

    def _decode_attention(self, decodes: int, keys: int, decoding: bool) -> _Kernels:
        """Return attention of so many new tokens, linear between corners of their mean KV length."""
        length = -(-keys // decodes)
        below, above = _around(length)
        low = self._attention_at(decodes, below, decoding)
        if below == length:
            return low
        high = self._attention_at(decodes, above, decoding)
        return low.between(high, length - below, above - below)

    def _attention_at(self, decodes: int, length: int, decoding: bool) -> _Kernels:
        return self._attend((Group(decodes, 1, length - 1),), decoding)

    def _attend(self, groups: tuple[Group, ...], decoding: bool) -> _Kernels:
        """Return the kernels that see the KV cache in one pass."""
        key = groups, decoding
        if key not in self._attention:
            shard = serving_shard(self._job, Pass(0, groups, 0))
            kinds = self._job.kinds
            parts = (
                (count, kinds[section.kind].layer.on_cache(shard))
                for section, count in self._sections
                if section.name == "block"
            )
            self._attention[key] = self._kernels(parts, decoding, cached=True)
        return self._attention[key]

    def _rest_at(self, decoding: bool, tokens: int) -> tuple[int, int]:
        """Return what a simulated pass of so many tokens takes beyond its kernels, and what it takes."""
        groups = (Group(tokens, 1, 1),) if decoding else prompts_of(self._job, tokens)
        job = self._job if decoding and self._graph else self._idle
        taken = simulate(
            one_pass(job, groups), self._machine, mode="hierarchical", allow_oom=True, cache=self._cache
        ).step_time
        sampled = sum(group.count for group in groups)
        kernels = self._body_at(tokens, decoding).time + self._head(sampled, decoding).time
        return int(taken) - kernels - self._attend(groups, decoding).time, int(taken)


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


class Refined:
    """A function of a whole number, linear between corners that are added where it is not.

    `exact` returns its value and a total of which an error counts; corners are powers of two, and halves of
    what lies between while the middle is farther than `_TOLERANCE` of the total from the line.
    """

    def __init__(self, exact: Callable[[int], tuple[int, int]]) -> None:
        self._exact = exact
        self._known: dict[int, tuple[int, int]] = {}
        self._spans: dict[tuple[int, int], bool] = {}

    def __call__(self, number: int) -> int:
        """Return the value."""
        below = 1 << (number.bit_length() - 1)
        above = 2 * below
        while below < number:
            if self._is_straight(below, above):
                low, high = self._at(below)[0], self._at(above)[0]
                return low + (high - low) * (number - below) // (above - below)
            middle = (below + above) // 2
            below, above = (middle, above) if middle <= number else (below, middle)
        return self._at(below)[0]

    def _is_straight(self, below: int, above: int) -> bool:
        span = below, above
        if span not in self._spans:
            middle = (below + above) // 2
            value, total = self._at(middle)
            line = (self._at(below)[0] + self._at(above)[0]) / 2
            self._spans[span] = abs(value - line) <= _TOLERANCE * total
        return self._spans[span]

    def _at(self, number: int) -> tuple[int, int]:
        if number not in self._known:
            self._known[number] = self._exact(number)
        return self._known[number]


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


def _corners(first: int, last: int) -> list[int]:
    """Return the corners of the KV length around a range."""
    below, above = _around(first)
    corners = [below] if below == above else [below, above]
    while corners[-1] < last:
        below, above = _around(corners[-1] + 1)
        corners += [below] if below == above else [below, above]
    return corners


def _token_corners(tokens: int) -> tuple[int, int]:
    """Return the corners of the token count below and above, the same at a corner.

    >>> _token_corners(100), _token_corners(300), _token_corners(321), _token_corners(3000)
    ((100, 100), (289, 304), (321, 321), (2945, 3008))
    """
    if tokens <= _EXACT_TOKENS:
        return tokens, tokens
    return _between(tokens, _FEW_ROWS if tokens <= _MANY_TOKENS else _MANY_ROWS)


def _around(length: int) -> tuple[int, int]:
    """Return the corners of the KV length below and above, the same at a corner.

    >>> _around(1), _around(1000), _around(1024), _around(10_000)
    ((1, 1), (961, 1024), (1024, 1024), (9985, 10240))
    """
    return _between(length, max(_KEYS, (1 << (length.bit_length() - 1)) // _FINE))


def _between(number: int, step: int) -> tuple[int, int]:
    """Return the first and the last number of the stretch of so many that a number lies in; ends by itself.

    What it costs may jump from one stretch to the next.
    """
    above = ceil_divide(number, step) * step
    below = above - step + 1
    return (number, number) if number in (below, above) else (below, above)
