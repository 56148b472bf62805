"""By how much messages that run beside kernels lengthen a stage's step at the least (R6).

Gradients that are reduced after every micro-batch, and parameters that are gathered for it, travel most of
the time, one message at a time on their stream. Meanwhile kernels are slowed: by multiprocessors that a
message takes, or, if memory bounds them, by its bandwidth. However they come to lie, all of a message lies
where the stage does not compute, which costs nothing, or beside kernels, where each picosecond of it delays
what follows by 1 - 1 / slowdown. The least is where the messages that slow the most meet no kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rapid_des.chakra.trace import BOUNDS
from rapid_des.device.device import Device
from rapid_des.device.operators import Bound
from rapid_des.frontend import Job
from rapid_des.frontend.groups import message_size
from rapid_des.frontend.optimizers import bucket_parameters, gathered_as, gradient_buckets
from rapid_des.frontend.template import STREAMS, Column, Mark, Piece
from rapid_des.program.communication import TimeAlone, slowdowns
from rapid_des.studies.alone import Message

_LONG = 10**15
"""Picoseconds of a kernel beside whose length its launch is nothing."""


@dataclass(frozen=True)
class Busy:
    """How long kernels of two kinds compute, in picoseconds, their launches left out."""

    chip: int = 0
    """What multiprocessors, or what is on the chip, bound."""
    memory: int = 0
    """What the bandwidth of memory bounds."""

    def times(self, count: int) -> Busy:
        """Return the same of so many runs."""
        return Busy(self.chip * count, self.memory * count)

    def __add__(self, other: Busy) -> Busy:
        return Busy(self.chip + other.chip, self.memory + other.memory)


def busy_of(piece: Piece, device: Device) -> Busy:
    """Return how long the kernels of a piece compute."""
    rows = piece.rows[piece.rows[:, Column.STREAM] == STREAMS.index("compute")]
    busy = np.maximum(rows[:, Column.DURATION] - device.launch_overhead, 0)
    bound = rows[:, Column.BOUND]
    on_chip = np.isin(bound, [BOUNDS.index(name) for name in ("tensor", "vector", "shared", "l2")])
    return Busy(int(busy[on_chip].sum()), int(busy[bound == BOUNDS.index("hbm")].sum()))


def messages_beside(job: Job, marks: Sequence[Mark]) -> Iterator[Message]:
    """Yield what travels for every micro-batch because of a unit's gradients, or a whole part's.

    Of gathers only those that no choice of a job leaves out.
    """
    by_unit, precision = job.sharding.policy.by_unit, job.spec.precision
    twice = job.training.reshard is True and job.training.adapters is None and not job.training.gather_singly
    for domain, sharding in job.shardings.items():
        of_domain = [mark for mark in marks if mark.domain == domain]
        if sharding.replicas == 1 or not of_domain:
            continue
        reduce, gather = sharding.policy.reduce, sharding.unit_gathers if by_unit and twice else None
        buckets = gradient_buckets(of_domain, bucket_parameters(job)) if reduce else ()
        for bucket in buckets:
            size = message_size(reduce, bucket.parameters, precision.gradient_reduce, sharding.replicas)
            yield Message(reduce, size, sharding.group)
        if gather is not None:
            elements, dtype = sum(mark.parameters for mark in of_domain), gathered_as(job, domain, layer=True)
            size = message_size(gather, elements, dtype, sharding.replicas)
            yield from [Message(gather, size, sharding.group)] * 2


class _Slowed(NamedTuple):
    """What part of their time kernels of both kinds lose beside messages, and how long these take in all."""

    chip: float
    memory: float
    time: int


def least_delay(busy: Busy, drained: int, messages: Mapping[TimeAlone, int], device: Device) -> int:
    """Return the picoseconds by which a stage is done later, which without messages takes `drained`.

    `messages`, of which there are some, are by how long they take and what of the GPU, each with its number.

    >>> from rapid_des.device.device import load_device
    >>> from rapid_des.program.builders import Occupancy
    >>> h100, ms = load_device("h100_sxm"), 10**9
    >>> beside = {(5 * ms, Occupancy(24)): 1}
    >>> round(least_delay(Busy(8 * ms), 10 * ms, beside, h100) / ms, 2)  # 2 ms of it hide
    0.55
    """
    slowed = sorted(_slowed(messages, device), reverse=True)
    alone = max(0, drained - busy.chip - busy.memory)
    longest, least = (
        1 / (1 - max(part.memory for part in slowed)),
        min(min(part.chip, part.memory) for part in slowed),
    )
    beside_memory, delay = round(busy.memory * longest), 0.0
    for part in slowed:
        hidden = min(part.time, alone)
        alone -= hidden
        in_memory = min(part.time - hidden, beside_memory)
        beside_memory -= in_memory
        delay += in_memory * least + (part.time - hidden - in_memory) * part.chip
    return int(delay)


def _slowed(messages: Mapping[TimeAlone, int], device: Device) -> Iterator[_Slowed]:
    bounds: tuple[Bound, Bound] = ("tensor", "hbm")
    for (duration, occupancy), count in messages.items():
        taken = np.array([occupancy.sms]), np.array([occupancy.traffic])
        chip, memory = (float(slowdowns(device, (bound, _LONG, 0), *taken)[0]) for bound in bounds)
        yield _Slowed(1 - 1 / chip, 1 - 1 / memory, duration * count)
