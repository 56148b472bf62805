"""A program on the links that its routes take: a block uses few of the millions of links of a large machine.

An engine makes columns by link for every run, so a program of eight ranks costs what the whole machine does.
Links keep their order, so that those that choose at one instant choose in the same order.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s, levels_of
from rapid_des.program.program import Program, Records
from rapid_des.values import replace


class UsedLinks(Struct, frozen=True):
    """A program whose links are those that its routes take, and what their numbers were."""

    program: Program
    number: Int64s
    """[link] its number in the whole program."""
    links: int
    """The number of links of the whole program."""

    @classmethod
    def of(cls, program: Program) -> UsedLinks | None:
        """Return the program on the links that it uses; None where tables name links."""
        named = (program.fluid, program.queue_pairs, program.spray, program.delays, program.pace_timetables)
        if program.link_timetables or any(named):
            return None
        number, place = levels_of(program.route_links)
        used = replace(program, links=len(number), route_links=place.astype(np.int32))
        return cls(used, number.astype(np.int64), program.links)

    def whole(self, records: Records) -> Records:
        """Return what an engine would have recorded of the whole program."""
        trail = records.trail
        return replace(
            records,
            link_bytes=self._spread(records.link_bytes),
            link_busy=self._spread(records.link_busy),
            link_wait=self._spread(records.link_wait),
            trail=trail and replace(trail, link=self.number[trail.link].astype(np.int32)),
        )

    def _spread(self, column: Int64s) -> Int64s:
        whole = np.zeros((self.links, *column.shape[1:]), np.int64)
        whole[self.number] = column
        return whole
