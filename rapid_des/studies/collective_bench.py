"""One collective over a range of sizes on a machine: the table of nccl-tests, beside lower bounds.

`each_compared` lists all algorithms of a collective instead: simulated, estimated, and the choice of `auto`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from rapid_des.chakra.trace import CollectiveType, one_collective
from rapid_des.errors import InputError
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.network.collectives import IN_SWITCH, ON_FABRIC, Schedule, ShapedCollective, on_fabric
from rapid_des.network.collectives.algorithm_files import READERS, load_algorithm
from rapid_des.network.collectives.bounds import Bounds, bounds
from rapid_des.network.collectives.libraries.nccl import LibraryCost
from rapid_des.network.collectives.libraries.nccl_fabric import load_fabric
from rapid_des.network.collectives.libraries.nccl_network import nccl_time
from rapid_des.network.collectives.on_fabric import collectives_of
from rapid_des.network.collectives.schedule import SHARDED_INPUT
from rapid_des.network.fabric import Fabric
from rapid_des.network.metrics import bisection
from rapid_des.network.protocol import payload_bandwidth_bound
from rapid_des.network.specs import AUTO, Choice
from rapid_des.program.collectives.plans import CollectiveCall, ServedCollective
from rapid_des.program.collectives.select import Planner
from rapid_des.program.routes import geometry
from rapid_des.report.result import Result
from rapid_des.simulation import replay
from rapid_des.studies.traffic import messages
from rapid_des.units import PS_PER_S, Size, seconds
from rapid_des.values import replace

C = CollectiveType
OPERATIONS = tuple(kind.name.lower() for kind in C)
_TOTALS = SHARDED_INPUT
"""Collectives whose size in nccl-tests is that of all shards together."""


class StatedAlgorithm(Struct, frozen=True):
    """An algorithm of `ON_FABRIC` or of a file, and its number of chunks (a file has its own)."""

    name: str
    chunks: int = 1


class Question(Struct, frozen=True):
    """The collective to be timed: one of each of `sizes` bytes among the first `gpus` GPUs (None: all).

    The machine's own choice serves it, unless an algorithm is `stated`.
    """

    operation: str
    sizes: Sequence[int]
    gpus: int | None = None
    stated: StatedAlgorithm | None = None


class BenchRow(Struct, frozen=True):
    """One size: bytes as nccl-tests counts them (all shards of an all-gather together), and its times.

    `algorithm_bandwidth` and `bus_bandwidth` are bytes a second, `bound_share` at most 1.

    >>> sorted(BenchRow.__match_args__)
    ['algorithm', 'bound', 'bus_factor', 'duration', 'nccl', 'served', 'size']
    """

    size: int
    duration: int
    """Picoseconds from the common start to the last member's end."""
    bound: Bounds
    algorithm: str
    bus_factor: float
    nccl: LibraryCost | None = None
    """The time by NCCL's closed form on a named fabric; None if no fabric was named."""
    served: ServedCollective | None = None
    """The kernel of a library that served it; None: no library did."""

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes a second: size over time."""
        return self.size * PS_PER_S / self.duration if self.duration else 0.0

    @property
    def bus_bandwidth(self) -> float:
        """Bytes a second that a ring's busiest link would carry."""
        return self.algorithm_bandwidth * self.bus_factor

    @property
    def bound_share(self) -> float:
        """The lower bound over the time: 1 is as fast as possible."""
        return self.bound.time / self.duration if self.duration else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        plain: dict[str, Any] = {
            "size_bytes": self.size,
            "time_s": seconds(self.duration),
            "algbw_GBps": self.algorithm_bandwidth / 1e9,
            "busbw_GBps": self.bus_bandwidth / 1e9,
            "bound_s": seconds(self.bound.time),
            "bound": self.bound.kind,
            "bounds_s": {
                "bandwidth": seconds(self.bound.bandwidth),
                "latency": seconds(self.bound.latency),
                "bisection": seconds(self.bound.bisection),
            },
            "bound_pct": 100 * self.bound_share,
            "algorithm": self.algorithm,
        }
        if self.served is not None:
            plain |= {name: getattr(self.served, name) for name in ("protocol", "channels", "hbm_bytes")}
        if self.nccl is None:
            return plain
        names = {"nccl_algorithm": self.nccl.algorithm, "nccl_protocol": self.nccl.protocol}
        return plain | {"nccl_s": seconds(self.nccl.duration)} | names


def sizes_between(text: str, factor: int = 2) -> list[int]:
    """Return the sizes of "1KiB:1GiB": from the first on, each `factor` times the one before.

    >>> sizes_between("1KiB:8KiB")
    [1024, 2048, 4096, 8192]
    """
    ends = text.split(":")
    if factor < 2 or len(ends) not in (1, 2):
        raise InputError(
            f"sizes {text!r}, factor {factor}: FIRST:LAST (as in 1KiB:1GiB) and 2 or more are needed"
        )
    try:
        first, last = int(Size.parse(ends[0])), int(Size.parse(ends[-1]))
    except ValueError as error:
        raise InputError(f"--sizes: {error}") from None
    if not 0 < first <= last:
        raise InputError(f"--sizes: {text!r} must rise from 1 byte or more")
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return sizes


def bench(
    machine: Machine,
    operation: str,
    sizes: Sequence[int],
    *,
    gpus: int | None = None,
    engine: str | EngineChoice = "auto",
) -> list[BenchRow]:
    """Return a row for every size (bytes) of a collective as the machine serves it, on its first `gpus`.

    `InputError` names an unknown operation, or a number of GPUs that the machine has not.

    >>> from rapid_des.machine import load_machine
    >>> (row,) = bench(load_machine("dgx_a100"), "all_reduce", [2**20])
    >>> row.algorithm, row.bound.kind, 0 < row.bound_share <= 1
    ('nccl ring', 'bandwidth', True)
    """
    return list(each_answer(machine, Question(operation, sizes, gpus), engine=engine))


def each_answer(machine: Machine, question: Question, *, engine: str | EngineChoice) -> Iterator[BenchRow]:
    """Yield the row of each size once it is simulated; `InputError` if the machine cannot run it."""
    members = members_of(question, machine)
    group, stated = tuple(range(members)), question.stated
    kind = CollectiveType[question.operation.upper()]
    fabric = _fastest(machine)
    halving = _bisection(machine, fabric, members)
    schedule = None if stated is None else _scheduler(stated, kind, geometry(machine, group)[0])
    for size in question.sizes:
        share = share_of(question, size, machine)
        if schedule is None:
            traces = one_collective(group, kind, share, stream="dp")
        else:
            traces, machine = messages(schedule(share), group), machine.native
        result = replay(traces, machine, engine=engine)
        names = _algorithms(result) if stated is None else (stated.name,)
        inside = not IN_SWITCH.keys().isdisjoint(names)
        lower = bounds(fabric, group, kind, share, halving=halving, in_switch=inside)
        duration = int(result.step_time) if share else 0  # of less than a byte a member nothing moves
        row = BenchRow(size, duration, lower, "/".join(names), _factor(kind, members))
        yield replace(row, served=_of_library(result))


def members_of(question: Question, machine: Machine) -> int:
    """Return the number of GPUs; `InputError` for more than the machine has, or an unknown operation."""
    _require_operation(question.operation)
    members = machine.fabric.gpus if question.gpus is None else question.gpus
    if not 2 <= members <= machine.fabric.gpus:
        raise InputError(f"--gpus: {members} is not one of 2 to {machine.fabric.gpus}")
    return members


def _require_operation(operation: str) -> None:
    if operation not in OPERATIONS:
        raise InputError(f"--op: {operation!r} is not one of {', '.join(OPERATIONS)}")


def share_of(question: Question, size: int, machine: Machine) -> int:
    """Return the bytes of each member's input for a size of the bench."""
    kind = CollectiveType[question.operation.upper()]
    return size // members_of(question, machine) if kind in _TOTALS else size


def chosen(
    operation: str, algorithm: str | None, chunks: int
) -> tuple[StatedAlgorithm | None, tuple[str, ...]]:
    """Return the algorithm that the bench schedules itself, or the settings that make it the machine's.

    Shaped algorithms and files are the bench's own; the others, and those inside switches, whose trees follow
    from the machine, are named in the machine file.
    """
    if algorithm is None:
        return None, ()
    is_file = Path(algorithm).suffix.lower() in READERS
    if not is_file:
        _require_algorithm(operation, algorithm, chunks)
    if is_file or algorithm in ON_FABRIC.keys() - IN_SWITCH:
        return StatedAlgorithm(algorithm, chunks), ()
    choice = algorithm if chunks == 1 else f"{{algorithm: {algorithm}, chunks: {chunks}}}"
    return None, (f"machine.collectives.{operation}={choice}",)


def _require_algorithm(operation: str, algorithm: str, chunks: int) -> None:
    """Raise by the option's name what the machine file would raise by its key."""
    _require_operation(operation)
    if algorithm == AUTO:
        if chunks > 1:
            raise InputError(f"--chunks: {chunks}; allowed: 1, as auto chooses chunks itself")
        return
    try:
        does = sorted(kind.name.lower() for kind in collectives_of(algorithm))
    except InputError as error:
        raise InputError(f"--algorithm: {error}, auto, all, or a file ({', '.join(READERS)})") from None
    if operation not in does:
        raise InputError(f"--algorithm: {algorithm!r} does not do {operation}; it does {', '.join(does)}")


def _scheduler(
    stated: StatedAlgorithm, kind: CollectiveType, extents: tuple[int, ...]
) -> Callable[[int], Schedule]:
    """Return the function from a size to the transfers."""
    if stated.name in ON_FABRIC:
        name, chunks = stated.name, stated.chunks
        return lambda size: on_fabric(name, ShapedCollective(kind, extents, size, chunks=chunks))
    written = load_algorithm(Path(stated.name))
    if (written.collective, written.file.members) != (kind, prod(extents)):
        does = f"{written.file.collective} of {written.file.members} members"
        raise InputError(f"{stated.name} does {does}, not {kind.name.lower()} of {prod(extents)}")
    return written


def with_nccl(rows: Sequence[BenchRow], fabric: str, question: Question, machine: Machine) -> list[BenchRow]:
    """Return the rows with the closed form of NCCL on a fabric of `topologies/fabrics` beside them."""
    known, kind = load_fabric(fabric), CollectiveType[question.operation.upper()]
    ranks, per_node = question.gpus or machine.fabric.gpus, machine.spec.gpus_per_node
    share = per_node if per_node is not None and per_node < ranks else None
    return [
        replace(
            row,
            nccl=nccl_time(
                known, kind, ranks, row.size // ranks if kind in _TOTALS else row.size, per_node=share
            ),
        )
        for row in rows
    ]


def _fastest(machine: Machine) -> Fabric:
    """Return the fabric at the rates that bounds assume: packet times that are rounded down are shorter."""
    protocol = machine.switching.protocol
    if protocol is None or protocol.packet_time == "exact":
        return machine.fabric
    faster = [payload_bandwidth_bound(protocol, rate) for rate in machine.fabric.bandwidth.tolist()]
    return replace(machine.fabric, bandwidth=np.array(faster, np.int64))


def _bisection(machine: Machine, fabric: Fabric, members: int) -> int:
    if members < fabric.gpus or machine.lost:
        return 0
    return bisection(fabric, machine.spec.fabric, machine.dead).bandwidth


def _algorithms(result: Result) -> tuple[str, ...]:
    """Return the algorithms of the first chunk of the only collective: one a step, or the one of all."""
    assert result.run is not None
    if not result.run.lowered.plans:  # a library does it
        return tuple(sorted(served.algorithm for served in result.run.lowered.served))
    plan = next(iter(result.run.lowered.plans.values()))  # of the first rank, whose switches may be others
    names = tuple(phase.algorithm for phase in plan[0])
    return names[:1] if len(set(names)) == 1 else names


def _of_library(result: Result) -> ServedCollective | None:
    """Return the kernel of a library that served the only collective; None if no library did."""
    assert result.run is not None
    return next((served for served in result.run.lowered.served if served.protocol), None)


def _factor(kind: CollectiveType, members: int) -> float:
    """Return nccl-tests' factor from algorithm to bus bandwidth."""
    if kind is C.ALL_REDUCE:
        return 2 * (members - 1) / members
    if kind in (C.BROADCAST, C.REDUCE, C.BARRIER):
        return 1.0
    return (members - 1) / members


class Compared(Struct, frozen=True):
    """One algorithm at one size."""

    size: int
    """The size in bytes, as nccl-tests counts them."""
    algorithm: str
    chunks: int
    duration: int
    """The simulated time in picoseconds."""
    estimate: float
    """The estimated time in picoseconds, by which `auto` chooses."""
    is_auto: bool
    """Whether `auto` takes it."""
    is_best: bool = False
    """Whether no other is faster."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "size_bytes": self.size,
            "algorithm": self.algorithm,
            "chunks": self.chunks,
            "time_s": seconds(self.duration),
            "estimate_s": seconds(round(self.estimate)),
            "auto": self.is_auto,
            "best": self.is_best,
        }


def each_compared(machine: Machine, question: Question, *, engine: str | EngineChoice) -> Iterator[Compared]:
    """Yield every algorithm for all members of the group at every size, the fastest of a size first.

    Of the algorithms that combine one a dimension it yields the one that `auto` would take.
    """
    for size in question.sizes:
        rows = list(_of_size(machine, replace(question, sizes=[size]), engine))
        best = min(row.duration for row in rows)
        for row in sorted(rows, key=lambda row: row.duration):
            yield replace(row, is_best=row.duration == best)


def _of_size(machine: Machine, question: Question, engine: str | EngineChoice) -> Iterator[Compared]:
    """Yield every algorithm at the only size of a question."""
    (size,), kind = question.sizes, CollectiveType[question.operation.upper()]
    group = tuple(range(members_of(question, machine)))
    call = CollectiveCall(kind, share_of(question, size, machine), *geometry(machine, group))
    planner = Planner(machine)
    chosen, estimates = planner.choice(call, group), planner.estimates(call, group)
    for choice, estimate in estimates.items():
        if isinstance(choice.algorithm, str) or choice == chosen:
            stated = choice if isinstance(choice.algorithm, str) else Choice(algorithm=AUTO)
            changed = _with_algorithm(machine, question.operation, stated)
            (row,) = each_answer(changed, question, engine=engine)
            yield Compared(
                size=size,
                algorithm=row.algorithm,
                chunks=int(choice.chunks),
                duration=row.duration,
                estimate=estimate,
                is_auto=choice == chosen,
            )


def _with_algorithm(machine: Machine, operation: str, choice: Choice) -> Machine:
    """Return the machine whose file names an algorithm for an operation."""
    collectives = structs.replace(machine.collectives, **{operation: choice})
    return replace(machine, spec=structs.replace(machine.spec, collectives=collectives))
