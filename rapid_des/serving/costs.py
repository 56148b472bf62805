"""What an iteration takes: kernels as static runs price them, and the rest as static runs simulate it.

    time(batch) = kernels that depend on token counts   exact, remembered by count
                + attention                             by kernel, linear between corners of the KV length
                + the rest                              linear between corners of the token count

The rest is what a simulated static pass takes beyond its kernels: communication, messages between stages,
the host where a graph is one issue. Passes that the host issues kernel by kernel last as long as their
kernels and the rest, or as the host needs to issue them all, whichever is longer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from msgspec import structs

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.device.operators import OperatorModel
from rapid_des.device.pricing import operator_model
from rapid_des.frontend.inference import Pass, captures, pass_lists
from rapid_des.frontend.job import Job
from rapid_des.frontend.operations import Operation
from rapid_des.frontend.parts import Section, stage_sections
from rapid_des.frontend.software import HostSpec
from rapid_des.frontend.spec import InferenceSpec
from rapid_des.machine import Machine
from rapid_des.modes.pricing import as_used, issued_on
from rapid_des.simulation import simulate
from rapid_des.units import Duration

_FINE = 16
"""Corners of the KV length in each doubling."""
_FLATTENED = 8
"""GPUs of a replica up to which passes are simulated flattened; above, blocks and what joins them."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one prompt that an iteration computes."""

    tokens: int
    cached: int = 0
    """Tokens before them that stand in the KV cache."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What an iteration computes: one token each of `decodes` requests, and chunks of prompts."""

    decodes: int = 0
    keys: int = 0
    """Positions that the decoding requests attend to, all together, each one's own new token among them."""
    chunks: tuple[Chunk, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens that pass the model."""
        return self.decodes + sum(chunk.tokens for chunk in self.chunks)


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
        device = machine.device
        self._graph = captures(self._job, 1)
        self._prefill = operator_model(as_used(self._job, machine, device), self._cache)
        self._decode = operator_model(as_used(self._job, machine, device, decoding=True), self._cache)
        self._kernels: dict[tuple[int, int, bool], tuple[int, int]] = {}
        self._rests: dict[tuple[int, bool], int] = {}
        self._attention: dict[tuple[int, int], int] = {}
        self._prompts: dict[Chunk, int] = {}

    def time(self, batch: Batch) -> int:
        """Return how long an iteration lasts."""
        if not batch.chunks:
            return self._decode_base(batch.decodes) + self._decode_attention(batch.decodes, batch.keys)
        sampled = batch.decodes + len(batch.chunks)
        on_gpu = self._base(batch.tokens, sampled, decoding=False)
        if batch.decodes:
            on_gpu += self._decode_attention(batch.decodes, batch.keys)
        on_gpu += sum(map(self._prompt_attention, batch.chunks))
        return self._issued(batch.tokens, sampled, on_gpu)

    def ends(self, decodes: int, keys: int, steps: int) -> Int64s:
        """Return when each of so many pure decode steps ends; `keys` grow by one a request and step."""
        base = self._decode_base(decodes)
        lengths = -(-keys // decodes) + np.arange(steps)
        corners = self._corners(int(lengths[0]), int(lengths[-1]))
        values = np.array([self._attention_at(decodes, corner) for corner in corners], np.int64)
        place = np.minimum(np.searchsorted(corners, lengths), len(corners) - 1)
        below = np.maximum(place - 1, 0)
        span = np.maximum(np.array(corners)[place] - np.array(corners)[below], 1)
        into = lengths - np.array(corners)[below]
        between = values[below] + (values[place] - values[below]) * into // span
        return np.cumsum(base + between)

    def _decode_base(self, decodes: int) -> int:
        if self._graph:
            return self._base(decodes, decodes, decoding=True)
        return self._issued(decodes, decodes, self._base(decodes, decodes, decoding=True))

    def _base(self, tokens: int, sampled: int, *, decoding: bool) -> int:
        """Return kernels without attention, and the rest."""
        return self._kernel_times(tokens, sampled, decoding)[0] + self._rest(tokens, decoding)

    def _issued(self, tokens: int, sampled: int, on_gpu: int) -> int:
        """Return how long a pass lasts that the host issues kernel by kernel."""
        host = self._job.host
        if host is None:
            return on_gpu
        _, issuing = self._kernel_times(tokens, sampled, False)
        return host.before() + max(on_gpu + int(host.kernel), issuing)

    def _kernel_times(self, tokens: int, sampled: int, decoding: bool) -> tuple[int, int]:
        """Return the kernels that no KV length changes, and what the host needs to issue all."""
        key = tokens, sampled, decoding
        if key not in self._kernels:
            lists = self._lists(tokens, sampled)
            operators = self._decode if decoding else self._prefill
            self._kernels[key] = (
                sum(n * _duration(lists[section], operators, cached=False) for section, n in self._sections),
                sum(n * _issue(lists[section], self._job.host) for section, n in self._sections),
            )
        return self._kernels[key]

    def _lists(self, tokens: int, sampled: int) -> dict[Section, tuple[Operation, ...]]:
        """Return the operator lists of a pass of so many tokens, of which some requests choose one each."""
        lists = pass_lists(_with(self._job, batch=tokens), Pass(1, 1, 2))
        if sampled != tokens:
            head = pass_lists(_with(self._job, batch=sampled), Pass(1, 1, 2))
            lists = {section: (head if section.name == "head" else lists)[section] for section in lists}
        return lists

    @cached_property
    def _sections(self) -> list[tuple[Section, int]]:
        return [
            item for stage in range(self._job.stages) for item in stage_sections(self._job, stage).items()
        ]

    def _decode_attention(self, decodes: int, keys: int) -> int:
        """Return attention of so many new tokens, linear between corners of their mean KV length."""
        length = -(-keys // decodes)
        below, above = _around(length)
        low = self._attention_at(decodes, below)
        if below == length:
            return low
        return low + (self._attention_at(decodes, above) - low) * (length - below) // (above - below)

    def _corners(self, first: int, last: int) -> list[int]:
        """Return the corners of the KV length around a range."""
        corners = [_around(first)[0]]
        while corners[-1] < last:
            corners.append(_around(corners[-1] + 1)[1])
        return corners

    def _attention_at(self, decodes: int, length: int) -> int:
        key = decodes, length
        if key not in self._attention:
            self._attention[key] = self._on_cache(decodes, Pass(1, 1, length), self._decode)
        return self._attention[key]

    def _prompt_attention(self, chunk: Chunk) -> int:
        if chunk not in self._prompts:
            current = Pass(0, chunk.tokens, chunk.cached + chunk.tokens)
            self._prompts[chunk] = self._on_cache(1, current, self._prefill)
        return self._prompts[chunk]

    def _on_cache(self, sequences: int, current: Pass, operators: OperatorModel) -> int:
        """Return the kernels that see the KV cache in one pass of equal sequences."""
        shard = self._job.shard(sequences, current.query_length, current.key_length)
        return sum(
            count * _duration(self._job.kinds[section.kind].layer.on_cache(shard), operators, cached=True)
            for section, count in self._sections
            if section.name == "block"
        )

    def _rest(self, tokens: int, decoding: bool) -> int:
        """Return what a pass takes beyond its kernels, linear between powers of two of its tokens."""
        below = 1 << (tokens.bit_length() - 1)
        low = self._rest_at(below, decoding)
        if below == tokens:
            return low
        return low + (self._rest_at(2 * below, decoding) - low) * (tokens - below) // below

    def _rest_at(self, tokens: int, decoding: bool) -> int:
        key = tokens, decoding
        if key not in self._rests:
            make = self._simulated_step if decoding else self._simulated_prompt
            self._rests[key] = max(0, make(tokens))
        return self._rests[key]

    def _simulated_step(self, decodes: int) -> int:
        """Return the rest of a simulated decode step of so many requests with two keys each."""
        job = self._job if self._graph else without_host(self._job)
        pair = _with(job, batch=decodes, prompt_length=1, output_length=2)
        taken = self._simulated(pair) - self._simulated(_with(pair, output_length=1))
        return taken - self._kernel_times(decodes, decodes, True)[0] - self._attention_at(decodes, 2)

    def _simulated_prompt(self, tokens: int) -> int:
        """Return the rest of a simulated prefill of one prompt, all issued at once."""
        taken = self._simulated(
            _with(without_host(self._job), batch=1, prompt_length=tokens, output_length=1)
        )
        return taken - self._kernel_times(tokens, 1, False)[0] - self._prompt_attention(Chunk(tokens))

    def _simulated(self, job: Job) -> int:
        mode = "flattened" if job.gpus <= _FLATTENED else "hierarchical"
        result = simulate(job, self._machine, mode=mode, allow_oom=True, cache=self._cache)
        return int(result.step_time)


def of_replica(job: Job) -> Job:
    """Return the job of one replica: data parallelism is how many there are."""
    spec = job.spec
    if spec.parallelism.dp == 1:
        return job
    return replace(job, spec=structs.replace(spec, parallelism=structs.replace(spec.parallelism, dp=1)))


def without_host(job: Job) -> Job:
    """Return a job that its host issues at once."""
    host = job.host
    if host is None:
        return job
    none = Duration(0)
    idle = structs.replace(host, kernel=none, collective=none, graph=None, step=None, request=None)
    return replace(job, spec=structs.replace(job.spec, host=idle))


def _with(job: Job, **changes: int) -> Job:
    """Return the job of another static batch."""
    asked: InferenceSpec = structs.replace(job.inference, micro_batch=None, decode_steps="all", **changes)
    return replace(job, spec=structs.replace(job.spec, inference=asked))


def _duration(operations: tuple[Operation, ...], operators: OperatorModel, *, cached: bool) -> int:
    return sum(
        operators.estimate(one.operator).duration
        for one in operations
        if one.operator is not None and one.sees_cache == cached
    )


def _issue(operations: tuple[Operation, ...], host: HostSpec | None) -> int:
    if host is None:
        return 0
    return sum(
        int(host.collective) if one.operator is None else host.of_kernel(one.operator, 1)[0]
        for one in operations
    )


def _around(length: int) -> tuple[int, int]:
    """Return the corners of the KV length below and above, the same at a corner.

    >>> _around(16), _around(1000), _around(1024)
    ((16, 16), (992, 1024), (1024, 1024))
    """
    step = max(1, (1 << (length.bit_length() - 1)) // _FINE)
    below = length // step * step
    return below, below if below == length else below + step
