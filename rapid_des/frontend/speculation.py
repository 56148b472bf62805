"""Speculative decoding: a draft proposes tokens, and one pass of the model checks them together.

A step drafts k tokens and passes k + 1 of each request through the model, which samples after each: the
newest token and the drafted ones. The i-th drafted token is kept with probability a_i where all before it
were, so that a step makes 1 + a_1 + a_1·a_2 + … tokens on average (Leviathan et al. 2023, arXiv 2211.17192,
where all a_i are equal). These are the job's to state.

Who drafts: a smaller model of the same vocabulary (`draft`), a module that the model was trained with (`mtp`,
DeepSeek-V3, arXiv 2412.19437, section 2.2) or one trained for it (`eagle`, Li et al. 2024, arXiv 2401.15077).
A module reads the model's last stream beside the next token's embedding, through a projection and a layer,
and uses the model's own table and head. Drafts run k times a step, one token after the other; a module's
first run of a step reads all tokens that the model checked. They are split over tp as the model is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from msgspec import structs

from rapid_des.frontend.job import Job
from rapid_des.frontend.model import Model, embedding_forward, model_of, sampling
from rapid_des.frontend.model_spec import ModelSpec
from rapid_des.frontend.operations import FEW_TOKENS, Operation, RequestGroup, Shard
from rapid_des.frontend.passes import following, joined
from rapid_des.frontend.prediction import projected
from rapid_des.frontend.spec import SpeculativeSpec
from rapid_des.values import replace

ShardOf: TypeAlias = Callable[[Job, tuple[RequestGroup, ...]], Shard]
"""Returns a rank's dimensions in a pass of a job's requests."""


def drafting(job: Job) -> Job | None:
    """Return the job of the draft model, split and stored as the main one; None for a module."""
    spec = job.spec.speculative
    if spec is None or not isinstance(spec.model, ModelSpec):
        return None
    alone = structs.replace(job.inference, speculative=None)
    whole = structs.replace(job.spec, model=spec.model, inference=alone)
    return replace(job, spec=whole, model=_model(spec.model))


@lru_cache(maxsize=32)
def _model(spec: ModelSpec) -> Model:
    return model_of(spec, Path("draft.yaml"))


def draft_list(job: Job, groups: tuple[RequestGroup, ...], shard_of: ShardOf) -> tuple[Operation, ...]:
    """Return the operators that draft the next tokens after a pass of these requests, run after run."""
    spec = job.spec.speculative
    assert spec is not None
    runs: tuple[Operation, ...] = ()
    for number, some in enumerate(draft_runs(groups, spec)):
        once = draft_run(job, some, shard_of)
        groups_now = once if number == 0 else tuple(replace(each, weights=0) for each in once)
        runs = following(runs, groups_now)
    return tuple(replace(each, name=f"draft.{each.name}") for each in runs)


def draft_run(job: Job, groups: tuple[RequestGroup, ...], shard_of: ShardOf) -> tuple[Operation, ...]:
    """Return the operators of one run over these tokens."""
    draft = drafting(job)
    return _of_model(draft, shard_of(draft, groups)) if draft else _of_module(job, shard_of(job, groups))


def draft_runs(groups: tuple[RequestGroup, ...], spec: SpeculativeSpec) -> Iterator[tuple[RequestGroup, ...]]:
    """Yield the requests of each run of a step: all new tokens first, then the newest alone."""
    decodes = all(group.decodes for group in groups)
    newest = tuple(replace(batch, query_length=1, cached=batch.key_length - 1, samples=1) for batch in groups)
    first = (
        newest if spec.method == "draft" and decodes else tuple(replace(batch, samples=1) for batch in groups)
    )
    yield first
    for further in range(1, spec.tokens):
        yield tuple(replace(batch, cached=batch.cached + further) for batch in newest)


def _of_model(job: Job, shard: Shard) -> tuple[Operation, ...]:
    layers = (job.kinds[kind].forward(shard) for kind in job.kind_of_layer)
    return joined(embedding_forward(shard), *layers, sampling(shard))


def _of_module(job: Job, shard: Shard) -> tuple[Operation, ...]:
    layer = job.model.pattern[-1]
    return joined(embedding_forward(shard), projected(shard), layer.forward(shard), sampling(shard))


def draft_cache_bytes(job: Job, shard: Shard, positions: int) -> int:
    """Return what a rank keeps of one request for its draft."""
    draft = drafting(job)
    layers = job.model.pattern[-1:] if draft is None else draft.model.pattern
    return sum(layer.cache_bytes(shard, positions) for layer in layers)


def speculation_refusals(job: Job) -> Iterator[tuple[str, str]]:
    """Yield why a job cannot draft as it says."""
    spec, key, draft = job.spec.speculative, "inference.speculative", drafting(job)
    if spec is None:
        return
    if job.stages > 1:
        yield key, f"engines draft with pp 1 alone, where one rank checks and drafts; pp is {job.stages}"
    if spec.tokens >= FEW_TOKENS:
        yield (
            f"{key}.tokens",
            f"{spec.tokens}; at most {FEW_TOKENS - 1} are checked in a decode kernel's tile",
        )
    if spec.method == "mtp" and not job.model.spec.predictions:
        yield f"{key}.method", f"{job.model.name} has no module that predicts further tokens (predictions: 0)"
    models = (job.model,) if draft is None else (job.model, draft.model)
    if any(layer.mixer.name in ("mamba", "delta", "lightning") for model in models for layer in model.kinds):
        yield (
            key,
            "a state (mamba2, gated_delta, lightning_attention) that has taken in a rejected token "
            "cannot go back",
        )
    if draft is not None:
        yield from _draft_refusals(job, draft)


def _draft_refusals(job: Job, draft: Job) -> Iterator[tuple[str, str]]:
    """Yield why a smaller model cannot draft for a job's."""
    key, ours, theirs = "inference.speculative.model", draft.model.spec.vocabulary, job.model.spec.vocabulary
    if ours != theirs:
        yield key, f"the draft has a vocabulary of {ours}, {job.model.name} of {theirs}"
    for half in (half for layer in draft.model.kinds for half in layer.halves):
        refusal = half.refusal(job.spec.parallelism)
        if refusal:
            yield key, f"the draft: {refusal}"
