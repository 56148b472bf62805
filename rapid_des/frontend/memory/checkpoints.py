"""The bytes of a checkpoint: parameters and optimizer states, each shard once however many GPUs hold it."""

from __future__ import annotations

from msgspec import Struct

from rapid_des.frontend.groups import State, byte_count
from rapid_des.frontend.job import Job
from rapid_des.frontend.optimizers import states
from rapid_des.frontend.parts import stage_parameters
from rapid_des.frontend.template import FROZEN, Domain
from rapid_des.units import ceil_divide


class CheckpointBytes(Struct, frozen=True):
    """The size of a training job's checkpoint, in bytes."""

    total: int
    """The bytes of all shards together."""
    largest: int
    """The most bytes that one GPU writes, if the GPUs that hold the same shard divide it among them."""


def checkpoint_bytes(job: Job) -> CheckpointBytes:
    """Return the size of a training job's checkpoint.

    >>> from rapid_des.frontend import load_job
    >>> checkpoint_bytes(load_job("llama2_7b_train")).total // 10**9
    94
    """
    total = largest = 0
    ranks = job.gpus // job.spec.parallelism.pp
    for stage in range(job.spec.parallelism.pp):
        parameters = stage_parameters(job, stage).items()
        each = sum(_share(job, stage, *sizes) for sizes in parameters if sizes[0] not in FROZEN)
        total, largest = total + each * ranks, max(largest, each)
    return CheckpointBytes(total, largest)


def _share(job: Job, stage: int, domain: Domain, elements: int) -> int:
    """Return the bytes that one rank writes of its parameters of a domain and of their optimizer's states."""
    precision, sharding = job.spec.precision, job.shardings[domain]

    def copies(state: State) -> int:
        return sharding.instances * (1 if state in sharding.policy.split else sharding.replicas)

    weights = byte_count(sharding.held("parameters", elements), precision.activations)
    kept = sum(size for _, size in states(job, stage, domain, elements))
    if precision.own_weights is not None:
        kept += byte_count(sharding.held("optimizer", elements), precision.own_weights)
    return ceil_divide(weights, copies("parameters")) + ceil_divide(kept, copies("optimizer"))
