"""When every stage of a pipeline is done at the earliest, by closed forms: given what its passes take alone.

That is the forwards before its first, all its passes, and the backwards after its last. What else a stage
waits for is left out. `held` says how many micro-batches a stage has begun as its first backward begins: then
it is about fullest.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from operator import add

from msgspec import Struct

from rapid_des.frontend import Job
from rapid_des.frontend.operations import residual_in_norm
from rapid_des.frontend.parts import ModelSection
from rapid_des.studies.made_of import Parts

Times = Mapping[tuple[ModelSection, bool], int]
"""Picoseconds of one pass of a section: forward, or (true) all of its backward."""
_WHOLE = ("gpipe", "1f1b", "interleaved_1f1b", "breadth_first")
"""Schedules that never take a backward apart."""


class End(Struct, frozen=True):
    """When a stage is done at the earliest, in picoseconds."""

    drained: int
    """Its passes, and those of other stages that follow its last one."""
    last_backward: int
    """When the last backward begins of the chunk that is done first: its gradients travel then."""


def ends(job: Job, times: Times, made_of: Parts) -> tuple[End, ...]:
    """Return when each stage is done at the earliest by closed forms, given what parts are made of."""
    forward, backward = (_by_part(times, made_of, backward=back) for back in (False, True))
    both = list(map(add, forward, backward))
    to, back = [0, *accumulate(forward)], [0, *accumulate(backward)]
    defers = not passes_whole(job)
    share, count, in_turns = made_of.copies, job.micro_batches, job.training.schedule == USUAL[1]
    stage_passes = []
    for parts in made_of.placement:
        lowest = min(parts)
        passes = count * sum([both[part] for part in parts]) // share
        drained = to[lowest] + passes + (0 if defers else back[lowest])
        if in_turns:
            last_group = job.shape.in_group * sum([backward[part] for part in parts])
            last_backward = to[lowest] + max(passes - last_group, 0)
        else:
            last_backward = min([to[part] + count * both[part] // share - backward[part] for part in parts])
        stage_passes.append(End(drained, last_backward))
    return tuple(stage_passes)


def _by_part(times: Times, made_of: Parts, *, backward: bool) -> list[int]:
    """Return how long each part of the model takes in one direction."""
    takes = [
        sum(count * times.get((section, backward), 0) for section, count in kind.counts)
        for kind in made_of.kinds
    ]
    return [takes[kind] for kind in made_of.kind_of]


def passes_whole(job: Job) -> bool:
    """Return whether a schedule never takes a backward apart; named ones need no stage orders."""
    schedule = job.training.schedule
    if isinstance(schedule, str):
        return schedule in _WHOLE
    return job.stage_orders.phases <= {"forward", "backward"}


def passes_alone(job: Job) -> bool:
    """Return whether nothing of a stage computes while a pass waits for its own messages."""
    return passes_whole(job) and not job.training.overlap_batches and not _ends_in_sum(job)


def _ends_in_sum(job: Job) -> bool:
    """Return whether passes end in a layer's sum over tp, whose residual the norm behind it adds.

    Without other stages the head follows.
    """
    return job.stages > 1 and job.spec.parallelism.tp > 1 and residual_in_norm(job.shard(1, 1, 1))


USUAL = ("1f1b", "interleaved_1f1b")
"""Schedules whose warm-up has a closed form here."""


def is_usual(job: Job) -> bool:
    """Return whether what stages hold has a closed form."""
    return job.training.schedule in USUAL and not job.training.overlap_batches


def fullest_stages(job: Job) -> tuple[int, ...]:
    """Return the stages that may be the fullest: the first, and the second where that has more layers.

    Where a schedule holds what it likes: of both ends, and one in the middle.
    """
    if not is_usual(job) or job.stages == 1:
        return tuple(sorted({0, min(1, job.stages - 1), (job.stages - 1) // 2, job.stages - 1}))
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
    rounds, rest = divmod(min(whole, warm_up), group * chunks)
    return tuple(rounds * group + min(group, max(0, rest - chunk * group)) for chunk in range(chunks))
