"""A job imported from another tool's file, checked, with notes for the user."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from rapid_des.config import to_yaml
from rapid_des.errors import ConfigError
from rapid_des.frontend.job import Job
from rapid_des.frontend.loading import load_job
from rapid_des.importers.keys import Ignored, Outcomes, Tree, by_reason, commented


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

    @property
    def summary(self) -> str:
        """The job's GPUs and parameters."""
        return f"{self.job.gpus} GPUs, {self.job.model.parameters:,} parameters"

    def files(self, name: str) -> Mapping[str, str]:
        """Return the job file."""
        return {f"{name}.yaml": self.as_yaml()}

    def as_json(self) -> Tree:
        """Return the job, its GPUs and its parameters as plain data."""
        parameters = self.job.model.parameters
        return {"source": self.source, "gpus": self.job.gpus, "parameters": parameters, "job": self.tree}

    def as_yaml(self) -> str:
        """Return the text of a job file."""
        head = (f"from {self.source}", *self.notes, *by_reason(self.ignored))
        return commented(head) + to_yaml(self.tree)


def imported(tree: Tree, file: Path, tool: str, outcomes: Outcomes) -> ImportedJob:
    """Return the checked job; what does not fit together is named by the keys of a job file."""
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


def spread(layers: list[int], total: int) -> list[dict[str, int]]:
    """Return numbered layers as `start`, `stop` and `every` of exceptions.

    >>> spread([0, 1, 2], 9), spread([1, 3, 5], 6), spread([0, 4, 5], 6)
    ([{'stop': 3}], [{'start': 1, 'every': 2}], [{'stop': 1}, {'start': 4}])
    """
    steps = {after - before for before, after in zip(layers, layers[1:], strict=False)}
    if len(layers) > 1 and len(steps) == 1:
        return [_places(layers[0], layers[-1], steps.pop(), total)]
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [_places(run[0], run[-1], 1, total) for run in runs]


def _places(first: int, last: int, every: int, total: int) -> dict[str, int]:
    stop = {} if last + every >= total else {"stop": last + 1}
    return ({"start": first} if first else {}) | stop | ({"every": every} if every > 1 else {})
