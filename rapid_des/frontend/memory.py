"""Memory of a rank by liveness: a walk over the operator lists in the order of the schedule; what would fit.

Weights, gradients and optimizer states stand from start to end. A forward pass adds what its steps keep for
the backward; each section's backward takes its part away again. While a list runs, the largest result with
its inputs, and what was recomputed, stand besides. Not counted: statistics of norms (8 bytes a row) and
fragmentation; what a GPU spends outside the model is the job's `memory_reserve`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from rapid_des.errors import ConfigError, InfeasibleJobError
from rapid_des.frontend.inference import pass_lists, passes, serving_shard
from rapid_des.frontend.job import Job
from rapid_des.frontend.loading import with_spec
from rapid_des.frontend.operations import Operation
from rapid_des.frontend.parallelism import ZERO_STAGES, Item, Phase, State
from rapid_des.frontend.parts import (
    PieceKey,
    Section,
    section_parameters,
    sections,
    stage_parameters,
    stage_sections,
    training_lists,
)
from rapid_des.frontend.shard import byte_count
from rapid_des.frontend.spec import JobSpec
from rapid_des.frontend.template import Domain
from rapid_des.units import Size

_with = msgspec.structs.replace

CATEGORIES = (
    "weights", "gradients", "optimizer", "unsharded", "activations", "logits", "temporary", "communication",
    "kv_cache", "reserve",
)  # fmt: skip


@dataclass(frozen=True)
class StageMemory:
    """The fullest moment of one rank of a pipeline stage, in bytes."""

    stage: int
    parameters: int
    categories: Mapping[str, int]
    """At the peak; keys are `CATEGORIES`."""
    timeline: tuple[tuple[Item, int], ...] = ()
    """Training: the peak during each item of the schedule."""

    @property
    def peak(self) -> int:
        """Bytes at the peak."""
        return sum(self.categories.values())


@dataclass(frozen=True)
class JobMemory:
    """Every stage's memory, in bytes.

    >>> JobMemory((StageMemory(0, 10, {"weights": 20}), StageMemory(1, 8, {"weights": 16}))).fullest.peak
    20
    """

    stages: tuple[StageMemory, ...]

    @property
    def fullest(self) -> StageMemory:
        """The stage with the highest peak; the first of equals."""
        return max(self.stages, key=lambda stage: (stage.peak, -stage.stage))


@dataclass(frozen=True)
class SectionMemory:
    """What one section keeps between its forward and backward, and needs while either runs."""

    activations: int
    logits: int
    temporary: Mapping[Phase, int]


def memory(job: Job) -> JobMemory:
    """Return the memory of each stage's ranks, in bytes.

    >>> from rapid_des.frontend import load_job
    >>> fullest = memory(load_job("llama2_7b_train")).fullest
    >>> fullest.stage, fullest.peak == sum(fullest.categories.values())
    (0, True)
    """
    if job.spec.phase == "inference":
        return JobMemory(tuple(_serving_stage(job, stage) for stage in range(job.stages)))
    by_section = section_memory(job)
    return JobMemory(tuple(_training_stage(job, stage, by_section) for stage in range(job.stages)))


def _transient(operations: Sequence[Operation]) -> int:
    """Return the most that a list needs at once: a result, its inputs, and what was recomputed so far."""
    held = most = 0
    for operation in operations:
        held += operation.held
        inputs = sum(operations[position].output for position in operation.after if position >= 0)
        most = max(most, held + inputs + operation.output)
    return most


def section_memory(job: Job) -> dict[Section, SectionMemory]:
    """Return what each section of a training job keeps, under its recomputation."""
    lists = training_lists(job)
    return {
        key.section: SectionMemory(
            _saved_bytes(job, key.section, operations),
            sum(operation.logits for operation in operations),
            {
                "forward": _transient(operations),
                "backward": _transient(lists[PieceKey(key.section, "backward")]),
            },
        )
        for key, operations in lists.items()
        if key.phase == "forward"
    }


def _saved_bytes(job: Job, section: Section, operations: Sequence[Operation]) -> int:
    """Return the activations that a section's forward leaves for its backward."""
    if job.training.recompute == "full" and section.name == "block":
        return job.training_shard.boundary_bytes
    saved = sum(operation.saved for operation in operations)
    cores = sum(operation.core for operation in operations)
    return saved + cores if job.training.recompute == "none" else saved


def _training_stage(job: Job, stage: int, by_section: Mapping[Section, SectionMemory]) -> StageMemory:
    parameters = stage_parameters(job, stage)
    standing = _standing(job, stage, parameters)
    moving, timeline = _walk(job, stage, by_section)
    total = sum(standing.values())
    steps = tuple((item, peak + total) for item, peak in timeline)
    return StageMemory(stage, parameters.total(), _categories(standing | moving), steps)


def _categories(known: Mapping[str, int]) -> dict[str, int]:
    return {name: known.get(name, 0) for name in CATEGORIES}


def _standing(job: Job, stage: int, parameters: Mapping[Domain, int]) -> dict[str, int]:
    """Return what stands for the whole step."""
    precision = job.spec.precision

    def held(state: State) -> int:
        return sum(job.shardings[domain].held(state, elements) for domain, elements in parameters.items())

    states = held("optimizer")
    optimizer = 2 * byte_count(states, precision.optimizer)
    if precision.master_weights is not None:
        optimizer += byte_count(states, precision.master_weights)
    travelling = job.training.bucket_parameters * (precision.gradient_reduce != precision.gradients)
    messages = 2 * job.message_bytes if job.stages > 1 else 0
    return {
        "weights": byte_count(held("parameters"), precision.activations),
        "gradients": byte_count(held("gradients"), precision.gradients),
        "optimizer": optimizer,
        "unsharded": _unsharded(job, stage),
        "communication": messages + byte_count(travelling, precision.gradient_reduce),
        "reserve": int(job.spec.memory_reserve or 0),
    }


def _unsharded(job: Job, stage: int) -> int:
    """Return what is whole of parameters and gradients that replicas share: units in use and on their way.

    Of parameters the unit that computes and those gathered ahead of it (all, where none is given back), of
    gradients the unit's own and the one that travels.
    """
    training, precision = job.training, job.spec.precision
    if not job.sharding.policy.by_unit or all(one.replicas == 1 for one in job.shardings.values()):
        return 0
    sizes, counts = section_parameters(job), stage_sections(job, stage)
    units = sorted((sizes[section].total() for section in counts.elements()), reverse=True)
    whole = units[: training.prefetch + 1] if training.reshard else units
    travelling = units[:2] if job.sharding.each else []
    return byte_count(sum(whole), precision.activations) + byte_count(sum(travelling), precision.gradients)


def _walk(
    job: Job, stage: int, by_section: Mapping[Section, SectionMemory]
) -> tuple[dict[str, int], list[tuple[Item, int]]]:
    """Return what moves at its peak, and the peak during each item."""
    chunks = [
        [by_section[section] for section, _ in sections(job, job.part(stage, chunk))]
        for chunk in range(job.chunks)
    ]
    activations = logits = highest = 0
    peak: dict[str, int] = {}
    timeline = []
    for item in job.orders[stage]:
        forward = item.phase == "forward"
        most = 0
        for section in chunks[item.chunk] if forward else chunks[item.chunk][::-1]:
            activations += section.activations * forward
            logits += section.logits * forward
            temporary = section.temporary[item.phase]
            now = activations + logits + temporary
            most = max(most, now)
            if now > highest:
                highest = now
                peak = {"activations": activations, "logits": logits, "temporary": temporary}
            activations -= section.activations * (not forward)
            logits -= section.logits * (not forward)
        timeline.append((item, most))
    return peak, timeline


def _serving_stage(job: Job, stage: int) -> StageMemory:
    prefill = passes(job)[0]
    shard, lists = serving_shard(job, prefill), pass_lists(job, prefill)
    counts = stage_sections(job, stage)
    categories = {
        "weights": _serving_weights(job, counts),
        "kv_cache": _cache_bytes(job, counts),
        "activations": shard.boundary_bytes,
        "temporary": max(_transient(lists[section]) for section in counts),
        "communication": shard.boundary_bytes if job.stages > 1 else 0,
        "reserve": int(job.spec.memory_reserve or 0),
    }
    return StageMemory(stage, stage_parameters(job, stage).total(), _categories(categories))


def _cache_bytes(job: Job, counts: Mapping[Section, int]) -> int:
    """Return what a stage's layers keep of all requests at their last token."""
    spec, shard = job.inference, job.shard(1, 1, 1)
    positions = spec.prompt_length + spec.output_length
    return spec.batch * sum(
        count * job.model.kinds[section.kind].mixer.cache_bytes(shard, positions)
        for section, count in counts.items()
        if section.name == "block"
    )


def _serving_weights(job: Job, counts: Mapping[Section, int]) -> int:
    """Return the bytes of a stage's weights: a layer's matrices as stored, all else as activations."""
    precision, sizes = job.spec.precision, section_parameters(job)
    lists = pass_lists(job, passes(job)[0])
    narrow = sum(
        count * sum(operation.weights for operation in lists[section]) for section, count in counts.items()
    )
    wide = sum(count * sizes[section].total() for section, count in counts.items()) - narrow
    stored = precision.weights or precision.gemm or precision.activations
    return byte_count(narrow, stored) + byte_count(wide, precision.activations)


def check_memory(job: Job, capacity: int) -> JobMemory:
    """Return the job's memory; `InfeasibleJobError` names what is missing and what would help.

    `capacity` is one GPU's memory in bytes.

    >>> from rapid_des.frontend import load_job
    >>> check_memory(load_job("llama2_7b_train"), 80 * 2**30).fullest.stage
    0
    """
    needed = memory(job)
    full = needed.fullest
    if full.peak <= capacity:
        return needed
    parts = sorted(full.categories.items(), key=lambda entry: -entry[1])
    largest = ", ".join(f"{name} {shown(size)}" for name, size in parts[:4] if size)
    raise InfeasibleJobError(
        f"{job.name}: stage {full.stage} needs {shown(full.peak)} a GPU, there are {shown(capacity)}: "
        f"{shown(full.peak - capacity)} missing ({largest}); {_advice(job, capacity)}"
    )


def shown(size: int) -> str:
    """Return a size for people.

    >>> shown(3 * 2**29), shown(512)
    ('1.5 GiB', '512 B')
    """
    for unit in ("GiB", "MiB", "KiB"):
        factor = Size.parse(f"1 {unit}")
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B"


def _advice(job: Job, capacity: int) -> str:
    fits, together = [], job
    for label, spec in _changes(job.spec):
        smaller = _tried(job, spec)
        if smaller is not None and memory(smaller).fullest.peak <= capacity:
            fits.append(f"{label} ({shown(memory(smaller).fullest.peak)})")
    if fits:
        return "it would fit with " + " or ".join(fits[:4])
    labels = [label for label, _ in _changes(job.spec)]
    for label in labels:
        changed = dict(_changes(together.spec)).get(label)
        together = (changed and _tried(together, changed)) or together
    need = shown(memory(together).fullest.peak)
    return f"no single change is enough; with all of {', '.join(labels)} it needs {need}"


def _tried(job: Job, spec: JobSpec) -> Job | None:
    try:
        return with_spec(job, spec)
    except ConfigError:
        return None


def _changes(spec: JobSpec) -> Iterator[tuple[str, JobSpec]]:
    """Yield single changes that save memory on the same model and batch, mildest first."""
    split = spec.parallelism
    if spec.training is not None:
        yield from _training_changes(spec)
    if spec.inference is not None and spec.inference.batch > 1:
        half = spec.inference.batch // 2
        yield f"inference.batch {half}", _with(spec, inference=_with(spec.inference, batch=half))
    for axis in ("tp", "pp"):
        size = 2 * getattr(split, axis)
        changed = _with(split, **{axis: size})
        label = f"parallelism.{axis} {size}"
        if split.dp % 2 == 0:
            changed = _with(changed, dp=split.dp // 2)
            label += f" and dp {split.dp // 2}"
        yield label, _with(spec, parallelism=changed)


def _training_changes(spec: JobSpec) -> Iterator[tuple[str, JobSpec]]:
    training, split = spec.training, spec.parallelism
    assert training is not None
    stage = training.zero_stage + 1
    if stage in ZERO_STAGES and split.dp > 1:
        yield f"training.zero_stage {stage}", _with(spec, training=_with(training, zero_stage=stage))
    if not split.sequence_parallel and split.tp > 1:
        changed = _with(split, sequence_parallel=True)
        yield "parallelism.sequence_parallel true", _with(spec, parallelism=changed)
    if training.schedule == "gpipe":
        yield "training.schedule 1f1b", _with(spec, training=_with(training, schedule="1f1b"))
    if training.recompute == "none":
        selective = _with(training, recompute="selective")
        yield "training.recompute selective", _with(spec, training=selective)
    if training.recompute != "full":
        yield "training.recompute full", _with(spec, training=_with(training, recompute="full"))
    if training.micro_batch > 1:
        yield "training.micro_batch 1", _with(spec, training=_with(training, micro_batch=1))
