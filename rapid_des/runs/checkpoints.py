"""What a checkpoint costs a job, and after how many steps the next one is best made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from math import exp, inf
from typing import Any

from msgspec import Struct, structs

from rapid_des.frontend import Job
from rapid_des.frontend.memory.checkpoints import checkpoint_bytes
from rapid_des.machine import Machine
from rapid_des.network.faults import Fault
from rapid_des.runs.loading import Reliability, gpus_of_node
from rapid_des.runs.spec import NearCheckpointSpec
from rapid_des.runs.stretch import EVERYTHING, NODE, PROCESSES, CheckpointLevel
from rapid_des.runs.times import constant
from rapid_des.units import PS_PER_US, LongDuration, Size, serialization_time

_GOLDEN: float = (math.sqrt(5) - 1) / 2
_NARROWINGS = 80
SURVIVES = {"host": PROCESSES, "peer": NODE, "storage": EVERYTHING}
"""What a checkpoint at each place survives."""


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
    place: str = "storage"
    """The place of the checkpoint: host, peer or storage."""


def checkpoint_costs(
    reliability: Reliability, job: Job, machine: Machine, step_of: Callable[[Machine], int]
) -> tuple[CheckpointCost, ...]:
    """Return what each level of checkpoints costs the job, that in storage last.

    `step_of` returns the duration of a step on a machine.
    """
    spec = reliability.spec.checkpoint
    if spec is None:
        return ()
    if len({each.place for each in spec.nearer}) < len(spec.nearer):
        reliability.refuse("checkpoint.nearer", "two levels have one place; allowed: one host, one peer")
    stored = checkpoint_cost(reliability, job, gpus_of_node(machine))
    copies = CopiedState(job, machine, step_of)
    near = [
        _near_cost(reliability, f"checkpoint.nearer[{place}]", each, copies)
        for place, each in enumerate(spec.nearer)
    ]
    return (*sorted(near, key=lambda cost: SURVIVES[cost.place]), stored)


class CopiedState(Struct, frozen=True):
    """What copies into memory depend on."""

    job: Job
    machine: Machine
    step_of: Callable[[Machine], int]
    """Returns the duration of a step on a machine."""


def _near_cost(
    reliability: Reliability, key: str, near: NearCheckpointSpec, copies: CopiedState
) -> CheckpointCost:
    """Return what a checkpoint in memory costs."""
    wanted, other = ("host_link", "share") if near.place == "host" else ("share", "host_link")
    if not getattr(near, wanted):
        reliability.refuse(f"{key}.{wanted}", f"a level in the memory of a {near.place} needs it, above 0")
    if getattr(near, other) is not None:
        reliability.refuse(f"{key}.{other}", f"no level in the memory of a {near.place} has it")
    sizes = checkpoint_bytes(copies.job)
    if near.host_link is not None:
        copied = serialization_time(sizes.largest, int(near.host_link))
        return CheckpointCost(sizes.total, copied, 0, copied, "host")
    if copies.job.gpus <= gpus_of_node(copies.machine):
        reliability.refuse(f"{key}.place", "the job has one node; allowed: host")
    assert near.share is not None, "it was asked for"
    peers = PeerCopies(copies.machine, copies.job.gpus, near.share)
    stall, write = peers.cost(sizes.largest, copies.step_of)
    return CheckpointCost(sizes.total, stall, write, peers.alone(sizes.largest), "peer")


def on_machine(reliability: Reliability, machine: Machine) -> Reliability:
    """Return a reliability file in which checkpoints have the machine's storage where it states none."""
    spec, storage, host = reliability.spec.checkpoint, machine.spec.storage, machine.device.spec.host
    if spec is None:
        return reliability
    found: dict[str, Any] = {}
    if storage is not None:
        found |= {"storage": storage.bandwidth, "storage_per_node": storage.per_node}
        found |= {"capacity": storage.capacity}
    if host is not None:
        found |= {"host_link": host.to_host} if spec.scheme == "asynchronous" else {}
        nearer = (
            structs.replace(each, host_link=host.to_host)
            if each.place == "host" and each.host_link is None
            else each
            for each in spec.nearer
        )
        spec = structs.replace(spec, nearer=tuple(nearer))
    spec = structs.replace(spec, **{key: value for key, value in found.items() if getattr(spec, key) is None})
    return structs.replace(reliability, spec=structs.replace(reliability.spec, checkpoint=spec))


def checkpoint_cost(reliability: Reliability, job: Job, per_node: int) -> CheckpointCost:
    """Return what the reliability file's checkpoint in storage costs the job; a node has `per_node` GPUs."""
    spec, sizes = reliability.spec.checkpoint, checkpoint_bytes(job)
    assert spec is not None, "the caller checks this"
    if spec.capacity is not None and sizes.total > spec.capacity:
        problem = f"a checkpoint of {Size(sizes.total)} does not fit into {spec.capacity}"
        reliability.refuse("checkpoint.capacity", problem)
    for name in ("storage", "storage_per_node", "host_link"):
        if getattr(spec, name) == 0:
            reliability.refuse(f"checkpoint.{name}", "0 B/s moves nothing; allowed: above 0")
    stored = None if spec.storage is None else serialization_time(sizes.total, int(spec.storage))
    if stored is not None and spec.storage_per_node is not None:
        node = min(sizes.largest * per_node, sizes.total)
        stored = max(stored, serialization_time(node, int(spec.storage_per_node)))
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
        place = "the machine's storage" if bandwidth == "storage" else "the device's host"
        problem = f"neither {name} nor {bandwidth} nor {place} is stated; one is needed"
        reliability.refuse(f"checkpoint.{name}", problem)
    return derived


class PeerCopies:
    """Copies of the state from every GPU to the GPU at its place in the next node, all at one time."""

    def __init__(self, machine: Machine, gpus: int, share: float) -> None:
        self._machine, self._share = machine, share
        per_node = gpus_of_node(machine)
        self._flows = [(gpu, (gpu + per_node) % gpus) for gpu in range(gpus)]
        routes = [machine.router.route(*flow) for flow in self._flows]
        self._most = max(Counter(link for route in routes for link in route).values())
        bandwidth = machine.fabric.bandwidth
        self._slowest = min(int(bandwidth[link]) for route in routes for link in route)

    def alone(self, size: int) -> int:
        """Return the picoseconds to copy a number of bytes of each GPU while nothing else moves."""
        return serialization_time(size * self._most, self._slowest)

    def cost(self, size: int, step_of: Callable[[Machine], int]) -> tuple[int, int]:
        """Return the time that steps take longer beside the copies, and the time of the copies."""
        flows = ";".join(f"{source}>{target}" for source, target in self._flows)
        fault = Fault(flow=flows, load=self._share / self._most)
        slower, healthy = step_of(self._machine.with_faults([fault])), step_of(self._machine)
        write = int(self.alone(size) / self._share)
        return max(write * (slower - healthy) // slower, 0), write


def checkpoint_levels(
    reliability: Reliability, costs: Sequence[CheckpointCost], step: int, rates: Sequence[float]
) -> tuple[CheckpointLevel, ...]:
    """Return the levels of checkpoints as a stretch of training needs them.

    `rates` are those of the failures a picosecond that need a level which survives them: failures that
    replace no node, one, and more. The nearest level that survives a failure answers for it.
    """
    spec, levels = reliability.spec.checkpoint, []
    left = list(rates)
    for cost in costs:
        assert spec is not None, "there are costs"
        near = [(place, each) for place, each in enumerate(spec.nearer) if each.place == cost.place]
        key = f"checkpoint.nearer[{near[0][0]}].interval" if near else "checkpoint.interval"
        text = near[0][1].interval if near else spec.interval
        survived = SURVIVES[cost.place]
        own, left[: survived + 1] = sum(left[: survived + 1]), [0.0] * (survived + 1)
        every = steps_between(reliability, (key, text), cost, step, own)
        load = None if cost.load is None else constant(cost.load)
        levels.append(CheckpointLevel(every, cost.stall, cost.write, survived, load))
    return tuple(levels)


def steps_between(
    reliability: Reliability, stated: tuple[str, str], cost: CheckpointCost, step: int, failure_rate: float
) -> int:
    """Return the number of steps between two checkpoints by a key and its text.

    `failure_rate` is that of the failures which load such a checkpoint, a picosecond.
    """
    (key, text), least = stated, max(cost.stall, cost.write)
    if text == "auto":
        return max(-(-cost.write // step), 1, round(best_interval(cost.stall, failure_rate) / step))
    try:
        interval = LongDuration.parse(text)
    except ValueError as error:
        reliability.refuse(key, f"{error}, or auto")
    if interval.picoseconds < max(least, 1):
        needed = LongDuration(-(-least // PS_PER_US))
        problem = f"{interval} is shorter than a checkpoint takes; allowed: {needed} or more, above 0 s"
        reliability.refuse(key, problem)
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
