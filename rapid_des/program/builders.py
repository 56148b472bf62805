"""Rank programs and templates from what sets them apart: all other columns follow or have a default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rapid_des.arrays import Bools, Int8s, Int32s, Int64s, starts_by
from rapid_des.program.program import NONE, Level, RankProgram, Template

Rows = NDArray[np.integer[Any]]

_NARROW = {
    "server": NONE,
    "link_priority": 0,
    "release": NONE,
    "slot": NONE,
    "parent": NONE,
    "occurrence": NONE,
    "sub": 0,
    "template": NONE,
    "node": NONE,
}
"""The columns of 32 bits, and what stands in them unless stated."""


@dataclass(frozen=True)
class Edges:
    """Dependencies in any order, a row each."""

    origin: Rows
    target: Rows
    lag: Int64s | None = None
    """None: none lag."""
    at_start: Bools | None = None
    """Which are anchored at the origin's start, a task's injection; None: none."""

    def by_origin(self, origins: int) -> tuple[Int64s, Int32s, Int64s, Bools]:
        """Return where the rows of each origin start, and targets, lags and anchors, ascending by target."""
        count = len(self.origin)
        at_start = np.zeros(count, np.bool_) if self.at_start is None else self.at_start
        lag = np.zeros(count, np.int64) if self.lag is None else self.lag
        key = self.origin.astype(np.int64)
        key *= int(self.target.max(initial=0)) + 1
        key += self.target
        key *= 2
        key += at_start
        order = np.argsort(key, kind="stable")  # of one key: rows that stand in order already cost little
        target = self.target[order].astype(np.int32)
        return starts_by(self.origin, origins), target, lag[order], at_start[order]


def edges(origin: ArrayLike, target: ArrayLike, lag: ArrayLike = 0, *, at_start: bool = False) -> Edges:
    """Return edges of columns of any shapes, which are broadcast against each other."""
    columns = np.broadcast_arrays(*(np.asarray(column, np.int64) for column in (origin, target, lag)))
    rows = [column.ravel() for column in columns]
    return Edges(rows[0], rows[1], rows[2], np.full(len(rows[0]), at_start))


def joined(parts: Sequence[Edges]) -> Edges:
    """Return the edges of all parts."""
    filled = [
        (
            np.zeros(len(part.origin), np.int64) if part.lag is None else part.lag,
            np.zeros(len(part.origin), np.bool_) if part.at_start is None else part.at_start,
        )
        for part in parts
    ]
    return Edges(
        np.concatenate([part.origin for part in parts]),
        np.concatenate([part.target for part in parts]),
        np.concatenate([lag for lag, _ in filled]),
        np.concatenate([at_start for _, at_start in filled]),
    )


def make_rank_program(
    columns: Mapping[str, Rows],
    edges: Edges,
    *,
    server_capacity: Rows,
    server_level: Int8s | None = None,
) -> RankProgram:
    """Return the visits with these columns, `kind` among them; servers are streams by default."""
    visits, servers = len(columns["kind"]), len(server_capacity)
    narrow: dict[str, Any] = {
        name: columns.get(name, np.full(visits, default)).astype(np.int32)
        for name, default in _NARROW.items()
    }
    wide: dict[str, Any] = {
        name: columns.get(name, np.zeros(visits)).astype(np.int64) for name in ("work", "priority")
    }
    starts, target, lag, at_start = edges.by_origin(visits)
    streams = np.full(servers, int(Level.STREAM), np.int8)
    return RankProgram(
        kind=columns["kind"].astype(np.int8),
        need=np.bincount(edges.target, minlength=visits).astype(np.int32),
        edge_starts=starts,
        edge_target=target,
        edge_lag=lag,
        edge_at_start=at_start,
        server_capacity=server_capacity.astype(np.int32),
        server_level=streams if server_level is None else server_level,
        **wide,
        **narrow,
    )


def make_template(  # noqa: PLR0913 - a template's parts
    members: int,
    tasks: tuple[Rows, Rows],
    pairs: tuple[Rows, Rows, Rows],
    *,
    edges: Edges,
    arrivals: Edges,
    need: Rows | None = None,
    name: str = "",
) -> Template:
    """Return the template of these tasks; what each awaits follows from the edges to it.

    `tasks` are who injects each and its row of sizes; `pairs` the pair of each task, and of each pair the
    source and the destination. `arrivals` are the edges from members, `edges` those from tasks. `need`: how
    many of the edges to each task must pass, if not all.
    """
    source, size = tasks
    awaited = np.bincount(edges.target, minlength=len(source) + members).astype(np.int32)
    awaited += np.bincount(arrivals.target, minlength=len(awaited)).astype(np.int32)
    edge_starts, edge_target, edge_lag, at_injection = edges.by_origin(len(source))
    arrival_starts, arrival_target, arrival_lag, _ = arrivals.by_origin(members)
    pair, pair_source, pair_destination = (column.astype(np.int32) for column in pairs)
    return Template(
        members=members,
        pair=pair,
        pair_source=pair_source,
        pair_destination=pair_destination,
        source=source.astype(np.int32),
        size=size.astype(np.int32),
        need=awaited[: len(source)] if need is None else need.astype(np.int32),
        edge_starts=edge_starts,
        edge_target=edge_target,
        edge_lag=edge_lag,
        edge_at_injection=at_injection,
        arrival_starts=arrival_starts,
        arrival_target=arrival_target,
        arrival_lag=arrival_lag,
        member_need=awaited[len(source) :],
        name=name,
    )
