"""A batch served: one prefill, then one token a step with a growing KV cache; and any one pass by itself.

A *pass* takes groups of requests through the model together, whatever they bring: prompts, chunks of them,
newest tokens. Of what it costs

- `base(tokens, sampled)` depends on how many tokens pass and how many are sampled in all, not on whose they
  are: projections, norms, feed-forward, experts, communication, and the head on sampled rows;
- `attention(groups)` on how many tokens each request brings and how many are cached: operations that are
  marked `sees_cache`, one kernel for all prompts and one for what decodes (`Shard.of_kernels`). What decodes
  by a token each costs as many requests of the mean length. Mamba-2 has scans besides that go by how many
  tokens decode and how many do not.

So a pass of any mix costs what `pass_lists` holds: kernels of base and attention priced one by one, messages
of base. `one_pass` makes a job of it that `simulate` runs as it runs a static batch:

>>> from rapid_des.frontend import load_job
>>> job = load_job("llama2_7b_inference")
>>> decoding = RequestGroup(24, query_length=1, cached=700)
>>> mixed = (decoding, RequestGroup(1, query_length=512, cached=512, samples=False))
>>> one_pass(job, mixed).inference.steps
1
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct, field, structs

from rapid_des.arrays import Int64s
from rapid_des.device.operators import OperatorModel
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.job import Job
from rapid_des.frontend.loading import with_spec
from rapid_des.frontend.model import sampling
from rapid_des.frontend.operations import Operation, RequestGroup, Shard
from rapid_des.frontend.parts import (
    DRAFT,
    EMBEDDING,
    HEAD,
    Lists,
    ModelSection,
    PieceKey,
    Pieces,
    embedding_lists,
    part_pieces,
    price,
    sections,
)
from rapid_des.frontend.routing import exchanges
from rapid_des.frontend.spec import InferenceSpec, RequestsSpec
from rapid_des.frontend.speculation import draft_list
from rapid_des.frontend.template import INPUT, PieceColumn, PricedPiece, chain, retimed
from rapid_des.frontend.trace import FinishedProgram, ProgramWriter
from rapid_des.frontend.two_batches import cut, halves, splits, taking_turns
from rapid_des.units import ceil_divide
from rapid_des.values import replace

COSTS = (PieceColumn.DURATION, PieceColumn.FLOPS, PieceColumn.BYTES, PieceColumn.BOUND)
"""The columns that a longer KV cache changes, in rows that depend on it."""


class ServingPass(Struct, frozen=True):
    """One pass of requests through the model together."""

    step: int
    """0 is the prefill, or a mix of prompts with what decodes; the last of several passes of prompts, those
    before it being -1, -2 and so on; from 1 on all decode."""
    groups: tuple[RequestGroup, ...]
    """The groups of requests in one micro-batch."""
    alike: int
    """The first simulated step in which as many requests bring as many tokens: only what sees the KV cache
    differs from that."""

    @property
    def key_length(self) -> int:
        """Number of positions that the last token of the longest request attends to."""
        return max(group.key_length for group in self.groups)

    @property
    def tokens(self) -> int:
        """Number of tokens in the pass."""
        return sum(group.count * group.query_length for group in self.groups)

    @property
    def sampled(self) -> int:
        """Number of tokens that the pass samples."""
        return sum(group.count * group.samples for group in self.groups)

    @property
    def name(self) -> str:
        """The phase: `prefill` or `decode`."""
        return "decode" if self.step > 0 else "prefill"


def one_pass(job: Job, groups: Sequence[RequestGroup]) -> Job:
    """Return a job that runs one pass of these requests: its step time is what an iteration takes.

    A pass in which all requests decode runs as a decode step (clock, CUDA graph), any other as a prefill. If
    the job drafts tokens, the next ones are drafted after it; groups with several samples check drafts.
    """
    kinds = tuple(
        RequestsSpec(
            group.key_length, min(1, group.samples), group.count, group.cached, max(0, group.samples - 1)
        )
        for group in groups
    )
    lone = dict.fromkeys(("batch", "prompt_length", "output_length", "micro_batch", "prefill_tokens"))
    inference = structs.replace(job.inference, **lone, requests=kinds, decode_steps="all")
    return with_spec(job, structs.replace(job.spec, inference=inference))


def passes(job: Job) -> tuple[ServingPass, ...]:
    """Return the prefill, one pass or several, which makes the first tokens, and the simulated decode steps.

    Requests that decode from the first pass on have no prefill: their passes are steps from 1 on.
    """
    return _passes(job, _steps(job.inference))


def first_passes(job: Job) -> tuple[ServingPass, ...]:
    """Return the passes without the decode steps after them, of which there may be millions."""
    return _passes(job, ())


def _passes(job: Job, steps: Iterable[int]) -> tuple[ServingPass, ...]:
    distinct, alike = list[ServingPass](), dict[tuple[bool, tuple[RequestGroup, ...]], int]()
    first, prompts = groups_of(job, 0), [groups_of(job, 0)]
    decodes = int(all(group.cached and group.decodes for group in first))
    if job.inference.prefill_tokens is not None and not decodes:
        prompts = list(cut(first, job.inference.prefill_tokens))
    every = [*enumerate(prompts, 1 - len(prompts)), *((n, groups_of(job, n)) for n in steps)]
    for step, groups in every:
        composition = tuple(replace(group, cached=group.cached and 1) for group in groups)
        number = alike.setdefault((step + decodes > 0, composition), step + decodes)
        distinct.append(ServingPass(step + decodes, groups, number))
    return tuple(distinct)


def groups_of(job: Job, step: int) -> tuple[RequestGroup, ...]:
    """Return the requests of one micro-batch that take part in a step: 0 is the first pass."""
    spec, parts = job.inference, job.micro_batches
    if not step:
        return tuple(
            RequestGroup(
                kind.count // parts,
                kind.prompt_length - kind.cached,
                kind.cached,
                min(1, kind.output_length) + kind.drafted,
            )
            for kind in spec.kinds
        )
    checked = 1 + (0 if spec.speculative is None else spec.speculative.tokens)
    made = int((step - 1) * spec.tokens_a_step)
    going_on = (kind for kind in spec.kinds if step < spec.steps_of(kind))
    return tuple(
        RequestGroup(kind.count // parts, checked, kind.prompt_length + made, checked) for kind in going_on
    )


def _steps(spec: InferenceSpec) -> Sequence[int]:
    """Return the simulated decode steps; between two ends of requests the first and the last."""
    if spec.decode_steps == "all":
        return range(1, spec.steps)
    ends = sorted({1, *map(spec.steps_of, spec.kinds)})
    chosen: set[int] = set()
    for start, stop in pairwise(ends):
        share = spec.decode_steps
        if len(ends) > 2:
            share = min(stop - start, max(2, round(share * (stop - start) / (spec.steps - 1))))
        chosen.update(int(step) for step in np.linspace(start, stop - 1, share).round())
    return sorted(chosen)


def pass_lists(job: Job, current: ServingPass, place: int = 0) -> dict[ModelSection, tuple[Operation, ...]]:
    """Return the operator list of each section in one pass of one micro-batch; `place` as in training."""
    shard = replace(serving_shard(job, current), expert_place=place)
    layers = {ModelSection("block", kind): layer.forward(shard) for kind, layer in enumerate(job.kinds)}
    lists = {EMBEDDING: embedding_lists(job, shard)[0], **layers, HEAD: sampling(shard)}
    drafts = job.inference.speculative is not None
    return lists | ({DRAFT: draft_list(job, current.groups, shard_of_groups)} if drafts else {})


def batches(job: Job, current: ServingPass) -> tuple[ServingPass, ...]:
    """Return a pass, or the two half-batches in which its layers run."""
    if not splits(job.inference, current.tokens, decoding=current.step > 0):
        return (current,)
    parts = tuple(replace(current, groups=groups) for groups in halves(current.groups) if groups)
    return parts if len(parts) == 2 else (current,)


def serving_lists(job: Job, place: int = 0) -> Lists:
    """Return the operator lists of all passes, as `pass_key` names them, of ranks at one place along ep.

    Of decode steps of as many requests as an earlier one, only what sees the KV cache.
    """
    lists: dict[PieceKey, tuple[Operation, ...]] = {}
    for current in passes(job):
        if current.alike == current.step:
            for section, operations in pass_lists(job, current, place).items():
                lists[pass_key(section, current)] = operations
        elif job.inference.speculative is not None:
            drafts = draft_list(job, current.groups, shard_of_groups)
            lists[pass_key(DRAFT, current)] = tuple(each for each in drafts if each.sees_cache)
        lists |= _layer_lists(job, current, place)
    return lists


def _layer_lists(job: Job, current: ServingPass, place: int) -> Lists:
    """Return the lists of layers that are those of half-batches, or of a step that is like an earlier one."""
    parts, is_new = batches(job, current), current.alike == current.step
    lists: dict[PieceKey, tuple[Operation, ...]] = {}
    for half, part in enumerate(parts if len(parts) > 1 or not is_new else ()):
        shard = replace(serving_shard(job, part), expert_place=place)
        for kind, layer in enumerate(job.kinds):
            key = pass_key(ModelSection("block", kind), current, half)
            lists[key] = layer.forward(shard) if is_new else layer.layer.on_cache(shard)
    return lists


def serving_shard(job: Job, current: ServingPass) -> Shard:
    """Return a rank's dimensions in one pass of one micro-batch."""
    return shard_of_groups(job, current.groups)


def shard_of_groups(job: Job, groups: tuple[RequestGroup, ...]) -> Shard:
    """Return a rank's dimensions in a pass of these requests."""
    queries, keys = (max(getattr(group, f"{what}_length") for group in groups) for what in ("query", "key"))
    count, cp = sum(group.count for group in groups), job.spec.parallelism.cp
    if all_decode := all(group.cached and group.decodes for group in groups):
        shard = replace(job.shard(count, queries, keys), cp=1, cp_heads=1, cache_parts=cp)
    else:
        shard = job.shard(count, ceil_divide(queries, cp), keys)
    unlike = groups if len(groups) > 1 or groups[0].samples != 1 else ()
    tokens = sum(group.count * group.query_length for group in unlike) if unlike else shard.tokens
    padding = job.host.padding(tokens) if job.host is not None and all_decode else 0
    few = job.inference.shared_stream
    shard = replace(shard, groups=unlike, padding=padding, absorbs=job.inference.absorbs)
    aside = shard.decodes if isinstance(few, str) else shard.tokens <= few
    return replace(shard, shared_aside=aside and few != "never")


def serving_notes(job: Job) -> tuple[str, ...]:
    """Return what a user must know of the simulated passes."""
    every, steps, notes = passes(job), job.inference.steps - 1, list[str]()
    prompts = max(0, -every[0].step)
    simulated = len(every) - 1 - prompts
    if prompts:
        most = job.inference.prefill_tokens
        notes.append(f"prompts: {prompts + 1} passes of at most {most:,} tokens (inference.prefill_tokens)")
    if simulated != steps:
        text = (
            f"decode: {simulated} of {steps} steps are simulated, spread evenly; the others are interpolated"
        )
        notes.append(text)
    drafts = job.inference.speculative
    if drafts is not None:
        notes.append(
            f"speculative decoding: of {drafts.tokens} tokens drafted a step and one more "
            f"{drafts.tokens_a_step:.3g} are kept on average, by the acceptance that is stated"
        )
    return tuple(notes)


def pass_key(section: ModelSection, current: ServingPass, half: int = 0) -> PieceKey:
    """Return which piece a pass runs for a section: steps of as many requests differ in their blocks only."""
    step = current.step if section.name in ("block", "draft") else current.alike
    return PieceKey(section, "forward", step=step, half=half)


def serving_pieces(
    job: Job, lists: Lists, operators: OperatorModel, decode_operators: OperatorModel
) -> Pieces:
    """Return `serving_lists` as priced pieces.

    Decode steps of as many requests as an earlier one are copies of it, but for the rows that see the cache.
    """
    alike = {current.step: current.alike for current in passes(job)}
    joined = {current.step for current in passes(job) if in_pieces(job, current)}
    pieces: dict[PieceKey, PricedPiece] = {}
    for key, operations in lists.items():
        host = None if captures(job, key.step) else job.host
        piece = price(operations, decode_operators if key.step > 0 else operators, host, exchanges(job))
        if host is not None and key.step in joined and key.section != HEAD:
            piece = _in_graphs(piece, host.launch, opens=key.section == EMBEDDING)
        if key.step != alike[key.step]:
            piece = _recosted(pieces[replace(key, step=alike[key.step])], piece.rows[:, COSTS])
        pieces[key] = piece
    return pieces


def captures(job: Job, step: int) -> bool:
    """Return whether a pass is launched as one CUDA graph; step 0 is the prefill."""
    captured = "nothing" if job.host is None else job.host.captured
    return captured == "passes" or (captured == "decode" and step > 0)


def in_pieces(job: Job, current: ServingPass) -> bool:
    """Return whether a pass with prompts is captured but for its attention (`host.captured_prompts`)."""
    return job.host is not None and current.step < 1 and job.host.in_pieces(current.tokens)


def _in_graphs(piece: PricedPiece, launch: int, *, opens: bool) -> PricedPiece:
    """Return a piece whose rows are graphs, but for those that see the cache; `opens`: the first one is."""
    alone = np.isin(np.arange(len(piece)), piece.cache_rows)
    begins = ~alone & np.concatenate(([opens], alone[:-1]))
    issue = np.where(begins, launch, piece.rows[:, PieceColumn.ISSUE] * alone)
    values = {PieceColumn.ISSUE: issue, PieceColumn.LEAD: piece.rows[:, PieceColumn.LEAD] * alone}
    return retimed(piece, np.arange(len(piece)), values)


def _issuing(server: _ServingStage, step: int, micro_batch: int) -> None:
    """Have the host issue a pass when it has the tokens that the pass before made."""
    host, token = server.job.host, server.tokens.get(micro_batch)
    if host is not None:
        first = step == server.first and micro_batch == server.stage == 0
        before = host.before(captured=captures(server.job, step), first=first)
        server.program.issuing(first=before, after=() if token is None else (token,))


def _recosted(piece: PricedPiece, costs: Int64s) -> PricedPiece:
    """Return a piece with new values of `COSTS` in the rows that depend on the KV cache."""
    values = {column: costs[:, index] for index, column in enumerate(COSTS)}
    return retimed(piece, list(piece.cache_rows), values)


def _stage_passes(job: Job, stage: int, pieces: Pieces) -> Iterator[PricedPiece]:
    """Yield a stage's piece of each pass: new ones, and those of as many requests at other lengths."""
    whole: dict[int, PricedPiece] = {}
    for current in passes(job):
        before, layers, behind = _in_parts(job, stage, pieces, current)
        if current.alike == current.step:
            inside = layers[0] if len(layers) == 1 else [taking_turns(*map(chain, layers))]
            whole[current.step] = chain([*before, *inside, *behind])
            yield whole[current.step]
        else:
            every = (*before, *(piece for half in layers for piece in half), *behind)
            again = np.concatenate([piece.rows[np.ix_(piece.cache_rows, COSTS)] for piece in every])
            yield _recosted(whole[current.alike], again)


_Pieces = list[PricedPiece]


def _in_parts(
    job: Job, stage: int, pieces: Pieces, current: ServingPass
) -> tuple[_Pieces, list[_Pieces], _Pieces]:
    """Return a stage's pieces of a pass: before its layers, the layers of each half-batch, and behind."""
    order = [section for section, _ in sections(job, stage)]
    is_layer = [section.name == "block" for section in order]
    first = is_layer.index(True) if any(is_layer) else len(order)
    last = first + sum(is_layer)
    named = []
    for half in range(len(batches(job, current))):
        here = {
            section: pass_key(section, current, half if section.name == "block" else 0) for section in order
        }
        parts = {PieceKey(section, "forward"): pieces[key] for section, key in here.items()}
        named.append(list(part_pieces(job, stage, "forward", parts)))
    return named[0][:first], [each[first:last] for each in named], named[0][last:]


class _ServingStage(Struct):
    """The state of one stage while its serving program is written."""

    job: Job
    stage: int
    program: ProgramWriter
    first: int
    """The step number of the first pass of prompts; 0 if there is only one."""
    tokens: dict[int, int] = field(default_factory=dict)
    """The position of the node that makes, or receives, the newest token of each micro-batch."""


def serving_program(job: Job, stage: int, pieces: Pieces) -> FinishedProgram:
    """Return the program that every rank of one stage runs, given the pieces of all passes."""
    simulated = passes(job)
    server = _ServingStage(job, stage, ProgramWriter(job.host), min(0, simulated[0].step))
    for current, piece in zip(simulated, _stage_passes(job, stage, pieces), strict=True):
        for micro_batch in range(job.micro_batches):
            _place_pass(server, current, piece, micro_batch, last=current is simulated[-1])
    return server.program.finish()


def _place_pass(
    server: _ServingStage, current: ServingPass, piece: PricedPiece, micro_batch: int, *, last: bool
) -> None:
    job, stage, program = server.job, server.stage, server.program
    boundary = serving_shard(job, current).boundary_bytes
    number = (current.step - server.first) * job.micro_batches + micro_batch
    ports: dict[int, int] = {}
    _issuing(server, current.step, micro_batch)
    if stage:
        arrived = program.receive(
            "receive.activation", source=stage - 1, size=boundary, tag=number * job.stages + stage - 1
        )
        ports = {INPUT: arrived}
    elif micro_batch in server.tokens:
        ports = {INPUT: server.tokens[micro_batch]}
    start = len(program)
    done = program.writer.place(piece, ports)
    program.segment(
        current.name, start, micro_batch=micro_batch, kv_length=current.key_length, step=current.step
    )
    server.tokens[micro_batch] = done
    if stage < job.stages - 1:
        tag = number * job.stages + stage
        program.send("send.activation", to=stage + 1, size=boundary, tag=tag, after=done)
    if not last and job.stages > 1 and current.step >= 0:  # chunks of prompts wait for no token
        _pass_token(server, number, micro_batch, done)


def _pass_token(server: _ServingStage, number: int, micro_batch: int, done: int) -> None:
    """Send the sampled tokens from the last stage back to the first."""
    job, program = server.job, server.program
    size = byte_count(job.inference.total // job.micro_batches, "fp32")
    tag = number * job.stages + job.stages - 1
    if server.stage == job.stages - 1:
        program.send("send.token", to=0, size=size, tag=tag, after=done)
    elif server.stage == 0:
        server.tokens[micro_batch] = program.receive(
            "receive.token", source=job.stages - 1, size=size, tag=tag
        )


def decode_time(samples: Sequence[tuple[int, int]], first: int, last: int) -> int:
    """Return the total of all steps first..last from sampled (step, picoseconds), linear in between.

    >>> decode_time([(1, 100), (3, 300)], 1, 3)
    600
    """
    if last < first:
        return 0
    steps, times = zip(*sorted(samples), strict=True)
    return int(np.ceil(np.interp(np.arange(first, last + 1), steps, times).sum()))


def decode_weights(job: Job, sampled: Iterable[int]) -> dict[int, float]:
    """Return for how many of a job's decode steps each sampled one counts, as `decode_time` has it."""
    steps = sorted(sampled)
    if not steps:
        return {}
    last = job.inference.steps - 1 + int(not any(current.step <= 0 for current in passes(job)))
    every = np.arange(1, last + 1)
    rows = np.eye(len(steps))
    return {step: float(np.interp(every, steps, row).sum()) for step, row in zip(steps, rows, strict=True)}
