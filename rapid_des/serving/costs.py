"""The duration of an iteration: kernels as static runs price them, the rest as static runs simulate it.

    time(batch) = kernels that depend on token counts   exact, remembered by count
                + attention                             by kernel, linear between corners of the KV length
                + the rest                              linear between corners of the token count

The rest is what a simulated static pass takes beyond its kernels: communication, messages between stages,
the host where a graph is one issue. Passes that the host issues kernel by kernel last as long as their
kernels and the rest, or as the host needs to issue them all, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.device.operators import OperatorModel
from rapid_des.device.pricing import operator_model
from rapid_des.frontend.inference import ServingPass, captures, one_pass, pass_lists, serving_shard
from rapid_des.frontend.job import Job
from rapid_des.frontend.model import sampling
from rapid_des.frontend.operations import Operation, RequestGroup
from rapid_des.frontend.parts import EMBEDDING, HEAD, ModelSection, stage_sections
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.modes.pricing import as_used, issued_on
from rapid_des.serving import pools
from rapid_des.serving.batch import Batch, decoding_group
from rapid_des.serving.drafts import DraftCosts
from rapid_des.serving.interpolation import Refined, around, fineness, stretch, token_corners
from rapid_des.serving.kernels import Body, Kernels, Opening, in_graphs, kind_of, of_all
from rapid_des.simulation import step_time

_CORNERS, _FEW = 64, 1 << 14
"""Rough number of passes that are simulated; number of priced chunks that are cached (few repeat)."""
_SHORT = 16
"""Tokens of a prompt that is too long for a decode kernel."""
_BLOCK = 64
"""Up to this many tokens of a prompt, its attention is priced for each length."""
_USUAL = 64
"""Tokens of the decode step by which the stages' shares are computed."""


Operations = Sequence[Operation]
_Lists = Mapping[ModelSection, Operations]
Part = tuple[int, Operations]
"""An operator list, and how often it runs in a pass."""


class PassCosts:
    """Costs of a job's replica on a machine; with `copies`, of the last of as many equal ones in a row."""

    def __init__(
        self, job: Job, machine: Machine, cache: BoundedCache | None = None, *, copies: int = 1
    ) -> None:
        self._machine, self._cache = machine, BoundedCache() if cache is None else cache
        self._copies = copies
        self._whole = issued_on(pools.of_replica(job), machine)
        """The replica's job, including its draft model."""
        self._job = pools.with_at_most_drafted(self._whole, 0)
        spec = job.inference.speculative
        self.checked = 1 if spec is None else 1 + spec.tokens
        self._drafts = None if spec is None else DraftCosts(self._whole, self._priced)
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
        self._checking = Refined(self._checking_at)
        self._attention: dict[tuple[RequestGroup, bool, bool], Kernels] = {}
        self._lines: dict[tuple[int, int], Int64s] = {}

    def time(self, batch: Batch) -> int:
        """Return the duration of an iteration in picoseconds."""
        decoding = not batch.chunks
        passed, seen = self._base(batch), self._seen(batch, decoding)
        if decoding and self._graph:
            return passed.time + seen.time
        return self._issued(passed.then(seen), self._late(batch.tokens, seen.time, decoding))

    def ends(self, decodes: int, keys: Int64s) -> Int64s:
        """Return the ends of consecutive decode steps, given the positions that each attends to."""
        base = self._step(decodes)
        lengths = -(-keys // decodes)
        first = int(lengths[0])
        on_gpu = base.time + self._attention_from(decodes, lengths)
        if not self._graph and self._host is not None:
            attention = on_gpu - base.time
            tokens = decodes * self.checked
            each = [self._late(tokens, int(value), decoding=True) for value in attention]
            issue = base.issue + self._attention_at(decodes, first, True).issue
            on_gpu = self._host.before() + np.maximum(on_gpu + each, issue)
        return np.cumsum(on_gpu)

    def together(self, batches: Sequence[Batch]) -> int:
        """Return the duration of an iteration of replicas that share experts, each with its own batch.

        Attention and what else each computes for itself lasts as long as the longest; experts compute the
        tokens of all, and messages carry them. Captured graphs are padded to the largest batch.
        """
        at_work = [batch for batch in batches if batch.tokens]
        if not any(batch.chunks for batch in at_work) and self._graph:
            most = max(batch.decodes for batch in at_work)
            seen = (self._decode_attention(batch.decodes, batch.keys, True).time for batch in at_work)
            return self._step(most).time + max(seen)
        return max(self._beside(batch, len(batches), at_work) for batch in at_work)

    def _beside(self, batch: Batch, replicas: int, at_work: Sequence[Batch]) -> int:
        """Return the duration of an iteration if all replicas wait for this batch."""
        decoding = not any(each.chunks for each in at_work)
        mean = -(-sum(each.tokens for each in at_work) // replicas)
        seen = self._seen(batch, decoding)
        own = self._body(batch.tokens, decoding).less(self._experts(batch.tokens, decoding))
        rest = Kernels(self._rest(mean, -(-batch.requests * mean // batch.tokens), decoding), 0)
        passed = own.then(self._experts(mean, decoding)).then(self._head(batch.sampled, decoding)).then(rest)
        passed = passed.then(self._drafting(batch))
        return self._issued(passed.then(seen), self._late(batch.tokens, seen.time, decoding))

    def ends_together(self, decoding: Sequence[tuple[int, Int64s]]) -> Int64s:
        """Return the ends of consecutive decode steps, given requests and positions of each replica."""
        most = max(decodes for decodes, _ in decoding)
        unlike = {(decodes, keys.tobytes()): keys for decodes, keys in decoding}
        alone = [
            np.diff(self.ends(decodes, keys), prepend=0) - self._step(decodes).time
            for (decodes, _), keys in unlike.items()
        ]
        return np.cumsum(np.max(alone, axis=0) + self._step(most).time)

    def _attention_from(self, decodes: int, lengths: Int64s) -> Int64s:
        """Return decode attention for ascending mean KV lengths."""
        first, last = int(lengths[0]), int(lengths[-1])
        below, above = stretch(first, fineness(first))
        table, start = self._line(decodes, below, above), below
        while last > above:
            below, above = stretch(above + 1, fineness(above + 1))
            table = np.concatenate((table, self._line(decodes, below, above)))
        return table[lengths - start]

    def _line(self, decodes: int, below: int, above: int) -> Int64s:
        """Return decode attention for every mean KV length from one corner to the next."""
        key = decodes, below
        if key not in self._lines:
            low, high = (self._attention_at(decodes, corner, True).time for corner in (below, above))
            self._lines[key] = low + (high - low) * np.arange(above - below + 1) // (above - below)
        return self._lines[key]

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of an iteration that each pipeline stage takes, by its kernels in a decode step."""
        lists = pass_lists(self._job, _pass_of(_USUAL, decoding=True))
        stages = (stage_sections(self._job, stage).items() for stage in range(self._job.stages))
        parts = ([(count, lists[section]) for section, count in sections] for sections in stages)
        times = [self._kernels(each, self._operators[True], cached=False).time for each in parts]
        return tuple(time / sum(times) for time in times)

    def parts(self, batch: Batch) -> dict[str, int]:
        """Return the kernels, communication and host time of an iteration."""
        decoding = not batch.chunks
        messages = self._rest(batch.tokens, batch.requests, decoding)
        kernels = self._base(batch).time - messages + self._seen(batch, decoding).time
        host = self.time(batch) - kernels - messages
        return {"kernels": kernels, "communication": messages, "host": host}

    def _step(self, decodes: int) -> Kernels:
        """Return the cost of a decode step without attention."""
        if decodes not in self._steps:
            self._steps[decodes] = self._base(Batch(decodes, decodes, checked=self.checked))
        return self._steps[decodes]

    def _base(self, batch: Batch) -> Kernels:
        """Return the cost of an iteration without attention."""
        decoding, tokens = not batch.chunks, batch.tokens
        rest = Kernels(self._rest(tokens, batch.requests, decoding), 0)
        passed = self._body(tokens, decoding).then(self._head(batch.sampled, decoding))
        return passed.then(rest).then(self._drafting(batch))

    def _drafting(self, batch: Batch) -> Kernels:
        """Return the cost of drafting the next tokens, without attention."""
        if self._drafts is None:
            return Kernels(0, 0)
        return self._drafts.base(batch.tokens, batch.requests, decoding=not batch.chunks)

    def _rest(self, tokens: int, requests: int, decoding: bool) -> int:
        """Return the part of a pass's duration that is not kernels."""
        if decoding:
            return self._rests[True](-(-self._passing(tokens, decoding) // self.checked))
        return self._rests[False](tokens) + (self._checking(requests) if self._drafts is not None else 0)

    def _passing(self, tokens: int, decoding: bool) -> int:
        """Return the number of tokens that pass, with the padding of a captured graph."""
        host = self._host
        return tokens + host.padding(tokens) if decoding and host is not None else tokens

    def _issued(self, passed: Kernels, late: int) -> int:
        """Return the duration of a pass whose kernels the host issues one by one."""
        host = self._host
        return passed.time if host is None else host.before() + max(passed.time + late, passed.issue)

    def _late(self, tokens: int, attention: int, decoding: bool) -> int:
        """Return how long the GPU waits for its host in the first layer, after which the host is ahead.

        Attention and messages are taken as alike in all layers.
        """
        opening = self._body_at(token_corners(tokens)[1], decoding).opening
        message = self._rest(tokens, 1, decoding) // opening.messages
        return opening.late(attention // self._layers, message)

    def _body(self, tokens: int, decoding: bool) -> Kernels:
        """Return the kernels of embedding and layers that do not depend on KV lengths.

        Linear between the corners of `_token_corners`.
        """
        below, above = token_corners(tokens)
        low = self._body_at(below, decoding).kernels
        if below == tokens:
            return low
        return low.between(self._body_at(above, decoding).kernels, tokens - below, above - below)

    def _experts(self, tokens: int, decoding: bool) -> Kernels:
        """Return the kernels that process the tokens of all replicas that share experts."""
        below, above = token_corners(tokens)
        low, high = (self._body_at(corner, decoding).experts for corner in (below, above))
        return low.between(high, tokens - below, max(1, above - below))

    def _body_at(self, tokens: int, decoding: bool) -> Body:
        key = tokens, decoding
        if key not in self._bodies:
            lists = pass_lists(self._job, _pass_of(tokens, decoding))
            parts = [(count, lists[section]) for section, count in self._sections if section != HEAD]
            operators = self._operators[decoding]
            host = self._host
            launch = host.launch if host is not None and not decoding and host.in_pieces(tokens) else None
            whole = self._kernels(parts, operators, cached=False, launch=launch)
            self._bodies[key] = Body(
                whole.then(Kernels(0, launch or 0)),
                self._kernels([(count, of_all(each)) for count, each in parts], operators, cached=False),
                self._opening(lists, decoding, launch),
            )
        return self._bodies[key]

    def _opening(self, lists: _Lists, decoding: bool, launch: int | None) -> Opening:
        """Return the operations of embedding and first layer in order."""
        first = next(section for section, _ in self._sections if section.name == "block")
        operations = [operation for section in (EMBEDDING, first) for operation in lists[section]]
        count = sum(n * [*map(kind_of, lists[each])].count("message") for each, n in self._sections)
        first_kernel, *others = self._each(operations, self._operators[decoding], launch)
        kernels = [first_kernel._replace(issue=first_kernel.issue if launch is None else launch), *others]
        return Opening.of(kernels, [kind_of(operation) for operation in operations], max(1, count))

    def _each(self, operations: Operations, operators: OperatorModel, launch: int | None) -> list[Kernels]:
        kernels = [self._kernel(operation, operators) for operation in operations]
        return kernels if launch is None else in_graphs(kernels, operations, launch)

    def _head(self, sampled: int, decoding: bool) -> Kernels:
        """Return the kernels of the output head for this many sampled tokens.

        They are the last, so that who is late with issuing still waits for them to end.
        """
        key = sampled, decoding
        if key not in self._heads:
            group = RequestGroup(max(1, sampled), 1, int(decoding), samples=int(sampled > 0))
            shard = serving_shard(self._job, ServingPass(1, (group,), 1))
            head = self._kernels([(1, sampling(shard))], self._operators[decoding], cached=False)
            ends = 0 if self._host is None else head.time + int(self._host.kernel)
            self._heads[key] = Kernels(head.time, max(head.issue, ends))
        return self._heads[key]

    def _kernels(
        self, parts: Iterable[Part], operators: OperatorModel, *, cached: bool, launch: int | None = None
    ) -> Kernels:
        """Return the kernels of operator lists, each with its count, that see the KV cache or do not.

        `launch`: of the graphs that those are which do not; None: each is issued by itself.
        """
        total = Kernels(0, 0)
        for count, operations in parts:
            for operation, kernel in zip(operations, self._each(operations, operators, launch), strict=True):
                if operation.sees_cache == cached:
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
    def _sections(self) -> list[tuple[ModelSection, int]]:
        return [
            item for stage in range(self._job.stages) for item in stage_sections(self._job, stage).items()
        ]

    def _decode_attention(self, decodes: int, keys: int, decoding: bool) -> Kernels:
        """Return attention of this many new tokens, linear between corners of their mean KV length."""
        length = -(-keys // decodes)
        below, above = around(length)
        low = self._attention_at(decodes, below, decoding)
        if below == length:
            return low
        high = self._attention_at(decodes, above, decoding)
        return low.between(high, length - below, above - below)

    def _attention_at(self, decodes: int, length: int, decoding: bool) -> Kernels:
        return self._remembered(decoding_group(decodes, length, self.checked), decoding)

    def _seen(self, batch: Batch, decoding: bool) -> Kernels:
        """Return the attention kernels of a batch."""
        seen = Kernels(0, 0)
        if batch.decodes:
            seen = self._decode_attention(batch.decodes, batch.keys, decoding)
        return seen.then(self._prompt_attention(batch)) if batch.chunks else seen

    def _prompt_attention(self, batch: Batch) -> Kernels:
        """Return attention of chunks; of one whole prompt, linear between corners of its length.

        Short prompts are no corner's: other kernels attend from a few tokens than from a block of them.
        """
        chunks, decoding = batch.chunks, False
        if len(chunks) > 1 or chunks[0].cached:
            return self._attend(chunks, decoding, self._passing_operators, beside=batch.decodes > 0)
        (chunk,) = chunks
        length = chunk.query_length
        below, above = around(length) if length > _BLOCK else (length, length)
        groups = (RequestGroup(chunk.count, corner) for corner in (below, above))
        low, high = (self._remembered(group, decoding, batch.decodes > 0) for group in groups)
        return low.between(high, length - below, max(1, above - below))

    def _remembered(self, group: RequestGroup, decoding: bool, beside: bool = False) -> Kernels:
        key = group, decoding, beside
        if key not in self._attention:
            self._attention[key] = self._attend((group,), decoding, self._operators, beside=beside)
        return self._attention[key]

    def _attend(
        self,
        groups: tuple[RequestGroup, ...],
        decoding: bool,
        operators: Mapping[bool, OperatorModel],
        *,
        beside: bool,
    ) -> Kernels:
        """Return the kernels of a pass that see the KV cache; `beside`: prompts beside decoding requests."""
        shard = serving_shard(self._job, ServingPass(0, groups, 0))
        kinds = self._job.kinds
        parts = (
            (count, kinds[section.kind].layer.on_cache(shard))
            for section, count in self._sections
            if section.name == "block"
        )
        passed = self._kernels(parts, operators[decoding], cached=True)
        if self._drafts is None:
            return passed
        return passed.then(self._drafts.attention(groups, decoding=decoding, beside=beside))

    def _rest_at(self, decoding: bool, number: int) -> tuple[int, int]:
        """Return a simulated pass's duration without its kernels, and its whole duration, in picoseconds.

        It is of this many decoding requests, or prompt tokens after which one token is drafted.
        """
        if decoding:
            checks = (decoding_group(number, 1 + self.checked, self.checked),)
            job = self._whole if self._graph else pools.without_host(self._whole)
            return self._beyond(job, checks, decoding=True)
        one = pools.without_host(pools.with_at_most_drafted(self._whole, 1))
        return self._beyond(one, pools.prompts_of(self._job, number), decoding=False)

    def _checking_at(self, requests: int) -> tuple[int, int]:
        """Return what this many checks beside a short prompt add to the rest of a prompt with as many tokens.

        That is logits of all drafts, and what drafting after the first token sends.
        """
        mixed = (decoding_group(requests, 1 + self.checked, self.checked), RequestGroup(1, _SHORT))
        rest, took = self._beyond(pools.without_host(self._whole), mixed, decoding=False)
        return rest - self._rests[False](requests * self.checked + _SHORT), took

    def _beyond(self, job: Job, groups: tuple[RequestGroup, ...], *, decoding: bool) -> tuple[int, int]:
        """Return a simulated pass's duration without its kernels, and its whole duration, in picoseconds."""
        took = step_time(
            one_pass(pools.in_a_row(job, self._copies), groups),
            self._machine,
            mode="hierarchical" if job.inference.two_batches is None else "flattened",
            engine=EngineChoice(programs=_CORNERS),
            cache=self._cache,
        )
        parts, operators = (
            pools.all_lists(job, ServingPass(int(decoding), groups, 1)),
            self._operators[decoding],
        )
        kernels = sum(self._kernels(parts, operators, cached=cached).time for cached in (False, True))
        return took - kernels, took

    def _priced(self, operations: Iterable[Operation], decoding: bool, cached: bool) -> Kernels:
        """Return the kernels of operations that see the KV cache or not (`drafts.Price`)."""
        return self._kernels([(1, tuple(operations))], self._operators[decoding], cached=cached)


def _pass_of(tokens: int, decoding: bool) -> ServingPass:
    """Return a pass of this many tokens: each from another request, or all of one prompt."""
    group = RequestGroup(tokens, 1, 1) if decoding else RequestGroup(1, tokens)
    return ServingPass(1, (group,), 1)
