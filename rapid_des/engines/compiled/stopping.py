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
from rapid_des.engines.compiled.engine import KernelRun, kernel_of, with_events, with_transfers
from rapid_des.network.fluid.state import lengthened
from rapid_des.program.faults.closures import Closures, Stopped, down_at, new_routes, route_around
from rapid_des.program.program import NONE
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


class StoppedTransfers:
    """What the closed links of a run stop, and send again on other routes; plays the kernel (`Player`)."""

    def __init__(self, kernel: KernelRun, closures: Closures) -> None:
        self.kernel, self.closures = kernel, closures
        self.tables = ClosureTables(kernel.flat, closures, fluid=kernel.fluid is not None)
        kernel.state.flags[work.CLOSING] = True
        links = kernel.program.links
        kernel.noticed = np.full(links, NONE, np.int64)
        self.served = Served(kernel.noticed, np.full(links, NONE, np.int32), *np.zeros((3, 0, 0), np.int64))
        self.lost: dict[int, LinkService] = {}
        """Maps a link to the hop that it serves although the bytes were lost at a later link."""
        self._batches: dict[int, list[tuple[int, Stopped]]] = {}
        """Maps a time in picoseconds to (message, stopped bytes) that may be sent again then."""
        self._restarts = 0
        """The number of pieces sent again so far."""
        self.avoided = frozenset[int]()
        """The links whose closures are noticed now."""

    def play(self, limit: int) -> None:
        """Call the kernel for links that close, or for flows."""
        self.kernel.flat = self.tables.flat
        self._make_room()
        if self.kernel.fluid is not None:
            self.kernel.play(limit)
        else:
            self.kernel.call(kernel_of(closing=True), self.served, limit)

    def _make_room(self) -> None:
        """Extend the tables by transfer and hop to the pool's length and to the longest route."""
        slots = len(self.kernel.pools.transfers.next)
        longest = int(np.diff(self.tables.flat.network.route_starts).max(initial=1))
        if self.served.start.shape[0] < slots or self.served.start.shape[1] < longest:
            start, size, row = (
                np.pad(had, ((0, slots - had.shape[0]), (0, max(0, longest - had.shape[1]))))
                for had in (self.served.start, self.served.size, self.served.row)
            )
            self.served = self.served._replace(start=start, size=size, row=row)
        if self.kernel.fluid is not None:
            back = self.tables.flat.network.back
            lengths = np.diff(self.tables.flat.network.route_starts)
            self.kernel.fluid = lengthened(self.kernel.fluid, int((lengths + lengths[back]).max(initial=1)))

    def provide(self, status: int, wanted: int) -> None:
        """Find a route around closed links, send again what waits, or provide rows."""
        if status == work.DETOUR:
            self._find_detour(wanted)
        elif status == work.RESTART_STOPPED:
            self._restart_stopped()
        else:
            self.kernel.provide(status, wanted)

    def _find_detour(self, route: int) -> None:
        """Find a route around closed links for messages of a route that start from now on."""
        now, links = int(self.kernel.state.cursor[work.NOW]), self.tables.links_of(route)
        around = route_around(links, self.closures, self.kernel.program.link_timetables, now)
        other = self.tables.route(around, self._return_route(around, self.avoided)) if around else route
        self.tables.flat.network.detour[route] = other

    def _return_route(self, links: Links, dead: frozenset[int]) -> Links:
        return self.closures.return_route(links, dead)

    def push(self, moment: int, kind: int, a: int, b: int) -> None:
        """Add an event to the calendar."""
        self.ensure_event_room()
        push(self.kernel.pools.calendar, moment, kind, a, b)

    def ensure_event_room(self) -> None:
        """Make sure that the calendar has room for an event."""
        if self.kernel.pools.calendar.counts[USED] + 2 >= len(self.kernel.pools.calendar.next):
            self.kernel.pools = with_events(self.kernel.pools, 1)

    def _transfers_in(self, which: int) -> Iterator[int]:
        """Yield the transfers of a list in `cursor`; each may be moved to another list."""
        transfer = int(self.kernel.state.cursor[which])
        while transfer != NONE:
            following = int(
                self.kernel.pools.transfers.next[transfer]
            )  # read first: the caller may change it
            yield transfer
            transfer = following

    def collect(self) -> None:
        """Take over the transfers that the kernel stopped at closed links."""
        stopped = list(self._transfers_in(work.STOPPED))
        self.kernel.state.cursor[work.STOPPED] = NONE
        for transfer in stopped:
            self.stop_whole(transfer, int(self.kernel.pools.transfers.ready[transfer]))

    def stop_whole(self, transfer: int, moment: int) -> None:
        """Stop a transfer at its node; its row is free again."""
        transfers = self.kernel.pools.transfers
        place = int(transfers.hop[transfer] - transfers.begin[transfer])
        size = int(self.tables.flat.network.payload[transfers.size[transfer]])
        self.stop(transfer, place, size, moment)
        self.free_slot(transfer)

    def stop(self, transfer: int, place: int, size: int, moment: int) -> None:
        """Keep the bytes that the link at a position of the route stopped, until the closure is noticed."""
        columns, instances = self.kernel.pools.transfers, self.kernel.pools.instances
        route = int(columns.route[transfer])
        links = self.tables.links_of(route)
        closed = self.tables.crossed(route) if self.kernel.fluid is not None else links[place : place + 1]
        until = self.closures.stopped_until(closed, moment)
        assert until is not None, "nothing stops at open links"
        flat = int(self.tables.flat.ranks.flat[columns.rank[transfer]] + columns.visit[transfer])
        sub = int(instances.sub[columns.instance[transfer]])
        facts = (columns.rank, columns.injected, columns.task, columns.part, columns.number)
        rank, injected, task, part, number = (int(column[transfer]) for column in facts)
        order = (rank, injected, flat, sub, task, part, number)
        left = self.closures.left_of(links[: place + 1], links, size)
        self._keep_until(until[0], moment, int(columns.message[transfer]), Stopped(order, left, until[1]))

    def _keep_until(self, until: int, now: int, message: int, stopped: Stopped) -> None:
        """Keep what stopped until the time at which it may be sent again."""
        if until not in self._batches:
            self._batches[until] = []
            if until > now:  # else the kernel has been asked to restart at this instant
                self.push(until, work.RESTART, 0, 0)
        self._batches[until].append((message, stopped))

    def free_slot(self, transfer: int) -> None:
        """Free the row of a transfer that has no bytes left to send; links may still serve it."""
        transfers = self.kernel.pools.transfers
        self.mark_lost(transfer, int(transfers.hop[transfer] - transfers.begin[transfer]))
        transfers.due[transfer] = NONE
        if transfer != transfers.message[transfer]:  # the first part's row is needed until all have arrived
            transfers.next[transfer] = self.kernel.pools.counts[pools.FREE_TRANSFER]
            self.kernel.pools.counts[pools.FREE_TRANSFER] = transfer

    def mark_lost(self, transfer: int, places: int) -> None:
        """Record that what the first links of its route still serve of a transfer is lost at a later link."""
        links = self.tables.links_of(int(self.kernel.pools.transfers.route[transfer]))
        for place in range(places):
            if self.served.transfer[links[place]] == transfer:
                self.lost[links[place]] = replace(self.hop(transfer, place), transfer=NONE)
                self.served.transfer[links[place]] = NONE

    def hop(self, transfer: int, place: int) -> LinkService:
        """Return the service of a transfer by the link at a position of its route."""
        columns = self.kernel.pools.transfers
        route, group = (
            int(columns.route[transfer]),
            self.kernel.pools.instances.group[columns.instance[transfer]],
        )
        return LinkService(
            transfer=transfer,
            links=self.tables.links_of(route),
            place=place,
            start=int(self.served.start[transfer, place]),
            size=int(self.served.size[transfer, place]),
            label=int(self.tables.flat.network.label[group]),
            row=int(self.served.row[transfer, place]),
        )

    def _restart_stopped(self) -> None:
        """Send again what stopped at links whose closure is noticed now."""
        self.collect()
        now = int(self.kernel.state.cursor[work.NOW])
        batch = self._batches.pop(now, [])
        if batch:
            timetables = self.kernel.program.link_timetables
            dead = down_at(timetables, now)
            found = new_routes([rest for _, rest in batch], self.closures, timetables, now)
            for which, links in found.routes:
                message, rest = batch[which]
                back = self._return_route(links, dead)
                self._start_piece(message, *self.tables.piece(links, rest.remaining.size, back), now)
            # Without any route it waits until the first of the closed links is open again.
            for which in found.waiting:
                self._keep_until(found.again, now, *batch[which])
        self.kernel.state.cursor[work.RESTARTING] = 2

    def _start_piece(self, message: int, route: int, row: int, now: int) -> None:
        """Make a transfer of stopped bytes of a message, and start it on a new route."""
        if self.kernel.pools.counts[pools.FREE_TRANSFER] == NONE:
            self.kernel.pools = with_transfers(self.kernel.pools)
        transfers, network = self.kernel.pools.transfers, self.tables.flat.network
        piece = int(self.kernel.pools.counts[pools.FREE_TRANSFER])
        self.kernel.pools.counts[pools.FREE_TRANSFER] = transfers.next[piece]
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
        before = int(network.before[row, network.profile[route]]) if self.kernel.fluid is not None else 0
        if before:
            self.push(now + before, work.FLOW, piece, work.FLOW_JOINS)
            return
        transfers.next[piece] = self.kernel.state.cursor[work.JOINING]
        self.kernel.state.cursor[work.JOINING] = piece
        self.kernel.state.cursor[work.ASKING] += 1
