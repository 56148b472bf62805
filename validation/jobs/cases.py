"""A job on a machine as their files would say it, and what a run of it gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import numpy as np

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError, InfeasibleJobError, InputError
from rapid_des.frontend import Job, StageMemory, load_job, memory
from rapid_des.frontend.operations import RequestGroup
from rapid_des.machine import Machine, load_machine
from rapid_des.report.evidence import Interval, Origin
from rapid_des.report.forecast import JobKind
from rapid_des.report.result import Result
from rapid_des.serving.batch import Batch
from rapid_des.serving.engines import iteration_costs
from rapid_des.serving.pools import of_replica, pools_of
from rapid_des.serving.result import ServeResult
from rapid_des.serving.server import serve_workload
from rapid_des.serving.workload import Workload
from rapid_des.simulation import FLATTENED, simulate
from rapid_des.units import PS_PER_S, seconds

Pairs = tuple[tuple[str, str], ...]

ACROSS_NODES = "hybrid"
"""The mode of jobs on several nodes: within 0.3 % of hierarchical and flattened runs of 64 to 2,048 H100."""
TOO_LARGE = "the model says that it does not fit into the GPUs' memory"
FIRST = "first token"
"""The part of a served request that is the wait for its first token."""
_ROOM = (("hbm.capacity", "16 TB"),)
"""What measured jobs run in: they did fit. Whether the model says so too has topics of its own."""
_MACHINES = 8
_ENGINE = "compiled"
"""Which `auto` takes for runs worth loading its kernel; here all of many share that."""


@dataclass(frozen=True)
class Place:
    """A machine file with settings over it."""

    machine: str
    settings: Pairs = ()
    node: int = 8
    """GPUs of a node, on more of which `ACROSS_NODES` is the mode."""


@dataclass(frozen=True)
class Served:
    """Requests of a server: of so many clients (arrivals None), or as they came (seconds)."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    arrivals: tuple[float, ...] | None = None
    clients: int = 1

    def workload(self) -> Workload:
        """Return them as the server takes them."""
        columns = [np.array(column, np.int64) for column in (self.prompt, self.output)]
        if self.arrivals is None:
            return Workload(columns[0], columns[1], None, self.clients)
        times = (np.array(self.arrivals) * PS_PER_S).astype(np.int64)
        return Workload(columns[0], columns[1], times)


@dataclass(frozen=True)
class Case:
    """A job, as its file would hold it (JSON), on a machine."""

    job: str
    place: Place
    limited: bool = False
    """Whether the device's memory counts: what does not fit is refused."""
    only_memory: bool = False
    """Whether the run itself is left out."""
    served: Served | None = None
    """The requests that a server gets; None: the job is run as a static batch or a step."""

    @classmethod
    def of(
        cls, job: Mapping[str, Any], place: Place, *, limited: bool = False, only_memory: bool = False
    ) -> Case:
        """Return the case of a job's tree."""
        return cls(json.dumps(job, sort_keys=True), place, limited, only_memory)


@dataclass(frozen=True)
class Outcome:
    """What a run gives; times in seconds, memory in bytes of the fullest GPU."""

    step_s: float = 0.0
    first_token_s: float = 0.0
    per_token_s: float = 0.0
    tokens_per_s: float = 0.0
    """That a server puts out."""
    memory_bytes: float = 0.0
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """Where the critical rank's time goes."""
    first_parts_s: Mapping[str, float] = field(default_factory=dict)
    """Where the time to the first token of a server's mean request goes."""
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """Where the measurements of its times are expected, by figure."""
    work: Mapping[str, int] = field(default_factory=dict)
    origin: Origin | None = None
    """Whose errors its times are expected to have, or its memory."""
    kind: JobKind | None = None
    """Of a training step: what a forecast of it depends on."""
    memory: StageMemory | None = None
    """Of the first stage, where memory alone was asked for."""
    reserved_bytes: float = 0.0
    """What the framework's allocator holds at most on any stage, where memory alone was asked for."""
    refusal: str = ""
    """Why there was no run; the rest is zero then."""


def outcome(case: Case) -> Outcome:
    """Run a case, with what this process remembers of others.

    >>> job = {"model": "llama2_7b", "phase": "inference", "inference": {"batch": 1, "prompt_length": 64,
    ...        "output_length": 8}}
    >>> Outcome.step_s < outcome(Case.of(job, Place("dgx_a100"))).step_s < 1
    True
    """
    try:
        job = load_job(json.loads(case.job))
        if case.only_memory:
            return _with_memory(job)
        machine = machine_at(case.place, limited=case.limited or case.served is not None)
        if case.served is not None:
            return _served(job, machine, case.served)
        mode = FLATTENED if job.gpus <= case.place.node else ACROSS_NODES
        return _outcome(simulate(job, machine, mode=mode, engine=_ENGINE, cache=_shared()))
    except ConfigError as why:
        return Outcome(refusal=f"{why.key}: {why.message}")
    except InfeasibleJobError:
        return Outcome(refusal=TOO_LARGE)
    except InputError as why:
        return Outcome(refusal=str(why))


def _outcome(result: Result) -> Outcome:
    requests = result.figures.requests if result.figures else None
    return Outcome(
        step_s=seconds(result.step_time),
        first_token_s=seconds(requests.first_token) if requests else 0.0,
        per_token_s=seconds(requests.per_output_token) if requests else 0.0,
        memory_bytes=float(result.figures.memory.fullest.peak) if result.figures else 0.0,
        parts_s={part: seconds(time) for part, time in result.breakdown.items()},
        intervals=result.intervals,
        work=result.work,
        origin=_origin(result),
        kind=result.kind,
    )


def _origin(result: Result) -> Origin | None:
    basis = result.basis
    return None if basis is None or basis.device is None else Origin(basis.device.spec.name, basis.software)


def _served(job: Job, machine: Machine, served: Served) -> Outcome:
    """Return mean latencies, of a closed loop with its first requests, which come together.

    Parts are of the time from a first token to the last: what decode steps of the mean batch take of it, and
    the rest, in which prompts compute between them (the scheduler's).
    """
    result = serve_workload(job, machine, served.workload(), cache=_shared())
    parts = _steps(job, machine, result)
    return Outcome(
        parts_s=parts,
        first_parts_s=_to_first(job, machine, result),
        step_s=float(result.e2e.mean()) / PS_PER_S,
        first_token_s=float(result.ttft.mean()) / PS_PER_S,
        per_token_s=float(result.tpot.mean()) / PS_PER_S,
        tokens_per_s=result.throughput["output_tokens_per_s"],
    )


def _steps(job: Job, machine: Machine, result: ServeResult) -> dict[str, float]:
    """Return the parts of a mean request's decoding, and the wait for its first token."""
    load = result.loads[-1]
    steps = int((load["steps"] * (load["decodes"] > 0)).sum())
    size = max(1, round(int((load["decodes"] * load["steps"]).sum()) / max(1, steps)))
    lengths = result.requests["prompt"] + result.requests["output"] / 2
    batch = Batch(size, round(size * float(lengths.mean())))
    later = float(result.requests["output"].mean()) - 1
    costs = iteration_costs(of_replica(job), machine, _shared())
    parts = {name: later * time / PS_PER_S for name, time in costs.parts(batch).items()}
    decoded = later * float(result.tpot.mean()) / PS_PER_S
    first = float(result.ttft.mean()) / PS_PER_S
    return {**parts, "scheduler": max(0.0, decoded - sum(parts.values())), FIRST: first}


def _to_first(job: Job, machine: Machine, result: ServeResult) -> dict[str, float]:
    """Return the parts of a mean request's first token: those of its prompt alone, its client's, the rest.

    The rest is the scheduler's: who waits, or computes beside others or in several chunks.
    """
    prompt = max(1, round(float(result.requests["prompt"].mean())))
    costs = iteration_costs(pools_of(job)[0].alone, machine, _shared())
    parts = {
        name: time / PS_PER_S for name, time in costs.parts(Batch(chunks=(RequestGroup(1, prompt),))).items()
    }
    parts["client"] = float(result.client.mean()) / PS_PER_S
    whole = float(result.ttft.mean()) / PS_PER_S
    return {**parts, "scheduler": max(0.0, whole - sum(parts.values()))}


def _with_memory(job: Job) -> Outcome:
    needed = memory(job)
    origin = Origin("", job.software.name)
    return Outcome(
        memory_bytes=float(needed.fullest.peak),
        memory=needed.stages[0],
        reserved_bytes=float(max(stage.reserved for stage in needed.stages)),
        origin=origin,
    )


@cache
def _shared() -> BoundedCache:
    return BoundedCache()


@lru_cache(_MACHINES)
def machine_at(place: Place, *, limited: bool = False) -> Machine:
    """Return the machine of a place; unless `limited`, its GPUs have room for any job."""
    return load_machine(place.machine, settings=place.settings, device_settings=() if limited else _ROOM)
