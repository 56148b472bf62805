"""Jobs that stand for others in bounds: with fewer micro-batches or replicas, without recomputation."""

from __future__ import annotations

from msgspec import structs

from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.modes.pricing import issued_on
from rapid_des.studies.likeness import copies_key
from rapid_des.values import replace


def few_passes(job: Job) -> Job:
    """Return a job of few micro-batches, whose plan is soon made: layers do not know how many there are."""
    shape, count = job.shape, job.micro_batches
    least = 2 * shape.stages * shape.chunks
    fewer = least + (count - least) % (2 * shape.in_group)
    return with_micro_batches(job, min(fewer, count))


def with_micro_batches(job: Job, count: int) -> Job:
    """Return the job with so many micro-batches of the same size."""
    if count == job.micro_batches:
        return job
    batch = job.training.global_batch // job.micro_batches * count
    training = structs.replace(job.training, global_batch=batch)
    return replace(job, spec=structs.replace(job.spec, training=training))


def on_machine(job: Job, machine: Machine) -> Job:
    """Return a short job of one replica as a machine runs it that issues all at once."""
    job = issued_on(one_replica(few_passes(job)), machine)
    return replace(job, spec=structs.replace(job.spec, host=None))


def one_replica(job: Job) -> Job:
    """Return a job without other replicas, with which layers exchange nothing, if ranks stay in place."""
    order = job.spec.parallelism.order
    inside = order.index("dp") < max(order.index("tp"), order.index("cp"))
    if job.model.has_experts or inside or copies_key(job):
        return job
    split = structs.replace(job.spec.parallelism, dp=1, dp_replicate=1)
    batch = job.training.global_batch // job.spec.parallelism.dp
    training = structs.replace(job.training, global_batch=batch)
    return replace(job, spec=structs.replace(job.spec, parallelism=split, training=training))


def without_unit_copies(job: Job) -> Job:
    """Return the job without copies of whole units: passes under any ZeRO stage have these kernels."""
    if not copies_key(job):
        return job
    training = structs.replace(job.training, unit_copies="none")
    precision = structs.replace(job.spec.precision, parameter_gather=None)
    return replace(job, spec=structs.replace(job.spec, training=training, precision=precision))


def without_recomputation(job: Job) -> Job:
    """Return the job without recomputation: each of its passes has all of these kernels."""
    if job.training.recompute == "none":
        return job
    training = structs.replace(job.training, recompute="none", recompute_layers=None,
                               recompute_method="uniform", recompute_kinds=())  # fmt: skip
    return replace(job, spec=structs.replace(job.spec, training=training))
