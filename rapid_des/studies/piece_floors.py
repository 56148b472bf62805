"""Pieces of candidates as priced, and what their messages take alone: what bounds of time are made of."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import NodeKind
from rapid_des.device.pricing import operator_model
from rapid_des.frontend import Job
from rapid_des.frontend.groups import GROUP_SLOTS
from rapid_des.frontend.parts import ModelSection, PieceKey, price_lists
from rapid_des.frontend.routing import exchanges, libraries_json, places
from rapid_des.frontend.template import STREAMS, PieceColumn, PieceEdges, PricedPiece
from rapid_des.frontend.trace import ProgramWriter
from rapid_des.modes.pricing import as_used
from rapid_des.program.routes import signatures
from rapid_des.studies.alone import members_of_first, message_between, program_alone
from rapid_des.studies.likeness import kernels_key, layer_key, layout_key, model_key
from rapid_des.studies.memory_floors import MemoryFloors
from rapid_des.studies.pair_walk import Timed
from rapid_des.studies.stand_ins import on_machine

_COMPUTE = STREAMS.index("compute")
_STATED = (PieceColumn.STREAM, PieceColumn.SIZE, PieceColumn.COLLECTIVE)


class PieceFloors(MemoryFloors):
    """Pieces of these candidates, priced."""

    def pieces(self, job: Job) -> Mapping[tuple[ModelSection, bool], PricedPiece]:
        """Return every section's pass, forward and (true) backward, of the rank that computes the least."""
        return self.once(("pieces", *kernels_key(job)), lambda: self._quickest(job))

    def _quickest(self, job: Job) -> Mapping[tuple[ModelSection, bool], PricedPiece]:
        of_places = self.of_places(job)
        return {
            (key.section, key.phase == "backward"): min((pieces[key] for pieces in of_places), key=computes)
            for key in of_places[0]
            if key.phase in ("forward", "backward")
        }

    def of_places(self, job: Job) -> Sequence[Mapping[PieceKey, PricedPiece]]:
        """Return the passes of all sections at each place of ranks whose experts' loads differ."""
        return self.once(("places", *kernels_key(job)), lambda: self._priced(on_machine(job, self.machine)))

    def _priced(self, job: Job) -> Sequence[Mapping[PieceKey, PricedPiece]]:
        operators = operator_model(as_used(job, self.machine, self.machine.device), self.cache)
        return [
            {
                key: piece
                for key, piece in price_lists(self.lists(job, place), operators, None, exchanges(job)).items()
                if key.stage < 0
            }
            for place in range(places(job))
        ]

    def timed(self, job: Job) -> Sequence[Mapping[PieceKey, Timed]]:
        """Return the same with what every node takes alone, messages too."""
        return self.once(("timed", *layer_key(job)), lambda: self._timed(job))

    def _timed(self, job: Job) -> Sequence[Mapping[PieceKey, Timed]]:
        return [
            {key: Timed(piece, self.durations(job, piece)) for key, piece in pieces.items()}
            for pieces in self.of_places(job)
        ]

    def durations(self, job: Job, piece: PricedPiece) -> Int64s:
        """Return what the nodes of a piece take alone; 0 where a rank's neighbours say it."""
        durations = piece.rows[:, PieceColumn.DURATION].copy()
        for row in np.flatnonzero(piece.rows[:, PieceColumn.KIND] != NodeKind.COMPUTE).tolist():
            collective = piece.rows[row, PieceColumn.KIND] == NodeKind.COLLECTIVE
            durations[row] = self._collective(job, piece, row) if collective else 0
        return durations

    def _collective(self, job: Job, piece: PricedPiece, row: int) -> int:
        """Return what a collective of a piece takes alone: the same where as many bytes go the same way."""
        values = piece.rows[row]
        group, tag = GROUP_SLOTS[values[PieceColumn.GROUP]], int(values[PieceColumn.TAG])
        spread = exchanges(job)[tag - 1] if tag else None
        key = (*values[list(_STATED)].tolist(), self.members(job, group), libraries_json(job), spread)
        node = PricedPiece(
            piece.rows[[row]], piece.names, PieceEdges(np.array([0]), np.array([], np.int64)), 0
        )
        return self.once(("collective", *key), lambda: self.alone(on_machine(job, self.machine), node))

    def members(self, job: Job, group: str) -> tuple[int, ...]:
        """Return the first rank's group of a kind."""
        key = (*model_key(job), *layout_key(job), len(job.copies[0]), group)
        return self.once(("members", *key), lambda: members_of_first(job, group))

    def alone(self, job: Job, piece: PricedPiece) -> int:
        """Return how long a piece takes: kernels one after the other, or what a run says."""
        if (piece.rows[:, PieceColumn.STREAM] == _COMPUTE).all():
            return computes(piece)
        program = ProgramWriter()
        program.writer.place(piece, {})
        return program_alone(job, program.finish(), self.machine, self.cache)

    def messages(self, job: Job) -> Mapping[tuple[int, int], int]:
        """Return how long a message takes from each stage to its neighbours, round the pipeline."""
        key = (*model_key(job), *layout_key(job), job.message_bytes, job.batches_messages)
        return self.once(("messages", *key), lambda: self._between(job))

    def _between(self, job: Job) -> Mapping[tuple[int, int], int]:
        durations: dict[tuple[int, int], int] = {}
        if job.stages == 1:
            return durations
        firsts = job.layout.stride("pp") * np.arange(job.stages)
        for source in range(job.stages):
            for target in {(source + 1) % job.stages, (source - 1) % job.stages}:
                ends = int(firsts[source]), int(firsts[target])
                like = signatures(self.machine, [ends])[0]
                among: tuple[Hashable, ...] = (job.stages, *layout_key(job)) if job.batches_messages else ()
                key = ("message", like, job.message_bytes, among)
                durations[source, target] = self.once(
                    key, partial(message_between, job, (source, target), self.machine, self.cache)
                )
        return durations


def computes(piece: PricedPiece) -> int:
    """Return what the kernels of a piece take one after the other, in picoseconds."""
    return int(piece.rows[:, PieceColumn.DURATION].sum())
