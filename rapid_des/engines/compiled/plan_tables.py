"""R8 in the compiled engine: the columns of replanned collectives."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rapid_des.compiling.kinds import BoolColumn, Int32Column, Int64Column

Array = NDArray[Any]
AS_LOWERED = 1
"""The plan of collectives that run as the program says."""


class Replans(NamedTuple):
    """The steps of ranks in replanned collectives (R8); empty where none are replanned.

    A plan is a set of closed links that collectives are planned around; 0 is none, and `AS_LOWERED` is what
    the program says. A rank's schedule is its first step of each chunk in one collective under one plan.
    """

    first_member_visit: Int64Column
    """[row of `Visits`] the rank's first MEMBER of the same collective, which names its messages, or NONE."""
    first_call: Int64Column
    """[group] the row of its first collective in `State.call_plan`."""
    schedules: Int64Column
    """[schedule] its first row of `first`; one entry more holds the total."""
    first: Int64Column
    """[schedule, chunk] the first step of each chunk."""
    template: Int64Column
    """[step] its template."""
    use: Int64Column
    """[step] the row of `Network.pair_route` with the route of the template's first pair."""
    member: Int64Column
    """[step] the rank's member number in the template."""
    sub: Int64Column
    """[step] its number in the collective."""
    chunk: Int64Column
    """[step] the number of its chunk, which is part of its priority on links."""
    meets: BoolColumn
    """[step] whether it is the first of the collective, at which the members meet."""
    next: Int64Column
    """[step] the step of the same chunk that follows, or NONE."""


NO_REPLANS = Replans(*(np.zeros(0, np.bool_ if name == "meets" else np.int64) for name in Replans._fields))


class RankParts(NamedTuple):
    """What single ranks do in replanned collectives (R8): one row a rank and collective."""

    rank: Int32Column
    """[rank part] the rank."""
    group: Int32Column
    """[rank part] the group of the collective."""
    number: Int32Column
    """[rank part] the instance number of the collective."""
    visit: Int32Column
    """[rank part] the first of the rank's visits that represent the collective."""
    arrived: Int32Column
    """[rank part] the visit that arrived last; the earlier ones are linked through `State.next_in_part`."""
    visits: Int32Column
    """[rank part] the number of visits that have arrived."""
    left: Int32Column
    """[rank part] the number of chunks that are not done."""
