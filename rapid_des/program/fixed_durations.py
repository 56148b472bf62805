"""Templates that take no link: collectives and messages that last a stated time."""

from __future__ import annotations

import numpy as np

from rapid_des.arrays import Int32s, Int64s
from rapid_des.program.program import NONE, Template
from rapid_des.program.services import Sizes


def lasting_template(members: int, duration: int, sizes: Sizes, *, name: str) -> Template:
    """Return a collective that takes no link: all members are done `duration` after the last arrived."""
    every = np.arange(members, dtype=np.int32)
    return _linkless(
        need=members,
        done_after=np.full(members, duration, np.int64),
        arrival_starts=np.arange(members + 1, dtype=np.int64),
        arrival_target=np.zeros(members, np.int32),
        member_need=np.ones_like(every),
        row=sizes.row(0),
        name=name,
    )


def lasting_message(duration: int, sizes: Sizes) -> Template:
    """Return a message that takes no link: it arrives `duration` after it was sent."""
    return _linkless(
        need=1,
        done_after=np.full(2, duration, np.int64),
        arrival_starts=np.array([0, 1, 2], np.int64),
        arrival_target=np.array([0, 2], np.int32),
        member_need=np.array([1, 2], np.int32),
        row=sizes.row(0),
        name="a message",
    )


def _linkless(  # noqa: PLR0913 - the columns that differ, all by name
    *,
    need: int,
    done_after: Int64s,
    arrival_starts: Int64s,
    arrival_target: Int32s,
    member_need: Int32s,
    row: int,
    name: str,
) -> Template:
    members = len(done_after)
    return Template(
        members=members,
        pair=np.array([NONE], np.int32),
        pair_source=np.zeros(0, np.int32),
        pair_destination=np.zeros(0, np.int32),
        source=np.zeros(1, np.int32),
        size=np.array([row], np.int32),
        need=np.array([need], np.int32),
        edge_starts=np.array([0, members], np.int64),
        edge_target=np.arange(1, members + 1, dtype=np.int32),
        edge_lag=done_after,
        edge_at_injection=np.zeros(members, np.bool_),
        arrival_starts=arrival_starts,
        arrival_target=arrival_target,
        arrival_lag=np.zeros(len(arrival_target), np.int64),
        member_need=member_need,
        name=name,
    )
