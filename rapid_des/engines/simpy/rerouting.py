"""Rule R8 in the SimPy engine: links close in mid-flight, their traffic is planned anew.

A transfer is one or more *pieces*, each on a way of its own; it has arrived when all its pieces have. When a
link closes, the piece in service keeps the whole segments that got through; they go on, and later hops serve
only them. What did not, and whoever waits for the link or comes to it while it is closed, is stranded:
as soon as the closure is noticed, the pure function `replan` gives it a new way.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import cast

from simpy.events import Event, Timeout

from rapid_des.engines.simpy.engine import Process
from rapid_des.engines.simpy.instances import Instance
from rapid_des.engines.simpy.pieces import Piece, Service, Task
from rapid_des.engines.simpy.replanning import PlanningSimulation
from rapid_des.engines.simpy.servers import Request
from rapid_des.errors import FabricCutError
from rapid_des.program.faults.closures import Remaining, cut_at, replan
from rapid_des.program.program import Program, Records
from rapid_des.program.timetable import FOREVER, FULL_RATE, advance, lag_at, rate_at, work_done


class ReroutingSimulation(PlanningSimulation):
    """A run whose program closes links."""

    def __init__(self, program: Program, *, trail: bool = False) -> None:
        super().__init__(program, trail=trail)
        self.rows: list[list[int]] = []
        self.serving: dict[int, Service] = {}
        self.asking: dict[Request, Piece] = {}
        self.stranded: dict[int, list[tuple[Piece, Remaining, bool]]] = {}
        for moment, closing in groupby(self.closures.closures, key=attrgetter("start")):
            self._at(moment, partial(self._close, sorted({one.link for one in closing})))

    def records(self) -> Records:
        """Return what happened so far."""
        if self.trail is not None:
            self.trail = [tuple(row) for row in self.rows]
        return super().records()

    # One piece, hop by hop

    def _transfer(self, key: tuple[int, int, int], instance: Instance, task: int) -> Process:
        source = instance.visits[instance.template.source[task]]
        position, priority = self._origin(source)
        parts, way = self._carried(instance, task)
        size = sum(parts)
        label = self.program.groups[key[0]].label
        order = (position, self.env.now, source, key[2], task)
        moving = Task(key, instance, task, priority, order, label, size, pieces=len(parts))
        self.sent += size
        avoided = self.closures.avoided(self.env.now)
        if not avoided.isdisjoint(way):
            way = self._planned([self._remaining(way, 0, size)], avoided, together=False)[0]
        pace = self.closures.services(way, parts[0])[0][0] if len(parts) > 1 else 0
        self._start(moving, way, parts[0])
        for number, part in enumerate(parts[1:], 1):
            self._later(self.env.now + number * pace, partial(self._start, moving, way, part, number))
        yield from ()  # a process to the engine, although all it does is to start callbacks

    def _start(self, task: Task, way: tuple[int, ...], size: int, part: int = 0) -> None:
        task.made += 1
        piece = Piece(task, task.made, way, size, part)
        if way:
            self._ask(piece)
        else:  # to oneself: no link, but a tick, so that an instant ends (R4)
            self._later(self.env.now + 1, partial(self._arrived, piece))

    def _ask(self, piece: Piece) -> None:
        link, task = piece.links[piece.place], piece.task
        piece.ready = self.env.now
        if self.closures.closed(link, piece.ready):
            self._strand_whole(piece)
            return
        key = (task.priority, piece.ready, piece.part, *task.order, piece.place, piece.number)
        piece.request = self._link_server(link).request(key)
        piece.request.callbacks.append(self._serve)
        self.asking[piece.request] = piece

    def _serve(self, request: Event) -> None:
        piece = self.asking.pop(cast(Request, request))
        piece.request = None
        place, start, task = piece.place, self.env.now, piece.task
        free, forward, arrival = self._times(piece, place, start)
        row = [piece.links[place], start, free, arrival, task.order[2], task.number, place]
        service = Service(piece, place, piece.size, start, free, row)
        piece.services.append(service)
        self.rows.append(row)
        self.serving[service.link] = service
        self.links.hops += 1
        self.links.book(
            service.link, task.label, size=piece.size, wait=start - piece.ready, busy=free - start
        )
        self._later(free, partial(self._end, service, free))
        self._wake(piece, arrival if place == len(piece.links) - 1 else forward)

    def _times(self, piece: Piece, place: int, start: int) -> tuple[int, int, int]:
        """Return when the link is free, the next hop ready and the message arrived."""
        occupancy, head, lag = self.closures.services(piece.links, piece.size)[place]
        timetable = self.links.timetables.get(piece.links[place])
        if timetable is None:
            return start + occupancy, start + head + lag, start + occupancy + lag
        time, rate, extra = timetable
        lag += lag_at(time, extra, start)
        free = advance(time, rate, start, occupancy)
        return free, advance(time, rate, start, head) + lag, free + lag

    def _later(self, moment: int, action: Callable[[], None]) -> None:
        if moment < FOREVER:
            Timeout(self.env, moment - self.env.now).callbacks.append(lambda _: action())

    def _wake(self, piece: Piece, moment: int) -> None:
        piece.version += 1
        self._later(moment, partial(self._go_on, piece, piece.version))

    def _go_on(self, piece: Piece, version: int) -> None:
        if piece.version != version:
            return
        piece.place += 1
        if piece.place < len(piece.links):
            self._ask(piece)
            return
        self._arrived(piece)

    def _arrived(self, piece: Piece) -> None:
        piece.task.arrived += piece.size
        self._drop(piece)

    def _drop(self, piece: Piece) -> None:
        """Forget a piece that has arrived, or of which nothing is left on its way."""
        piece.version += 1
        task = piece.task
        task.pieces -= 1
        if task.pieces == 0:
            assert task.arrived == task.size, "bytes were lost or doubled at a closing link"
            self.received += task.arrived
            self._deliver(task.key, task.instance, task.number)

    def _end(self, service: Service, moment: int) -> None:
        if service.ended or service.free != moment:
            return
        service.ended = True
        del self.serving[service.link]
        self._link_server(service.link).release()

    # Closing

    def _close(self, links: list[int]) -> None:
        """Cut what the links serve, the farthest on its way first, and strand who waits for them."""
        now = self.env.now
        served = [self.serving[link] for link in links if link in self.serving]
        for service in sorted(served, key=lambda one: (-one.place, one.link)):
            if service.free > now:
                self._cut(service)
        for link in links:
            waiting = self._link_server(link).put_queue
            pieces = [self.asking.pop(request) for _, request in sorted(waiting, key=itemgetter(0))]
            waiting.clear()
            for piece in pieces:
                piece.request = None
                self._strand_whole(piece)

    def _cut(self, service: Service) -> None:
        """End a visit: whole segments that were served go on, the rest is stranded."""
        piece, place, now = service.piece, service.place, self.env.now
        passed = self._passed(service)
        self._shorten(service, now, passed)
        if place < piece.cut:
            return
        rest, piece.cut, piece.size = piece.size - passed, place, passed
        self._strand(piece, place, rest)
        for later in piece.services:
            if later.place > place and not later.ended:
                free = self._times(piece, later.place, later.start)[0]
                self._shorten(later, max(now, free), passed)
        if not passed:
            self._withdraw(piece)
            self._drop(piece)
        elif piece.request is None:
            self._hurry(piece)

    def _passed(self, service: Service) -> int:
        """Return the bytes of the whole segments that a link served until now."""
        unit, piece = self.closures.segment, service.piece
        if unit is None:
            return 0
        occupancy = self.closures.services(piece.links, service.size)[service.place][0]
        time, rate, _ = self.links.timetables[service.link]
        done = work_done(time, rate, service.start, self.env.now)
        return service.size * done // (occupancy * FULL_RATE) // unit * unit

    def _shorten(self, service: Service, free: int, size: int) -> None:
        """Let a link be done with a piece earlier, after fewer bytes."""
        label = service.piece.task.label
        self.links.book(service.link, label, size=size - service.size, wait=0, busy=free - service.free)
        service.row[3] += free - service.row[2]
        service.row[2] = service.free = free
        service.size = size
        if free == self.env.now:
            self._end(service, free)
        else:
            self._later(free, partial(self._end, service, free))

    def _hurry(self, piece: Piece) -> None:
        """Wake a piece that became smaller as early as it now can go on."""
        now, service, lag = self.env.now, piece.services[-1], 0
        free, forward, arrival = self._times(piece, piece.place, service.start)
        lag = arrival - free
        last = piece.place == len(piece.links) - 1
        self._wake(piece, max(now, service.free + lag if last else min(forward, service.free + lag)))

    def _withdraw(self, piece: Piece) -> None:
        if piece.request is not None:
            waiting = self._link_server(piece.links[piece.place]).put_queue
            del self.asking[piece.request]
            waiting[:] = [entry for entry in waiting if entry[1] is not piece.request]
            heapq.heapify(waiting)

    # Planning anew

    def _strand_whole(self, piece: Piece) -> None:
        piece.cut = piece.place
        self._strand(piece, piece.place, piece.size)
        self._drop(piece)

    def _strand(self, piece: Piece, place: int, size: int) -> None:
        closure = self.closures.closed(piece.links[place], self.env.now)
        assert closure is not None, "nothing is stranded at an open link"
        moment = max(self.env.now, closure.noticed)
        piece.task.pieces += 1
        if moment not in self.stranded:
            self.stranded[moment] = []
            self._later(moment, partial(self._resume, moment))
        self.stranded[moment].append((piece, self._remaining(piece.links, place, size), closure.together))

    def _remaining(self, way: tuple[int, ...], place: int, size: int) -> Remaining:
        fabric = self.closures.fabric
        nodes = [int(fabric.source[link]) for link in way[: place + 1]]
        held = [node for node in nodes[1:] if node < fabric.gpus] if self.closures.holds else []
        return Remaining([nodes[0], *held][-1], int(fabric.destination[way[-1]]), size)

    def _resume(self, moment: int) -> None:
        """Give all that was stranded until the closure was noticed a new way, in id order."""
        batch = sorted(
            self.stranded.pop(moment), key=lambda entry: (entry[0].task.order, entry[0].number, entry[1].size)
        )
        dead = frozenset(
            link for link, (time, rate, _) in self.links.timetables.items() if not rate_at(time, rate, moment)
        )
        for together in (False, True):
            chosen = [entry for entry in batch if entry[2] == together]
            ways = self._planned([remaining for _, remaining, _ in chosen], dead, together=together)
            for (piece, remaining, _), way in zip(chosen, ways, strict=True):
                self._start(piece.task, way, remaining.size)

    def _planned(
        self, remaining: list[Remaining], dead: frozenset[int], *, together: bool
    ) -> list[tuple[int, ...]]:
        try:
            return replan(remaining, self.closures, dead, together=together)
        except FabricCutError as error:
            raise cut_at(error, self.env.now) from None


def run(program: Program, *, trail: bool = False) -> Records:
    """Play a program to its end; visits that never finish are left at NONE in the records."""
    simulation = ReroutingSimulation(program, trail=trail)
    simulation.run(FOREVER)
    return simulation.records()
