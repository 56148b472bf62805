"""Program columns as Python lists, which an interpreter reads several times faster than numpy scalars."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rapid_des.program.program import Program, RankProgram, Template
from rapid_des.program.timetable import advance, lag_at

Hops: TypeAlias = list[tuple[int, int]]
"""(link, service class) along a route."""
Sender: TypeAlias = tuple[int, tuple[int, int, int, int], int]
"""A message's priority, what orders it among others (R3), and its label."""


class RankTable:
    """A `RankProgram` for interpretation."""

    def __init__(self, program: RankProgram) -> None:
        self.kind = program.kind.tolist()
        self.server = program.server.tolist()
        self.work = program.work.tolist()
        self.priority = program.priority.tolist()
        self.link_priority = program.link_priority.tolist()
        self.release = program.release.tolist()
        self.slot = program.slot.tolist()
        self.parent = program.parent.tolist()
        self.occurrence = program.occurrence.tolist()
        self.sub = program.sub.tolist()
        self.template = program.template.tolist()
        self.node = program.node.tolist()
        self.need = program.need.tolist()
        self.servers = list(zip(program.server_capacity.tolist(), program.server_level.tolist(), strict=True))
        edges = list(
            zip(
                program.edge_target.tolist(),
                program.edge_lag.tolist(),
                program.edge_at_start.tolist(),
                strict=True,
            )
        )
        starts = program.edge_starts.tolist()
        rows = [edges[first:last] for first, last in zip(starts, starts[1:], strict=False)]
        self.at_start = [[(target, lag) for target, lag, at_start in row if at_start] for row in rows]
        self.at_finish = [[(target, lag) for target, lag, at_start in row if not at_start] for row in rows]


class TemplateTable:
    """A `Template` for interpretation."""

    def __init__(self, template: Template) -> None:
        self.members = template.members
        self.tasks = len(template)
        self.pair = template.pair.tolist()
        self.source = template.source.tolist()
        self.size = template.size.tolist()
        self.need = template.need.tolist()
        self.member_need = template.member_need.tolist()
        self._starts = template.edge_starts.tolist()
        self._edges = list(
            zip(
                template.edge_target.tolist(),
                template.edge_lag.tolist(),
                template.edge_at_injection.tolist(),
                strict=True,
            )
        )
        arrivals = list(zip(template.arrival_target.tolist(), template.arrival_lag.tolist(), strict=True))
        starts = template.arrival_starts.tolist()
        self.arrivals = [arrivals[first:last] for first, last in zip(starts, starts[1:], strict=False)]

    def edges(self, task: int) -> list[tuple[int, int, bool]]:
        """Return (target, lag, anchored at injection) of a task's outgoing edges."""
        return self._edges[self._starts[task] : self._starts[task + 1]]


class LinkTable:
    """Routes, hop services and the running sums of every link."""

    def __init__(self, program: Program) -> None:
        self._starts = program.route_starts.tolist()
        self._hops = list(zip(program.route_links.tolist(), program.route_class.tolist(), strict=True))
        hops = program.hops
        self.service = [
            list(zip(*rows, strict=True))
            for rows in zip(hops.occupancy.tolist(), hops.head.tolist(), hops.lag.tolist(), strict=True)
        ]
        self.payload = hops.bytes.tolist()
        parts = hops.parts
        self._parts = (
            list(zip(parts.count.tolist(), parts.first.tolist(), parts.last.tolist(), strict=True))
            if parts
            else None
        )
        self.timetables = {
            link: (table.time.tolist(), table.rate.tolist(), table.lag.tolist())
            for link, table in program.link_timetables.items()
        }
        self._shape = program.links, len(program.labels)
        self._sums: dict[tuple[int, int], list[int]] = {}
        self.hops = 0

    def route(self, route: int) -> list[tuple[int, int]]:
        """Return (link, service class) of a route's hops."""
        return self._hops[self._starts[route] : self._starts[route + 1]]

    def hop(self, link: int, size: int, service: int, start: int) -> tuple[int, int, int]:
        """Return when the link is free, the next hop ready and the message arrived."""
        occupancy, head, lag = self.service[size][service]
        timetable = self.timetables.get(link)
        if timetable is None:
            return start + occupancy, start + head + lag, start + occupancy + lag
        time, rate, extra = timetable
        free = advance(time, rate, start, occupancy)
        lag += lag_at(time, extra, start)
        return free, advance(time, rate, start, head) + lag, free + lag

    def parts(self, hops: Hops, size: int) -> list[tuple[int, int, int]]:
        """Return (number, size row, wait before the first link) of each part of a message."""
        if self._parts is None:
            return [(0, size, 0)]
        count, first, last = self._parts[size]
        pace = self.service[first][hops[0][1]][0]
        return [(part, first if part < count - 1 else last, part * pace) for part in range(count)]

    def count(self, link: int, label: int, size: int, *, wait: int, busy: int) -> None:
        """Book one hop."""
        self.hops += 1
        self.book(link, label, size=self.payload[size], wait=wait, busy=busy)

    def book(self, link: int, label: int, *, size: int, wait: int, busy: int) -> None:
        """Add bytes and times to a link's sums."""
        sums = self._sums.setdefault((link, label), [0, 0, 0])
        sums[0] += size
        sums[1] += busy
        sums[2] += wait

    def sums(self, which: int) -> NDArray[np.int64]:
        """Return [link, label] of what was booked: 0 bytes, 1 service, 2 waits."""
        table = np.zeros(self._shape, np.int64)
        for place, sums in self._sums.items():
            table[place] = sums[which]
        return table
