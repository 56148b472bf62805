"""Pieces of candidates as priced, and what their messages take alone: what bounds of time are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from rapid_des.studies.alone import Boundary, members_of_first, message_between, program_alone
from rapid_des.studies.memory_bounds import MemoryBounds, once
from rapid_des.studies.stage_paths import Timed
from rapid_des.studies.stand_ins import Groups, Layers, Placed, of_groups, of_layers, without_host

_COMPUTE = STREAMS.index("compute")
_STATED = [PieceColumn.STREAM, PieceColumn.SIZE, PieceColumn.COLLECTIVE, PieceColumn.GROUP, PieceColumn.TAG]


class PieceBounds(MemoryBounds):
    """Pieces of these candidates, priced."""

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

    def messages(self, job: Job) -> Mapping[tuple[int, int], int]:
        """Return how long a message takes from each stage to its neighbours, round the pipeline."""
        return self._between(of_groups(job), Boundary(job.message_bytes, batched=job.batches_messages))

    @once
    def _between(self, groups: Groups, boundary: Boundary) -> Mapping[tuple[int, int], int]:
        stages, apart = groups.stages, groups.layout.stride("pp")
        if stages == 1:
            return {}
        pairs = [(source, (source + step) % stages) for source in range(stages) for step in (1, -1)]
        ends = [(apart * source, apart * target) for source, target in pairs]
        durations: dict[tuple[int, int], int] = {}
        for pair, like in zip(pairs, signatures(self.machine, ends), strict=True):
            key = ("message", like, boundary, groups if boundary.batched else None)
            if key not in self.known:
                self.known[key] = message_between(groups, boundary, pair, self.machine, self.cache)
            durations[pair] = self.known[key]
        return durations


def computes(piece: PricedPiece) -> int:
    """Return what the kernels of a piece take one after the other, in picoseconds."""
    return int(piece.rows[:, PieceColumn.DURATION].sum())
