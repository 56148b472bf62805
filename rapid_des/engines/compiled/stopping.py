"""R8 in the compiled engine: what closed links stopped waits here, and is sent again on other links.

The kernel stops transfers that ask for closed links. For each route over a link whose closure is noticed it
asks once for another route. Everything else about closures happens between instants, in `link_closures`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from rapid_des.engines.compiled import pools, work
from rapid_des.engines.compiled.calendar import USED, push
from rapid_des.engines.compiled.closure_kernel import Served
from rapid_des.engines.compiled.closure_tables import ClosureTables, Links
from rapid_des.engines.compiled.engine import CompiledSimulation, kernel_of, with_events, with_transfers
from rapid_des.network.fluid.state import lengthened
from rapid_des.program.faults.closures import Closures, Stopped, down_at, new_routes, route_around
from rapid_des.program.program import NONE, Program, Progress
from rapid_des.values import replace


class LinkService(Struct, eq=False):
    """The service of a transfer by a link, also if its bytes were lost at a later link meanwhile."""

    transfer: int
    """The transfer, or NONE if its bytes were lost at a later link."""
    links: Links
    """The links of its route."""
    place: int
    """The position in the route of the link that serves it."""
    start: int
    """The start of service in picoseconds."""
    size: int
    """The bytes that the link serves."""
    label: int
    """The label by which link statistics count it."""
    row: int
    """The row of the hop in the trail."""

    @property
    def link(self) -> int:
        """The link that serves."""
        return self.links[self.place]


class StoppingSimulation(CompiledSimulation):
    """One run of a program whose closed links stop messages, which then take other routes."""

    def __init__(
        self, program: Program, closures: Closures, *, trail: bool = False, progress: Progress | None = None
    ) -> None:
        super().__init__(program, trail=trail, progress=progress)
        self._closures = closures
        self._tables = ClosureTables(self._flat, closures, fluid=program.fluid is not None)
        self._flat = self._tables.flat
        self._state.flags[work.CLOSING] = True
        self._noticed = np.full(program.links, NONE, np.int64)
        self._served = Served(
            self._noticed, np.full(program.links, NONE, np.int32), *np.zeros((3, 0, 0), np.int64)
        )
        self._lost: dict[int, LinkService] = {}
        """Maps a link to the hop that it serves although the bytes were lost at a later link."""
        self._batches: dict[int, list[tuple[int, Stopped]]] = {}
        """Maps a time in picoseconds to (message, stopped bytes) that may be sent again then."""
        self._restarts = 0
        """The number of pieces sent again so far."""
        self._avoided = frozenset[int]()
        """The links whose closures are noticed now."""

    def _play(self, limit: int) -> None:
        self._make_room()
        if self._fluid is not None:
            super()._play(limit)
        else:
            kernel_of(fluid=False, closing=True)(*self._arguments(), self._served, limit)

    def _make_room(self) -> None:
        """Extend the tables by transfer and hop to the pool's length and to the longest route."""
        slots = len(self._pools.transfers.next)
        longest = int(np.diff(self._flat.network.route_starts).max(initial=1))
        if self._served.start.shape[0] < slots or self._served.start.shape[1] < longest:
            start, size, row = (
                np.pad(had, ((0, slots - had.shape[0]), (0, max(0, longest - had.shape[1]))))
                for had in (self._served.start, self._served.size, self._served.row)
            )
            self._served = self._served._replace(start=start, size=size, row=row)
        if self._fluid is not None:
            back = self._flat.network.back
            lengths = np.diff(self._flat.network.route_starts)
            self._fluid = lengthened(self._fluid, int((lengths + lengths[back]).max(initial=1)))

    def _provide(self, status: int, wanted: int) -> None:
        if status == work.DETOUR:
            self._find_detour(wanted)
        elif status == work.RESTART_STOPPED:
            self._restart_stopped()
        else:
            super()._provide(status, wanted)

    def _find_detour(self, route: int) -> None:
        """Find a route around closed links for messages of a route that start from now on."""
        now, links = int(self._state.cursor[work.NOW]), self._tables.links_of(route)
        around = route_around(links, self._closures, self.program.link_timetables, now)
        other = self._tables.route(around, self._return_route(around, self._avoided)) if around else route
        self._flat = self._tables.flat
        self._flat.network.detour[route] = other

    def _return_route(self, links: Links, dead: frozenset[int]) -> Links:
        return self._closures.return_route(links, dead)

    def _push(self, moment: int, kind: int, a: int, b: int) -> None:
        self._ensure_event_room()
        push(self._pools.calendar, moment, kind, a, b)

    def _ensure_event_room(self) -> None:
        """Make sure that the calendar has room for an event."""
        if self._pools.calendar.counts[USED] + 2 >= len(self._pools.calendar.next):
            self._pools = with_events(self._pools, 1)

    def _transfers_in(self, which: int) -> Iterator[int]:
        """Yield the transfers of a list in `cursor`; each may be moved to another list."""
        transfer = int(self._state.cursor[which])
        while transfer != NONE:
            following = int(self._pools.transfers.next[transfer])  # read first: the caller may change it
            yield transfer
            transfer = following

    def _collect_stopped(self) -> None:
        """Take over the transfers that the kernel stopped at closed links."""
        stopped = list(self._transfers_in(work.STOPPED))
        self._state.cursor[work.STOPPED] = NONE
        for transfer in stopped:
            self._stop_whole(transfer, int(self._pools.transfers.ready[transfer]))

    def _stop_whole(self, transfer: int, moment: int) -> None:
        """Stop a transfer at its node; its row is free again."""
        transfers = self._pools.transfers
        place = int(transfers.hop[transfer] - transfers.begin[transfer])
        size = int(self._flat.network.payload[transfers.size[transfer]])
        self._stop(transfer, place, size, moment)
        self._free_slot(transfer)

    def _stop(self, transfer: int, place: int, size: int, moment: int) -> None:
        """Keep the bytes that the link at a position of the route stopped, until the closure is noticed."""
        columns, instances = self._pools.transfers, self._pools.instances
        route = int(columns.route[transfer])
        links = self._tables.links_of(route)
        closed = self._tables.crossed(route) if self._fluid is not None else links[place : place + 1]
        until = self._closures.stopped_until(closed, moment)
        assert until is not None, "nothing stops at open links"
        flat = int(self._flat.ranks.flat[columns.rank[transfer]] + columns.visit[transfer])
        sub = int(instances.sub[columns.instance[transfer]])
        facts = (columns.rank, columns.injected, columns.task, columns.part, columns.number)
        rank, injected, task, part, number = (int(column[transfer]) for column in facts)
        order = (rank, injected, flat, sub, task, part, number)
        left = self._closures.left_of(links[: place + 1], links, size)
        self._keep_until(until[0], moment, int(columns.message[transfer]), Stopped(order, left, until[1]))

    def _keep_until(self, until: int, now: int, message: int, stopped: Stopped) -> None:
        """Keep what stopped until the time at which it may be sent again."""
        if until not in self._batches:
            self._batches[until] = []
            if until > now:  # else the kernel has been asked to restart at this instant
                self._push(until, work.RESTART, 0, 0)
        self._batches[until].append((message, stopped))

    def _free_slot(self, transfer: int) -> None:
        """Free the row of a transfer that has no bytes left to send; links may still serve it."""
        transfers = self._pools.transfers
        self._mark_lost(transfer, int(transfers.hop[transfer] - transfers.begin[transfer]))
        transfers.due[transfer] = NONE
        if transfer != transfers.message[transfer]:  # the first part's row is needed until all have arrived
            transfers.next[transfer] = self._pools.counts[pools.FREE_TRANSFER]
            self._pools.counts[pools.FREE_TRANSFER] = transfer

    def _mark_lost(self, transfer: int, places: int) -> None:
        """Record that what the first links of its route still serve of a transfer is lost at a later link."""
        links = self._tables.links_of(int(self._pools.transfers.route[transfer]))
        for place in range(places):
            if self._served.transfer[links[place]] == transfer:
                self._lost[links[place]] = replace(self._hop(transfer, place), transfer=NONE)
                self._served.transfer[links[place]] = NONE

    def _hop(self, transfer: int, place: int) -> LinkService:
        columns = self._pools.transfers
        route, group = int(columns.route[transfer]), self._pools.instances.group[columns.instance[transfer]]
        return LinkService(
            transfer=transfer,
            links=self._tables.links_of(route),
            place=place,
            start=int(self._served.start[transfer, place]),
            size=int(self._served.size[transfer, place]),
            label=int(self._flat.network.label[group]),
            row=int(self._served.row[transfer, place]),
        )

    def _restart_stopped(self) -> None:
        """Send again what stopped at links whose closure is noticed now."""
        self._collect_stopped()
        now = int(self._state.cursor[work.NOW])
        batch = self._batches.pop(now, [])
        if batch:
            timetables = self.program.link_timetables
            dead = down_at(timetables, now)
            found = new_routes([rest for _, rest in batch], self._closures, timetables, now)
            for which, links in found.routes:
                message, rest = batch[which]
                back = self._return_route(links, dead)
                self._start_piece(message, *self._tables.piece(links, rest.remaining.size, back), now)
            # Without any route it waits until the first of the closed links is open again.
            for which in found.waiting:
                self._keep_until(found.again, now, *batch[which])
            self._flat = self._tables.flat
        self._state.cursor[work.RESTARTING] = 2

    def _start_piece(self, message: int, route: int, row: int, now: int) -> None:
        """Make a transfer of stopped bytes of a message, and start it on a new route."""
        if self._pools.counts[pools.FREE_TRANSFER] == NONE:
            self._pools = with_transfers(self._pools)
        transfers, network = self._pools.transfers, self._tables.flat.network
        piece = int(self._pools.counts[pools.FREE_TRANSFER])
        self._pools.counts[pools.FREE_TRANSFER] = transfers.next[piece]
        self._restarts += 1
        for column in (
            transfers.instance,
            transfers.task,
            transfers.injected,
            transfers.rank,
            transfers.visit,
            transfers.priority,
            transfers.sub,
        ):
            column[piece] = column[message]
        transfers.message[piece], transfers.number[piece] = message, self._restarts
        # The piece is the only part of its transfer; the message counts it among those missing.
        transfers.part[piece] = transfers.parts[piece] = transfers.crossed[piece] = 0
        transfers.route[piece], transfers.size[piece], transfers.last[piece] = route, row, row
        transfers.begin[piece] = transfers.hop[piece] = network.route_starts[route]
        transfers.end[piece], transfers.ready[piece] = network.route_starts[route + 1], now
        transfers.due[piece] = NONE
        before = int(network.before[row, network.profile[route]]) if self._fluid is not None else 0
        if before:
            self._push(now + before, work.FLOW, piece, work.FLOW_JOINS)
            return
        transfers.next[piece] = self._state.cursor[work.JOINING]
        self._state.cursor[work.JOINING] = piece
        self._state.cursor[work.ASKING] += 1
