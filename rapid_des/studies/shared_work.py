"""What bounds of many layouts have in common, worked out once: sections, priced pieces, messages alone.

Each result is kept under the stand-in (`stand_ins`) that it follows from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import NodeKind
from rapid_des.device.pricing import operator_model
from rapid_des.frontend import Job
from rapid_des.frontend.groups import GROUP_SLOTS, message_size
from rapid_des.frontend.optimizers import gathered_as
from rapid_des.frontend.parts import (
    Lists,
    ModelSection,
    PieceKey,
    pass_lists,
    price_lists,
    section_parameters,
)
from rapid_des.frontend.routing import exchanges, libraries_json, places
from rapid_des.frontend.schedules.schedule import Placement
from rapid_des.frontend.template import STREAMS, Domain, PieceColumn, PieceEdges, PricedPiece
from rapid_des.frontend.trace import ProgramWriter
from rapid_des.machine import Machine
from rapid_des.modes.pricing import as_used
from rapid_des.program.collectives.lower import TimeAlone
from rapid_des.studies.alone import Message, collective_alone, members_of_first, program_alone
from rapid_des.studies.made_of import Parts
from rapid_des.studies.stage_paths import Timed
from rapid_des.studies.stand_ins import Groups, Layers, Placed, State, of_groups, of_layers, without_host

_COMPUTE = STREAMS.index("compute")
_STATED = [PieceColumn.STREAM, PieceColumn.SIZE, PieceColumn.COLLECTIVE, PieceColumn.GROUP, PieceColumn.TAG]


class Shares(Protocol):
    """What keeps results of its methods."""

    known: dict[Hashable, Any]


_Made = TypeVar("_Made")
_Given = ParamSpec("_Given")
_Self = TypeVar("_Self", bound="Shares")


def once(
    method: Callable[Concatenate[_Self, _Given], _Made],
) -> Callable[Concatenate[_Self, _Given], _Made]:
    """Let a method make what it returns once for equal arguments; it follows from these alone."""

    @wraps(method)
    def found(self: _Self, /, *given: _Given.args, **named: _Given.kwargs) -> _Made:
        key = (method, *given, *named.values())
        if key not in self.known:
            self.known[key] = method(self, *given, **named)
        made: _Made = self.known[key]
        return made

    return found


class SharedWork(Struct):
    """What is known of the candidates of one job on one machine, all of whose GPUs are equal and healthy."""

    machine: Machine
    cache: BoundedCache
    known: dict[Hashable, Any] = field(default_factory=dict)

    @once
    def lists(self, layers: Layers, place: int) -> Lists:
        """Return the operators of all sections; those that stand once in a stage are not asked for."""
        return pass_lists(layers, place)

    def sections_of(self, job: Job, stage: int) -> Counter[ModelSection]:
        """Return how often a stage has each section."""
        total, parts = Counter[ModelSection](), self.parts(job)
        for part in parts.placement[stage]:
            total.update(dict(parts[part].counts))
        return total

    def parameters_of(self, state: State, stage: int) -> Counter[Domain]:
        """Return the parameters of a rank of a stage."""
        total, sizes = Counter[Domain](), self.sizes(of_layers(state))
        for section, count in self.sections_of(state, stage).items():
            for domain, elements in sizes[section].items():
                total[domain] += count * elements
        return total

    @once
    def sizes(self, layers: Layers) -> Mapping[ModelSection, Counter[Domain]]:
        """Return the parameters of every section on a rank."""
        return section_parameters(layers)

    @once
    def kinds(self, layers: Layers) -> Sequence[int]:
        """Return the kind of every layer, by what the job runs again."""
        return layers.kind_of_layer

    def parts(self, job: Job) -> Parts:
        """Return what the parts of the model are made of."""
        return self._parts(job.placement, job.layers, self.kinds(of_layers(job)), job.predictions)

    @once
    def _parts(
        self, placement: Placement, layers: Sequence[int], kind_of_layer: Sequence[int], predictions: int
    ) -> Parts:
        return Parts.of(placement, layers, kind_of_layer, predictions)

    @once
    def pieces(self, layers: Layers) -> Mapping[tuple[ModelSection, bool], PricedPiece]:
        """Return every section's pass, forward and (true) backward, of the rank that computes the least."""
        of_places = self.of_places(layers)
        return {
            (key.section, key.phase == "backward"): min((pieces[key] for pieces in of_places), key=computes)
            for key in of_places[0]
            if key.phase in ("forward", "backward")
        }

    @once
    def of_places(self, layers: Layers) -> Sequence[Mapping[PieceKey, PricedPiece]]:
        """Return the passes of all sections at each place of ranks whose experts' loads differ."""
        device = as_used(without_host(layers), self.machine, self.machine.device)
        operators = operator_model(device, self.cache)
        return [
            {
                key: piece
                for key, piece in price_lists(
                    self.lists(layers, place), operators, None, exchanges(layers)
                ).items()
                if key.stage < 0
            }
            for place in range(places(layers))
        ]

    @once
    def timed(self, placed: Placed) -> Sequence[Mapping[PieceKey, Timed]]:
        """Return the same with what every node takes alone, messages too."""
        return [
            {key: Timed(piece, self.durations(placed, piece)) for key, piece in pieces.items()}
            for pieces in self.of_places(of_layers(placed))
        ]

    def durations(self, placed: Placed, piece: PricedPiece) -> Int64s:
        """Return what the nodes of a piece take alone; 0 where a rank's neighbours say it."""
        durations, kinds = piece.rows[:, PieceColumn.DURATION].copy(), piece.rows[:, PieceColumn.KIND]
        durations[kinds != NodeKind.COMPUTE] = 0
        alike = self.known.setdefault(("collectives", placed), {})
        rows = np.flatnonzero(kinds == NodeKind.COLLECTIVE)
        for row, stated in zip(rows.tolist(), piece.rows[rows][:, _STATED].tolist(), strict=True):
            if (key := tuple(stated)) not in alike:
                alike[key] = self._collective(placed, piece, row)
            durations[row] = alike[key]
        return durations

    def _collective(self, placed: Placed, piece: PricedPiece, row: int) -> int:
        """Return what a collective of a piece takes alone: equal where as many bytes take equal routes."""
        *stated, slot, tag = piece.rows[row, _STATED].tolist()
        group, spread = GROUP_SLOTS[slot], exchanges(placed)[tag - 1] if tag else None
        key = ("collective", tuple(stated), self.members(placed, group), libraries_json(placed), spread)
        if key not in self.known:
            edges = PieceEdges(np.array([0]), np.array([], np.int64))
            self.known[key] = self.alone(placed, PricedPiece(piece.rows[[row]], piece.names, edges, 0))
        return int(self.known[key])

    @once
    def members(self, job: Placed | Groups, group: str) -> tuple[int, ...]:
        """Return the first rank's group of a kind."""
        return members_of_first(job, group)

    def alone(self, placed: Placed, piece: PricedPiece) -> int:
        """Return how long a piece takes: kernels one after the other, or what a run says."""
        if (piece.rows[:, PieceColumn.STREAM] == _COMPUTE).all():
            return computes(piece)
        program = ProgramWriter()
        program.writer.place(piece, {})
        return program_alone(without_host(placed), program.finish(), self.machine, self.cache)

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


def computes(piece: PricedPiece) -> int:
    """Return what the kernels of a piece take one after the other, in picoseconds."""
    return int(piece.rows[:, PieceColumn.DURATION].sum())


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
