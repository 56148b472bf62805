"""What a training step does around its passes: gradients reduced, norm and optimizer, parameters gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rapid_des.device.operators import Operator, OperatorModel, Vector
from rapid_des.frontend.job import Job
from rapid_des.frontend.offload import host_optimizer
from rapid_des.frontend.optimizers import update_kernels
from rapid_des.frontend.parts import narrow_weights
from rapid_des.frontend.shard import message_size
from rapid_des.frontend.sharding import Sharding
from rapid_des.frontend.template import GATE, INPUT, Domain, Mark, Piece
from rapid_des.frontend.trace import ProgramWriter
from rapid_des.units import ceil_divide


@dataclass(frozen=True)
class Bucket:
    """Gradients that travel together: how many, and the last mark that completes them."""

    parameters: int
    last_mark: int


def gradient_buckets(marks: Sequence[Mark], size: int) -> tuple[Bucket, ...]:
    """Return buckets in backward order; one closes as soon as it holds `size` parameters.

    >>> gradient_buckets([Mark(0, 3), Mark(1, 3), Mark(2, 3)], 5)
    (Bucket(parameters=6, last_mark=1), Bucket(parameters=3, last_mark=2))
    """
    buckets: list[Bucket] = []
    collected = 0
    for index, mark in enumerate(marks):
        collected += mark.parameters
        if collected >= size or index == len(marks) - 1:
            buckets.append(Bucket(collected, index))
            collected = 0
    return tuple(buckets)


def reduce_buckets(
    program: ProgramWriter, job: Job, marks: Sequence[Mark], *, after: int | None
) -> tuple[int, ...]:
    """Append the reduction of a chunk's gradients; return the positions.

    `marks` hold absolute positions; a bucket waits for its own, or for `after` where nothing overlaps.
    """
    waiting = []
    for domain, sharding in job.shardings.items():
        if sharding.replicas * sharding.instances == 1 or not sharding.policy.reduce:
            continue
        role, dtype = sharding.policy.reduce, job.spec.precision.gradient_reduce
        own = [mark for mark in marks if mark.domain == domain]
        for index, bucket in enumerate(gradient_buckets(own, job.bucket_parameters)):
            size = message_size(role, bucket.parameters, dtype, sharding.replicas)
            ready = own[bucket.last_mark].position if after is None else after
            waiting.append((ready, f"gradients.{role}.{index}", size, sharding, bucket.parameters))
    return tuple(
        _reduce_bucket(program, job, sharding, parameters, (name, size, ready))
        for ready, name, size, sharding, parameters in sorted(waiting, key=lambda bucket: bucket[0])
    )


def _reduce_bucket(
    program: ProgramWriter, job: Job, sharding: Sharding, parameters: int, message: tuple[str, int, int]
) -> int:
    """Append the reduction of one bucket, within its copy of the state and over copies; return its end."""
    name, size, ready = message
    if sharding.replicas > 1:
        ready = program.message(name, sharding.policy.reduce, size, after=(ready,), group=sharding.group)
    if sharding.instances > 1:
        part = ceil_divide(parameters, sharding.replicas)
        size = message_size(sharding.across, part, job.spec.precision.gradient_reduce, sharding.instances)
        ready = program.message(f"{name}.across", sharding.across, size, after=(ready,))
    return ready


def gather_buckets(
    program: ProgramWriter, job: Job, marks: Sequence[Mark], *, after: Sequence[int]
) -> tuple[int, ...]:
    """Append the gathers of a chunk's updated parameters in forward order; return a position per mark."""
    position = [0] * len(marks)
    for domain, sharding in job.shardings.items():
        role, own = sharding.gathers, [number for number, mark in enumerate(marks) if mark.domain == domain]
        if role is None:
            continue
        buckets = gradient_buckets([marks[number] for number in own], job.bucket_parameters)
        for index in reversed(range(len(buckets))):
            first = buckets[index - 1].last_mark + 1 if index else 0
            size = message_size(
                role, buckets[index].parameters, job.spec.precision.gathers, sharding.replicas
            )
            name = f"{'parameters' if domain == 'dense' else 'experts'}.gather.{index}"
            gathered = program.message(name, role, size, after=after, group=sharding.group)
            for mark in own[first : buckets[index].last_mark + 1]:
                position[mark] = gathered
    return tuple(position)


def gather_unit(
    program: ProgramWriter, job: Job, marks: Sequence[Mark], *, after: Sequence[int], again: bool = False
) -> int:
    """Append the gathers of a unit's parameters; return the position of the last, -1 where none travel.

    `again`: after the forward, since when they may have been split over fewer ranks.
    """
    done = -1
    for domain, sharding in job.shardings.items():
        role = sharding.unit_gathers
        elements = sum(mark.parameters for mark in marks if mark.domain == domain)
        if role is not None and elements:
            near = again and sharding.kept > 0
            members, group = (sharding.kept, sharding.near) if near else (sharding.replicas, sharding.group)
            size = message_size(role, elements, job.spec.precision.gathers, members)
            name = "parameters.gather" if domain == "dense" else "experts.gather"
            done = program.message(f"{name}.near" if near else name, role, size, after=after, group=group)
    return done


def small_reductions(
    program: ProgramWriter, job: Job, stage: int, *, norms: Piece | None, after: Sequence[int]
) -> tuple[int, ...]:
    """Append what is reduced besides the buckets: norms over tp, a tied table over its stages.

    `after` begins with the end of the last backward and goes on with the buckets in order.
    """
    precision = job.spec.precision
    done = tuple(after)
    if norms is not None:
        done = (program.writer.place(norms, {GATE: done[0], INPUT: done[-1]}),)
    if job.ties_across_stages and stage in job.table_stages and job.training.adapters is None:
        elements = job.training_shard.vocabulary_part * job.model.spec.hidden
        size = message_size("embedding.reduce", elements, precision.gradients, job.members("embedding"))
        done = (program.message("gradients.embedding", "embedding.reduce", size, after=done),)
    return done


def step_kernels(job: Job, stage: int, parameters: Mapping[Domain, int]) -> dict[str, Operator]:
    """Return what a stage's rank of so many parameters (by domain) runs once a step, in order, by name.

    Clearing the gradient accumulators, with which a step begins; loss unscaling (fp16), gradient norm and
    optimizer on the part of the parameters that the rank updates.
    """
    dtype = job.spec.precision.gradients
    parameters = _trained(parameters)
    updated = sum(job.shardings[domain].held("optimizer", count) for domain, count in parameters.items())
    kernels: dict[str, Operator] = {"gradients.zero": _clearing(job, parameters)}
    updated_narrow = min(narrow_weights(job, stage), sum(parameters.values()))  # none of what is frozen
    if job.training_shard.recipe is not None and updated_narrow:
        weights = Vector("cast_transpose", 1, updated_narrow, job.spec.precision.activations)
        kernels["weights.cast"] = weights
    if job.spec.precision.activations == "fp16":
        kernels["gradient_unscale"] = Vector("gradient_clip", 1, updated, dtype)
    if job.training.gradient_norm:
        kernels["gradient_norm"] = Vector("gradient_norm", 1, updated, dtype)
    return kernels | update_kernels(job, stage, parameters)


def _clearing(job: Job, parameters: Mapping[Domain, int]) -> Vector:
    return Vector("fill", 1, sum(_trained(parameters).values()), job.spec.precision.gradients)


def _trained(parameters: Mapping[Domain, int]) -> Mapping[Domain, int]:
    """Return what is not frozen; a stage that holds nothing launches its kernels on one element."""
    trained: dict[Domain, int] = {
        domain: count for domain, count in parameters.items() if domain != "frozen" and count
    }
    return trained or {"dense": 1}


SUMS = {"gradient_unscale": "gradient_unscale.overflow", "gradient_norm": "gradient_norm.reduce"}
"""The scalar that ranks agree on after a kernel, by the kernel's name."""


def zero_gradients(
    program: ProgramWriter, job: Job, operators: OperatorModel, *, parameters: Mapping[Domain, int]
) -> None:
    """Append the clearing of the gradient accumulators, with which a step begins."""
    kernel = _clearing(job, parameters)
    program.kernel("gradients.zero", kernel, operators, after=())


def optimizer_step(  # noqa: PLR0913 - what a step is made of, by name
    program: ProgramWriter,
    job: Job,
    operators: OperatorModel,
    *,
    stage: int,
    parameters: Mapping[Domain, int],
    after: Sequence[int],
) -> int:
    """Append the end of a stage's step, each node after the one before; return the last one's position."""
    done = tuple(after)
    for name, kernel in list(step_kernels(job, stage, parameters).items())[1:]:
        done = (program.kernel(name, kernel, operators, after=done),)
        if name in SUMS:
            done = _sum_scalar(program, job, SUMS[name], done)
            if job.host is not None and "gradient_norm" in job.host.waits:
                program.issuing(after=done)
    if job.training.offload_optimizer:
        return host_optimizer(program, job, operators, parameters=parameters, after=done)
    return done[0]


def _sum_scalar(program: ProgramWriter, job: Job, name: str, after: tuple[int, ...]) -> tuple[int, ...]:
    """Sum one fp32 over all ranks that hold different gradients: replicas first, then the model's."""
    for group in job.sharding.norm_groups:
        if job.members(group) > 1:
            role = f"{group}.gradient_norm"
            size = message_size(role, 1, "fp32", job.members(group))
            after = (program.message(name, role, size, after=after),)
    return after
