"""Checks of a fabric's routes: whether GPUs are cut off, and which links may wait for each other.

Dally and Seitz, IEEE Trans. Computers C-36 (1987): routes without virtual channels are free of deadlock if
and only if their channel dependency graph has no cycle.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s, distinct
from rapid_des.errors import FabricCutError
from rapid_des.network.fabric import Fabric, Router
from rapid_des.network.metrics import diameter, spaced, surviving

_ALL_PAIRS_UP_TO = 512
"""The number of GPUs up to which a check follows the routes of all pairs."""
_SAMPLED = 192
"""The approximate number of GPUs sampled from a larger fabric; fewer where their routes could exceed
`_MOST_HOPS` links.
"""
_MOST_HOPS = 2**23


class RouteCheck(Struct, frozen=True):
    """The result of a check of routes between GPUs, all of which reach each other."""

    routes: int
    """The number of routes that were followed."""
    all_routes: bool
    """Whether the routes of all pairs were followed."""
    dependency_cycle: tuple[int, ...]
    """Links that may wait for each other in a cycle; empty if there is no such cycle."""


def check_routes(fabric: Fabric, router: Router, dead: frozenset[int], lost: frozenset[int]) -> RouteCheck:
    """Return the result of a check; `FabricCutError` if some surviving GPUs can not reach each other.

    Deadlock freedom is that of the links as they are: a circle needs virtual channels or bubbles to be safe,
    as every torus does; our own replay does not block on buffers.
    """
    gpus = surviving(fabric, lost)
    if not diameter(fabric, dead, lost).connected:
        _raise_cut(fabric, router, gpus.tolist())
    sample = _sample(fabric, gpus)
    pairs = _all_pairs(sample)
    cycle = channel_dependency_cycle(fabric, router, pairs)
    return RouteCheck(len(pairs), len(sample) == len(gpus), cycle)


def channel_dependency_cycle(
    fabric: Fabric, router: Router, pairs: Iterable[tuple[int, int]] | None = None
) -> tuple[int, ...]:
    """Return links that wait for each other in a circle; () if the routes of `pairs` have none.

    Pairs are all of GPUs where None are given.
    """
    routes = router.routes(_all_pairs(np.arange(fabric.gpus)) if pairs is None else pairs)
    last = np.zeros(len(routes.links), bool)
    last[routes.starts[1:][np.diff(routes.starts) > 0] - 1] = True
    holds = np.flatnonzero(~last)
    edges = distinct(routes.links[holds] * len(fabric) + routes.links[holds + 1])
    return _cycle(edges // len(fabric), edges % len(fabric), len(fabric))


def _all_pairs(gpus: Int64s) -> Int64s:
    """Return all ordered pairs of different GPUs, one a row."""
    table = np.stack(np.meshgrid(gpus, gpus, indexing="ij"), axis=-1).reshape(-1, 2)
    pairs: Int64s = table[table[:, 0] != table[:, 1]]
    return pairs


def _cycle(holder: Int64s, awaited: Int64s, links: int) -> tuple[int, ...]:
    """Drop links that wait for nothing until only circles and their approaches remain, then follow one."""
    left = np.ones(len(holder), bool)
    while True:
        waiting = np.zeros(links, bool)
        waiting[holder[left]] = True
        drops = left & ~waiting[awaited]
        if not drops.any():
            break
        left &= ~drops
    following = dict(zip(holder[left][::-1].tolist(), awaited[left][::-1].tolist(), strict=True))
    if not following:
        return ()
    seen: list[int] = [min(following)]
    while following[seen[-1]] not in seen:
        seen.append(following[seen[-1]])
    return tuple(seen[seen.index(following[seen[-1]]) :])


def _sample(fabric: Fabric, gpus: Int64s) -> Int64s:
    """Return the GPUs, or of very many those on the axes through GPU 0, where rings close, and others."""
    if len(gpus) <= _ALL_PAIRS_UP_TO:
        return gpus
    strides = np.cumprod([1, *fabric.axes])
    few = min(_SAMPLED, int((_MOST_HOPS / sum(fabric.axes)) ** 0.5))
    lines = [
        np.arange(min(size, few // len(fabric.axes) + 1)) * stride
        for size, stride in zip(fabric.axes, strides, strict=False)
    ]
    wanted = distinct(np.concatenate([*lines, spaced(gpus, few // 2)]))
    at = np.searchsorted(gpus, wanted).clip(max=len(gpus) - 1)
    chosen: Int64s = wanted[gpus[at] == wanted]
    return chosen


def _raise_cut(fabric: Fabric, router: Router, gpus: list[int]) -> None:
    """Route to and from every GPU: the first that is cut off is the error."""
    for gpu in gpus:
        router.route(gpus[0], gpu)
        router.route(gpu, gpus[0])
    raise FabricCutError(f"{fabric.name}: some GPUs can not reach each other")
