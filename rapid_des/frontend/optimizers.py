"""Optimizers, and what a step does around its passes: gradients reduced, parameters updated and gathered.

Each optimizer keeps states of a parameter and updates it by kernels. An 8-bit Adam keeps its moments in a
byte each, with one fp32 scale for 256 of them (block-wise quantisation, Dettmers et al. 2022, arXiv
2110.02861; bitsandbytes has blocks of 256). Muon has a module of its own; tables, heads, norms and biases are
AdamW's with it. An offloaded optimizer runs on the host, on a stream of its own, between copies on one a
direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from rapid_des.device.operators import HostWork, Operator, OperatorModel, Vector, width
from rapid_des.device.vector import bytes_per_element, kind_of, update_kind
from rapid_des.frontend.groups import Sharding, byte_count, message_size
from rapid_des.frontend.job import Job
from rapid_des.frontend.muon import (
    MOMENTUM,
    NEWTON_SCHULZ,
    UPDATE,
    exchanges,
    momenta_bytes,
    orthogonal_parameters,
    orthogonalise,
    orthogonalising,
)
from rapid_des.frontend.parts import narrow_weights
from rapid_des.frontend.template import FROZEN, GATE, INPUT, Domain, GradientMark, PricedPiece
from rapid_des.frontend.trace import ProgramWriter
from rapid_des.units import ceil_divide

_BLOCK = 256
"""Number of values that share a scale of four bytes."""


class OptimizerKind(Struct, frozen=True):
    """The states that an optimizer keeps for each parameter."""

    states: tuple[str, ...]
    blocks: bool = False
    """Whether states are quantised to a byte in blocks; else they have the job's `precision.optimizer`."""

    def state_bytes(self, elements: int, dtype: str) -> int:
        """Return the bytes of one state of this many parameters."""
        return elements + 4 * ceil_divide(elements, _BLOCK) if self.blocks else byte_count(elements, dtype)


_MOMENTS = ("first moments", "second moments")
_MUON = OptimizerKind(("momentum",))
OPTIMIZERS: Mapping[str, OptimizerKind] = {
    "adam": OptimizerKind(_MOMENTS),
    "adamw": OptimizerKind(_MOMENTS),
    "adam_8bit": OptimizerKind(_MOMENTS, blocks=True),
    "sgd": OptimizerKind(("momentum",)),
    "muon": OptimizerKind(_MOMENTS),
}
"""The kinds by `training.optimizer`; `muon` is for parameters outside layers' matrices. Each is a kernel."""


def states(job: Job, stage: int, domain: Domain, elements: int) -> Iterator[tuple[str, int]]:
    """Yield the optimizer's states of a rank's `elements` by name, with the bytes that it holds of each."""
    kind, dtype = OPTIMIZERS[job.training.optimizer], job.spec.precision.optimizer
    orthogonal = _orthogonal(job, stage, domain)
    for name in kind.states:
        yield name, kind.state_bytes(job.shardings[domain].held("optimizer", elements - orthogonal), dtype)
    for name in _MUON.states if orthogonal else ():
        yield name, _MUON.state_bytes(job.shardings[domain].held("optimizer", orthogonal), dtype)


def _orthogonal(job: Job, stage: int, domain: Domain) -> int:
    """Return how many parameters of a domain are in matrices that the optimizer orthogonalises."""
    return orthogonal_parameters(job, stage, domain) if job.training.optimizer == "muon" else 0


def update_kernels(job: Job, stage: int, parameters: Mapping[Domain, int]) -> dict[str, Operator]:
    """Return the kernels of the update of a rank of this many parameters by domain, in order, by name.

    Where the host updates them there are only those that make matrices orthogonal.
    """
    precision, dtype = job.spec.precision, job.spec.precision.gradients
    plain, orthogonal = _updated(job, stage, parameters)
    if job.training.offload_optimizer and not orthogonal:
        return {}
    if not orthogonal:
        kind = update_kind(job.training.optimizer, precision.optimizer, precision.master_weights)
        return {"optimizer": Vector(kind, 1, plain, dtype)}
    iterations = orthogonalising(job, stage, orthogonal)
    if job.training.offload_optimizer:
        return iterations
    update, rest = Vector("muon", 1, orthogonal, dtype), Vector("adamw", 1, max(plain, 1), dtype)
    return iterations | {UPDATE: update, "optimizer": rest}


def _updated(job: Job, stage: int, parameters: Mapping[Domain, int]) -> tuple[int, int]:
    """Return the parameters by domain that a rank updates elementwise, and those that Muon updates."""
    plain = matrix = 0
    for domain, count in parameters.items():
        orthogonal, sharding = _orthogonal(job, stage, domain), job.shardings[domain]
        plain += sharding.held("optimizer", count - orthogonal)
        matrix += sharding.held("optimizer", orthogonal)
    return plain, matrix


def temporaries(job: Job, stage: int, parameters: Mapping[Domain, int]) -> Iterator[tuple[str, int]]:
    """Yield what a rank of this many parameters has besides while Muon makes matrices orthogonal, in bytes.

    Those that fall to it, as they come and as they go; momenta that the host keeps otherwise.
    """
    if job.training.optimizer == "muon":
        yield "whole matrices", 2 * sum(travels.size for travels in exchanges(job, stage).values())
        if job.training.offload_optimizer:
            yield "momenta", momenta_bytes(job, update_kernels(job, stage, parameters))


class GradientBucket(Struct, frozen=True):
    """Gradients that are reduced together: their number, and the last mark that completes them."""

    parameters: int
    last_mark: int


def gradient_buckets(marks: Sequence[GradientMark], size: int) -> tuple[GradientBucket, ...]:
    """Return buckets in backward order; one closes as soon as it holds `size` parameters.

    >>> gradient_buckets([GradientMark(0, 3), GradientMark(1, 3), GradientMark(2, 3)], 5)
    (GradientBucket(parameters=6, last_mark=1), GradientBucket(parameters=3, last_mark=2))
    """
    buckets: list[GradientBucket] = []
    collected = 0
    for index, mark in enumerate(marks):
        collected += mark.parameters
        if collected >= size or index == len(marks) - 1:
            buckets.append(GradientBucket(collected, index))
            collected = 0
    return tuple(buckets)


def bucket_parameters(job: Job) -> int:
    """Return the number of parameters at which a gradient bucket closes."""
    each = job.training.bucket_parameters_per_replica
    return max(job.training.bucket_parameters, each * job.sharding.replicas)


Parts: TypeAlias = tuple[tuple[int, Domain], ...]
"""The number of parameters and the domain of each mark, in backward order."""


class Reduction(NamedTuple):
    """The messages that reduce one bucket, and the last mark that completes it."""

    messages: tuple[tuple[str, str, int, str | None, int], ...]
    """The name, role, size, group if not the role's, and number of replicas whose parts it sums."""
    last_mark: int


@lru_cache(maxsize=64)  # passes of a chunk ask the same
def reductions(job: Job, marks: Parts) -> tuple[Reduction, ...]:
    """Return how the gradients of marks are reduced, bucket by bucket."""
    found = list[Reduction]()
    for domain, sharding in job.shardings.items():
        if sharding.replicas * sharding.instances == 1 or not sharding.policy.reduce:
            continue
        places = [place for place, mark in enumerate(marks) if mark[1] == domain]
        buckets = gradient_buckets(
            [GradientMark(place, *marks[place]) for place in places], bucket_parameters(job)
        )
        found += [
            Reduction(tuple(_messages(job, sharding, index, bucket.parameters)), places[bucket.last_mark])
            for index, bucket in enumerate(buckets)
        ]
    return tuple(found)


def _messages(
    job: Job, sharding: Sharding, index: int, parameters: int
) -> Iterator[tuple[str, str, int, str | None, int]]:
    """Yield the reductions of one bucket, within its copy of the state and over copies."""
    dtype, role = job.spec.precision.gradient_reduce, sharding.policy.reduce
    name = f"gradients.{role}.{index}"
    if sharding.replicas > 1:
        size = message_size(role, parameters, dtype, sharding.replicas)
        parts = sharding.replicas if sharding.policy.by_unit else 0
        yield name, role, size, sharding.group, parts
    if sharding.instances > 1:
        part = ceil_divide(parameters, sharding.replicas)
        size = message_size(sharding.across, part, dtype, sharding.instances)
        yield f"{name}.across", sharding.across, size, None, 0


def reduce_buckets(
    program: ProgramWriter, job: Job, marks: Sequence[GradientMark], *, after: int | None
) -> tuple[int, ...]:
    """Append the reduction of a chunk's gradients; return the positions.

    `marks` hold absolute positions; a bucket waits for its own, or for `after` where nothing overlaps.
    """
    waiting = [
        (marks[reduction.last_mark].position if after is None else after, reduction.messages)
        for reduction in reductions(job, tuple((mark.parameters, mark.domain) for mark in marks))
    ]
    positions = list[int]()
    for ready, messages in sorted(waiting, key=itemgetter(0)):
        done = ready
        for name, role, size, group, parts in messages:
            done = program.message(name, role, size, after=(done,), group=group, parts=parts)
        positions.append(done)
    return tuple(positions)


def gathers_once(job: Job) -> bool:
    """Return whether replicas gather updated parameters once a step; experts alone may have replicas."""
    return any(sharding.gathers for sharding in job.shardings.values())


def gather_buckets(
    program: ProgramWriter, job: Job, marks: Sequence[GradientMark], *, after: Sequence[int]
) -> tuple[int, ...]:
    """Append the gathers of a chunk's updated parameters in forward order.

    Return a position per mark; -1 for what is not gathered.
    """
    position = [-1] * len(marks)
    for domain, sharding in job.shardings.items():
        role = sharding.gathers
        of_domain = [number for number, mark in enumerate(marks) if mark.domain == domain]
        if role is None:
            continue
        buckets = gradient_buckets([marks[number] for number in of_domain], bucket_parameters(job))
        for index in reversed(range(len(buckets))):
            first = buckets[index - 1].last_mark + 1 if index else 0
            size = message_size(
                role, buckets[index].parameters, job.spec.precision.gathers, sharding.replicas
            )
            name = f"{'parameters' if domain == 'dense' else 'experts'}.gather.{index}"
            gathered = program.message(name, role, size, after=after, group=sharding.group)
            for mark in of_domain[first : buckets[index].last_mark + 1]:
                position[mark] = gathered
    return tuple(position)


_GATHERS: Mapping[Domain, str] = {
    "dense": "parameters.gather",
    "expert": "experts.gather",
    "frozen": "frozen.gather",
    "frozen_expert": "frozen.experts.gather",
}


def gathered_as(job: Job, domain: Domain, *, layer: bool) -> str:
    """Return the format in which parameters are gathered; as stored for layers with adapters."""
    adapters = job.training.adapters
    stored = None if adapters is None or domain not in FROZEN or not layer else adapters.weights
    return stored or job.spec.precision.gathers


def gather_unit(  # noqa: PLR0913 - a gather, and when
    program: ProgramWriter,
    job: Job,
    marks: Sequence[GradientMark],
    after: Sequence[int],
    *,
    again: int,
    reduced: Sequence[int],
) -> int:
    """Append the gathers of a unit's parameters; return the position of the last, -1 where none travel.

    `again`: how often after the forward, since when they may have been split over fewer ranks. A host that
    waits before each gather waits for the last gradients that were `reduced` too.
    """
    done, layer = -1, any(mark.domain == "dense" for mark in marks)
    waits = program.host is not None and "gathers" in program.host.waits
    for domain, sharding in job.shardings.items():
        role, units = sharding.unit_gathers, [mark.parameters for mark in marks if mark.domain == domain]
        resharded = again > 0 and sharding.reshard_ranks > 0
        members, group = sharding.replicas, sharding.group
        if resharded:
            members, group = sharding.reshard_ranks, sharding.reshard_group
        name = _GATHERS[domain] + ".resharded" * resharded
        for elements in _gathered(job, units) * max(1, again):
            if role is None:
                continue
            size = message_size(role, elements, gathered_as(job, domain, layer=layer), members)
            earlier = (*after, *reduced[-1:], *([done] if done >= 0 else []))
            ready = (program.issuing(after=earlier),) if waits else after
            done = program.message(name, role, size, after=ready, group=group, parts=members)
    if waits and done >= 0:
        program.issuing()  # kernels that follow do not hold the gather up
    return done


def _gathered(job: Job, units: Sequence[int]) -> list[int]:
    """Return the parameters of each gather of a unit, given those of its matrices."""
    if not job.training.gather_singly:
        return [sum(units)] if sum(units) else []
    return [elements for elements in units if elements >= int(job.training.gather_singly)]


def small_reductions(
    program: ProgramWriter, job: Job, stage: int, *, norms: PricedPiece | None, after: Sequence[int]
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
    """Return what a stage's rank of this many parameters (by domain) runs once a step, in order, by name.

    Clearing the gradient accumulators, with which a step begins; loss unscaling (fp16), gradient norm and
    optimizer on the part of the parameters that the rank updates.
    """
    dtype = job.spec.precision.gradients
    parameters = _trained(parameters)
    updated = sum(job.shardings[domain].held("optimizer", count) for domain, count in parameters.items())
    kernels: dict[str, Operator] = {"gradients.zero": _clearing(job, parameters)}
    if job.training_shard.recipe is not None:
        narrow = min(narrow_weights(job, stage), sum(parameters.values()))  # none of what is frozen
        if narrow:
            kernels["weights.cast"] = Vector("cast_transpose", 1, narrow, job.spec.precision.activations)
    if job.spec.precision.activations == "fp16":
        kernels["gradient_unscale"] = Vector("gradient_clip", 1, updated, dtype)
    if job.training.gradient_norm:
        kernels["gradient_norm"] = Vector("gradient_norm", 1, updated, dtype)
    return kernels | update_kernels(job, stage, parameters)


def _clearing(job: Job, parameters: Mapping[Domain, int]) -> Vector:
    """Return the kernels that clear the gradients that a rank holds between steps."""
    held = (job.shardings[domain].held("gradients", n) for domain, n in _trained(parameters).items())
    return Vector("fill", 1, max(1, sum(held)), job.spec.precision.gradients)


def _trained(parameters: Mapping[Domain, int]) -> Mapping[Domain, int]:
    """Return the parameters without frozen ones; a stage without any runs its kernels on one element."""
    trained: dict[Domain, int] = {
        domain: count for domain, count in parameters.items() if domain not in FROZEN and count
    }
    return trained or {"dense": 1}


SUMS = {"gradient_unscale": "gradient_unscale.overflow", "gradient_norm": "gradient_norm.reduce"}
"""For kernels whose scalar result all ranks sum: the name of that sum."""


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
    done, kernels = tuple(after), step_kernels(job, stage, parameters)
    for name, kernel in list(kernels.items())[1:]:
        if name == MOMENTUM:
            done = orthogonalise(program, job, operators, stage=stage, kernels=kernels, after=done)
        elif not name.startswith(NEWTON_SCHULZ):
            done = (program.kernel(name, kernel, operators, after=done),)
        if name in SUMS:
            done = _sum_scalar(program, job, SUMS[name], done)
            if job.host is not None and "gradient_norm" in job.host.waits:
                program.issuing(after=done)
    if job.training.offload_optimizer:
        parts = _updated(job, stage, parameters)
        return _host_optimizer(program, job, operators, parts, after=done)
    return done[0]


def _sum_scalar(program: ProgramWriter, job: Job, name: str, after: tuple[int, ...]) -> tuple[int, ...]:
    """Sum one fp32 over all ranks that hold different gradients: replicas first, then the model's."""
    for group in job.sharding.norm_groups:
        if job.members(group) > 1:
            role = f"{group}.gradient_norm"
            size = message_size(role, 1, "fp32", job.members(group))
            after = (program.message(name, role, size, after=after),)
    return after


def _host_optimizer(
    program: ProgramWriter,
    job: Job,
    operators: OperatorModel,
    parts: tuple[int, int],
    *,
    after: Sequence[int],
) -> int:
    """Append the update on the host, a bucket after the other; return where the last weights are back.

    `parts` are the parameters that are updated plainly, and along what Muon made orthogonal.
    """
    precision, last = job.spec.precision, after[-1]
    plain, orthogonal = parts
    name = "adamw" if orthogonal else job.training.optimizer
    kinds = {update_kind(name, precision.optimizer, precision.master_weights): plain, "muon": orthogonal}
    traffic = sum(
        count * bytes_per_element(kind_of(kind).forward, width(precision.gradients))
        for kind, count in kinds.items()
        if count
    ) / max(1, plain + orthogonal)
    for elements in _host_buckets(job, plain + orthogonal):
        there = HostWork(byte_count(elements, precision.gradients), "to_host")
        sent = program.with_host("offload.gradients", there, operators, after=after)
        update = HostWork(round(elements * traffic), "memory")
        done = program.with_host("optimizer.host", update, operators, after=(sent,))
        back = HostWork(byte_count(elements, precision.activations), "from_host")
        last = program.with_host("fetch.weights", back, operators, after=(done,))
    return last


def _host_buckets(job: Job, left: int) -> Iterator[int]:
    """Yield the parameters of each bucket of this many that a rank updates."""
    size = job.training.bucket_parameters
    while left > 0:
        yield min(size, left)
        left -= size
