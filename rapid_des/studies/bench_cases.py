"""The standard speed cases, and the answers that they must give."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

from rapid_des.astra.files import Setup, Shape
from rapid_des.astra.front_door import replay_traces
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import CollectiveType, TraceSet
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.simulation import simulate
from rapid_des.studies.bench_traffic import collective_system, irregular, one_collective, setup

_MIB = 2**20


@dataclass(frozen=True)
class Outcome:
    """What one run of a case computed."""

    finish: int
    """Nanoseconds on ASTRA-sim's rules, picoseconds else."""
    hops: int
    events: int
    simulation_s: float


@dataclass(frozen=True)
class Case:
    """One thing to be measured."""

    run: Callable[[], Outcome]
    finish: int
    """The right answer: a wrong one faster is a defect."""
    ladder: str = ""
    """Cases of one ladder differ in size only."""
    large: bool = False
    """Runs only when asked for by name or with --large."""


def _collective(  # noqa: PLR0913 - one case in one line
    shapes: tuple[Shape, ...],
    sizes: tuple[int, ...],
    collective: CollectiveType,
    size: int,
    algorithm: str,
    splits: int = 1,
    queues: int = 1,
) -> Outcome:
    ranks = 1
    for extent in sizes:
        ranks *= extent
    system = collective_system(algorithm, len(shapes), splits)
    traces = one_collective(ranks, collective, size)
    return _outcome(traces, setup(shapes, sizes, system, queues))


def _messages(ranks: int, each: int) -> Outcome:
    system = {"scheduling_policy": "LIFO"}
    return _outcome(irregular(ranks, each), setup(("Torus2D",), (ranks,), system))


def _outcome(traces: TraceSet, on: Setup) -> Outcome:
    result = replay_traces(traces, on, EngineChoice())
    assert result.run is not None
    return Outcome(max(result.finish_ns), result.hops, result.run.execution.records.events, result.wall_s)


def _job(job: str, machine: str, mode: str, *, nodes: int = 0, data_parallel: int = 0) -> Outcome:
    """Run a preset job; if stated on a machine of that many nodes, with that many replicas."""
    replicas = [
        ("parallelism.dp", str(data_parallel)),
        ("training.global_batch", str(16 * data_parallel)),
    ]
    result = simulate(
        load_job(job, settings=replicas if data_parallel else []),
        load_machine(
            machine,
            settings=[("fabric.1.size", str(nodes))] if nodes else [],
            device_settings=[("operators", "roofline")],
        ),
        mode=mode,
    )
    events = result.run.execution.records.events if result.run else 0
    return Outcome(int(result.step_time), result.hops, events, result.wall_s)


def _configurations(batches: int, lengths: int, buckets: int) -> Outcome:
    """Run that many global batches, sequence lengths and bucket sizes, each with each, on one machine.

    The answer is the sum of their step times.
    """
    machine = load_machine("torus2d_ring_a100_64", device_settings=[("operators", "roofline")])
    cache, began = BoundedCache(), time.perf_counter()
    finish = hops = 0
    for batch, length, bucket in product(range(batches), range(lengths), range(buckets)):
        settings = [
            ("training.global_batch", str(32 + 8 * batch)),
            ("training.sequence_length", str(2048 + 64 * length)),
            ("training.bucket_parameters", str(20_000_000 * (bucket + 1))),
        ]
        job = load_job("llama3_1_70b_train_64", settings=settings)
        result = simulate(job, machine, mode="hierarchical", cache=cache)
        finish += int(result.step_time)
        hops += result.hops
    return Outcome(finish, hops, 0, time.perf_counter() - began)


A = CollectiveType
CASES: Mapping[str, Case] = {
    "ring1024_all_reduce_1G": Case(
        partial(_collective, ("Ring",), (1024,), A.ALL_REDUCE, 1024 * _MIB, "ring"), 43014091
    ),
    "switch1024_all_to_all_64M": Case(
        partial(_collective, ("Switch",), (1024,), A.ALL_TO_ALL, 64 * _MIB, "direct"), 1250300
    ),
    "ring256_all_reduce_64M": Case(
        partial(_collective, ("Ring",), (256,), A.ALL_REDUCE, 64 * _MIB, "ring", 4), 3651640
    ),
    "torus2d256_all_to_all_1M": Case(
        partial(_collective, ("Torus2D",), (256,), A.ALL_TO_ALL, _MIB, "direct", 4), 12472944
    ),
    "ring32_ring32_all_reduce_1G": Case(
        partial(_collective, ("Ring", "Ring"), (32, 32), A.ALL_REDUCE, 1024 * _MIB, "ring", 4, 2), 24016504
    ),
    **{
        f"irregular_{ranks}": Case(partial(_messages, ranks, 20), finish, "irregular")
        for ranks, finish in {64: 1266650, 256: 2561052, 1024: 5646826, 4096: 11972949}.items()
    },
    "llama70b_64_flattened": Case(
        partial(_job, "llama3_1_70b_train_64", "torus2d_ring_a100_64", "flattened"), 9499748801103
    ),
    "llama70b_64_hierarchical": Case(
        partial(_job, "llama3_1_70b_train_64", "torus2d_ring_a100_64", "hierarchical"), 9499762400663
    ),
    "llama70b_64_hierarchical_1000": Case(partial(_configurations, 10, 20, 5), 6449288063077550, large=True),
    "llama405b_16384_hierarchical": Case(
        partial(_job, "llama3_1_405b_train_16384", "dgx_h100_x8", "hierarchical", nodes=2048),
        7718011858918,
        large=True,
    ),
    "llama405b_131072_hierarchical": Case(
        partial(
            _job,
            "llama3_1_405b_train_16384",
            "dgx_h100_x8",
            "hierarchical",
            nodes=16384,
            data_parallel=1024,
        ),
        7766453625531,
        large=True,
    ),
}
