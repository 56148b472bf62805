"""The bytes and the cost of a checkpoint, and after how many steps the next one is best made.

Each shard counts once, however many GPUs hold it.
"""

from __future__ import annotations

import math
from math import exp, inf

from msgspec import Struct

from rapid_des.frontend.groups import State, byte_count
from rapid_des.frontend.job import Job
from rapid_des.frontend.optimizers import states
from rapid_des.frontend.parts import stage_parameters
from rapid_des.frontend.template import FROZEN, Domain
from rapid_des.runs.loading import Reliability
from rapid_des.units import PS_PER_US, LongDuration, Size, ceil_divide, serialization_time


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
    if precision.master_weights is not None:
        kept += byte_count(sharding.held("optimizer", elements), precision.master_weights)
    return ceil_divide(weights, copies("parameters")) + ceil_divide(kept, copies("optimizer"))


_GOLDEN: float = (math.sqrt(5) - 1) / 2
_NARROWINGS = 80


class CheckpointCost(Struct, frozen=True):
    """The size and the times of one checkpoint."""

    size: int
    """The bytes of all shards."""
    stall: int
    """The time that training waits, in picoseconds."""
    write: int
    """The time from the end of the stall until the checkpoint can be loaded, in picoseconds."""
    load: int | None
    """The time to read it from its storage, in picoseconds; None: the storage's bandwidth is not stated."""


def checkpoint_cost(reliability: Reliability, job: Job) -> CheckpointCost:
    """Return what the reliability file's checkpoint costs the job."""
    spec, sizes = reliability.spec.checkpoint, checkpoint_bytes(job)
    assert spec is not None, "the caller checks this"
    if spec.capacity is not None and sizes.total > spec.capacity:
        problem = f"a checkpoint of {Size(sizes.total)} does not fit into {spec.capacity}"
        reliability.refuse("checkpoint.capacity", problem)
    for name in ("storage", "host_link"):
        if getattr(spec, name) == 0:
            reliability.refuse(f"checkpoint.{name}", "0 B/s moves nothing; allowed: above 0")
    stored = None if spec.storage is None else serialization_time(sizes.total, int(spec.storage))
    if spec.scheme == "synchronous":
        for name in ("write", "host_link"):
            if getattr(spec, name) is not None:
                reliability.refuse(f"checkpoint.{name}", "is of the scheme asynchronous alone")
        return CheckpointCost(sizes.total, _stated(reliability, "stall", "storage", stored), 0, stored)
    link = None if spec.host_link is None else serialization_time(sizes.largest, int(spec.host_link))
    stall = _stated(reliability, "stall", "host_link", link)
    return CheckpointCost(sizes.total, stall, _stated(reliability, "write", "storage", stored), stored)


def _stated(reliability: Reliability, name: str, bandwidth: str, derived: int | None) -> int:
    """Return the time that is stated, or else the one that follows from a bandwidth."""
    time: LongDuration | None = getattr(reliability.spec.checkpoint, name)
    if time is not None:
        return time.picoseconds
    if derived is None:
        reliability.refuse(f"checkpoint.{name}", f"neither {name} nor {bandwidth} is stated; one is needed")
    return derived


def steps_between(reliability: Reliability, cost: CheckpointCost, step: int, failure_rate: float) -> int:
    """Return the number of steps between two checkpoints; `failure_rate` is that of the run a picosecond."""
    spec = reliability.spec.checkpoint
    assert spec is not None, "the caller checks this"
    least = max(cost.stall, cost.write)
    if spec.interval == "auto":
        return max(-(-cost.write // step), 1, round(best_interval(cost.stall, failure_rate) / step))
    try:
        interval = LongDuration.parse(spec.interval)
    except ValueError as error:
        reliability.refuse("checkpoint.interval", f"{error}, or auto")
    if interval.picoseconds < max(least, 1):
        needed = LongDuration(-(-least // PS_PER_US))
        problem = f"{interval} is shorter than a checkpoint takes; allowed: {needed} or more, above 0 s"
        reliability.refuse("checkpoint.interval", problem)
    return -(-interval.picoseconds // step)


def best_interval(stall: int, failure_rate: float) -> float:
    """Return the training time between checkpoints with the least expected time for exponential failures.

    A piece of work W with its checkpoint C takes (e^(λ(W+C)) - 1)(1/λ + D)e^(λR) on average (Daly, Future
    Generation Computer Systems 22, 2006); the best W is the least of (e^(λ(W+C)) - 1) / W whatever D and R.
    Without failures there is no end of the interval: 1e30.

    >>> round(best_interval(60, 1 / 10_800))
    1099
    """
    if not failure_rate:
        return 1e30
    low, high = 0.0, math.sqrt(2 * stall / failure_rate) * 2 + 1

    def cost(work: float) -> float:
        exponent = failure_rate * (work + stall)
        return (exp(exponent) - 1) / work if work and exponent < 700 else inf

    for _ in range(_NARROWINGS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if cost(left) < cost(right) else (left, high)
    return (low + high) / 2
