"""R8: links close in mid-flight, and what crossed them, or would have, is planned again.

When a link closes, the piece of a message that it serves keeps the whole segments that got through; they go
on, and later links serve only them. The rest, and whoever waits for the link or comes to it while it is
closed, stops. As soon as the closure is noticed the pure function `replan` gives what stopped another route.

Collectives that begin while a link whose policy is `replan` is closed and noticed are planned for the fabric
without all links that are closed and noticed, as on a machine where those are down from the beginning under a
constant fault with this policy. A collective is planned once, when the first of its members arrives at it,
and keeps its plan to its end: of one that is under way when a closure is noticed, and of one that outlasts
the closure, only the routes of messages change. So bytes that were sent stay sent, no member has to forget
what it holds, and every member follows the same plan whenever it arrives.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, cast

from simpy.events import Event, Timeout
from simpy.exceptions import Interrupt

from rapid_des.engines.deadlock import explain_disagreement
from rapid_des.engines.simpy.collectives import Collectives, Instance, Key, Member, TemplateTable
from rapid_des.engines.simpy.links import NO_TIMETABLE, Hop, Legs, Links, Message, Parts, Piece, Steps
from rapid_des.errors import FabricCutError, TraceError
from rapid_des.program.builders import TURNS
from rapid_des.program.faults.closures import Closures, Remaining, cut_at, replan
from rapid_des.program.faults.replanning import RankPhase, RoutedPhase
from rapid_des.program.program import NONE
from rapid_des.program.timetable import FULL_RATE, hop_times, rate_at, tail_crosses, work_done


@dataclass(frozen=True, eq=False)
class Stopped:
    """What a closed link stopped."""

    piece: Piece
    remaining: Remaining
    together: bool
    """Planned with all else that stopped; else routed on its own."""


class ClosingLinks:
    """Closes links, and finds another route for what that stops."""

    def __init__(self, links: Links, closures: Closures) -> None:
        self.env = links.env
        self.links = links
        self.closures = closures
        self._stopped: dict[int, list[Stopped]] = {}
        """By the time at which the closure is noticed."""
        for moment, closing in groupby(closures.closures, key=attrgetter("start")):
            self.env.at(moment, partial(self._close, sorted({closure.link for closure in closing})))

    def around(self, message: Message, parts: Parts) -> Parts:
        """Return the parts of a message that sets off, on a route without closed links that were noticed."""
        avoided, piece = self.closures.avoided(self.env.now), Piece(message, parts[0][1], message.size)
        if avoided.isdisjoint(_route(piece)):
            return parts
        whole = self._remaining(_route(piece)[:1], piece, message.size)
        route = self._replanned([whole], avoided, together=False)[0]
        return [(size, _legs(self.closures, route, size)) for size, _ in parts]

    def stops(self, piece: Piece, place: int) -> bool:
        """Stop a piece if its next link is closed."""
        if self.closures.closed(piece.legs[place][0], self.env.now) is None:
            return False
        self._stop(piece, place, piece.size)
        piece.size = 0
        return True

    def go_on(self, piece: Piece, hop: Hop, interrupt: Interrupt) -> Generator[Event, Any, bool]:
        """Go on with what got through before a hop's link closed; tell whether anything did.

        The piece waits for `hop`, or is on it; the link that closed is that of this hop or of an earlier one.
        """
        closed = cast("Hop", interrupt.cause)
        while True:
            if closed.start == NONE:  # the link for which it waits has closed
                self._stop(piece, closed.place, piece.size)
                piece.size = 0
                return False
            if closed.place >= piece.cut:
                self._cut(piece, hop, closed)
                if not piece.size:
                    hop.cancel()  # no byte is left that could cross the next link
                    return False
            try:
                if hop.start == NONE:
                    yield hop
                    self.links.serve(piece, hop)
                yield Timeout(self.env, hop.onward - self.env.now)
            except Interrupt as another:
                closed = cast("Hop", another.cause)
            else:
                return True

    def _close(self, links: list[int]) -> None:
        """Interrupt what the links serve, the farthest on its route first, and then who waits for them."""
        now, servers = self.env.now, [self.links.server(link) for link in links]
        served = [hop for server in servers for hop in server.users if hop.free > now]
        for hop in sorted(served, key=lambda hop: (-hop.place, hop.link)):
            self._shorten(hop, now, self._got_through(hop))
            if hop.process is not None and hop.process.is_alive:
                hop.process.interrupt(hop)
        for server in servers:
            for _, hop in sorted(server.queue, key=itemgetter(0)):
                assert hop.process is not None
                hop.process.interrupt(hop)
            server.queue.clear()

    def _got_through(self, hop: Hop) -> int:
        """Return the bytes of the whole segments that a link has served until now."""
        unit = self.closures.segment
        if unit is None:
            return 0
        occupancy = _legs(self.closures, _route(hop.piece), hop.size)[hop.place][1][0]
        time, rate, _ = self.links.timetables[hop.link]
        done = work_done(time, rate, hop.start, self.env.now)
        return hop.size * done // (occupancy * FULL_RATE) // unit * unit

    def _cut(self, piece: Piece, hop: Hop, closed: Hop) -> None:
        """Stop what did not get through a closed link; the piece is smaller, and goes on earlier."""
        now = self.env.now
        self._stop(piece, closed.place, piece.size - closed.size)
        piece.cut, piece.size = closed.place, closed.size
        piece.legs = _legs(self.closures, _route(piece), piece.size)
        before = piece.crossed = 0
        for later in piece.hops:
            free = self._times(later)[0]
            if later.place > closed.place and later in later.server.users:
                self._shorten(later, max(now, free), piece.size)
            before, piece.crossed = piece.crossed, self._crosses(later, free, piece.crossed)
        if hop.start != NONE:
            through = self._crosses(hop, hop.free, before)
            last = hop.place == len(piece.legs) - 1
            hop.onward = max(now, through if last else min(self._times(hop)[1], through))

    def _times(self, hop: Hop) -> tuple[int, int, int]:
        """Return the times of a hop if its piece had had its present size from the beginning."""
        link, service = hop.piece.legs[hop.place]
        return hop_times(service[:3], self.links.timetables.get(link, NO_TIMETABLE), hop.start)

    def _crosses(self, hop: Hop, free: int, before: int) -> int:
        """Return when the last byte of a hop's piece has crossed it, if its link was done at `free`."""
        link, service = hop.piece.legs[hop.place]
        table = self.links.timetables.get(link, NO_TIMETABLE)
        return tail_crosses(service[3:], table, hop.start, free, before)

    def _shorten(self, hop: Hop, free: int, size: int) -> None:
        """Have a link done with a hop earlier, after fewer bytes."""
        label = hop.piece.message.label
        self.links.book(hop.link, label, size=size - hop.size, busy=free - hop.free)
        hop.arrival += free - hop.free
        hop.free, hop.size = free, size
        if free == self.env.now:
            hop.release()
        else:
            Timeout(self.env, free - self.env.now).callbacks.append(hop.release)

    def _stop(self, piece: Piece, place: int, size: int) -> None:
        """Keep bytes that a closed link stopped until that is noticed."""
        closure = self.closures.closed(piece.legs[place][0], self.env.now)
        assert closure is not None, "nothing stops at an open link"
        moment = max(self.env.now, closure.noticed)
        piece.message.pieces += 1
        if moment not in self._stopped:
            self._stopped[moment] = []
            Timeout(self.env, moment - self.env.now).callbacks.append(lambda _: self._resume(moment))
        remaining = self._remaining(_route(piece)[: place + 1], piece, size)
        self._stopped[moment].append(Stopped(piece, remaining, closure.together))

    def _remaining(self, links: Sequence[int], piece: Piece, size: int) -> Remaining:
        """Return what is left, on a node that holds it, of a piece that took all of `links` but the last."""
        fabric = self.closures.fabric
        nodes = [int(fabric.source[link]) for link in links]
        held = [node for node in nodes[1:] if node < fabric.gpus] if self.closures.holds else []
        return Remaining([nodes[0], *held][-1], int(fabric.destination[piece.legs[-1][0]]), size)

    def _resume(self, moment: int) -> None:
        """Give all that stopped until a closure was noticed another route, in the order of messages."""
        batch = self._stopped.pop(moment)
        batch.sort(key=lambda rest: (rest.piece.message.order, rest.piece.number, rest.remaining.size))
        dead = frozenset(
            link for link, (time, rate, _) in self.links.timetables.items() if not rate_at(time, rate, moment)
        )
        for together in (False, True):
            stopped = [rest for rest in batch if rest.together == together]
            routes = self._replanned([rest.remaining for rest in stopped], dead, together=together)
            for rest, route in zip(stopped, routes, strict=True):
                size = rest.remaining.size
                self.links.start(Piece(rest.piece.message, _legs(self.closures, route, size), size))

    def _replanned(
        self, remaining: list[Remaining], dead: frozenset[int], *, together: bool
    ) -> list[tuple[int, ...]]:
        try:
            return replan(remaining, self.closures, dead, together=together)
        except FabricCutError as error:
            raise cut_at(error, self.env.now) from None


def _route(piece: Piece) -> tuple[int, ...]:
    return tuple(link for link, _ in piece.legs)


def _legs(closures: Closures, route: tuple[int, ...], size: int) -> Legs:
    return list(zip(route, closures.services(route, size), strict=True))


class PlannedInstance(Instance):
    """A step of a replanned collective, in flight."""

    def __init__(self, key: Key, step: RankPhase, template: TemplateTable, closures: Closures) -> None:
        super().__init__(key, template, [])
        self._step: RoutedPhase = step.phase
        self._closures = closures

    def parts(self, _: Links, task: int) -> Parts:
        """Return what is sent for a task, and over which links while nothing is closed."""
        route = self._step.routes[self.template.pair[task]]
        sizes = self._step.parts[self.template.size[task]]
        return [(size, _legs(self._closures, route, size)) for size in sizes]


@dataclass(eq=False)
class Plan:
    """How a collective that has begun is done."""

    dead: frozenset[int] | None
    """The links that it is planned around; None: as lowered."""
    template: int
    """That of its first visit: members must agree."""
    ranks: dict[int, RankPart] = field(default_factory=dict)
    """By position."""


@dataclass(eq=False)
class RankPart:
    """What one rank does in a replanned collective."""

    done: Event
    visits: list[int]
    """Those that stand for it in the records."""


class Replanning:
    """Plans collectives that begin while a closure is noticed."""

    def __init__(self, collectives: Collectives, closures: Closures) -> None:
        self.env = collectives.env
        self.collectives = collectives
        self.closures = closures
        self._plans: dict[tuple[int, int], Plan] = {}
        self._table = cache(lambda step: TemplateTable(step.template))

    def meet(self, call: tuple[int, int], template: int, node: int, who: Member) -> Event | None:
        """Have a rank arrive at call k of a group; the event succeeds when it is done. None: done as lowered.

        All visits of one rank to one collective stand for the same.
        """
        position, visit, _ = who
        planner, met = self.closures.collectives, self.collectives.met
        if planner is None or not planner.is_collective(position, node):
            return None
        if call not in self._plans:
            self._plans[call] = Plan(self.closures.planned_around(self.env.now), template)
        plan = self._plans[call]
        if plan.dead is None:
            return None
        part = plan.ranks.get(position)
        if part is not None:
            part.visits.append(visit)
            met[visit] = met[part.visits[0]]
            return part.done
        if template != plan.template:
            message = explain_disagreement(self.collectives.program, (*call, 0), (plan.template, template))
            raise TraceError(message)
        try:
            chunks = planner.steps_of(position, node, plan.dead)
        except FabricCutError as error:
            raise cut_at(error, self.env.now) from None
        visits = [visit]
        done = self.env.process(self._take_part(call, chunks, who, visits))
        plan.ranks[position] = RankPart(done, visits)
        return done

    def _take_part(
        self, call: tuple[int, int], chunks: list[list[RankPhase]], who: Member, visits: list[int]
    ) -> Steps:
        """Go through the steps of all chunks side by side, each in its turn on links."""
        (position, visit, priority), first = who, chunks[0][0]
        before = priority - priority % TURNS
        yield from [
            self.env.process(self._chunk(call, steps, first, (position, visit, before + turn)))
            for turn, steps in enumerate(chunks)
        ]
        met = self.collectives.met
        for visit in visits[1:]:
            met[visit] = met[visits[0]]

    def _chunk(self, call: tuple[int, int], steps: list[RankPhase], first: RankPhase, who: Member) -> Steps:
        for step in steps:
            instance = self._instance((*call, step.number), step, meets=step is first)
            yield self.collectives.join(instance, step.member, who)

    def _instance(self, key: Key, step: RankPhase, *, meets: bool) -> Instance:
        instances = self.collectives.instances
        if key not in instances:
            instances[key] = PlannedInstance(key, step, self._table(step.phase), self.closures)
            instances[key].meets = meets
        return instances[key]
