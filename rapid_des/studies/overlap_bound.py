"""By how much messages that run beside kernels lengthen a stage's step at the least (R6).

Gradients that are reduced after every micro-batch, and parameters that are gathered for it, travel most of
the time, one message at a time on their stream. Meanwhile kernels are slowed: by multiprocessors that a
message takes, or, if memory bounds them, by its bandwidth. However they come to lie, all of a message lies
where the stage does not compute, which costs nothing, or beside kernels, where each picosecond of it delays
what follows by 1 - 1 / slowdown. The least is where the messages that slow the most meet no kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field

from rapid_des.chakra.trace import BOUNDS
from rapid_des.device.device import Device
from rapid_des.device.operators import Bound
from rapid_des.frontend import Job
from rapid_des.frontend.groups import message_size
from rapid_des.frontend.optimizers import gathered_as, reductions
from rapid_des.frontend.parts import ModelSection
from rapid_des.frontend.template import STREAMS, Domain, PieceColumn, PricedPiece
from rapid_des.program.collectives.lower import TimeAlone
from rapid_des.program.contention import slowdowns
from rapid_des.studies.alone import Message
from rapid_des.studies.made_of import Part
from rapid_des.studies.shared_work import SharedWork, once
from rapid_des.studies.stand_ins import Layers, State, of_groups, of_layers, of_state

_COMPUTE = STREAMS.index("compute")
_ON_CHIP = [BOUNDS.index(name) for name in ("tensor", "vector", "shared", "l2")]
_IN_MEMORY = BOUNDS.index("hbm")
_LONG = 10**15
"""Picoseconds of a kernel beside whose length its launch is nothing."""


class Busy(Struct, frozen=True):
    """How long kernels of two kinds compute, in picoseconds, their launches left out."""

    chip: int = 0
    """What multiprocessors, or what is on the chip, bound."""
    memory: int = 0
    """What the bandwidth of memory bounds."""

    def times(self, count: int) -> Busy:
        """Return the same of this number of runs."""
        return Busy(self.chip * count, self.memory * count)

    def __add__(self, other: Busy) -> Busy:
        return Busy(self.chip + other.chip, self.memory + other.memory)


def busy_of(piece: PricedPiece, device: Device) -> Busy:
    """Return how long the kernels of a piece compute."""
    rows = piece.rows[piece.rows[:, PieceColumn.STREAM] == _COMPUTE]
    busy = np.maximum(rows[:, PieceColumn.DURATION] - device.launch_overhead, 0)
    bound = rows[:, PieceColumn.BOUND]
    return Busy(int(busy[np.isin(bound, _ON_CHIP)].sum()), int(busy[bound == _IN_MEMORY].sum()))


Mark = tuple[int, Domain]
"""Parameters and domain of a gradient."""


def messages_beside(job: Job, marks: Sequence[Mark]) -> Iterator[Message]:
    """Yield what travels for every micro-batch because of a unit's gradients, or a whole part's.

    Of gathers only those that no choice of a job leaves out.
    """
    for bucket in reductions(job, tuple(marks)):
        for _, role, size, group, _ in bucket.messages:
            if group is not None:  # none: between copies of the state
                yield Message(role, size, group)
    training, by_unit = job.training, job.sharding.policy.by_unit
    twice = training.reshard is True and training.adapters is None and not training.gather_singly
    for domain, sharding in job.shardings.items():
        elements = sum(parameters for parameters, of in marks if of == domain)
        gather = sharding.unit_gathers
        if sharding.replicas > 1 and elements and gather is not None and by_unit and twice:
            size = message_size(gather, elements, gathered_as(job, domain, layer=True), sharding.replicas)
            yield from [Message(gather, size, sharding.group)] * 2


class OverlapBound(Struct):
    """By how much candidates of one job are slowed by messages between their replicas."""

    work: SharedWork
    known: dict[Hashable, Any] = field(default_factory=dict)

    def delay(self, job: Job, stage: int, drained: int) -> int:
        """Return by how many picoseconds a stage is done later that without messages takes `drained`."""
        messages = {
            message: count * job.micro_batches for message, count in self._messages(job, stage).items()
        }
        busy = self._busy_stage(job, stage).times(job.micro_batches)
        return least_delay(busy, drained, messages, self.work.machine.device) if messages else 0

    def _busy_stage(self, job: Job, stage: int) -> Busy:
        """Return how long the kernels of a micro-batch's passes of a stage compute."""
        busy, total = self._busy(of_layers(job)), Busy()
        for section, count in self.work.sections_of(job, stage).items():
            total += (busy[section, False] + busy[section, True]).times(count)
        return total

    @once
    def _busy(self, layers: Layers) -> Mapping[tuple[ModelSection, bool], Busy]:
        """Return how long the kernels of each pass of a section compute."""
        device = self.work.machine.device
        return {each: busy_of(piece, device) for each, piece in self.work.pieces(layers).items()}

    def _messages(self, job: Job, stage: int) -> Counter[TimeAlone]:
        """Return what travels for a micro-batch between a stage's replicas."""
        layers, state, parts = of_layers(job), of_state(job), self.work.parts(job)
        messages = Counter[TimeAlone]()
        units = Counter(unit for part in parts.placement[stage] for unit in _units(state, parts[part]))
        for unit, count in units.items():
            marks = tuple(mark for section in unit for mark in self._marks(layers, section))
            for message, times in self._beside(state, marks).items():
                messages[message] += times * count
        return messages

    @once
    def _beside(self, state: State, marks: tuple[Mark, ...]) -> Counter[TimeAlone]:
        """Return what travels for a micro-batch because of a unit with these gradients."""
        groups = of_groups(state)
        times = [self.work.by_library(groups, message) for message in messages_beside(state, marks)]
        return Counter(time for time in times if time is not None)

    @once
    def _marks(self, layers: Layers, section: ModelSection) -> tuple[Mark, ...]:
        """Return the gradients of a section in the order in which they become final."""
        return tuple((mark.parameters, mark.domain) for mark in self.work.pieces(layers)[section, True].marks)


def _units(job: Job, part: Part) -> list[tuple[ModelSection, ...]]:
    """Return the sections of a part whose gradients travel together, in the order of their backwards."""
    sections = part.sections[::-1]
    return [(section,) for section in sections] if job.sharding.policy.by_unit else [sections]


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
    for time, (chip, memory) in _shares(messages, device).items():
        yield _Slowed(chip, memory, time[0] * messages[time])


def _shares(messages: Iterable[TimeAlone], device: Device) -> dict[TimeAlone, tuple[float, float]]:
    """Return what part of their time kernels lose beside each message, on the chip and in memory."""
    taken = [(beside.sms, beside.traffic) for _, beside in messages]
    sms, traffic = np.array(taken).T
    bounds: tuple[Bound, Bound] = ("tensor", "hbm")
    chip, memory = (1 - 1 / slowdowns(device, (bound, _LONG, 0), sms, traffic) for bound in bounds)
    return dict(zip(messages, zip(chip.tolist(), memory.tolist(), strict=True), strict=True))
