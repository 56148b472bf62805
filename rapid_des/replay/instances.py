"""What the SimPy engine keeps of a collective in flight, and of the hops it saw."""

from __future__ import annotations

from simpy.events import Event

from rapid_des.replay.program import NONE
from rapid_des.replay.tables import TemplateTable


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
