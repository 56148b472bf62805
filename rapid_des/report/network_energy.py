"""Energy of what stands around the GPUs: links by the bits that cross them, NICs, switches and hosts.

Bits follow from a job's messages alone, so that they are equal in all modes. Those of a collective go around
its group as in a ring in the order of ranks; those of an all-to-all go from each member to each other. Trees
and direct exchanges of one dimension move as many bits; reductions inside switches move about half, and
algorithms by dimensions move fewer over outer ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Floats, Int64s
from rapid_des.chakra.trace import CollectiveType, NodeKind
from rapid_des.frontend import Job, JobTrace
from rapid_des.frontend.inference import decode_weights
from rapid_des.frontend.parts import PieceKey
from rapid_des.frontend.routing import place_of_ranks
from rapid_des.frontend.trace import FinishedProgram, counterparts
from rapid_des.machine import Machine
from rapid_des.network.dimensions import LinkEnergy
from rapid_des.report.breakdown import block_uses
from rapid_des.values import replace

if TYPE_CHECKING:
    from rapid_des.modes.blocks.inner import BlockRun

_PJ = 10**12
_MOST_PAIRS = 1 << 16
"""Up to this many pairs an all-to-all is routed completely; above, distances between members are sampled."""
C = CollectiveType
_ROUND: Mapping[CollectiveType, Callable[[int], float]] = {
    C.ALL_REDUCE: lambda members: 2 * (members - 1) / members,
    C.REDUCE_SCATTER: lambda members: (members - 1) / members,
    C.ALL_GATHER: lambda members: members - 1,
}
"""The bytes that each member sends to the next one of a ring, over those of its input buffer."""


class DimensionEnergy(Struct, frozen=True):
    """What one dimension of the fabric takes."""

    name: str
    bits: float
    """Bits times the links that they cross; links between GPUs and NICs aside."""
    links_j: float
    idle_j: float
    """Joules of transceivers, NICs and switches, which are on all the time."""


class NetworkEnergy(Struct, frozen=True):
    """Joules of links, NICs, switches and hosts; a dimension that states no energy is left out."""

    dimensions: tuple[DimensionEnergy, ...] = ()
    hosts_j: float = 0.0
    left_out: tuple[str, ...] = ()
    """What the machine file says nothing about."""

    @property
    def network_j(self) -> float:
        """Joules of all dimensions."""
        return sum(each.links_j + each.idle_j for each in self.dimensions)

    @property
    def by_part(self) -> dict[str, float]:
        """Joules by part, of what is stated."""
        parts = {}
        if self.dimensions:
            parts["links"] = sum(each.links_j for each in self.dimensions)
            parts["network_idle"] = sum(each.idle_j for each in self.dimensions)
        return parts | ({} if "hosts" in self.left_out else {"hosts": self.hosts_j})

    def as_json(self) -> dict[str, dict[str, float]]:
        """Return bits and joules by dimension."""
        return {
            each.name: {"bits": each.bits, "joules": each.links_j, "idle_joules": each.idle_j}
            for each in self.dimensions
        }


def network_energy(
    trace: JobTrace,
    blocks: BlockRun | None,
    machine: Machine,
    duration_s: float,
) -> NetworkEnergy:
    """Return what a job's messages take, and its GPUs' share of what is on all the time.

    `blocks` is the run where the trace is the graph around blocks.
    """
    stated = [getattr(dimension, "energy", None) for dimension in machine.spec.fabric]
    crossed = np.zeros(len(stated))
    if any(stated):
        crossed = _crossed(trace, blocks, machine)
    return _energy(machine, duration_s * trace.job.gpus, [8 * bits for bits in crossed.tolist()])


def idle_network(machine: Machine, gpu_seconds: float, links_j: float) -> NetworkEnergy:
    """Return what is on all the time beside GPUs in use, with known joules of all links."""
    idle = _energy(machine, gpu_seconds, [0.0] * len(machine.spec.fabric))
    if not idle.dimensions:
        return idle
    first, *others = idle.dimensions
    return replace(idle, dimensions=(replace(first, links_j=links_j), *others))


def _energy(machine: Machine, gpu_seconds: float, bits: Sequence[float]) -> NetworkEnergy:
    """Return the joules of bits on links by dimension, and of what is on beside GPUs in use."""
    spec, hosts, dimensions, silent = machine.spec, 0.0, [], list[str]()
    for number, (dimension, crossed) in enumerate(zip(spec.fabric, bits, strict=True)):
        energy: LinkEnergy | None = getattr(dimension, "energy", None)
        silent += _silent(machine, number, energy)
        if energy is not None:
            idle = _idle_watts(machine, number, energy) / machine.fabric.gpus * gpu_seconds
            links = crossed * energy.pj_per_bit / _PJ
            dimensions.append(DimensionEnergy(dimension.name, crossed, links, idle))
    if spec.host_power is None:
        silent.append("hosts")
    else:
        hosts = spec.host_power.watts * gpu_seconds / (spec.gpus_per_node or 1)
    return NetworkEnergy(tuple(dimensions), hosts, tuple(silent))


def _silent(machine: Machine, number: int, energy: LinkEnergy | None) -> Iterator[str]:
    """Yield what a dimension has and does not state."""
    name, (nics, switches) = machine.spec.fabric[number].name, _nodes(machine, number)
    if energy is None:
        yield f"links of {name}"
    if nics and (energy is None or energy.nic_power is None):
        yield f"NICs of {name}"
    if switches and (energy is None or energy.switch_power is None):
        yield f"switches of {name}"


def _dimension_of_links(machine: Machine) -> Int64s:
    """Return the dimension of each link; -1 for links between a GPU and its NIC, which count as NICs."""
    fabric = machine.fabric
    dimension = fabric.dimension.astype(np.int64)
    if len(machine.spec.fabric) == 1:
        dimension = np.zeros(len(fabric), np.int64)
    ends = np.stack((fabric.source, fabric.destination))
    is_nic = (ends >= fabric.gpus) & (ends < fabric.gpus + fabric.nics)
    dimension[(is_nic.any(axis=0)) & (ends < fabric.gpus).any(axis=0)] = -1
    return dimension


def _nodes(machine: Machine, number: int) -> tuple[int, int]:
    """Return how many NICs and switches the links of a dimension join."""
    fabric, here = machine.healthy, _dimension_of_links(machine) == number
    ends = np.unique(np.concatenate((fabric.source[here], fabric.destination[here])))
    first = fabric.gpus + fabric.nics
    is_nic = (ends >= fabric.gpus) & (ends < first)
    return int(is_nic.sum()), int((ends >= first).sum())


def _idle_watts(machine: Machine, number: int, energy: LinkEnergy) -> float:
    """Return what a dimension draws all the time on the whole machine."""
    powers = energy.nic_power, energy.switch_power
    nodes = zip(_nodes(machine, number), powers, strict=True)
    drawn = sum(count * power.watts for count, power in nodes if power is not None)
    here = _dimension_of_links(machine) == number
    capacity = 8.0 * float(machine.healthy.bandwidth[here].sum())
    return drawn + capacity * energy.idle_pj_per_bit / _PJ


def _crossed(trace: JobTrace, blocks: BlockRun | None, machine: Machine) -> Floats:
    """Return the bytes times the links that they cross, by dimension."""
    of_links, gpus = _dimension_of_links(machine), np.array(trace.gpu_of_rank or range(trace.job.gpus))
    total = np.zeros(1 + len(machine.spec.fabric))  # the first entry takes what is between GPUs and NICs
    talks = _talks(trace) if blocks is None else _talks_of_blocks(blocks)
    for pairs, sizes in _sent(trace.job, talks):
        apart = np.flatnonzero((pairs[:, 0] != pairs[:, 1]) & (sizes > 0))
        if len(apart):
            routes = machine.router.routes(gpus[pairs[apart]])
            moved = np.repeat(sizes[apart], np.diff(routes.starts))
            total += np.bincount(1 + of_links[routes.links], moved, len(total))
    return total[1:]


class _Talk(NamedTuple):
    """A program, or a part of one, whose messages ranks send."""

    ranks: Int64s
    program: FinishedProgram
    weight: Floats
    """How often each row counts."""


def _talks(trace: JobTrace) -> Iterator[_Talk]:
    """Yield the programs of whole ranks."""
    for ranks, program in zip(_ranks_of(trace.job, len(trace.programs)), trace.programs, strict=True):
        yield _Talk(ranks, program, _weights(trace.job, program))


def _talks_of_blocks(done: BlockRun) -> Iterator[_Talk]:
    """Yield the graph around blocks, then each block as often as a stage runs it."""
    job, blocks, outer = done.blocks.job, done.blocks.blocks, done.outer_programs()
    places = len(done.blocks.priced.places)
    for number, ranks in enumerate(_ranks_of(job, places * job.stages)):
        place, stage = divmod(number, job.stages)
        program = outer[stage]
        weight = _weights(job, program)
        yield _Talk(ranks, program, weight)
        times: dict[PieceKey, float] = {}
        for segment, key, count in block_uses(done.blocks, stage, program.segments):
            times[key] = times.get(key, 0.0) + count * float(weight[segment.start])
        for key, often in times.items():
            of_places = blocks[key].programs
            inside = of_places[place if len(of_places) > 1 else 0]
            yield _Talk(ranks, inside, np.full(len(inside.table), often))


def _sent(job: Job, talks: Iterable[_Talk]) -> Iterator[tuple[Int64s, Floats]]:
    """Yield pairs of ranks, and the bytes that the first of each sends to the second."""
    rounds: dict[str, Floats] = {}
    exchanged: dict[str, Floats] = {}
    for ranks, program, weight in talks:
        table = program.table
        for slot, peer in enumerate(program.peers):
            sends = (table.kind == NodeKind.SEND) & (table.peer == slot)
            size = float((table.size * weight)[sends].sum())
            yield np.stack((ranks, counterparts(job, peer)[ranks]), 1), np.full(len(ranks), size)
        for slot, kind in enumerate(program.groups):
            members = job.rows(kind).shape[1]
            here = (table.kind == NodeKind.COLLECTIVE) & (table.group == slot)
            size = table.size * weight * here
            for operation in np.unique(table.collective[here]).tolist():
                bytes_of = float(size[table.collective == operation].sum())
                kept, share = rounds, _ROUND.get(CollectiveType(operation))
                if share is None:
                    kept, share = exchanged, _even_part
                kept.setdefault(kind, np.zeros(job.gpus))[ranks] += bytes_of * share(members)
    for kind, sizes in rounds.items():
        rows = job.rows(kind)
        yield np.stack((rows.ravel(), np.roll(rows, -1, axis=1).ravel()), 1), sizes[rows.ravel()]
    for kind, sizes in exchanged.items():
        yield from _to_each(job.rows(kind), sizes)


def _even_part(members: int) -> float:
    return 1 / members


def _to_each(rows: Int64s, sizes: Floats) -> Iterator[tuple[Int64s, Floats]]:
    """Yield messages of these sizes from each member of the rows to each other, or to a sample of them."""
    distances = np.arange(1, rows.shape[1])
    most = max(1, _MOST_PAIRS // rows.size)
    chosen = distances[:: -(-len(distances) // most)] if len(distances) > most else distances
    for distance in chosen.tolist():
        pairs = np.stack((rows.ravel(), np.roll(rows, -distance, axis=1).ravel()), 1)
        yield pairs, sizes[rows.ravel()] * (len(distances) / len(chosen))


def _ranks_of(job: Job, programs: int) -> list[Int64s]:
    """Return the ranks that run each program."""
    number = job.layout.coordinates("pp")
    if programs > job.stages:
        number = number + job.stages * place_of_ranks(job)
    return [np.flatnonzero(number == each) for each in range(programs)]


def _weights(job: Job, program: FinishedProgram) -> Floats:
    """Return how often each row counts: a decode step for those around it that were not simulated."""
    weights = np.ones(len(program.table))
    if job.spec.phase != "inference":
        return weights
    segments = program.segments
    of_step = decode_weights(job, {segment.step for segment in segments if segment.step > 0})
    for segment, following in zip(segments, (*(each.start for each in segments[1:]), None), strict=True):
        weights[segment.start : following] = of_step.get(segment.step, 1.0)
    return weights
