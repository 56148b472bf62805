"""R8 in the compiled engine: collectives that are replanned, as columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rapid_des.compiling.kinds import BoolColumn, Int32Column, Int64Column

Array = NDArray[Any]
AS_LOWERED = 1
"""The plan of collectives that nothing asks to replan."""


class Replans(NamedTuple):
    """What ranks do in collectives that are replanned (R8), in steps; empty where none are.

    A plan is a set of closed links that collectives are planned around; 0 is none, and `AS_LOWERED` is what
    the program says. A rank's schedule is its first steps in one collective under one plan, one a chunk.
    """

    stands: Int64Column
    """By row of `Visits`: the first MEMBER of the same collective, by whose name its messages go, or NONE."""
    calls: Int64Column
    """By group: where its collectives begin in `State.planned`."""
    schedules: Int64Column
    """By schedule: where its steps begin in `first`."""
    first: Int64Column
    template: Int64Column
    """By step, as those below."""
    use: Int64Column
    """Where the routes of the template's pairs begin in `Network.pair_route`."""
    member: Int64Column
    sub: Int64Column
    chunk: Int64Column
    """The number of its chunk, for its place on links."""
    meets: BoolColumn
    """Whether it is the one that begins the collective."""
    next: Int64Column
    """The step after it, or NONE."""


NO_REPLANS = Replans(*(np.zeros(0, np.bool_ if name == "meets" else np.int64) for name in Replans._fields))


class Parts(NamedTuple):
    """Ranks in collectives that are replanned (R8)."""

    rank: Int32Column
    group: Int32Column
    number: Int32Column
    visit: Int32Column
    """The first of the rank's visits that stand for it."""
    arrived: Int32Column
    """Of those the one that came last; the others follow in `State.beside`."""
    visits: Int32Column
    """How many those are."""
    left: Int32Column
    """Chunks that are not done."""
