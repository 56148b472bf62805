"""A job imported from another tool's file, checked, with notes for the user."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from rapid_des.config import to_yaml
from rapid_des.errors import ConfigError
from rapid_des.frontend.importing.keys import Ignored, Outcomes, Tree, by_reason, commented
from rapid_des.frontend.job import Job
from rapid_des.frontend.loading import load_job


class ImportedJob(Struct, frozen=True):
    """A job and where it was imported from."""

    job: Job
    tree: Tree
    """What the job file says; what it leaves to the software's defaults is not in it."""
    source: str
    """The name of the tool and its file."""
    notes: tuple[str, ...]
    """What the imported file leaves open, and which assumptions fill it."""
    ignored: tuple[Ignored, ...]
    """The keys that change nothing, each with the reason."""

    def as_yaml(self) -> str:
        """Return the text of a job file."""
        head = (f"from {self.source}", *self.notes, *by_reason(self.ignored))
        return commented(head) + to_yaml(self.tree)


def imported(tree: Tree, file: Path, tool: str, outcomes: Outcomes) -> ImportedJob:
    """Return the checked job; what does not fit together is told by the keys of a job file."""
    try:
        job = load_job(tree)
    except ConfigError as error:
        raise ConfigError(f"as a job file: {error.key}: {error.message}", file=str(file)) from None
    return ImportedJob(job, tree, f"{tool}, {file.name}", tuple(outcomes.notes), tuple(outcomes.ignored))


def replicas(gpus: int, degrees: Mapping[str, int], file: str) -> int:
    """Return how often `gpus` hold the product of `degrees`; a `ConfigError` names what does not divide."""
    product = 1
    for name, size in degrees.items():
        if size < 1:
            raise ConfigError(f"{name} {size} is below 1", file=file)
        product *= size
    if gpus % product:
        split = " · ".join(f"{name} {size}" for name, size in degrees.items())
        raise ConfigError(f"{gpus} GPUs do not divide by {split}", file=file)
    return gpus // product


def sparse(**values: object) -> Tree:
    """Return what is stated: values that are neither None nor an empty mapping."""
    return {key: value for key, value in values.items() if value is not None and value != {}}
