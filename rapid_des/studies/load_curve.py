"""What users see against what a GPU yields: one replica of a layout at several numbers of requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import InputError
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.studies.capacity import ServerLoad, degrees_of, one_replica
from rapid_des.units import PS_PER_S

CONCURRENCIES = (1, 4, 16, 64, 256)
"""The numbers of concurrent requests of one replica for which `curve` has a point."""


class LoadPoint(Struct, frozen=True):
    """Speed for users and throughput of a GPU for one replica at a number of concurrent requests."""

    layout: str
    concurrency: int
    tokens_per_user: float
    """The tokens a second of one request, by the median time of a token."""
    tokens_per_gpu: float
    """The tokens a second that one GPU generates."""

    def as_json(self) -> dict[str, str | int | float]:
        """Return plain data for JSON."""
        return {
            "layout": self.layout,
            "concurrency": self.concurrency,
            "tokens_per_user": self.tokens_per_user,
            "tokens_per_gpu": self.tokens_per_gpu,
        }


def curve(
    job: Job, machine: Machine, demand: ServerLoad, *, cache: BoundedCache | None = None
) -> tuple[LoadPoint, ...]:
    """Return the speed for users and the throughput of a GPU of one replica at each of `CONCURRENCIES`."""
    cache, job = BoundedCache() if cache is None else cache, one_replica(job)
    name, points = " ".join(f"{axis}={size}" for axis, size in degrees_of(job).items()), []
    for count in CONCURRENCIES:
        result = demand.served(job, machine, f"clients count={count}", cache, max(32, 4 * count))
        if not len(result.tpot):
            raise InputError("requests of one token have no time between tokens: no curve of interactivity")
        per_gpu = result.throughput["output_tokens_per_s"] / job.gpus
        points.append(LoadPoint(name, count, PS_PER_S / float(np.median(result.tpot)), per_gpu))
    return tuple(points)


def front(points: Sequence[LoadPoint]) -> tuple[LoadPoint, ...]:
    """Return the points that no other beats in both figures, by rising tokens a user.

    >>> points = LoadPoint("", 1, 9, 1), LoadPoint("", 2, 5, 5), LoadPoint("", 3, 4, 4)
    >>> [point.concurrency for point in front(points)]
    [2, 1]
    """
    best, front_points = 0.0, list[LoadPoint]()
    for point in sorted(points, key=lambda each: (-each.tokens_per_user, -each.tokens_per_gpu)):
        if point.tokens_per_gpu > best:
            best = point.tokens_per_gpu
            front_points.append(point)
    return tuple(reversed(front_points))
