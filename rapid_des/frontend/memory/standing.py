"""What stands in a training rank's memory through the whole step, and what the optimizer's part needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rapid_des.device.operators import width
from rapid_des.frontend.groups import EXPERT_AXES, GROUPS, PARTS, State, byte_count
from rapid_des.frontend.job import Job
from rapid_des.frontend.memory.tensors import MOVING, Tensor
from rapid_des.frontend.optimizers import states
from rapid_des.frontend.parts import EMBEDDING, HEAD, section_parameters, stage_sections
from rapid_des.frontend.template import Domain
from rapid_des.units import ceil_divide

_OF = {"dense": "", "expert": "experts' ", "frozen": "frozen "}


def standing(job: Job, stage: int, parameters: Mapping[Domain, int]) -> Iterator[Tensor]:
    """Yield what stands from the start of a step to its end, of a rank of so many parameters by domain."""
    for domain, elements in parameters.items():
        if domain == "frozen":
            yield from _frozen(job, stage, elements)
        else:
            yield from _model(job, stage, domain, elements)
    yield from _unsharded(job, stage)
    yield from _buffers(job, parameters)
    yield from framework(job)


def _model(job: Job, stage: int, domain: Domain, elements: int) -> Iterator[Tensor]:
    precision, of = job.spec.precision, _OF[domain]

    def held(state: State) -> int:
        return job.shardings[domain].held(state, elements)

    yield Tensor(f"{of}weights", "weights", byte_count(held("parameters"), precision.activations))
    yield Tensor(f"{of}gradients", "gradients", byte_count(held("gradients"), precision.gradients))
    if job.training.offload_optimizer:
        return
    if precision.master_weights is not None:
        own = byte_count(held("optimizer"), precision.master_weights)
        yield Tensor(f"{of}master weights", "optimizer", own)
    for name, size in states(job, stage, domain, elements):
        yield Tensor(f"{of}{name}", "optimizer", size)


def _frozen(job: Job, stage: int, elements: int) -> Iterator[Tensor]:
    """Yield weights that are not trained: tables, head and the layers' matrices in their own format."""
    sizes, counts = section_parameters(job), stage_sections(job, stage)
    ends = sum(sizes[section]["frozen"] * counts[section] for section in (EMBEDDING, HEAD))
    adapters, wide = job.training.adapters, job.spec.precision.activations
    stored = wide if adapters is None or adapters.weights is None else adapters.weights
    size = byte_count(ends, wide) + byte_count(elements - ends, stored)
    yield Tensor("frozen weights", "weights", size)


def _unsharded(job: Job, stage: int) -> Iterator[Tensor]:
    """Yield what is whole of parameters and gradients that replicas share: units in use and on their way.

    Of parameters the unit that computes and those gathered ahead of it (all, where none is given back), of
    gradients the unit's own and the one that travels.
    """
    training, precision = job.training, job.spec.precision
    if not job.sharding.policy.by_unit or not is_replicated(job):
        return
    sizes, counts = section_parameters(job), stage_sections(job, stage)
    units = sorted((sizes[section].total() for section in counts.elements()), reverse=True)
    whole = units[: training.prefetch + 1] if training.reshard else units
    yield Tensor("gathered units", "unsharded", byte_count(sum(whole), precision.gathers), len(whole))
    if job.sharding.kept:
        kept = ceil_divide(sum(units), job.sharding.kept)
        yield Tensor("resharded units", "unsharded", byte_count(kept, precision.gathers), len(units))
    if job.sharding.each:
        travelling = byte_count(sum(units[:2]), precision.gradients)
        yield Tensor("gradients of whole units", "unsharded", travelling, len(units[:2]))


def is_replicated(job: Job) -> bool:
    """Tell whether several ranks hold the same parameters."""
    return any(sharding.replicas * sharding.instances > 1 for sharding in job.shardings.values())


def _buffers(job: Job, parameters: Mapping[Domain, int]) -> Iterator[Tensor]:
    """Yield the buffers of messages, and the copies that a framework makes for them."""
    precision, spec, shard = job.spec.precision, job.spec.memory, job.training_shard
    if job.stages > 1:
        yield Tensor("stage input and output", "communication", 2 * job.message_bytes, 2)
    if precision.gradient_reduce != precision.gradients:
        bucket = byte_count(job.bucket_parameters, precision.gradient_reduce)
        yield Tensor("travelling bucket", "communication", bucket)
    if shard.sequence_parallel and shard.tp > 1:
        size = spec.gather_buffers * shard.activation_bytes(shard.tokens * shard.hidden)
        yield Tensor("gathered sequences", "communication", size, spec.gather_buffers)
    if job.training.offload_optimizer:
        widths = width(precision.gradients) + width(precision.activations)
        size = round(2 * widths * min(job.training.bucket_parameters, sum(parameters.values())))
        yield Tensor("buckets to and from the host", "communication", size, 4)
    if spec.gradient_copies == "buckets" and is_replicated(job):
        trained = sum(count for domain, count in parameters.items() if domain != "frozen")
        size = byte_count(trained, precision.activations)
        yield Tensor("gradient buckets", "gradients", size)


def framework(job: Job) -> Iterator[Tensor]:
    """Yield what the framework takes besides the model."""
    spec = job.spec.memory
    groups = sum(job.members(group) > 1 for group in _groups(job))
    yield Tensor("context", "framework", int(spec.context or 0))
    yield Tensor("communicators", "framework", groups * int(spec.communicator or 0), groups)
    peers = job.members("tp") - 1
    yield Tensor("peers' buffers", "framework", peers * int(spec.peer or 0), peers)
    yield Tensor("matrix workspace", "workspace", int(spec.workspace or 0))
    yield Tensor("memory_reserve", "reserve", int(job.spec.memory_reserve or 0))


def _groups(job: Job) -> Iterator[str]:
    """Yield the kinds of process groups that a job of this model makes."""
    for group, axes in GROUPS.items():
        if group in PARTS and job.members(group) == job.members(PARTS[group][0]):
            continue
        if group == "experts" and job.spec.routing.dispatcher != "all_gather":
            continue
        if job.model.has_experts or EXPERT_AXES.isdisjoint(axes):
            yield group


def updating(job: Job, parameters: Mapping[Domain, int]) -> Iterator[Tensor]:
    """Yield what stands besides while the optimizer runs and updated parameters travel."""
    if not job.spec.memory.gather_copies:
        return
    for domain, elements in parameters.items():
        sharding = job.shardings[domain]
        if sharding.gathers is not None:
            own = sharding.held("optimizer", elements)
            size = byte_count(elements + own, job.spec.precision.gathers)
            yield Tensor(f"{_OF[domain]}updated parameters", "temporary", size)


def fragments(job: Job, moving: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield what the allocator loses to what comes and goes."""
    size = sum(tensor.size for tensor in moving if tensor.category in MOVING)
    yield Tensor("fragmentation", "fragmentation", round(job.spec.memory.fragmentation * size))
