"""Activations that training keeps in the host's memory between passes.

Copies run on a stream a direction, so that what hides them falls out of the simulation. Activations of a
layer leave once its forward has run and are asked for while the layer behind it runs its backward. What other
GPUs of a server take of the host at the same time is in the device file's bandwidths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from rapid_des.device.operators import HostWork, OperatorModel
from rapid_des.frontend.job import Job
from rapid_des.frontend.memory.events import section_memory
from rapid_des.frontend.parts import ModelSection, sections
from rapid_des.frontend.schedules.schedule import Item
from rapid_des.frontend.template import FETCHED, INPUT, PricedPiece
from rapid_des.frontend.trace import ProgramWriter

_AHEAD = 1
"""How many layers before the running backward activations are fetched."""


class Activations(Struct, dict=True):
    """The activations of one stage's layers, on the GPU or the host, while its program is written."""

    job: Job
    stage: int
    operators: OperatorModel
    stored: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """The position by (micro-batch, chunk, layer) at which they have arrived in the host's memory."""
    fetched: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """The position by (micro-batch, chunk, layer) at which they are back on the GPU."""

    def __post_init__(self) -> None:
        self._sizes = {section: memory.away for section, memory in section_memory(self.job).items()}

    def _sections(self, chunk: int) -> tuple[ModelSection, ...]:
        part = self.job.placement[self.stage][chunk]
        return tuple(section for section, _ in sections(self.job, part))

    def place(
        self, program: ProgramWriter, item: Item, pieces: Sequence[PricedPiece], ports: Mapping[int, int]
    ) -> tuple[int, list[tuple[PricedPiece, int]]]:
        """Place a pass section by section; return its end, and the pieces with where each begins.

        A layer's activations leave behind its forward; its backward waits until they have come back.
        """
        newest, output = list(ports.values())[-1:], ports.get(INPUT, -1)
        placed = []
        for number, piece in enumerate(pieces):
            back = self.back(program, item, len(pieces) - 1 - number, newest)
            if len(piece):
                placed.append((piece, len(program)))
                output = program.writer.place(piece, {**ports, **back})
                ports, newest = {INPUT: output}, [output]
            if item.phase == "forward":
                self.leave(program, item, number, output)
        return output, placed

    def leave(self, program: ProgramWriter, item: Item, place: int, after: int) -> None:
        """Append the copy of what a section's forward has kept, if it is a layer's."""
        size = self._sizes.get(self._sections(item.chunk)[place], 0)
        if size:
            work = HostWork(size, "to_host")
            position = program.with_host("offload.activations", work, self.operators, after=(after,))
            self.stored[item.micro_batch, item.chunk, place] = position

    def back(self, program: ProgramWriter, item: Item, place: int, after: Sequence[int]) -> dict[int, int]:
        """Return the port of a section's fetched activations (see `come`); empty if none are offloaded."""
        if item.phase not in ("backward", "input_gradient"):
            return {}
        back = self.come(program, item, place, after)
        return {FETCHED: back} if back >= 0 else {}

    def come(self, program: ProgramWriter, item: Item, place: int, after: Sequence[int]) -> int:
        """Append the copies back for a section's backward and those next; return where its own is, or -1.

        `place` is its place in the forward; the copies begin after given positions.
        """
        for earlier in range(place, max(place - _AHEAD, 0) - 1, -1):
            key = (item.micro_batch, item.chunk, earlier)
            if key in self.stored and key not in self.fetched:
                work = HostWork(self._sizes[self._sections(item.chunk)[earlier]], "from_host")
                waits = (self.stored[key], *after)
                self.fetched[key] = program.with_host("fetch.activations", work, self.operators, after=waits)
        return self.fetched.get((item.micro_batch, item.chunk, place), -1)
