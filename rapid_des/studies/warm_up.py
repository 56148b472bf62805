"""How many micro-batches a stage holds as its first backward begins: then it is about fullest."""

from __future__ import annotations

from rapid_des.frontend import Job

USUAL = ("1f1b", "interleaved_1f1b")
"""Schedules whose warm-up has a closed form here."""


def is_usual(job: Job) -> bool:
    """Tell whether what stages hold has a closed form."""
    return job.training.schedule in USUAL and not job.training.overlap_batches


def fullest_stages(job: Job) -> tuple[int, ...]:
    """Return the stages that may be the fullest: the first, and the second where that has more layers."""
    if not is_usual(job) or job.stages == 1:
        return (0,)
    first, second = (sum(job.layers[part] for part in job.placement[stage]) for stage in (0, 1))
    return (0, 1) if second > first else (0,)


def held(job: Job, stage: int) -> tuple[int, ...]:
    """Return by chunk how many micro-batches a stage has begun before its first backward, at the least.

    >>> from rapid_des.frontend import load_job
    >>> split = {"parallelism": "{pp: 4, dp: 2}", "training.schedule": "1f1b", "training.micro_batch": "1"}
    >>> held(load_job("llama2_7b_train", settings=split), 1)
    (3,)
    """
    shape = job.shape
    if job.training.schedule == "1f1b":
        return (min(shape.micro_batches, shape.stages - stage),)
    group, chunks = min(shape.in_group, shape.micro_batches), shape.chunks
    whole = shape.micro_batches // group * group * chunks  # the last group may be smaller: left out
    warm_up = 2 * (shape.stages - stage - 1) + (chunks - 1) * group + 1
    begun = whole if shape.micro_batches == shape.stages else min(whole, warm_up)
    rounds, rest = divmod(begun, group * chunks)
    return tuple(rounds * group + min(group, max(0, rest - chunk * group)) for chunk in range(chunks))
