"""The placement of a job: on which GPU each rank runs.

By default rank 0 runs on GPU 0, rank 1 on GPU 1, and so on. A job may state another placement, or `auto`,
which searches for one on the first GPUs of the machine, as many as there are ranks. The search scores a
placement by the time for which links carry the job's bytes: it sums, over all pairs of ranks, the bytes
between them times the seconds that a byte takes on the links between their GPUs. It scores each order of the
axes, and what swaps of two ranks make of the orders (2-opt) and, where ranks are few, of random moves.
It then simulates the default and the few with the lowest scores, and takes the fastest. On tori swaps halve
the score and yet are seldom the fastest, because collectives run along rows of the fabric and swaps break
these up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path

import numpy as np

from rapid_des.arrays import Floats, Int64s
from rapid_des.chakra.trace import CollectiveType, NodeKind, RankTrace, TraceSet
from rapid_des.config.documents import read_text
from rapid_des.config.specs import beside
from rapid_des.config.texts import parse_json
from rapid_des.errors import ConfigError
from rapid_des.frontend import Job, JobTrace
from rapid_des.machine import Machine
from rapid_des.values import replace

KEY = "parallelism.placement"
_MOST_RANKS = 512
"""Most ranks for which `auto` searches: it compares all pairs of ranks."""
_DRAWN, _MOVED, _MOST_WORK = 256, 6, 3 * 10**8
"""Most random moves from which swaps start, the ranks that one moves, and the most work on them, in ranks to
the fourth."""
_TRIED = 4
"""Most placements that `auto` simulates besides the default."""
_TO_EACH = frozenset((CollectiveType.ALL_TO_ALL, CollectiveType.GATHER, CollectiveType.SCATTER))


def placements(job: Job, trace: JobTrace, machine: Machine) -> Iterator[Int64s]:
    """Yield the placements to simulate: the stated one, or the default and those that `auto` finds.

    A `ConfigError` says why a placement is refused.
    """
    stated = job.spec.parallelism.placement
    if machine.slowed or any(fault.gpu is not None for fault in machine.faults):
        problem = "a job that states a placement takes faults of links alone, and one is of a GPU"
        raise ConfigError(problem, file=job.file, key=KEY)
    if stated != "auto":
        yield _stated(job, machine, stated)
        return
    if job.gpus > _MOST_RANKS:
        problem = f"auto compares all pairs of ranks, and {job.gpus} are above {_MOST_RANKS:,}"
        raise ConfigError(problem, file=job.file, key=KEY)
    traffic, seconds = traffic_of(trace.traces), seconds_a_byte(machine, job.gpus)

    came = np.arange(job.gpus)
    shaped = sorted(in_orders(job), key=lambda gpus: cost_of(traffic, seconds, gpus))
    every = [came, searched(traffic, seconds, shaped), *shaped]
    different = {gpus.tobytes(): gpus for gpus in every}
    yield from list(different.values())[: 1 + _TRIED]


def in_orders(job: Job) -> list[Int64s]:
    """Return the GPUs of ranks for each order of the axes that the job splits, innermost first."""
    split = job.spec.parallelism
    axes = [axis for axis in split.order if axis != "ep" and getattr(split, axis) > 1]
    found = []
    for order in permutations(axes):
        gpus, stride = np.zeros(job.gpus, np.int64), 1
        for axis in order:
            gpus += job.layout.coordinates(axis) * stride
            stride *= getattr(split, axis)
        found.append(gpus)
    return found


def _stated(job: Job, machine: Machine, stated: object) -> Int64s:
    """Return the GPUs that a job states, in its file or in a JSON file that it names."""
    name = ""
    if isinstance(stated, str):
        name = f"{stated}: "
        stated = _in_file(job, stated)
    if problem := _problem(stated, job.gpus, machine):
        raise ConfigError(name + problem, file=job.file, key=KEY)
    return np.array(stated, np.int64)


def _in_file(job: Job, name: str) -> object:
    """Return what the JSON file holds that a job names as its placement."""
    try:
        path = beside(Path(job.file).parent, name, key="")
        return parse_json(read_text(path), path)
    except ConfigError as error:
        problem = f"{error}; allowed: auto, a list of the GPUs by rank, or a JSON file with such a list"
        raise ConfigError(problem, file=job.file, key=KEY) from None


def _problem(stated: object, ranks: int, machine: Machine) -> str:
    """Return why a value is no list of one GPU for each rank; an empty text if it is one."""
    last = machine.fabric.gpus - 1
    if not isinstance(stated, list | tuple):
        return f"{str(stated)[:60]!r} is not a list of {ranks} GPUs, one for each rank"
    if len(stated) != ranks:
        return f"a list of {len(stated)} GPUs; allowed: {ranks}, one for each rank"
    ranks_of: dict[int, int] = {}
    for rank, gpu in enumerate(stated):
        if type(gpu) is not int or not 0 <= gpu <= last:
            return f"rank {rank}: {str(gpu)[:60]!r} is no GPU of {machine.name}; allowed: 0 to {last}"
        if ranks_of.setdefault(gpu, rank) != rank:
            return f"ranks {ranks_of[gpu]} and {rank}: both on GPU {gpu}; allowed: one rank on a GPU"
    return ""


def placed(trace: JobTrace, gpus: Int64s) -> JobTrace:
    """Return a job's trace in which each rank has the number of its GPU."""
    traces, order = trace.traces, np.argsort(gpus).tolist()
    of = dict(zip((rank.rank for rank in traces.ranks), gpus.tolist(), strict=True))
    ranks = tuple(_moved(traces.ranks[place], of) for place in order)
    groups = {name: tuple(of[rank] for rank in members) for name, members in traces.groups.items()}
    families = tuple(gpus[family] for family in traces.families)
    moved = replace(traces, ranks=ranks, groups=groups, families=families)
    stages = tuple(trace.stage_of_rank[place] for place in order)
    note = f"ranks stand on GPUs {_listed(gpus)} ({KEY})"
    at = tuple(gpus.tolist())
    return replace(trace, traces=moved, stage_of_rank=stages, gpu_of_rank=at, notes=(*trace.notes, note))


def _moved(rank: RankTrace, of: Mapping[int, int]) -> RankTrace:
    return replace(rank, rank=of[rank.rank], peers=tuple(of[peer] for peer in rank.peers))


def _listed(gpus: Int64s) -> str:
    return ", ".join(map(str, gpus.tolist()))


def traffic_of(traces: TraceSet) -> Floats:
    """Return the bytes that each rank sends to each other rank: [rank, rank].

    Bytes of a collective go around its group as in a ring. Those of an all-to-all, a gather or a scatter go
    to all members in equal parts.
    """
    count = len(traces.ranks)
    traffic = np.zeros((count, count))
    for rank in traces.ranks:
        nodes = rank.nodes
        sends = nodes.kind == NodeKind.SEND
        for slot, size in _sums(nodes.peer[sends], nodes.size[sends]):
            traffic[rank.rank, rank.peers[slot]] += size
        collectives = nodes.kind == NodeKind.COLLECTIVE
        spread = collectives & np.isin(nodes.collective, [int(kind) for kind in _TO_EACH])
        for slot, size in _sums(nodes.group[spread], nodes.size[spread]):
            others = [member for member in traces.groups[rank.groups[slot]] if member != rank.rank]
            traffic[rank.rank, others] += size / max(1, len(others))
        around = collectives & ~spread
        for slot, size in _sums(nodes.group[around], nodes.size[around]):
            members = traces.groups[rank.groups[slot]]
            following = members[(members.index(rank.rank) + 1) % len(members)]
            traffic[rank.rank, following] += size
    np.fill_diagonal(traffic, 0)  # groups of one
    return traffic


def _sums(slots: Int64s, sizes: Int64s) -> Iterator[tuple[int, float]]:
    """Yield the bytes of each slot."""
    for slot, size in enumerate(np.bincount(slots, np.maximum(sizes, 0)).tolist() if len(slots) else ()):
        if size:
            yield slot, size


def seconds_a_byte(machine: Machine, ranks: int) -> Floats:
    """Return the seconds that a byte takes on all links between two of the first GPUs: [GPU, GPU]."""
    pairs = np.array(list(permutations(range(ranks), 2)), np.int64)
    routes = machine.router.routes(pairs)
    each = 1 / machine.fabric.bandwidth[routes.links]
    sums = np.add.reduceat(np.append(each, 0), routes.starts[:-1])
    distances = np.zeros((ranks, ranks))
    distances[pairs[:, 0], pairs[:, 1]] = sums
    return distances


def cost_of(traffic: Floats, seconds: Floats, gpus: Int64s) -> float:
    """Return the sum of the ranks' traffic times the seconds of a byte between their GPUs."""
    return float((traffic * seconds[np.ix_(gpus, gpus)]).sum())


def searched(traffic: Floats, seconds: Floats, orders: Sequence[Int64s]) -> Int64s:
    """Return the best placement that swaps make of the orders, or of it once some ranks are moved at random.

    Where ranks are many, only the first order is improved. The draws have a fixed seed.
    """
    ranks, draws = len(traffic), np.random.default_rng(0)
    tries = min(_DRAWN, _MOST_WORK // ranks**4)
    found = [improved(traffic, seconds, start) for start in (orders if tries else orders[:1])]
    best = min(found, key=lambda gpus: cost_of(traffic, seconds, gpus))
    for _ in range(tries):
        moved, start = draws.permutation(ranks)[:_MOVED], best.copy()
        start[moved] = best[np.roll(moved, 1)]
        best = min(
            (best, improved(traffic, seconds, start)), key=lambda gpus: cost_of(traffic, seconds, gpus)
        )
    return best


def improved(traffic: Floats, seconds: Floats, start: Int64s) -> Int64s:
    """Return a placement whose sum of traffic times seconds no swap of two ranks lowers.

    >>> near = np.array([[0, 1, 2, 1], [1, 0, 1, 2], [2, 1, 0, 1], [1, 2, 1, 0]], float)
    >>> across = np.array([[0, 0, 9, 0], [0, 0, 0, 9], [9, 0, 0, 0], [0, 9, 0, 0]], float)
    >>> cost = lambda gpus: int((across * near[np.ix_(gpus, gpus)]).sum())
    >>> cost(np.arange(4)), cost(improved(across, near, np.arange(4)))
    (72, 36)
    """
    gpus, both = start.copy(), traffic + traffic.T
    between = (seconds + seconds.T) / 2
    while True:
        lengths = between[np.ix_(gpus, gpus)]
        # [a, b]: the time of rank a's traffic if a stood on the GPU of b and all others stayed
        moved = both @ lengths
        now = np.diag(moved)
        changes = moved + moved.T - now[:, None] - now[None, :] + 2 * both * lengths
        one, other = np.unravel_index(changes.argmin(), changes.shape)
        if changes[one, other] >= -1e-9 * max(now.sum(), 1e-30):
            return gpus
        gpus[[one, other]] = gpus[[other, one]]
