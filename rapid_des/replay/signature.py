"""When two groups of GPUs are the same to a simulation: equal routes up to the names of the links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rapid_des.machine import Machine
from rapid_des.network.fabric import Fabric

Int64s = NDArray[np.int64]


def all_pairs(groups: Sequence[Sequence[int]]) -> Int64s:
    """Return every ordered pair of different members of each group, as rows, group by group."""
    member = np.array(groups, np.int64).reshape(len(groups), -1)
    source, destination = np.nonzero(~np.eye(member.shape[1], dtype=bool))
    return np.stack((member[:, source], member[:, destination]), 2).reshape(-1, 2)


def signatures(machine: Machine, groups: Sequence[Sequence[int]]) -> list[bytes]:
    """Return a key for each group of GPUs, all of one size; equal keys give equal results.

    Two groups have one key if a renaming of links maps the routes between their members, in member order,
    onto each other with equal bandwidth and latency.
    """
    routes = machine.router.routes(all_pairs(groups))
    pairs = len(routes) // len(groups)
    keys = []
    for group in range(len(groups)):
        starts = routes.starts[group * pairs : (group + 1) * pairs + 1]
        links = np.asarray(routes.links[starts[0] : starts[-1]], np.int64)
        keys.append(_canonical(machine.fabric, links, np.diff(starts)))
    return keys


def _canonical(fabric: Fabric, links: Int64s, lengths: Int64s) -> bytes:
    """Return the routes with links numbered by first use, and what each such link is like."""
    _, first_use, names = np.unique(links, return_index=True, return_inverse=True)
    number = np.empty(len(first_use), np.int64)
    number[np.argsort(first_use, kind="stable")] = np.arange(len(first_use))
    used = links[np.sort(first_use)]
    parts = (lengths, number[names], fabric.bandwidth[used], fabric.latency[used])
    return b"|".join(np.ascontiguousarray(part, np.int64).tobytes() for part in parts)
