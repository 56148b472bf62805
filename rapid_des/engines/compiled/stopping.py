"""R8 in the compiled engine: what closed links stopped, until it sets off again on other links.

Who comes to a closed link the kernel puts aside, and a message whose route goes over one that was noticed it
asks for once a route; all else about closures happens between instants, in `closing`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from rapid_des.engines.compiled import pools, work
from rapid_des.engines.compiled.calendar import USED, push
from rapid_des.engines.compiled.closing_kernel import Served
from rapid_des.engines.compiled.closing_tables import Links, Tables
from rapid_des.engines.compiled.engine import CompiledSimulation, kernel_of, with_events, with_transfers
from rapid_des.network.fluid.state import lengthened
from rapid_des.program.faults.closures import Closures, Stopped
from rapid_des.program.faults.rerouting import down_at, new_routes, route_around
from rapid_des.program.program import NONE, Program, Progress
from rapid_des.values import replace


class Hop(Struct, eq=False):
    """A transfer that a link serves, or whose bytes it serves in vain since they were lost further on."""

    transfer: int
    """NONE: nobody waits for it any more."""
    links: Links
    place: int
    start: int
    size: int
    label: int
    row: int
    """Of the trail."""

    @property
    def link(self) -> int:
        """The link that serves."""
        return self.links[self.place]


class StoppingSimulation(CompiledSimulation):
    """One run of a program of which closed links stop messages, and give them other routes."""

    def __init__(
        self, program: Program, closures: Closures, *, trail: bool = False, progress: Progress | None = None
    ) -> None:
        super().__init__(program, trail=trail, progress=progress)
        self._closures = closures
        self._tables = Tables(self._flat, closures, fluid=program.fluid is not None)
        self._flat = self._tables.flat
        self._state.flags[work.CLOSING] = True
        self._noticed = np.full(program.links, NONE, np.int64)
        self._served = Served(
            self._noticed, np.full(program.links, NONE, np.int32), *np.zeros((3, 0, 0), np.int64)
        )
        self._lost: dict[int, Hop] = {}
        self._batches: dict[int, list[tuple[int, Stopped]]] = {}
        self._again = 0
        self._avoided = frozenset[int]()

    def _play(self, limit: int) -> None:
        self._make_room()
        if self._fluid is not None:
            super()._play(limit)
        else:
            kernel_of(fluid=False, closing=True)(*self._arguments(), self._served, limit)

    def _make_room(self) -> None:
        """Have what stands beside transfers be as long, and as wide as routes are."""
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

    def _answer(self, status: int, wanted: int) -> None:
        if status == work.DETOUR:
            self._detour(wanted)
        elif status == work.STOPPED_WAKES:
            self._wake()
        else:
            super()._answer(status, wanted)

    def _detour(self, route: int) -> None:
        """Find a route around closed links for messages of a route that set off from now on."""
        now, links = int(self._state.cursor[work.NOW]), self._tables.links_of(route)
        around = route_around(links, self._closures, self.program.link_timetables, now)
        other = self._tables.route(around, self._back(around, self._avoided)) if around else route
        self._flat = self._tables.flat
        self._flat.network.detour[route] = other

    def _back(self, links: Links, dead: frozenset[int]) -> Links:
        return self._closures.return_route(links, dead)

    def _push(self, moment: int, kind: int, a: int, b: int) -> None:
        self._leave_room()
        push(self._pools.calendar, moment, kind, a, b)

    def _leave_room(self) -> None:
        """Have room for an event."""
        if self._pools.calendar.counts[USED] + 2 >= len(self._pools.calendar.next):
            self._pools = with_events(self._pools, 1)

    def _listed(self, which: int) -> Iterator[int]:
        """Yield the transfers of a list in `cursor`, each may be put elsewhere."""
        transfer = int(self._state.cursor[which])
        while transfer != NONE:
            following = int(self._pools.transfers.next[transfer])
            yield transfer
            transfer = following

    def _collect(self) -> None:
        """Put aside whom the kernel stopped at closed links."""
        stopped = list(self._listed(work.STOPPED))
        self._state.cursor[work.STOPPED] = NONE
        for transfer in stopped:
            self._stop_whole(transfer, int(self._pools.transfers.ready[transfer]))

    def _stop_whole(self, transfer: int, moment: int) -> None:
        """Stop a transfer where it stands; its slot is free again."""
        transfers = self._pools.transfers
        place = int(transfers.hop[transfer] - transfers.begin[transfer])
        size = int(self._flat.network.payload[transfers.size[transfer]])
        self._stop(transfer, place, size, moment)
        self._let_go(transfer)

    def _stop(self, transfer: int, place: int, size: int, moment: int) -> None:
        """Keep bytes that the link of a place stopped until that is noticed."""
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
        self._keep(until[0], moment, int(columns.message[transfer]), Stopped(order, left, until[1]))

    def _keep(self, until: int, now: int, message: int, stopped: Stopped) -> None:
        """Keep what stopped until a time at which it may set off."""
        if until not in self._batches:
            self._batches[until] = []
            if until > now:
                self._push(until, work.WAKE, 0, 0)
        self._batches[until].append((message, stopped))

    def _let_go(self, transfer: int) -> None:
        """Free the slot of a transfer of which nothing is left to be sent; links may still serve it."""
        transfers = self._pools.transfers
        self._lose(transfer, int(transfers.hop[transfer] - transfers.begin[transfer]))
        transfers.due[transfer] = NONE
        if transfer != transfers.message[transfer]:
            transfers.next[transfer] = self._pools.counts[pools.FREE_TRANSFER]
            self._pools.counts[pools.FREE_TRANSFER] = transfer

    def _lose(self, transfer: int, places: int) -> None:
        """Note that what links still serve of a transfer, at its first places, is lost further on."""
        links = self._tables.links_of(int(self._pools.transfers.route[transfer]))
        for place in range(places):
            if self._served.transfer[links[place]] == transfer:
                self._lost[links[place]] = replace(self._hop(transfer, place), transfer=NONE)
                self._served.transfer[links[place]] = NONE

    def _hop(self, transfer: int, place: int) -> Hop:
        columns = self._pools.transfers
        route, group = int(columns.route[transfer]), self._pools.instances.group[columns.instance[transfer]]
        return Hop(
            transfer=transfer,
            links=self._tables.links_of(route),
            place=place,
            start=int(self._served.start[transfer, place]),
            size=int(self._served.size[transfer, place]),
            label=int(self._flat.network.label[group]),
            row=int(self._served.row[transfer, place]),
        )

    def _wake(self) -> None:
        """Send again what stopped at links of which it is now known that they are closed."""
        self._collect()
        now = int(self._state.cursor[work.NOW])
        batch = self._batches.pop(now, [])
        if batch:
            timetables = self.program.link_timetables
            dead = down_at(timetables, now)
            found = new_routes([rest for _, rest in batch], self._closures, timetables, now)
            for which, links in found.routes:
                message, rest = batch[which]
                back = self._back(links, dead)
                self._set_off(message, *self._tables.piece(links, rest.remaining.size, back), now)
            for which in found.waiting:
                self._keep(found.again, now, *batch[which])
            self._flat = self._tables.flat
        self._state.cursor[work.WAKING] = 2

    def _set_off(self, message: int, route: int, row: int, now: int) -> None:
        """Make a transfer of what stopped of a message."""
        if self._pools.counts[pools.FREE_TRANSFER] == NONE:
            self._pools = with_transfers(self._pools)
        transfers, network = self._pools.transfers, self._tables.flat.network
        piece = int(self._pools.counts[pools.FREE_TRANSFER])
        self._pools.counts[pools.FREE_TRANSFER] = transfers.next[piece]
        self._again += 1
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
        transfers.message[piece], transfers.number[piece] = message, self._again
        transfers.part[piece] = transfers.parts[piece] = transfers.crossed[piece] = 0
        transfers.route[piece], transfers.size[piece], transfers.last[piece] = route, row, row
        transfers.begin[piece] = transfers.hop[piece] = network.route_starts[route]
        transfers.end[piece], transfers.ready[piece] = network.route_starts[route + 1], now
        transfers.due[piece] = NONE
        before = int(network.before[row, network.profile[route]]) if self._fluid is not None else 0
        if before:
            self._push(now + before, work.FLOW, piece, 1)
            return
        transfers.next[piece] = self._state.cursor[work.JOINING]
        self._state.cursor[work.JOINING] = piece
        self._state.cursor[work.ASKING] += 1
