"""Choices of links in a folded run: which of them are the same for all ranks that a rank stands for.

Links choose among equals by the positions of ranks (R3). A folded run has one rank of an orbit, so a choice
between ranks of several digits may be another one for others of the orbit: see `rotation.keeps_order`. Where
all that a link chose among came from ranks of one digit, they have one digit in every image too, and the
choice is the same.

A run is watched part by part. Where links chose by rank, it is worked out who asked which link when: the hop
before says so. If that explains every choice that the engine has counted, nothing else was chosen.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s, distinct
from rapid_des.modes.symmetry.rotation import Rotation, Uses
from rapid_des.program.program import NONE, LinkTrail, Program
from rapid_des.values import fields


def digits_apart(uses: Uses, rotation: Rotation) -> Int64s | None:
    """Return for each hop of each route how many digits its sender is behind its link's place in its orbit.

    None where routes have several senders, or unlike ones.
    """
    shift, program = rotation.shift, uses.program
    digit = np.full(len(program.route_starts) - 1, NONE, np.int64)
    for block in uses.blocks():
        entries = np.arange(block.start, block.stop)
        source = uses.sources(entries)
        if (source < NONE).any():
            return None
        sent, routes = source != NONE, uses.routes[entries]
        mine, new = shift.digit(source[sent]), digit[routes[sent]] == NONE
        digit[routes[sent][new]] = mine[new]
        if not np.array_equal(digit[routes[sent]], mine):
            return None
    place, link = np.zeros(program.links, np.int64), distinct(rotation.lowest_link)
    for turn in range(shift.extent):
        moving = link[rotation.lowest_link[link] != link] if turn else link
        place[moving] = turn
        link = rotation.link[link]
    return (place[program.route_links] - np.repeat(digit, np.diff(program.route_starts))) % shift.extent


class LinkRequests(Struct, frozen=True):
    """Transfers that asked for links behind their first ones, as columns."""

    link: Int64s
    moment: Int64s
    apart: Int64s
    visit: Int64s

    def among_equals(self, since: int, until: int) -> LinkRequests:
        """Return those that asked with others for one link at one moment after `since`, up to `until`."""
        rows = np.flatnonzero((self.moment > since) & (self.moment <= until))
        rows = rows[np.lexsort((self.visit[rows], self.apart[rows], self.moment[rows], self.link[rows]))]
        link, moment = self.link[rows], self.moment[rows]
        same = (link[1:] == link[:-1]) & (moment[1:] == moment[:-1])
        rows = rows[np.append(same, False) | np.append(False, same)]
        return LinkRequests(
            link=self.link[rows], moment=self.moment[rows], apart=self.apart[rows], visit=self.visit[rows]
        )

    def choices(self, *, reordered: bool) -> int | None:
        """Return among how many groups of equals links chose; None if others of an orbit may choose unlike.

        A rotation that has `reordered` transfers of a visit keeps their order on first links only.
        """
        same = (np.diff(self.link) == 0) & (np.diff(self.moment) == 0)
        unlike = np.diff(self.apart) != 0
        if reordered:
            unlike |= np.diff(self.visit) == 0
        return None if (same & unlike).any() else len(self.link) - int(same.sum())


class WatchedChoices:
    """Watches a folded run of a program; `apart` as `digits_apart` has it."""

    def __init__(self, program: Program, apart: Int64s, *, reordered: bool) -> None:
        self._program, self._apart, self._reordered = program, apart, reordered
        self._first_visit = program.visits()
        self._longest = int((program.hops.head + program.hops.lag).max(initial=0))
        self._since, self._kept = NONE, list[LinkTrail]()

    def are_alike(self, trail: LinkTrail, now: int, choices: int) -> bool:
        """Return whether the choices by rank of one part of a run are alike for all ranks of an orbit.

        The part has these hops and choices, and ends with the moment `now`.
        """
        self._kept.append(LinkTrail(*(getattr(trail, column).copy() for column in fields(LinkTrail))))
        alike = choices == 0 or self._explained(now) == choices
        # links are promised ahead: a hop may start, and ask for the next link, in a later part
        self._kept = [each for each in self._kept if each.start.max(initial=NONE) + self._longest > now]
        self._since = now
        return alike

    def _explained(self, now: int) -> int | None:
        """Return how many choices there were behind first links in this part; None: some are unlike."""
        columns = (np.concatenate([getattr(each, name) for each in self._kept]) for name in fields(LinkTrail))
        trail = LinkTrail(*columns)
        rows = np.flatnonzero(trail.start + self._longest > self._since)
        route, size = self._sent(trail.visit[rows], trail.task[rows])
        starts, hops = self._program.route_starts, self._program.hops
        hop = starts[route] + trail.position[rows]
        goes_on = hop + 1 < starts[route + 1]
        rows, hop, size = rows[goes_on], hop[goes_on], size[goes_on]
        service, first, last = self._program.route_class[hop], size, size
        if hops.parts is not None:
            split = hops.parts.count[size] > 1
            first, last = (np.where(split, part[size], size) for part in (hops.parts.first, hops.parts.last))
        ahead = (hops.head + hops.lag)[first, service]
        if not np.array_equal(ahead, (hops.head + hops.lag)[last, service]):
            return None
        asked = LinkRequests(
            link=self._program.route_links[hop + 1].astype(np.int64),
            moment=trail.start[rows] + ahead,
            apart=self._apart[hop + 1],
            visit=trail.visit[rows],
        )
        return asked.among_equals(self._since, now).choices(reordered=self._reordered)

    def _sent(self, visit: Int64s, task: Int32s) -> tuple[Int64s, Int32s]:
        """Return the route and the size row of each transfer, given its visit and its task."""
        program = self._program
        route, size = np.zeros(len(visit), np.int64), np.zeros(len(visit), np.int32)
        order = np.argsort(visit, kind="stable")
        visits, first = np.unique(visit[order], return_index=True)
        ranks = np.searchsorted(self._first_visit, visits, side="right") - 1
        for number, rank, rows in zip(
            visits.tolist(), ranks.tolist(), np.split(order, first[1:]), strict=True
        ):
            binding, place = program.bindings[rank], number - int(self._first_visit[rank])
            table = program.programs[binding.program]
            template = int(table.template[place])
            group = program.groups[int(binding.groups[int(table.slot[place])])]
            columns = program.templates[template].expanded()
            route[rows] = group.routes[template][columns.pair[task[rows]]]
            size[rows] = columns.size[task[rows]]
        return route, size
