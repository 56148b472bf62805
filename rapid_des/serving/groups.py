"""Replicas of several models, layouts or machines in one service, behind one router."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError
from rapid_des.frontend import Job, load_job
from rapid_des.frontend.servers import AutoscalerSpec, BesideSpec, ServingSpec
from rapid_des.machine import Machine, load_machine
from rapid_des.serving.engine import Engine


class Beside(Struct, frozen=True):
    """A job and the machine on which its replicas stand, beside those of the service's own job."""

    job: Job
    machine: Machine


class ReplicaGroup(Struct, frozen=True):
    """Replicas of one engine."""

    engine: Engine
    replicas: int
    takes: tuple[int, ...] = (0,)
    """Numbers of the classes of requests that they take."""
    autoscaler: AutoscalerSpec | None = None
    startup: int = 0
    """Picoseconds that a replica needs until it serves."""
    name: str = ""
    device: str = ""


def besides_of(job: Job, cache: BoundedCache | None = None) -> tuple[Beside, ...]:
    """Return the jobs and machines of a service's further replicas."""
    spec = job.spec.serving or ServingSpec()
    return tuple(_loaded(job, place, each, cache) for place, each in enumerate(spec.beside))


def _loaded(job: Job, place: int, spec: BesideSpec, cache: BoundedCache | None) -> Beside:
    folder, key = Path(job.file).parent, f"serving.beside[{place}]"
    try:
        beside = load_job(spec.job, settings=spec.settings, folder=folder)
        machine = load_machine(spec.machine, folder=folder, cache=cache)
    except ConfigError as error:
        where = ": ".join(part for part in (error.file, error.key) if part)
        raise ConfigError(f"{where}: {error.message}", file=job.file, key=key) from None
    _ = beside.inference  # or it is no job that serves
    serving = beside.spec.serving or ServingSpec()
    refused = {
        "beside": serving.beside,
        "prefill_replicas": serving.prefill_replicas,
        "prefill_parallelism": serving.prefill_parallelism,
        "outages": serving.outages,
    }
    wrong = next((name for name, value in refused.items() if value), None)
    if wrong is not None:
        problem = f"job {spec.job} states serving.{wrong}, which replicas beside others do not have"
        raise ConfigError(problem, file=job.file, key=key)
    return Beside(beside, machine)


def group_rows(groups: Sequence[ReplicaGroup], requests: Mapping[str, Int64s]) -> Iterator[dict[str, Any]]:
    """Yield what each group of replicas answered; they have consecutive numbers."""
    first = 0
    for group in groups:
        mine = (requests["replica"] >= first) & (requests["replica"] < first + group.replicas)
        first += group.replicas
        yield {
            "job": group.name,
            "device": group.device,
            "replicas": group.replicas,
            "gpus": group.replicas * group.engine.gpus,
            "requests": int(mine.sum()),
            "output_tokens": int(requests["output"][mine].sum()),
        }
