"""R8 in the compiled engine: collectives that are replanned, as columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
AS_LOWERED = 1
"""The plan of collectives that nothing asks to replan."""


class Replans(NamedTuple):
    """What ranks do in collectives that are replanned (R8), in steps; empty where none are.

    A plan is a set of closed links that collectives are planned around; 0 is none, and `AS_LOWERED` is what
    the program says. A rank's schedule is its first steps in one collective under one plan, one a chunk.
    """

    stands: Array
    """By row of `Visits`: the first MEMBER of the same collective, by whose name its messages go, or NONE."""
    calls: Array
    """By group: where its collectives begin in `State.planned`."""
    schedules: Array
    """By schedule: where its steps begin in `first`."""
    first: Array
    template: Array
    """By step, as those below."""
    use: Array
    """Where the routes of the template's pairs begin in `Network.pair_route`."""
    member: Array
    sub: Array
    chunk: Array
    """The number of its chunk, for its place on links."""
    meets: Array
    """Whether it is the one that begins the collective."""
    next: Array
    """The step after it, or NONE."""


NO_REPLANS = Replans(*(np.zeros(0, np.bool_ if name == "meets" else np.int64) for name in Replans._fields))


class Parts(NamedTuple):
    """Ranks in collectives that are replanned (R8)."""

    rank: Array
    group: Array
    number: Array
    visit: Array
    """The first of the rank's visits that stand for it."""
    arrived: Array
    """Of those the one that came last; the others follow in `State.beside`."""
    visits: Array
    """How many those are."""
    left: Array
    """Chunks that are not done."""
