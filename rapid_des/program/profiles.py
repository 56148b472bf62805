"""The distinct profiles of routes, (bandwidth, latency) of each link, and the class of each hop by them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Int32s, distinct
from rapid_des.network.fabric import Fabric, Routes
from rapid_des.program.program import NONE

_BATCH = 1 << 18
"""Number of routes that are processed at a time, which bounds memory."""

Profile = tuple[tuple[int, int], ...]
"""(bandwidth in bytes/s, latency in ps) of each link of a route."""


def by_link(fabric: Fabric, routes: Routes) -> tuple[list[Profile], Int32s]:
    """Return each distinct (bandwidth, latency) as a profile of one hop, and the class of each hop."""
    kinds, places = np.unique(np.stack([fabric.bandwidth, fabric.latency], 1), axis=0, return_inverse=True)
    profiles: list[Profile] = [((int(bandwidth), int(latency)),) for bandwidth, latency in kinds]
    return profiles, places.reshape(-1).astype(np.int32)[routes.links]


def by_route(fabric: Fabric, routes: Routes) -> tuple[list[Profile], Int32s]:
    """Return the distinct profiles, and as a hop's class its profile's base plus its position."""
    used = np.zeros(len(fabric), np.bool_)
    used[routes.links] = True
    # Number the distinct (bandwidth, latency) of the links in use; the kind of unused links is never read.
    kinds, kind = np.unique(
        np.stack([fabric.bandwidth[used], fabric.latency[used]], 1), axis=0, return_inverse=True
    )
    link_kind = np.zeros(len(fabric), np.int32)
    link_kind[used] = kind.reshape(-1)
    firsts, profile = _kinds_of_routes(routes, link_kind, len(kinds))
    order = sorted(range(len(firsts)), key=lambda number: firsts[number][0])
    # Classes are numbered profile by profile in the order of first use: class = base[profile] + hop.
    # A route without links has profile NONE (-1), which reads the last entry of `base`.
    base = np.zeros(len(firsts) + 1, np.int32)  # the last is that of messages to itself
    total = 0
    for number in order:
        base[number] = total
        total += len(firsts[number][1])
    classes = np.empty(len(routes.links), np.int32)
    for begin in range(0, len(routes), _BATCH):
        starts = routes.starts[begin : begin + _BATCH + 1]
        lengths = np.diff(starts)
        # Position of each hop within its route: the flat index less the start of its route.
        hop = np.arange(starts[0], starts[-1]) - np.repeat(starts[:-1], lengths)
        classes[starts[0] : starts[-1]] = np.repeat(base[profile[begin : begin + _BATCH]], lengths) + hop
    rates = [(int(bandwidth), int(latency)) for bandwidth, latency in kinds]
    return [tuple(rates[link] for link in firsts[number][1]) for number in order], classes


def _kinds_of_routes(
    routes: Routes, link_kind: Int32s, kinds: int
) -> tuple[list[tuple[int, tuple[int, ...]]], Int32s]:
    """Return the distinct sequences of link kinds, each with its first start, and each route's sequence."""
    firsts: dict[tuple[int, ...], int] = {}
    begun: list[int] = []
    profile = np.full(len(routes), NONE, np.int32)
    for batch in range(0, len(routes), _BATCH):
        starts = routes.starts[batch : batch + _BATCH + 1]
        lengths = np.diff(starts)
        for length in distinct(lengths[lengths > 0]).tolist():  # a message to itself takes no link
            places = np.flatnonzero(lengths == length)
            begins = starts[places]
            # Routes of one length form a rectangle [route, hop], so that equal routes are equal rows.
            rows = link_kind[routes.links[begins[:, None] + np.arange(length)]]
            first, place = _alike(rows, kinds)
            numbers = np.empty(len(first), np.int32)
            for index, row in enumerate(first.tolist()):
                numbers[index] = number = firsts.setdefault(tuple(rows[row].tolist()), len(firsts))
                if number == len(begun):
                    begun.append(int(begins[row]))
            profile[batch + places] = numbers[place]
    return list(zip(begun, firsts, strict=True)), profile


def _alike(rows: Int32s, kinds: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of each set of equal rows, and each row's set; much faster than sorting rows."""
    if (rows == rows[0]).all():
        return np.zeros(1, np.int64), np.zeros(len(rows), np.int64)
    # Read each row as one integer in base `kinds`. Before that could exceed 64 bits, renumber the codes.
    code = rows[:, 0].astype(np.int64)
    for column in rows.T[1:]:
        if int(code.max(initial=0)) > 2**62 // kinds:
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
        code = code * kinds + column
    _, first, place = np.unique(code, return_index=True, return_inverse=True)
    return first, place.reshape(-1)
