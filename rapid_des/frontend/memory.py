"""Memory of a rank by liveness: a walk over the operator lists in the order of the schedule.

Weights, gradients and optimizer states stand from start to end. A forward pass adds what its steps keep for
the backward; each section's backward takes its part away again. While a list runs, the largest result with
its inputs, and what was recomputed, stand besides. Not counted: statistics of norms (8 bytes a row) and
fragmentation; what a GPU spends outside the model is the job's `memory_reserve`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rapid_des.frontend.block import boundary_bytes, matrices
from rapid_des.frontend.ends import logits_bytes
from rapid_des.frontend.inference import passes, serving_shard, serving_steps
from rapid_des.frontend.parts import PieceKey, Section, sections, training_steps
from rapid_des.frontend.pipeline import Item, Phase
from rapid_des.frontend.reduction import members
from rapid_des.frontend.resolved import Job
from rapid_des.frontend.stages import section_parameters, stage_parameters, stage_sections
from rapid_des.frontend.steps import Step
from rapid_des.frontend.traffic import byte_count
from rapid_des.units import ceil_divide

CATEGORIES = (
    "weights", "gradients", "optimizer", "activations", "logits", "temporary", "communication", "kv_cache",
    "reserve",
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
    """Every stage's memory."""

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
    """Return the memory of each stage's ranks."""
    if job.spec.phase == "inference":
        return JobMemory(tuple(_serving_stage(job, stage) for stage in range(job.stages)))
    kept = section_memory(job)
    return JobMemory(tuple(_training_stage(job, stage, kept) for stage in range(job.stages)))


def transient(steps: Sequence[Step]) -> int:
    """Return the most that a list needs at once: a result, its inputs, and what was recomputed so far."""
    held = most = 0
    for step in steps:
        held += step.held
        inputs = sum(steps[position].output for position in step.after if position >= 0)
        most = max(most, held + inputs + step.output)
    return most


def section_memory(job: Job) -> dict[Section, SectionMemory]:
    """Return what each section of a training job keeps, under its recomputation."""
    lists = training_steps(job)
    shard, recompute = job.training_shard, job.training.recompute
    found: dict[Section, SectionMemory] = {}
    for key, steps in lists.items():
        if key.phase == "backward":
            continue
        logits = logits_bytes(shard) if key.section == "head" else 0
        kept = sum(step.saved for step in steps) - logits
        if recompute == "none":
            kept += sum(step.core for step in steps)
        elif recompute == "full" and key.section == "block":
            kept = boundary_bytes(shard)
        backward = lists[PieceKey(key.section, "backward")]
        temporary: dict[Phase, int] = {"forward": transient(steps), "backward": transient(backward)}
        found[key.section] = SectionMemory(kept, logits, temporary)
    return found


def _training_stage(job: Job, stage: int, kept: Mapping[Section, SectionMemory]) -> StageMemory:
    parameters = stage_parameters(job, stage)
    standing = _standing(job, parameters)
    moving, timeline = _walk(job, stage, kept)
    total = sum(standing.values())
    steps = tuple((item, peak + total) for item, peak in timeline)
    return StageMemory(stage, parameters, _categories(standing | moving), steps)


def _categories(known: Mapping[str, int]) -> dict[str, int]:
    return {name: known.get(name, 0) for name in CATEGORIES}


def _standing(job: Job, parameters: int) -> dict[str, int]:
    """Return what stands for the whole step."""
    precision = job.spec.precision
    split = members(job, "gradient") if job.training.zero_stage else 1
    own = ceil_divide(parameters, split)
    optimizer = 2 * byte_count(own, precision.optimizer)
    if precision.master_weights is not None:
        optimizer += byte_count(own, precision.master_weights)
    travelling = job.training.bucket_parameters * (precision.gradient_reduce != precision.gradients)
    messages = 2 * boundary_bytes(job.training_shard) if job.stages > 1 else 0
    return {
        "weights": byte_count(parameters, precision.activations),
        "gradients": byte_count(parameters, precision.gradients),
        "optimizer": optimizer,
        "communication": messages + byte_count(travelling, precision.gradient_reduce),
        "reserve": int(job.spec.memory_reserve or 0),
    }


def _walk(
    job: Job, stage: int, kept: Mapping[Section, SectionMemory]
) -> tuple[dict[str, int], list[tuple[Item, int]]]:
    """Return what moves at its peak, and the peak during each item."""
    own = [
        [kept[section] for section, _ in sections(job, chunk * job.stages + stage)]
        for chunk in range(job.chunks)
    ]
    activations = logits = highest = 0
    peak: dict[str, int] = {}
    timeline = []
    for item in job.orders[stage]:
        forward = item.phase == "forward"
        most = 0
        for section in own[item.chunk] if forward else own[item.chunk][::-1]:
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
    shard = serving_shard(job, passes(job)[0])
    spec, precision = job.inference, job.spec.precision
    own = stage_sections(job, stage)
    layers = own.count("block")
    positions = spec.batch * (spec.prompt_length + spec.output_length)
    entries = 2 * layers * shard.kv_width * positions
    lists = serving_steps(shard)
    temporary = max(transient(lists[PieceKey(section, "forward")]) for section in own)
    known = {
        "weights": _serving_weights(job, own),
        "kv_cache": byte_count(entries, precision.kv_cache or precision.activations),
        "activations": boundary_bytes(shard),
        "temporary": temporary,
        "communication": boundary_bytes(shard) if job.stages > 1 else 0,
        "reserve": int(job.spec.memory_reserve or 0),
    }
    return StageMemory(stage, stage_parameters(job, stage), _categories(known))


def _serving_weights(job: Job, own: Sequence[Section]) -> int:
    """Return the bytes of a stage's weights: a layer's matrices as stored, all else as activations."""
    precision = job.spec.precision
    sizes = section_parameters(job)
    narrow = sum(matrix.columns * matrix.inner for matrix in matrices(job.shard(1, 1, 1))) * own.count(
        "block"
    )
    wide = sum(sizes[section] for section in own) - narrow
    stored = precision.weights or precision.gemm or precision.activations
    return byte_count(narrow, stored) + byte_count(wide, precision.activations)
