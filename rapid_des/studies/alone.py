"""What a rank's messages take by closed forms where all of its stage do the same and nothing queues."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import RankTrace, TraceSet
from rapid_des.frontend import Job
from rapid_des.frontend.trace import FinishedProgram, ProgramWriter, assemble
from rapid_des.machine import Machine
from rapid_des.modes.blocks.replicas import TimesAlone
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.program.collectives.lower import TimeAlone
from rapid_des.program.lowering import lower
from rapid_des.program.replicas import Mates
from rapid_des.values import replace

_SIMPY = EngineChoice("simpy", fold=False)


def program_alone(job: Job, program: FinishedProgram, machine: Machine, cache: BoundedCache) -> int:
    """Return the picoseconds that a program takes which all ranks of the first stage run."""
    stage = _first_stage(job)
    image = np.arange(job.gpus)
    image[stage] = np.roll(stage, -1)
    traces = _of_first(job, program)
    lowered = lower(traces, machine, analytic=True, replicas=Mates(1, image), cache=cache)
    return execute(lowered.program, _SIMPY).records.makespan


class Message(NamedTuple):
    """A collective that a rank takes part in."""

    role: str
    size: int
    """Bytes, as traces state them."""
    group: str


def collective_alone(job: Job, message: Message, machine: Machine) -> TimeAlone | None:
    """Return what a collective takes of time and GPU; None where routes decide that."""
    program = ProgramWriter()
    program.message(message.role, message.role, message.size, after=(), group=message.group)
    traces = _of_first(job, program.finish())
    rank = traces.ranks[0]
    return TimesAlone(traces, machine).collectives(rank, rank.groups[0])[0]


def _first_stage(job: Job) -> Int64s:
    return np.flatnonzero(job.layout.coordinates("pp") == 0)


def _of_first(job: Job, program: FinishedProgram) -> TraceSet:
    """Return the traces of the first rank and of whom it sends to, round rings; they run one program."""
    if program.peers:
        met = set(_first_stage(job).tolist())
    else:
        met = {0}.union(*(members_of_first(job, kind) for kind in program.groups))
    traces = assemble(job, [program] * job.stages, ranks=sorted(met))
    return replace(traces, ranks=_reached(traces))


def _reached(traces: TraceSet) -> tuple[RankTrace, ...]:
    """Return the first rank with all that messages of its own reach, by others too."""
    by_number = {rank.rank: rank for rank in traces.ranks}
    reached, new = set[int](), {traces.ranks[0].rank}
    while new:
        reached |= new
        new = {peer for number in new for peer in by_number[number].peers} - reached
    return tuple(rank for rank in traces.ranks if rank.rank in reached)


def members_of_first(job: Job, group: str) -> tuple[int, ...]:
    """Return the first rank's group of a kind."""
    rows = job.rows(group)
    return tuple(rows[rows[:, 0] == 0][0].tolist())
