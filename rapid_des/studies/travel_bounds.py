"""What travels between replicas alone, and beside which kernels: parts of bounds of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from rapid_des.frontend import Job
from rapid_des.frontend.groups import message_size
from rapid_des.frontend.optimizers import gathered_as
from rapid_des.frontend.parts import ModelSection
from rapid_des.frontend.routing import libraries_json
from rapid_des.frontend.template import Domain, PieceColumn, PricedPiece
from rapid_des.frontend.trace import ProgramWriter
from rapid_des.program.collectives.lower import TimeAlone
from rapid_des.studies.alone import Message, collective_alone, program_alone
from rapid_des.studies.closed_form_bounds import Times
from rapid_des.studies.made_of import Part
from rapid_des.studies.memory_bounds import once
from rapid_des.studies.overlap_bound import Busy, Mark, busy_of, messages_beside
from rapid_des.studies.piece_bounds import PieceBounds, computes
from rapid_des.studies.stand_ins import (
    Groups,
    Layers,
    Placed,
    State,
    of_groups,
    of_layers,
    of_state,
)
from rapid_des.studies.stream_paths import longest

_MANY = ("block", "prediction")
"""Sections whose messages count."""


class TravelBounds(PieceBounds):
    """Messages between replicas of these candidates, and the kernels beside which they travel."""

    @once
    def busy(self, layers: Layers) -> Mapping[tuple[ModelSection, bool], Busy]:
        """Return how long the kernels of each pass of a section compute."""
        return {each: busy_of(piece, self.machine.device) for each, piece in self.pieces(layers).items()}

    def busy_stage(self, job: Job, stage: int) -> Busy:
        """Return how long the kernels of a micro-batch's passes of a stage compute."""
        busy, total = self.busy(of_layers(job)), Busy()
        for section, count in self.sections_of(job, stage).items():
            total += (busy[section, False] + busy[section, True]).times(count)
        return total

    @once
    def _beside(self, state: State, marks: tuple[Mark, ...]) -> Counter[TimeAlone]:
        """Return what travels for a micro-batch because of a unit with these gradients."""
        groups = of_groups(state)
        times = [self.by_library(groups, message) for message in messages_beside(state, marks)]
        return Counter(time for time in times if time is not None)

    @once
    def _marks(self, layers: Layers, section: ModelSection) -> tuple[Mark, ...]:
        """Return the gradients of a section in the order in which they become final."""
        return tuple((mark.parameters, mark.domain) for mark in self.pieces(layers)[section, True].marks)

    def beside_stage(self, job: Job, stage: int) -> Counter[TimeAlone]:
        """Return what travels for a micro-batch between a stage's replicas."""
        layers, state, parts = of_layers(job), of_state(job), self.parts(job)
        messages = Counter[TimeAlone]()
        units = Counter(unit for part in parts.placement[stage] for unit in _units(state, parts[part]))
        for unit, count in units.items():
            marks = tuple(mark for section in unit for mark in self._marks(layers, section))
            for message, times in self._beside(state, marks).items():
                messages[message] += times * count
        return messages

    @once
    def pass_times(self, placed: Placed) -> Times:
        """Return what passes take with messages, beside which nothing else of their stage computes."""
        return self.times(of_layers(placed), lambda piece: self._slowed_by_itself(placed, piece))

    def times(self, layers: Layers, takes: Callable[[PricedPiece], int]) -> Times:
        """Return what sections take on a rank of the first stage, those that are many as `takes` says."""
        return {
            key: takes(piece) if key[0].name in _MANY else computes(piece)  # the ends' is one of many
            for key, piece in self.pieces(layers).items()
        }

    def _slowed_by_itself(self, placed: Placed, piece: PricedPiece) -> int:
        """Return what a piece takes; where nothing of it runs beside another, that is known."""
        durations = self.durations(placed, piece)
        together = durations.sum() > longest(piece, durations) or (piece.rows[:, PieceColumn.PEER] >= 0).any()
        return self.alone(placed, piece) if together else int(durations.sum())

    def travels(self, state: State, parameters: Counter[Domain], *, gathers: bool) -> int:
        """Return how long a stage's gradients are reduced, or its parameters gathered, in one message."""
        groups, messages = of_groups(state), messages_of(state, parameters, gathers=gathers)
        return sum(self.takes(groups, message) for message in messages)

    def takes(self, groups: Groups, message: Message) -> int:
        """Return how long a collective of a rank takes; those of one stream follow one another."""
        known = self.by_library(groups, message)
        return self._played(groups, message) if known is None else known[0]

    @once
    def _played(self, groups: Groups, message: Message) -> int:
        program = ProgramWriter()
        program.message(message.role, message.role, message.size, after=(), group=message.group)
        return program_alone(groups, program.finish(), self.machine, self.cache)

    def by_library(self, groups: Groups, message: Message) -> TimeAlone | None:
        """Return what a collective takes of time and GPU if a library does it."""
        key = ("alone", self.members(groups, message.group), message, libraries_json(groups))
        if key not in self.known:
            self.known[key] = collective_alone(groups, message, self.machine)
        time: TimeAlone | None = self.known[key]
        return time


def _units(job: Job, part: Part) -> list[tuple[ModelSection, ...]]:
    """Return the sections of a part whose gradients travel together, in the order of their backwards."""
    sections = part.sections[::-1]
    return [(section,) for section in sections] if job.sharding.policy.by_unit else [sections]


def messages_of(job: Job, parameters: Counter[Domain], *, gathers: bool) -> list[Message]:
    """Return the messages of these parameters, or of their gradients, if they travel together."""
    messages = []
    for domain, sharding in job.shardings.items():
        role = sharding.unit_gathers if gathers else sharding.policy.reduce
        if role is not None and role and sharding.replicas > 1 and parameters[domain]:
            dtype = gathered_as(job, domain, layer=True) if gathers else job.spec.precision.gradient_reduce
            size = message_size(role, parameters[domain], dtype, sharding.replicas)
            messages.append(Message(role, size, sharding.group))
    return messages
