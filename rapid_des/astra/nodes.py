"""One rank's nodes to visits: who serves what for how long, in which order, and what follows what.

A rank serves at once one operator of the CPU, one of the GPU and one of communication, always the ready one
of the smallest node id. Receives take no server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Bools, Int32s, Int64s
from rapid_des.astra.recipes import Recipe
from rapid_des.program.program import NONE, Level, RankProgram, VisitKind

CPU, GPU, COMMUNICATION = 0, 1, 2
STREAMS = 3

_NARROW = ("server", "link_priority", "release", "slot", "parent", "occurrence", "sub", "template", "node")


@dataclass(frozen=True)
class OwnVisits:
    """The visit that each node is itself; columns of one row a node."""

    kind: NDArray[np.int8]
    server: Int32s
    work: Int64s
    slot: Int32s
    occurrence: Int32s
    sub: Int32s
    template: Int32s


@dataclass(frozen=True)
class Dependencies:
    """Node i waits for targets[starts[i] : starts[i + 1]]; `order` is each node's place by ascending id."""

    order: Int64s
    starts: Int64s
    targets: Int32s


@dataclass(frozen=True)
class Chosen:
    """Each node's place in `recipes`, NONE if it needs none."""

    recipe: Int32s
    recipes: Sequence[Recipe]


def rank_program(
    own: OwnVisits, dependencies: Dependencies, chosen: Chosen, queue_capacity: Int32s
) -> RankProgram:
    """Return the visits of all nodes; queues of all dimensions serve as many chunks as stated at a time."""
    recipe, recipes = chosen.recipe, chosen.recipes
    extra = np.array([one.extra for one in recipes] or [0], np.int64)
    first = np.concatenate(([0], np.cumsum(1 + np.where(recipe == NONE, 0, extra[recipe]))))
    columns = _own_columns(own, dependencies.order, first)
    edges = [_between_nodes(dependencies, first)]
    for index, one in enumerate(recipes):
        places = first[:-1][recipe == index]
        if one.steps and len(places):
            edges += _expand(columns, one, places)
    servers = np.concatenate((np.ones(STREAMS, np.int32), queue_capacity))
    levels = np.repeat(np.array([Level.STREAM, Level.SLOT], np.int8), [STREAMS, len(queue_capacity)])
    return _sealed(columns, edges, servers, levels)


def _own_columns(own: OwnVisits, order: Int64s, first: Int64s) -> dict[str, NDArray[np.int64]]:
    total, place = int(first[-1]), first[:-1]
    absent = ("release", "parent", "server", "slot", "occurrence", "template", "node")
    columns = {name: np.full(total, NONE, np.int64) for name in absent}
    zero = ("kind", "work", "priority", "link_priority", "sub")
    columns |= {name: np.zeros(total, np.int64) for name in zero}
    for name in ("kind", "server", "work", "slot", "occurrence", "sub", "template"):
        columns[name][place] = getattr(own, name)
    columns["priority"][place] = order
    columns["node"][place] = np.arange(len(place))
    return columns


_Edges = tuple[Int64s, Int64s, Bools]
"""(origin, target, anchored at the origin's start)."""


def _between_nodes(dependencies: Dependencies, first: Int64s) -> _Edges:
    target = np.repeat(first[:-1], np.diff(dependencies.starts))
    return first[dependencies.targets], target, np.zeros(len(target), np.bool_)


def _expand(columns: dict[str, NDArray[np.int64]], recipe: Recipe, places: Int64s) -> list[_Edges]:
    """Fill in the steps and the join behind each of `places`, whose own visits hold the communication."""
    steps = len(recipe.steps)
    join = places + steps + 1
    inner = places[:, None] + 1 + np.arange(steps)
    columns["release"][places] = join
    columns["kind"][join] = int(VisitKind.JOIN)
    columns["kind"][inner] = int(VisitKind.MEMBER)
    columns["parent"][inner] = places[:, None]
    columns["sub"][inner] = np.arange(steps)
    for name in ("server", "priority", "slot", "template"):
        columns[name][inner] = [getattr(step, name) for step in recipe.steps]
    chunk = np.array([step.chunk for step in recipe.steps])
    begins = np.concatenate(([True], chunk[1:] != chunk[:-1]))
    ends = np.concatenate((begins[1:], [True]))
    origin = np.where(begins, places[:, None], inner - 1)
    last = inner[:, ends]
    return [
        (origin.ravel(), inner.ravel(), np.tile(begins, len(places))),
        (last.ravel(), np.repeat(join, last.shape[1]), np.zeros(last.size, np.bool_)),
    ]


def _sealed(
    columns: dict[str, NDArray[np.int64]], edges: list[_Edges], servers: Int32s, levels: NDArray[np.int8]
) -> RankProgram:
    visits = len(columns["kind"])
    origin, target, at_start = (np.concatenate(column) for column in zip(*edges, strict=True))
    order = np.argsort(origin, kind="stable")
    return RankProgram(
        kind=columns["kind"].astype(np.int8),
        work=columns["work"],
        priority=columns["priority"],
        need=np.bincount(target, minlength=visits).astype(np.int32),
        edge_starts=np.concatenate(([0], np.cumsum(np.bincount(origin, minlength=visits)))).astype(np.int64),
        edge_target=target[order].astype(np.int32),
        edge_lag=np.zeros(len(order), np.int64),
        edge_at_start=at_start[order],
        server_capacity=servers,
        server_level=levels,
        **{name: columns[name].astype(np.int32) for name in _NARROW},
    )
