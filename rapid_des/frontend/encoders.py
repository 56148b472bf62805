"""Checks of jobs with encoders, and with models of images."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.frontend.job import Job


def encoder_refusals(job: Job) -> Iterator[tuple[str, str]]:
    """Yield keys and problems, the most important first."""
    features, tp = job.model.spec.features or 0, job.spec.parallelism.tp
    if features % tp:
        yield "parallelism.tp", f"features {features} are not divisible by tp {tp}"
    training, patches = job.spec.training, job.model.spec.patches
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
