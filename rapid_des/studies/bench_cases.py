"""The standard cases of `rapid-des bench`: what each runs, its right answer, what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import Struct

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import CollectiveType, TraceSet, one_collective
from rapid_des.frontend import load_job
from rapid_des.importers.astra_sim import replay_traces
from rapid_des.importers.astra_sim.files import Dialect, Files, NetworkFile, Setup, Shape, SystemFile
from rapid_des.machine import load_machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.network.faults.models import FaultDraws, Variates, parse_model
from rapid_des.runs.goodput import goodput
from rapid_des.serving.server import serve
from rapid_des.simulation import simulate, timed
from rapid_des.studies.traffic import irregular

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
    cost: float = 0.0
    """Its processor time over the yardstick's, as measured for this version; 0: not measured."""
    ladder: str = ""
    """The name of its ladder: cases of one ladder differ in size only."""
    size: int = 0
    """Its size on the ladder: ranks or GPUs."""
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


def _job(
    job: str, machine: str, mode: str, *, nodes: int = 0, settings: Sequence[tuple[str, str]] = ()
) -> Outcome:
    """Run a preset job under settings; `nodes` changes the machine's size unless 0."""
    result = simulate(
        load_job(job, settings=settings),
        load_machine(
            machine,
            settings=[("fabric.1.size", str(nodes))] if nodes else [],
            device_settings=[("operators", "roofline")],
        ),
        mode=mode,
    )
    events = result.run.execution.records.events if result.run else 0
    return Outcome(int(result.step_time), result.hops, events, result.wall_s)


def _replicas(number: int) -> list[tuple[str, str]]:
    """Return the settings of a job with that many replicas, of 16 sequences each."""
    return [("parallelism.dp", str(number)), ("training.global_batch", str(16 * number))]


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


def _weeks(replications: int) -> Outcome:
    """Play 54 days of 16,384 GPUs under Llama 3's rates. The answer is the useful time of all runs."""
    machine = load_machine("dgx_h100_x8", settings=[("fabric.1.size", "2048")],
                           device_settings=[("operators", "roofline")])  # fmt: skip
    job, began = load_job("llama3_1_405b_train_16384"), time.perf_counter()
    result = goodput(job, machine, "llama3_h100", days=54, replications=replications, mode="analytical")
    incidents = sum(sum(each.counts.values()) for each in result.replications)
    return Outcome(result.time_by_cause()["steps"], 0, incidents, time.perf_counter() - began)


def _draws(number: int) -> Outcome:
    """Simulate draws of one slow link. The answer is the sum of the step times."""
    job, machine = load_job("llama3_1_70b_train_64"), load_machine("torus2d_ring_a100_64")
    model = parse_model("random=links count=1 bandwidth=normal(0.5,0.1)")
    drawn = FaultDraws((model,), machine.healthy, machine.spec.gpus_per_node)
    cache, choice = BoundedCache(1 << 28), EngineChoice(programs=number)
    began, finish = time.perf_counter(), 0
    for draw in range(number):
        hurt = machine.with_faults(drawn.draw(Variates(0, draw, "independent")))
        finish += int(timed(job, hurt, mode="hierarchical", engine=choice, cache=cache).step_time)
    return Outcome(finish, 0, 0, time.perf_counter() - began)


def _requests(number: int) -> Outcome:
    """Serve requests. The answer is the sum of the times that they take."""
    job, machine = load_job("llama3_1_70b_serve"), load_machine("dgx_h100")
    began = time.perf_counter()
    result = serve(job, machine, requests=number)
    return Outcome(int(result.e2e.sum()), 0, 0, time.perf_counter() - began)


STATED_GROWTH: Mapping[str, float] = {
    "irregular": 1.35,
    "llama70b_flattened": 1.05,
    "llama405b_hierarchical": 1.15,
    "draws": 1.0,
    "requests": 1.0,
}
"""The exponents with which the processor time of each ladder may grow with its size, at most. Random messages
on a torus cross more links the more ranks there are: hops grow with exponent 1.5."""

A = CollectiveType
CASES: Mapping[str, Benchmark] = {
    "ring1024_all_reduce_1G": Benchmark(
        partial(_collective, ("Ring",), (1024,), A.ALL_REDUCE, 1024 * _MIB, "ring"), 43014091, cost=0.15
    ),
    "switch1024_all_to_all_64M": Benchmark(
        partial(_collective, ("Switch",), (1024,), A.ALL_TO_ALL, 64 * _MIB, "direct"), 1250300, cost=2.7
    ),
    "ring256_all_reduce_64M": Benchmark(
        partial(_collective, ("Ring",), (256,), A.ALL_REDUCE, 64 * _MIB, "ring", 4), 3651640, cost=0.09
    ),
    "torus2d256_all_to_all_1M": Benchmark(
        partial(_collective, ("Torus2D",), (256,), A.ALL_TO_ALL, _MIB, "direct", 4), 12472944, cost=1.8
    ),
    "ring32_ring32_all_reduce_1G": Benchmark(
        partial(_collective, ("Ring", "Ring"), (32, 32), A.ALL_REDUCE, 1024 * _MIB, "ring", 4, 2),
        24016504,
        cost=0.34,
    ),
    **{
        f"irregular_{ranks}": Benchmark(
            partial(_messages, ranks, 20), finish, cost, ladder="irregular", size=ranks
        )
        for ranks, finish, cost in (
            (64, 1266650, 0.24),
            (256, 2561052, 1.05),
            (1024, 5646826, 5.3),
            (4096, 11972949, 33.5),
        )
    },
    "llama70b_64_flattened": Benchmark(
        partial(_job, "llama3_1_70b_train_64", "torus2d_ring_a100_64", "flattened"), 8756022424138, cost=3.4
    ),
    **{
        f"llama70b_{gpus}_flattened_superpod": Benchmark(
            partial(
                _job,
                "llama3_1_70b_train_64",
                "dgx_h100_superpod_128",
                "flattened",
                settings=[("parallelism.tp", "8"), ("parallelism.pp", "8"), *_replicas(gpus // 64)],
            ),
            finish,
            cost,
            ladder="llama70b_flattened",
            size=gpus,
        )
        for gpus, finish, cost in (
            (128, 1405898198275, 2.0),
            (256, 1435071995188, 2.8),
            (512, 1454729723925, 4.5),
            (1024, 1461528877856, 9.9),
        )
    },
    "llama70b_64_hierarchical": Benchmark(
        partial(_job, "llama3_1_70b_train_64", "torus2d_ring_a100_64", "hierarchical"),
        8756291024333,
        cost=2.0,
    ),
    "llama70b_64_hierarchical_1000": Benchmark(
        partial(_configurations, 10, 20, 5), 5929899155760840, large=True
    ),
    **{
        f"llama70b_64_draws_{number}": Benchmark(
            partial(_draws, number), finish, cost, ladder="draws", size=number
        )
        for number, finish, cost in ((10, 103837753340162, 2.6), (80, 833476374219260, 12.8))
    },
    **{
        f"serve_70b_{number}_requests": Benchmark(
            partial(_requests, number), finish, cost, ladder="requests", size=number
        )
        for number, finish, cost in ((100, 335450411631114, 4.0), (1000, 3921643752227036, 8.4))
    },
    "goodput_16384_54_days": Benchmark(partial(_weeks, 20), 77550866250076963079, cost=9.5),
    "llama405b_16384_hierarchical": Benchmark(
        partial(_job, "llama3_1_405b_train_16384", "dgx_h100_x8", "hierarchical", nodes=2048),
        8753315241015,
        cost=3.8,
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
                settings=_replicas(gpus // 128),
            ),
            finish,
            cost,
            ladder="llama405b_hierarchical",
            size=gpus,
            large=True,
        )
        for gpus, finish, cost in ((131_072, 8734030254523, 9.4), (1_048_576, 8577843028231, 93.0))
    },
}
