"""Jobs that stand for others in bounds: what is found out about a stand-in holds for all of them.

Bounds share work: many layouts have equal layers, process groups or optimizers. Each kind of work is done
for a stand-in alone, which has what the work depends on and as little else as possible. So a stand-in is all
that its work follows from, and the key under which the result is kept.

    of_layers   the operators of a layer: few stages, replicas and micro-batches
    in_place    the same, and the ranks between which a layer's messages travel stay where they are
    of_groups   the ranks of all process groups: layers and passes do not matter
    of_state    parameters, gradients and optimizer of each stage: passes do not matter
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import gcd
from typing import Any, NewType

from msgspec import structs

from rapid_des.frontend import Job
from rapid_des.frontend.groups import ZERO_STAGES
from rapid_des.frontend.routing import places
from rapid_des.frontend.schedules import SCHEDULES
from rapid_des.frontend.spec import ParallelismSpec
from rapid_des.frontend.unit_copies import widens_parameters
from rapid_des.studies.choices import ORDER
from rapid_des.studies.closed_form_bounds import passes_whole
from rapid_des.values import replace

Layers = NewType("Layers", Job)
"""A job that `of_layers` returned."""
Placed = NewType("Placed", Job)
"""A job that `in_place` returned."""
Groups = NewType("Groups", Job)
"""A job that `of_groups` returned."""
State = NewType("State", Job)
"""A job that `of_state` returned."""
_SIMPLEST = "1f1b"
_RECENT = 256
"""Number of jobs whose stand-ins are remembered: several bounds of a layout ask for them."""


@lru_cache(maxsize=_RECENT)
def of_layers(job: Job) -> Layers:
    """Return the stand-in of all jobs whose layers have the same operators."""
    return Layers(_fewer(job, ()))


@lru_cache(maxsize=_RECENT)
def in_place(job: Job) -> Placed:
    """Return the stand-in of all jobs whose layers have the same operators and messages.

    Axes along which no layer exchanges anything are left out where they lie outside of those along which
    layers do: ranks stay in place.
    """
    split = job.spec.parallelism
    sizes = {"tp": split.tp, "cp": split.cp, "dp": split.dp if job.model.has_experts else 1}
    used = [place for place, axis in enumerate(split.order) if sizes.get(axis, 1) > 1]
    return Placed(_fewer(job, split.order[: used[-1] + 1] if used else ()))


@lru_cache(maxsize=_RECENT)
def of_groups(job: Job) -> Groups:
    """Return the stand-in of all jobs with the same process groups."""
    split = structs.replace(job.spec.parallelism, sequence_parallel=False)
    return Groups(_fewer(without_passes(job, split), split.order))


@lru_cache(maxsize=_RECENT)
def of_state(job: Job) -> State:
    """Return the stand-in of all jobs whose stages hold, exchange and update the same parameters.

    Of a stage's chunks only how many layers they have together matters, if these are equal.
    """
    split, model = job.spec.parallelism, job.model
    named = isinstance(job.training.schedule, str) and passes_whole(job)
    if not named or len(model.kinds) > 1:
        return State(without_passes(job))
    layers = tuple([sum([job.layers[part] for part in parts]) for parts in job.placement])
    split = structs.replace(split, chunks=1, layers=layers)
    return State(without_passes(job, split, schedule=_SIMPLEST, micro_batch_group=None))


_NOTHING_AGAIN: Mapping[str, Any] = {
    "recompute": "none", "recompute_layers": None, "recompute_method": "uniform", "recompute_kinds": ()
}  # fmt: skip


def without_passes(job: Job, split: ParallelismSpec | None = None, **changed: Any) -> Job:
    """Return the job, split so, with passes of one sequence, of which nothing is run again."""
    training = structs.replace(job.training, micro_batch=1, **_NOTHING_AGAIN, **changed)
    split = job.spec.parallelism if split is None else split
    return replace(job, spec=structs.replace(job.spec, parallelism=split, training=training))


def _fewer(job: Job, kept: tuple[str, ...]) -> Job:
    """Return the job with as few stages, replicas and micro-batches as its layers allow.

    The `kept` axes keep their sizes and, innermost, their order.
    """
    split, training, copies = job.spec.parallelism, job.training, copies_units(job)
    axes: dict[str, Any] = {"order": (*kept, *(axis for axis in ORDER if axis not in kept))}
    passes: dict[str, Any] = {"overlap_parameters": False}
    if "dp" not in kept and not copies:
        ranks = split.ep * split.expert_degree  # as many as experts need, or where each has its own load
        least = ranks // gcd(ranks, split.tp * split.cp)
        axes |= {"dp_replicate": 1, "dp": split.dp if places(job) > 1 else least}
    if not copies:
        passes["zero_stage"] = 0
    stages = split.pp if "pp" in kept else min(split.pp, 2)
    if _simplifies(job):
        passes |= {"schedule": _SIMPLEST if passes_whole(job) else training.schedule}
        passes |= {"micro_batch_group": None}
        schedule = SCHEDULES[passes["schedule"]]
        parts = 1 + max(map(max, schedule.placement(stages, schedule.chunks or 1)))
        layers = (job.model.spec.layers - parts + 1, *[1] * (parts - 1))
        axes |= {"pp": stages, "chunks": 1, "layers": layers}
    split = structs.replace(split, **axes)
    passes["global_batch"] = training.micro_batch * split.dp * 4 * split.pp * split.chunks
    training = structs.replace(training, **passes)
    return replace(job, spec=structs.replace(job.spec, parallelism=split, training=training))


def _simplifies(job: Job) -> bool:
    """Return whether a job's layers have the same operators on other stages."""
    training = job.training
    counted = training.recompute == "full" and training.recompute_layers is not None
    return isinstance(training.schedule, str) and not counted and not training.overlap_batches


def copies_units(job: Job) -> bool:
    """Return whether whole units are copied beside their gathers: under ZeRO-3 alone."""
    training = job.training
    gathers = ZERO_STAGES[training.zero_stage].by_unit
    return gathers and (training.unit_copies != "none" or widens_parameters(job))


def few_passes(job: Job) -> Job:
    """Return a job of few micro-batches, whose plan is soon made: layers do not know how many there are."""
    shape, count = job.shape, job.micro_batches
    least = 2 * shape.stages * shape.chunks
    fewer = least + (count - least) % (2 * shape.in_group)
    return with_micro_batches(job, min(fewer, count))


def with_micro_batches(job: Job, count: int) -> Job:
    """Return the job with this number of micro-batches of the same size."""
    if count == job.micro_batches:
        return job
    batch = job.training.global_batch // job.micro_batches * count
    training = structs.replace(job.training, global_batch=batch)
    return replace(job, spec=structs.replace(job.spec, training=training))


def without_host(job: Job) -> Job:
    """Return the job on a host that issues all at once."""
    return replace(job, spec=structs.replace(job.spec, host=None))


def without_unit_copies(job: Job) -> Job:
    """Return the job without copies of whole units: passes under any ZeRO stage have these kernels."""
    if not copies_units(job):
        return job
    training = structs.replace(job.training, unit_copies="none")
    precision = structs.replace(job.spec.precision, parameter_gather=None)
    return replace(job, spec=structs.replace(job.spec, training=training, precision=precision))


def without_recomputation(job: Job) -> Job:
    """Return the job without recomputation: each of its passes has all of these kernels."""
    if job.training.recompute == "none":
        return job
    training = structs.replace(job.training, **_NOTHING_AGAIN)
    return replace(job, spec=structs.replace(job.spec, training=training))
