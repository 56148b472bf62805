"""What a rank serves at the same time, and how that slows its computing (R6)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from simpy.events import Event, Timeout

from rapid_des.program.timetable import finish_of, left_after

if TYPE_CHECKING:
    from rapid_des.engines.simpy.servers import Clock


class InService:
    """The visits that one rank's servers serve, as the sum of their weights."""

    def __init__(self, env: Clock) -> None:
        self.env = env
        self._sum = 0
        self._changed = Event(env)

    def add(self, weight: int) -> None:
        """Count a visit that its server now serves, or with its weight negated no more."""
        if weight:
            self._sum += weight
            changed, self._changed = self._changed, Event(self.env)
            changed.succeed()

    def compute(
        self, work: int, table: tuple[Sequence[int], Sequence[int]], shares: Sequence[int], own: int
    ) -> Generator[Event, Any, None]:
        """Work until all is done, at the share that the others in service leave; `own` is its weight."""
        left = (work, 0)
        while True:
            since, share = self.env.now, shares[self._sum - own]
            finish = finish_of(table, since, left, share)
            yield Timeout(self.env, finish - since) | self._changed
            if self.env.now == finish:
                return
            left = left_after(table, since, self.env.now, left, share)
