"""What the SimPy engine keeps of a collective in flight, and of the hops it saw."""

from __future__ import annotations

import numpy as np
from simpy.events import Event

from rapid_des.engines.simpy.tables import TemplateTable
from rapid_des.program.program import NONE, Trail


class Instance:
    """One collective in flight: who has arrived and what its tasks still wait for."""

    def __init__(self, template: TemplateTable, index: int, routes: list[int]) -> None:
        self.template = template
        self.index = index
        self.routes = routes
        self.pending = list(template.need) + list(template.member_need)
        self.ready = [0] * len(self.pending)
        self.visits = [NONE] * template.members
        self.done: list[Event | None] = [None] * template.members
        self.absent = self.undone = template.members


def trail_of(rows: list[tuple[int, ...]]) -> Trail:
    """Return hops recorded as rows as the columns of a trail."""
    columns = np.array(rows, np.int64).reshape(-1, 7).T
    link, start, finish, arrival, visit, task, position = columns
    return Trail(
        link=link.astype(np.int32),
        start=start,
        finish=finish,
        arrival=arrival,
        visit=visit,
        task=task.astype(np.int32),
        position=position.astype(np.int32),
    )
