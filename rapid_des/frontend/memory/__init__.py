"""Memory of a rank from events: operators allocate and free named tensors in the order of the schedule.

    operator lists ──► events ──► training ──► StageMemory: peak by tensor, a moment for each pass
                        weights, gradients, optimizer, buffers, the framework's own ──┘
    passes of requests ──► serving

Not counted: statistics of norms (8 bytes a row). What a framework takes besides the model is its profile's
(`rapid_des.frontend.reserve`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rapid_des.errors import ConfigError, InfeasibleJobError
from rapid_des.frontend.groups import ZERO_STAGES
from rapid_des.frontend.job import Job
from rapid_des.frontend.loading import with_spec
from rapid_des.frontend.memory.events import (
    CATEGORIES,
    JobMemory,
    Moment,
    SectionMemory,
    StageMemory,
    Tensor,
    section_memory,
    shown,
)
from rapid_des.frontend.memory.serving import KvCapacity, kv_capacity, serving_memory
from rapid_des.frontend.memory.training import training_memory
from rapid_des.frontend.spec import JobSpec

__all__ = [
    "CATEGORIES",
    "JobMemory",
    "KvCapacity",
    "Moment",
    "SectionMemory",
    "StageMemory",
    "Tensor",
    "check_memory",
    "in_passes",
    "kv_capacity",
    "memory",
    "section_memory",
    "shortage",
    "shown",
]


_with = msgspec.structs.replace


def memory(job: Job) -> JobMemory:
    """Return the memory of each stage's ranks, in bytes.

    >>> from rapid_des.frontend import load_job
    >>> fullest = memory(load_job("llama2_7b_train")).fullest
    >>> fullest.stage, fullest.peak == sum(tensor.size for tensor in fullest.tensors)
    (0, True)
    """
    return serving_memory(job) if job.spec.phase == "inference" else training_memory(job)


def in_passes(job: Job, capacity: int) -> Job:
    """Return a job whose prompts take passes of the engine's size, where all in one pass would not fit.

    `capacity` is one GPU's memory in bytes.

    >>> from rapid_des.frontend import load_job
    >>> large = {"inference.batch": 96, "inference.prompt_length": 2700}
    >>> in_passes(load_job("llama2_7b_inference", settings=large), 60 * 2**30).inference.prefill_tokens
    8192
    """
    pool = job.spec.memory.kv_pool
    if job.spec.inference is None or pool is None or job.inference.prefill_tokens is not None:
        return job
    if memory(job).fullest.peak <= capacity:
        return job
    chunked = _with(job.inference, prefill_tokens=pool.tokens)
    return _tried(job, _with(job.spec, inference=chunked)) or job


def check_memory(job: Job, capacity: int) -> JobMemory:
    """Return the job's memory; `InfeasibleJobError` names what is missing and what would help.

    `capacity` is one GPU's memory in bytes.

    >>> from rapid_des.frontend import load_job
    >>> check_memory(load_job("llama2_7b_train"), 80 * 2**30).fullest.stage
    0
    """
    needed = memory(job)
    if needed.fullest.peak > capacity:
        raise InfeasibleJobError(f"{job.name}: {shortage(needed, capacity)}; {_advice(job, capacity)}")
    pool = kv_capacity(job, capacity) if job.spec.phase == "inference" else None
    if pool is not None and pool.shortage:
        raise InfeasibleJobError(f"{job.name}: {pool.shortage}")
    return needed


def shortage(needed: JobMemory, capacity: int) -> str:
    """Return what is missing of a GPU's memory, with the largest categories."""
    full = needed.fullest
    parts = sorted(full.categories.items(), key=lambda entry: -entry[1])
    largest = ", ".join(f"{name} {shown(size)}" for name, size in parts[:4] if size)
    return (
        f"stage {full.stage} needs {shown(full.peak)} a GPU, there are {shown(capacity)}: "
        f"{shown(full.peak - capacity)} missing ({largest})"
    )


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
    if spec.inference is not None and spec.inference.batch is not None and spec.inference.batch > 1:
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
        every = _with(
            training, recompute="full", recompute_method="uniform", recompute_layers=None, recompute_kinds=()
        )
        yield "training.recompute full", _with(spec, training=every)
    if training.micro_batch > 1:
        yield "training.micro_batch 1", _with(spec, training=_with(training, micro_batch=1))
