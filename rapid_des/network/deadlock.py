"""Deadlock freedom of routes: a cycle of links that may each wait for the next.

Dally and Seitz, IEEE Trans. Computers C-36 (1987): routes without virtual channels are free of deadlock if
and only if their channel dependency graph has no cycle.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rapid_des.network.fabric import Fabric, Ints, Router


def channel_dependency_cycle(
    fabric: Fabric, router: Router, pairs: Iterable[tuple[int, int]] | None = None
) -> tuple[int, ...]:
    """Return links that wait for each other in a circle; () if the routes of `pairs` have none.

    Pairs are all of GPUs where None are given.
    """
    if pairs is None:
        everyone = np.arange(fabric.gpus)
        table = np.stack(np.meshgrid(everyone, everyone, indexing="ij"), axis=-1).reshape(-1, 2)
        pairs = table[table[:, 0] != table[:, 1]]
    routes = router.routes(pairs)
    last = np.zeros(len(routes.links), bool)
    last[routes.starts[1:][np.diff(routes.starts) > 0] - 1] = True
    holds = np.flatnonzero(~last)
    edges = np.unique(routes.links[holds] * len(fabric) + routes.links[holds + 1])
    return _cycle(edges // len(fabric), edges % len(fabric), len(fabric))


def _cycle(holder: Ints, awaited: Ints, links: int) -> tuple[int, ...]:
    """Drop links that wait for nothing until only circles and their approaches remain, then follow one."""
    kept = np.ones(len(holder), bool)
    while True:
        waiting = np.zeros(links, bool)
        waiting[holder[kept]] = True
        drops = kept & ~waiting[awaited]
        if not drops.any():
            break
        kept &= ~drops
    following = dict(zip(holder[kept][::-1].tolist(), awaited[kept][::-1].tolist(), strict=True))
    if not following:
        return ()
    seen: list[int] = [min(following)]
    while following[seen[-1]] not in seen:
        seen.append(following[seen[-1]])
    return tuple(seen[seen.index(following[seen[-1]]) :])
