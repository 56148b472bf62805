"""Replicas: ranks of which one stands for many, lowered once instead of lowered many times and folded.

A job repeats its outer graph along data parallelism: replica d + 1 does what replica d does, on other GPUs.
If the routes of replica 0, shifted, are the routes of every other one, with equal links and no link with two
images, then the future of one replica, shifted, is the future of all, and the program needs the ranks of
replica 0 only. A group with members in all replicas becomes a *cut* of itself: its members in replica 0,
whose last sends to the first, who stands for the first of replica 1, over links that stand for all images.

    ring of 6 members, 3 replicas of 2         its cut, once for all three
    0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 0            0 -> 1 -> 0' over the links 0>1 and 1>2

A run counts only if no link chose among equals (`Records.ties`): then ids would distinguish replicas.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import UnsupportedByEngine
from rapid_des.machine import Machine
from rapid_des.program.builders import make_template
from rapid_des.program.collectives.plans import AxisPhase
from rapid_des.program.program import NONE, TaskEdges, Template
from rapid_des.program.routes import signatures


class Replicas(Struct, frozen=True):
    """The copies of a part of a job, and how they map onto each other."""

    count: int
    image: Int64s
    """[rank] the corresponding rank in the next replica; the last replica maps to the first."""

    def simulated(self, ranks: tuple[int, ...], present: Int64s) -> int:
        """Return how many members of a group its cut has: its first ones, those that are `present`.

        Raises `UnsupportedByEngine` for a group that the next replica neither shares nor repeats.
        """
        members = np.array(ranks, np.int64)
        here = np.isin(members, present)
        simulated = int(here.sum())
        shifted = np.array_equal(self.image[members], np.roll(members, -simulated))
        repeats = simulated == len(ranks) or (simulated * self.count == len(ranks) and shifted)
        if not here[:simulated].all() or not repeats:
            raise UnsupportedByEngine(f"the group of ranks {ranks[:8]} does not go round the replicas")
        return simulated

    def here(self, ranks: tuple[int, ...], present: Int64s) -> tuple[int, ...]:
        """Return the members of a group that its cut has."""
        return ranks[: self.simulated(ranks, present)]

    def require_alike(self, machine: Machine, lines: Iterable[tuple[int, ...]]) -> None:
        """Raise `UnsupportedByEngine` unless groups of replica 0 have routes like those of all their images.

        Where nothing takes a link that is all that may distinguish replicas.
        """
        for line in lines:
            images = [np.array(line, np.int64)]
            for _ in range(self.count - 1):
                images.append(self.image[images[-1]])
            if len(set(signatures(machine, [tuple(image.tolist()) for image in images]))) > 1:
                raise UnsupportedByEngine(
                    f"the routes among ranks {line[:8]} are not those of other replicas"
                )


class Mates(Replicas, frozen=True):
    """Ranks of which one stands for all of its stage, in runs where nothing takes a link.

    All run one program and reach what they share together; `image` goes round the ranks of a stage. Who makes
    them has shown that what their groups do, and their messages, last as long.
    """

    def require_alike(self, machine: Machine, lines: Iterable[tuple[int, ...]]) -> None:
        """Do nothing: that was shown before."""

    def simulated(self, ranks: tuple[int, ...], present: Int64s) -> int:
        """Return how many members of a group are in the program, wherever in it they stand."""
        return len(self.here(ranks, present))

    def here(self, ranks: tuple[int, ...], present: Int64s) -> tuple[int, ...]:
        """Return these members; `UnsupportedByEngine` for a group that has none."""
        present_ranks = tuple(np.array(ranks)[np.isin(ranks, present)].tolist())
        if not present_ranks:
            raise UnsupportedByEngine(f"of the group of ranks {ranks[:8]} none stands for the others")
        return present_ranks


def link_orbits(machine: Machine, replicas: Replicas, pairs: Int64s) -> tuple[Int32s, int]:
    """Return for each link the number of those that it stands for, NONE where no replica 0 takes it.

    Also how many numbers there are. `pairs` are GPUs of replica 0. Raises `UnsupportedByEngine` unless the
    routes between all images of a pair take as many links, of equal rates and latencies, each an image of
    the same one, and every link stands in one replica only.
    """
    ends = [pairs]
    for _ in range(replicas.count - 1):
        ends.append(replicas.image[ends[-1]])
    routes = machine.router.routes(np.concatenate(ends))
    lengths = np.diff(routes.starts).reshape(replicas.count, -1)
    if not (lengths == lengths[0]).all():
        raise UnsupportedByEngine("routes of replicas differ in length")
    links = np.asarray(routes.links, np.int64).reshape(replicas.count, -1)  # [replica, hop]
    fabric = machine.fabric
    for column in (fabric.bandwidth, fabric.latency):
        if not (column[links] == column[links[0]]).all():
            raise UnsupportedByEngine("links of replicas differ")
    _, first, hop = np.unique(links[0], return_index=True, return_inverse=True)
    images = links[:, first]  # [replica, link of replica 0]
    if not (images[:, hop.reshape(-1)] == links).all():
        raise UnsupportedByEngine("a link has two images in one replica")
    # Turn each column so that the smallest link comes first: links of one orbit then have equal columns.
    begin = images.argmin(axis=0)  # links of one orbit have the same images, but begin elsewhere among them
    turned = images[(begin + np.arange(replicas.count)[:, None]) % replicas.count, np.arange(len(first))]
    _, lowest, orbit = np.unique(turned[0], return_index=True, return_inverse=True)
    orbits = turned[:, lowest]
    # Equal first entries must mean equal columns, and no link may stand in two orbits.
    if not (orbits[:, orbit.reshape(-1)] == turned).all() or len(np.unique(orbits)) != orbits.size:
        raise UnsupportedByEngine("a link serves two replicas")
    number = np.full(len(fabric), NONE, np.int32)
    number[orbits] = np.arange(len(lowest))
    return number, len(lowest)


_TIMES_ROUND = {
    CollectiveType.REDUCE_SCATTER: 1,
    CollectiveType.ALL_GATHER: 1,
    CollectiveType.ALL_REDUCE: 2,
}
"""How often blocks go round the ring, for the collectives whose rings have a cut."""
_DIRECTIONS = {"ring": (1,), "bidirectional_ring": (1, -1)}


class Cut(Struct, frozen=True):
    """The part of a collective that some members have, one row per transfer."""

    source: Int32s
    distance: Int32s
    """Number of members from the sender to the receiver, round the whole group."""
    passed_on: Int32s
    """The transfer that follows from this one, or NONE: it is the last of its kind."""
    size: Int64s

    def template(self, members: int, simulated: int) -> Template:
        """Return the transfers of the first `simulated` of `members`, their sizes not yet numbered.

        As in any other template a transfer waits for its sender, a receiver that passes it on waits for what
        follows and any other for its arrival, and senders for what they sent.
        """
        tasks = len(self.source)
        receiver = (self.source + self.distance) % simulated
        last = self.passed_on == NONE
        identity = np.arange(tasks)
        origin = np.concatenate((identity, identity))
        target = np.concatenate((np.where(last, tasks + receiver, self.passed_on), tasks + self.source))
        gates: Int64s = np.concatenate((self.source, np.arange(simulated)))
        ends, pair = np.unique(np.stack((self.source, self.distance), 1), axis=0, return_inverse=True)
        return make_template(
            simulated,
            (self.source, np.zeros(tasks, np.int32)),
            (pair.reshape(-1), ends[:, 0].copy(), ends.sum(axis=1) % members),
            edges=TaskEdges(origin, target),
            arrivals=TaskEdges(gates, np.concatenate((identity, tasks + np.arange(simulated)))),
        )


def has_cut(algorithm: str | tuple[str, ...], collective: CollectiveType) -> bool:
    """Return whether every member's part in an algorithm is the next one's, where blocks are of one size."""
    if algorithm == "one_shot":
        return collective is CollectiveType.ALL_REDUCE
    return algorithm in _DIRECTIONS and collective in _TIMES_ROUND


def cut_of(phase: AxisPhase, members: int, simulated: int) -> Cut:
    """Return the part of the first `simulated` members in one phase of a collective, if it is alike for all.

    Raises `UnsupportedByEngine` for algorithms without a known cut, and for blocks of different sizes.
    """
    plain = phase.chunks == 1 and not phase.order and not phase.parents and phase.axis is None
    if plain and members > 2:
        if phase.algorithm == "one_shot" and phase.size:
            return _one_shot_cut(phase, members, simulated)
        if phase.algorithm in _DIRECTIONS and phase.collective in _TIMES_ROUND:
            return _ring_cut(phase, members, simulated)
    raise UnsupportedByEngine(f"{phase.algorithm} among {members} has no cut")


def _one_shot_cut(phase: AxisPhase, members: int, simulated: int) -> Cut:
    """Return the cut of an exchange in which every member sends to every other."""
    distance, source = np.divmod(np.arange((members - 1) * simulated, dtype=np.int32), simulated)
    return Cut(
        source.astype(np.int32),
        (distance + 1).astype(np.int32),
        np.full(len(source), NONE, np.int32),
        np.full(len(source), phase.size, np.int64),
    )


def _ring_cut(phase: AxisPhase, members: int, simulated: int) -> Cut:
    """Return the cut of a ring: in every round a member forwards what it received in the round before."""
    parts = 1 if phase.collective is CollectiveType.ALL_GATHER else members
    block, rest = divmod(phase.size, parts)
    directions = _DIRECTIONS[phase.algorithm]
    if rest or block < len(directions):
        raise UnsupportedByEngine("blocks of different sizes distinguish replicas")
    half = block // len(directions)
    rounds = _TIMES_ROUND[phase.collective] * (members - 1)
    source = np.tile(np.arange(simulated, dtype=np.int32), rounds)
    columns: list[tuple[Any, ...]] = []
    for direction, bytes_each in zip(directions, (block - half, half)[-len(directions) :], strict=True):
        first = len(columns) * len(source)
        passed_on = first + np.arange(len(source)) - source + simulated + (source + direction) % simulated
        passed_on[-simulated:] = NONE
        sizes = np.full(len(source), bytes_each, np.int64)
        columns.append((source, np.full_like(source, direction), passed_on.astype(np.int32), sizes))
    return Cut(*(np.concatenate(column) for column in zip(*columns, strict=True)))
