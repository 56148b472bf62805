"""The simulator's own speed: standard cases, each in a fresh process and checked against its answer."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import Struct

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.made import one_collective
from rapid_des.chakra.trace import CollectiveType, TraceSet
from rapid_des.errors import InputError, RapidDesError
from rapid_des.frontend import load_job
from rapid_des.importers.astra_sim.files import Dialect, Files, NetworkFile, Setup, Shape, SystemFile
from rapid_des.importers.astra_sim.front_door import replay_traces
from rapid_des.machine import load_machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.processes import Worker
from rapid_des.simulation import simulate
from rapid_des.studies.traffic import irregular
from rapid_des.values import asdict

_WARM_UP = "irregular_64"
_STREAM = "network"
_MIB = 2**20


class Outcome(Struct, frozen=True):
    """The results of one run of a benchmark."""

    finish: int
    """The finish time: in nanoseconds by ASTRA-sim's rules, else in picoseconds."""
    hops: int
    events: int
    simulation_s: float


class Benchmark(Struct, frozen=True):
    """One case whose time is measured."""

    run: Callable[[], Outcome]
    finish: int
    """The expected finish time: another answer is a defect, however fast."""
    ladder: str = ""
    """The name of its ladder: cases of one ladder differ in size only."""
    large: bool = False
    """Whether it runs only when it is named or with --large."""


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
    system = _collective_system(algorithm, len(shapes), splits)
    traces = one_collective(range(ranks), collective, size, stream=_STREAM, unordered=True)
    return _outcome(traces, _setup(shapes, sizes, system, queues))


def _setup(
    shapes: Sequence[Shape], sizes: Sequence[int], system: Mapping[str, Any], queues: int = 1
) -> Setup:
    """Return a fabric of 50 GiB/s and 500 ns a link, with the algorithms of its collectives."""
    network = NetworkFile(
        topology=tuple(shapes),
        npus_count=tuple(sizes),
        bandwidth=(50.0,) * len(shapes),
        latency=(500.0,) * len(shapes),
    )
    dialect: Dialect = "extended" if "Torus2D" in shapes or len(shapes) > 1 else "stock"
    files = Files(Path("bench/network"), Path("bench/system"), queues=queues, dialect=dialect)
    return Setup(files, network, SystemFile(**system), {}, None, ())


def _collective_system(algorithm: str, dimensions: int, splits: int) -> dict[str, Any]:
    """Return the system file of a case that runs one algorithm in every dimension."""
    names = (algorithm,) * dimensions
    return {
        "scheduling_policy": "LIFO",
        "collective_optimization": "localBWAware",
        "preferred_dataset_splits": splits,
        "local_mem_bw": 1600,
        "all_reduce_implementation": names,
        "all_gather_implementation": names,
        "reduce_scatter_implementation": names,
        "all_to_all_implementation": names,
    }


def _messages(ranks: int, each: int) -> Outcome:
    system = {"scheduling_policy": "LIFO"}
    return _outcome(irregular(ranks, each, stream=_STREAM), _setup(("Torus2D",), (ranks,), system))


def _outcome(traces: TraceSet, on: Setup) -> Outcome:
    result = replay_traces(traces, on, EngineChoice())
    assert result.run is not None
    return Outcome(max(result.finish_ns), result.hops, result.run.execution.records.events, result.wall_s)


def _job(job: str, machine: str, mode: str, *, nodes: int = 0, data_parallel: int = 0) -> Outcome:
    """Run a preset job; `nodes` and `data_parallel` change the machine's size and the replicas unless 0."""
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
    """Run all combinations of global batches, sequence lengths and bucket sizes on one machine.

    Arguments are the number of each. The answer is the sum of the step times.
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
CASES: Mapping[str, Benchmark] = {
    "ring1024_all_reduce_1G": Benchmark(
        partial(_collective, ("Ring",), (1024,), A.ALL_REDUCE, 1024 * _MIB, "ring"), 43014091
    ),
    "switch1024_all_to_all_64M": Benchmark(
        partial(_collective, ("Switch",), (1024,), A.ALL_TO_ALL, 64 * _MIB, "direct"), 1250300
    ),
    "ring256_all_reduce_64M": Benchmark(
        partial(_collective, ("Ring",), (256,), A.ALL_REDUCE, 64 * _MIB, "ring", 4), 3651640
    ),
    "torus2d256_all_to_all_1M": Benchmark(
        partial(_collective, ("Torus2D",), (256,), A.ALL_TO_ALL, _MIB, "direct", 4), 12472944
    ),
    "ring32_ring32_all_reduce_1G": Benchmark(
        partial(_collective, ("Ring", "Ring"), (32, 32), A.ALL_REDUCE, 1024 * _MIB, "ring", 4, 2), 24016504
    ),
    **{
        f"irregular_{ranks}": Benchmark(partial(_messages, ranks, 20), finish, "irregular")
        for ranks, finish in {64: 1266650, 256: 2561052, 1024: 5646826, 4096: 11972949}.items()
    },
    "llama70b_64_flattened": Benchmark(
        partial(_job, "llama3_1_70b_train_64", "torus2d_ring_a100_64", "flattened"), 8756022424138
    ),
    "llama70b_64_hierarchical": Benchmark(
        partial(_job, "llama3_1_70b_train_64", "torus2d_ring_a100_64", "hierarchical"), 8756291024333
    ),
    "llama70b_64_hierarchical_1000": Benchmark(
        partial(_configurations, 10, 20, 5), 5929899155760840, large=True
    ),
    "llama405b_16384_hierarchical": Benchmark(
        partial(_job, "llama3_1_405b_train_16384", "dgx_h100_x8", "hierarchical", nodes=2048),
        8753315241015,
        large=True,
    ),
    **{
        f"llama405b_{gpus}_hierarchical": Benchmark(
            partial(
                _job,
                "llama3_1_405b_train_16384",
                "dgx_h100_x8",
                "hierarchical",
                nodes=gpus // 8,
                data_parallel=gpus // 128,
            ),
            finish,
            large=True,
        )
        for gpus, finish in {131_072: 8734030254523, 1_048_576: 8577843028231}.items()
    },
}


class Measurement(Struct, frozen=True):
    """The measurement of one case."""

    case: str
    right: bool
    """Whether it gave the stored answer."""
    finish: int
    hops: int
    events: int
    wall_s: float
    """The seconds for making the input, lowering and simulating, with everything imported."""
    simulation_s: float
    memory_mb: float
    """The peak memory of the process in MB."""

    @property
    def hops_per_s(self) -> float:
        """Link hops by second of simulation."""
        return self.hops / max(self.simulation_s, 1e-9)

    @property
    def events_per_s(self) -> float:
        """Events of the kernel by second of simulation; few hops need many."""
        return self.events / max(self.simulation_s, 1e-9)

    def as_json(self) -> dict[str, object]:
        """Return plain data."""
        return asdict(self) | {"hops_per_s": self.hops_per_s, "events_per_s": self.events_per_s}


class Growth(Struct, frozen=True):
    """How the cost of a ladder grows: the slope of log(wall) over log(hops)."""

    ladder: str
    exponent: float
    cost_ratio: float
    """The time a hop of the largest case over that of the smallest."""


def chosen_cases(names: Sequence[str], *, large: bool) -> list[str]:
    """Return the named cases, or all usual ones if there are no names; `InputError` for an unknown name."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise InputError(f"bench: {unknown[0]!r} is not one of {', '.join(CASES)}")
    return list(names) or [name for name, case in CASES.items() if large or not case.large]


def measure(name: str) -> Measurement:
    """Run one case in this process, after a small one that loads everything it needs."""
    CASES[_WARM_UP].run()
    began = time.perf_counter()
    outcome = CASES[name].run()
    wall_s = time.perf_counter() - began
    unit = 2**20 if sys.platform == "darwin" else 2**10
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    return _measurement(name, CASES[name], outcome, (wall_s, memory_mb))


def _measurement(name: str, case: Benchmark, outcome: Outcome, cost: tuple[float, float]) -> Measurement:
    return Measurement(
        case=name,
        right=outcome.finish == case.finish,
        finish=outcome.finish,
        hops=outcome.hops,
        events=outcome.events,
        wall_s=cost[0],
        simulation_s=outcome.simulation_s,
        memory_mb=cost[1],
    )


def measure_apart(names: Iterable[str]) -> Iterable[Measurement]:
    """Yield each case's measurement; each runs in a new process, so that its peak memory is its own."""
    for name in names:
        with Worker() as worker:
            measurement: Measurement = worker.submit(measure, name).result()
        yield measurement


def growth(measured: Sequence[Measurement]) -> list[Growth]:
    """Return how the ladders among the measured cases grow, by least squares.

    >>> rows = [Measurement("irregular_64", True, 1, hops, 0, hops / 1e6, 1, 1) for hops in (1000, 8000)]
    >>> [round(found.exponent, 3) for found in growth(rows)]
    [1.0]
    """
    growths = []
    for ladder in dict.fromkeys(CASES[measurement.case].ladder for measurement in measured):
        steps = [measurement for measurement in measured if CASES[measurement.case].ladder == ladder]
        if ladder and len(steps) > 1:
            costs = [measurement.wall_s / measurement.hops for measurement in steps]
            growths.append(Growth(ladder, _slope(steps), costs[-1] / costs[0]))
    return growths


def _slope(steps: Sequence[Measurement]) -> float:
    points = [(math.log(step.hops), math.log(step.wall_s)) for step in steps]
    x, y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    spread = sum((this - x) ** 2 for this, _ in points)
    slope: float = sum((this - x) * (other - y) for this, other in points) / spread
    return slope


def tree(measured: Sequence[Measurement]) -> dict[str, object]:
    """Return plain data for JSON."""
    return {
        "cases": [measurement.as_json() for measurement in measured],
        "growth": [asdict(ladder) for ladder in growth(measured)],
    }


def require_right(measured: Sequence[Measurement]) -> None:
    """Raise `RapidDesError` if an answer differs from the stored one."""
    wrong = [measurement.case for measurement in measured if not measurement.right]
    if wrong:
        raise RapidDesError(f"bench: a wrong answer in {', '.join(wrong)}")
