"""Reading a job file and the model it names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rapid_des.config import apply_overrides, decode, load_document, resolve
from rapid_des.frontend.checks import check_job
from rapid_des.frontend.job import JobSpec
from rapid_des.frontend.model import load_model
from rapid_des.frontend.resolved import Job


def load_job(
    reference: str | Path, *, settings: Iterable[tuple[str, str]] = (), folder: Path | None = None
) -> Job:
    """Return the job that a path or a preset's bare name stands for.

    `settings` are (key path, YAML text) pairs such as ("training.micro_batch", "2"); keys below `model.`
    change the model file ("model.layers", "4"), the key `model` which one it is. References are looked up in
    `folder` (default: the working directory), then the presets. A `ConfigError` says what is wrong.
    """
    path = resolve(str(reference), "job", folder=folder or Path())
    settings = tuple(settings)
    below = "model."
    own = [(key, text) for key, text in settings if not key.startswith(below)]
    spec = decode(apply_overrides(load_document(path), own), JobSpec)
    model_path = resolve(spec.model, "model", folder=path.parent, named_in=str(path), key="model")
    inner = [(key.removeprefix(below), text) for key, text in settings if key.startswith(below)]
    model = load_model(apply_overrides(load_document(model_path), inner))
    job = Job(path.stem, str(path), spec, model)
    check_job(job)
    return job


def with_spec(job: Job, spec: JobSpec) -> Job:
    """Return the job with another spec, checked."""
    changed = replace(job, spec=spec)
    check_job(changed)
    return changed
