"""Checks of jobs with encoders, alone or in front of a decoder, and with models of images."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.frontend.job import Job


def encoder_refusals(job: Job) -> Iterator[tuple[str, str]]:
    """Yield keys and problems, the most important first."""
    features, tp = job.model.spec.features or 0, job.spec.parallelism.tp
    if features % tp:
        yield "parallelism.tp", f"features {features} are not divisible by tp {tp}"
    training, patches = job.spec.training, job.model.spec.patches
    yield from _source_refusals(job)
    kinds = () if training is not None else job.inference.kinds
    key = "training.sequence_length" if training is not None else "inference.prompt_length"
    lengths = [training.sequence_length] if training is not None else [kind.prompt_length for kind in kinds]
    for length in lengths:
        if patches is not None and length != patches.positions:
            yield key, f"{length}; an image of {job.model.name} has {patches.positions} positions"
    if training is not None or job.model.generates:
        return
    if any(kind.output_length > 1 or kind.cached for kind in kinds):
        why = "attends to both sides" if job.model.spec.features is None else "makes features"
        problem = f"{job.model.name} {why} and generates no tokens; allowed: 1, none cached"
        yield "inference.output_length", problem


def _source_refusals(job: Job) -> Iterator[tuple[str, str]]:
    """Yield what an encoder in front of the decoder lacks, or which cannot be."""
    encoder, phase = job.model.spec.encoder, job.spec.phase
    section = job.spec.training or job.inference
    of_images = encoder is not None and encoder.model.patches is not None
    keys = {"source_length": encoder is not None and not of_images, "images": of_images}
    for key, there in keys.items():
        if there and not getattr(section, key):
            yield f"{phase}.{key}", f"must be there: the encoder of {job.model.name} reads them"
        if not there and getattr(section, key):
            yield f"{phase}.{key}", f"{job.model.name} has no encoder that reads them"
    if job.spec.training is not None and job.spec.training.frozen_encoder and not of_images:
        yield "training.frozen_encoder", f"{job.model.name} has no encoder of images"
    if encoder is not None:
        yield from _split_refusals(job)
        yield from _length_refusals(job)
        yield from _request_refusals(job)


def _split_refusals(job: Job) -> Iterator[tuple[str, str]]:
    """Yield how a job with an encoder cannot be split, or served."""
    split, encoder, source = job.spec.parallelism, job.model.encoder, job.spec.source
    assert encoder is not None
    if split.cp > 1:
        yield "parallelism.cp", f"{split.cp}; allowed with an encoder: 1"
    if split.pp > 1 and encoder.spec.patches is None:
        yield "parallelism.pp", f"{split.pp}; allowed: 1, as every layer attends to what the encoder makes"
    if split.sequence_parallel and encoder.spec.patches is not None:
        yield "parallelism.sequence_parallel", "true; allowed with an encoder of images: false"
    for half in (half for layer in encoder.kinds for half in layer.halves):
        if problem := half.refusal(split):
            yield "parallelism.tp", f"encoder: {problem}"
    if split.sequence_parallel and source is not None and source.length % split.tp:
        yield "parallelism.tp", f"{source.length} positions of the encoder do not divide by tp {split.tp}"
    if job.model.has_experts or encoder.has_experts:
        yield "model.encoder", "encoders with experts, or in front of experts, are not simulated"


def _length_refusals(job: Job) -> Iterator[tuple[str, str]]:
    """Yield how sequences and what an encoder makes do not fit together."""
    source, encoder = job.spec.source, job.model.encoder
    training, taken = job.spec.training, 0 if source is None else source.taken
    lengths = [training.sequence_length] if training else [kind.prompt_length for kind in job.inference.kinds]
    if taken > min(lengths):
        key = "training.images" if training else "inference.images"
        yield key, f"they take {taken} of the {min(lengths)} tokens of a sequence"
    longest = 0 if encoder is None else encoder.spec.max_positions
    if source is not None and source.length > longest:
        yield f"{job.spec.phase}.source_length", f"{source.length:,}; the encoder has {longest:,} positions"


def _request_refusals(job: Job) -> Iterator[tuple[str, str]]:
    """Yield what is trained or asked of a model with an encoder that is not simulated."""
    if job.spec.training is not None:
        if job.training.adapters is not None:
            yield "training.adapters", "beside an encoder they are not simulated"
        return
    if any(kind.cached for kind in job.inference.kinds):
        yield "inference.requests", "cached: a model with an encoder begins with nothing in its cache"
    if len(job.inference.kinds) > 1:
        yield "inference.requests", "requests to a model with an encoder are all of one kind"
    if job.inference.prefill_tokens is not None:
        yield "inference.prefill_tokens", "prompts to a model with an encoder are not cut"
