"""How much GPU memory is missing, and which changes of a job would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from rapid_des.errors import ConfigError
from rapid_des.frontend.groups import ZERO_STAGES
from rapid_des.frontend.job import Job
from rapid_des.frontend.loading import with_spec
from rapid_des.frontend.memory.events import JobMemory, shown
from rapid_des.frontend.spec import JobSpec

_with = msgspec.structs.replace
_MILDER, _STRONGER = "training.recompute selective", "training.recompute full"
"""Two changes of which the second does what the first does, and more."""


def shortage(needed: JobMemory, capacity: int) -> str:
    """Return how much GPU memory is missing, with the largest categories."""
    full = needed.fullest
    parts = sorted(full.categories.items(), key=lambda entry: -entry[1])
    largest = ", ".join(f"{name} {shown(size)}" for name, size in parts[:4] if size)
    return (
        f"stage {full.stage} needs {shown(full.peak)} a GPU, there are {shown(capacity)}: "
        f"{shown(full.peak - capacity)} missing ({largest})"
    )


def advice(job: Job, capacity: int, memory: Callable[[Job], JobMemory]) -> str:
    """Return which single changes would make a job fit, or what all of them together need."""
    fits = list(islice(_fitting(job, capacity, memory), 4))
    if fits:
        return "it would fit with " + " or ".join(fits)
    together, labels = job, list[str]()
    for label, _ in _changes(job.spec):
        change = dict(_changes(together.spec)).get(label)
        changed = change and changed_to(together, change)
        if changed:
            together = changed
            labels.append(label)
    labels = [label for label in labels if label != _MILDER or _STRONGER not in labels]
    need = shown(memory(together).fullest.peak)
    every = f"no single change is enough; with all of {', '.join(labels)} it needs {need}; " if labels else ""
    return f"{every}`rapid-des plan` looks for layouts that fit"


def _fitting(job: Job, capacity: int, memory: Callable[[Job], JobMemory]) -> Iterator[str]:
    """Yield the single changes that make a job fit, with what each needs."""
    for label, spec in _changes(job.spec):
        smaller = changed_to(job, spec)
        needed = None if smaller is None else memory(smaller).fullest.peak
        if needed is not None and needed <= capacity:
            yield f"{label} ({shown(needed)})"


def changed_to(job: Job, spec: JobSpec) -> Job | None:
    """Return the job with another specification; None if that is refused."""
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
    if split.dp * split.cp > split.ep:  # a model without experts refuses it
        yield f"parallelism.ep {2 * split.ep}", _with(spec, parallelism=_with(split, ep=2 * split.ep))
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
        yield _MILDER, _with(spec, training=selective)
    if training.recompute != "full":
        every = _with(
            training, recompute="full", recompute_method="uniform", recompute_layers=None, recompute_kinds=()
        )
        yield _STRONGER, _with(spec, training=every)
    if training.micro_batch > 1:
        yield "training.micro_batch 1", _with(spec, training=_with(training, micro_batch=1))
