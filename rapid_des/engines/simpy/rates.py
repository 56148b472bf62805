"""R14: which parts are marked, and the rates of those that send them."""

from __future__ import annotations

import numpy as np

from rapid_des.engines.simpy.links import Hop, Piece
from rapid_des.engines.simpy.servers import Clock
from rapid_des.program import rates
from rapid_des.program.delays import draw_of
from rapid_des.program.program import Program, RateRecords, RateTable


class PairRates:
    """The rate of every route, and the marks of every link."""

    def __init__(self, program: Program, table: RateTable, env: Clock) -> None:
        self._table, self._env = table, env
        self._offsets: list[int] = program.visits().tolist()
        self._sizes = {size: row for row, size in enumerate(program.hops.bytes.tolist())}
        self._control: list[int] = table.control.tolist()
        self._rows: list[list[int]] = table.rows.tolist()
        self._marks = np.zeros(program.links, np.int64)

    def marks(self, piece: Piece, hop: Hop, waiting: int) -> bool:
        """Mark a part that a link takes while so much waits there, or not."""
        link, (position, _, visit, _, task) = hop.link, piece.message.order
        thresholds = int(self._table.first[link]), int(self._table.full[link])
        packets = int(self._table.packets[self._sizes[piece.size]])
        chance = rates.chance(waiting, thresholds, self._control[rates.MOST], packets)
        if chance == 0:
            return False
        who = position, visit - self._offsets[position], task, rates.which(piece.part, hop.place)
        marked = draw_of(self._control[rates.SEED], *who) >> rates.UNUSED < chance
        self._marks[link] += marked
        return marked

    def goes_on(self, route: int, part: tuple[int, int], hop: Hop, *, more: bool) -> int:
        """Return when what follows a part (bytes, service time) at its first link may be handed over."""
        row = self._rows[route]
        moment = max(hop.free, hop.start + rates.paced(row, self._control, self._env.now, part))
        row[rates.HELD] += (moment - hop.free) * more
        return moment

    def arrives_marked(self, route: int) -> None:
        """Tell the sender of a marked part, if it was told of none lately."""
        now, row = self._env.now, self._rows[route]
        if rates.notifies(row, self._control, now):
            moment = now + int(self._table.echo[route])
            self._env.at(moment, lambda: rates.cut(row, self._control, moment))

    def records(self) -> RateRecords:
        """Return what was marked, and what became of the rates."""
        rows = np.array(self._rows, np.int64).reshape(-1, rates.COLUMNS)
        return RateRecords(
            self._marks, *(rows[:, which] for which in (rates.CUTS, rates.HELD, rates.SLOWEST))
        )
