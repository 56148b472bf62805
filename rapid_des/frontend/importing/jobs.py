"""Job files from other tools' files: what came of one, as text, with what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapid_des.config import to_yaml
from rapid_des.errors import ConfigError
from rapid_des.frontend.job import Job
from rapid_des.frontend.loading import load_job

Tree = dict[str, Any]


@dataclass(frozen=True)
class ImportedJob:
    """A job with where it comes from."""

    job: Job
    tree: Tree
    """What the job file says; what it leaves to the software's defaults is not in it."""
    source: str
    """The tool and file."""
    notes: tuple[str, ...]
    """What the job file does not say, or says by assumption."""

    def as_yaml(self) -> str:
        """Return the text of a job file."""
        head = "".join(f"# {line}\n" for line in (f"from {self.source}", *self.notes))
        return head + to_yaml(self.tree)


def imported(tree: Tree, file: Path, tool: str, notes: Iterable[str]) -> ImportedJob:
    """Return the checked job; what does not fit together is told by the keys of a job file."""
    try:
        job = load_job(tree)
    except ConfigError as error:
        raise ConfigError(f"as a job file: {error.key}: {error.message}", file=str(file)) from None
    return ImportedJob(job, tree, f"{tool}, {file.name}", tuple(notes))


def replicas(gpus: int, ways: Mapping[str, int], file: str) -> int:
    """Return how often `gpus` hold the product of `ways`; a `ConfigError` names what does not divide."""
    product = 1
    for size in ways.values():
        product *= size
    if gpus % product:
        split = " · ".join(f"{name} {size}" for name, size in ways.items())
        raise ConfigError(f"{gpus} GPUs do not divide by {split}", file=file)
    return gpus // product


def sparse(**values: object) -> Tree:
    """Return what is stated: values that are neither None nor an empty mapping."""
    return {key: value for key, value in values.items() if value is not None and value != {}}
