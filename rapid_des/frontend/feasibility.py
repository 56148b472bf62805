"""Whether a job fits its GPUs, and if not, which changes would make it fit."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rapid_des.errors import ConfigError, InfeasibleJobError
from rapid_des.frontend.job import JobSpec
from rapid_des.frontend.loading import with_spec
from rapid_des.frontend.memory import JobMemory, memory
from rapid_des.frontend.resolved import Job
from rapid_des.units import Size

_replace = msgspec.structs.replace


def check_memory(job: Job, capacity: int) -> JobMemory:
    """Return the job's memory; `InfeasibleJobError` names what is missing and what would help.

    `capacity` is one GPU's memory in bytes.
    """
    found = memory(job)
    full = found.fullest
    if full.peak <= capacity:
        return found
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
        yield f"inference.batch {half}", _replace(spec, inference=_replace(spec.inference, batch=half))
    for axis in ("tp", "pp"):
        size = 2 * getattr(split, axis)
        changed = _replace(split, **{axis: size})
        label = f"parallelism.{axis} {size}"
        if split.dp % 2 == 0:
            changed = _replace(changed, dp=split.dp // 2)
            label += f" and dp {split.dp // 2}"
        yield label, _replace(spec, parallelism=changed)


def _training_changes(spec: JobSpec) -> Iterator[tuple[str, JobSpec]]:
    training, split = spec.training, spec.parallelism
    assert training is not None
    if training.zero_stage == 0 and split.dp > 1:
        yield "training.zero_stage 1", _replace(spec, training=_replace(training, zero_stage=1))
    if not split.sequence_parallel and split.tp > 1:
        changed = _replace(split, sequence_parallel=True)
        yield "parallelism.sequence_parallel true", _replace(spec, parallelism=changed)
    if training.schedule == "gpipe":
        yield "training.schedule 1f1b", _replace(spec, training=_replace(training, schedule="1f1b"))
    if training.recompute == "none":
        selective = _replace(training, recompute="selective")
        yield "training.recompute selective", _replace(spec, training=selective)
    if training.recompute != "full":
        yield "training.recompute full", _replace(spec, training=_replace(training, recompute="full"))
    if training.micro_batch > 1:
        yield "training.micro_batch 1", _replace(spec, training=_replace(training, micro_batch=1))
