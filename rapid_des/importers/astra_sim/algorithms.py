"""The collective algorithms that system files name: what each needs, and the template it makes.

Rings, halving and doubling, and their kin send one message at a time. Every member posts the receive of a
message when it sends its own, so what arrives earlier waits for that: the next round follows the later of the
arrival and the member's own injection. Sizes of messages are rounded down. The double binary tree sends whole
chunks up a tree and down again; algorithms of direct messages stand in `direct`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import ceil, isqrt, log

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s, distinct_rows
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import ConfigError
from rapid_des.importers.astra_sim.direct import direct
from rapid_des.importers.astra_sim.files import Setup
from rapid_des.importers.astra_sim.phases import (
    A2A,
    AG,
    AR,
    RS,
    CollectivePhase,
    message_size,
    nonzero,
    reducing_rounds,
)
from rapid_des.program.builders import make_template
from rapid_des.program.collectives.templates import Templates
from rapid_des.program.program import TaskEdges, Template, edges, joined
from rapid_des.program.rounds import Rounds, rounds_template
from rapid_des.program.services import MessageSizes

_TAGS = 500_000_000
"""ASTRA-sim reduces tags modulo this number."""


def lockstep(
    phase: CollectivePhase, partners: Int32s, sizes: Int64s, lags: Int64s, rows: MessageSizes
) -> Template:
    """Return the template of members that each send one message a round and then await one.

    `partners` is [pattern of a round, member], to whom it sends; rounds repeat the patterns from the first
    on, or there are as many patterns as rounds. `lags` has one entry more than there are rounds: the
    processing before each round and after the last.
    """
    patterns = len(partners)
    member = np.arange(phase.members, dtype=np.int32)
    rounds = Rounds(
        partner=partners.astype(np.int32),
        pair=np.arange(patterns * phase.members, dtype=np.int32).reshape(patterns, phase.members),
        size=rows.rows(sizes),
        lag=lags.astype(np.int64),
    )
    return rounds_template(rounds, np.tile(member, patterns), rounds.partner.ravel(), phase.title)


def relay(phase: CollectivePhase, rows: MessageSizes, *, rounds: int, size: int, reducing: int) -> Template:
    """Return a chain of neighbour messages around the ring, one in flight a member."""
    sizes = np.full(rounds, size, np.int64)
    reduces = reducing_rounds(phase.collective, rounds + 1, plain=1, reducing=reducing)
    lags = phase.endpoint.lags(np.full(rounds + 1, size, np.int64), reduces)
    neighbour = (np.arange(phase.members) + phase.direction) % phase.members
    return lockstep(phase, neighbour[None, :].astype(np.int32), sizes, lags, rows)


def ring(phase: CollectivePhase, rows: MessageSizes) -> Template:
    """Return the ring; an all-to-all relays every message past those in between."""
    return _ring(phase, rows, halved=phase.dialect == "extended")


def mesh(phase: CollectivePhase, rows: MessageSizes) -> Template:
    """Return the extended dialect's mesh: a ring with the stock sizes."""
    return _ring(phase, rows, halved=False)


def _ring(phase: CollectivePhase, rows: MessageSizes, *, halved: bool) -> Template:
    n = phase.members
    rounds = {AR: 2 * (n - 1), A2A: n * (n - 1) // 2}.get(phase.collective, n - 1)
    return relay(phase, rows, rounds=rounds, size=message_size(phase, halved=halved), reducing=n - 1)


def hypercube(phase: CollectivePhase, rows: MessageSizes) -> Template:
    """Return the extended dialect's hypercube: ceil(ln n) neighbour messages (the natural logarithm)."""
    n = phase.members
    once = ceil(log(n))
    rounds = {AR: 2 * once, A2A: n * (n - 1) // 2}.get(phase.collective, once)
    return relay(phase, rows, rounds=rounds, size=message_size(phase, halved=False), reducing=n - 1)


def torus2d(phase: CollectivePhase, rows: MessageSizes) -> Template:
    """Return the extended dialect's torus2d: fewer neighbour messages on one logical ring."""
    n, edge = phase.members, isqrt(phase.members)
    rounds = {AR: 4 * (edge - 1), A2A: (n - 1) * edge // 2}.get(phase.collective, (n - 1) // 2)
    return relay(phase, rows, rounds=rounds, size=message_size(phase, halved=False), reducing=edge - 1)


def halving_doubling(phase: CollectivePhase, rows: MessageSizes) -> Template:
    """Return recursive halving and doubling: partners differ in one bit of their number."""
    levels = phase.members.bit_length() - 1
    offsets, sizes = _exchanges(phase, levels)
    nonzero(min(sizes), phase)
    reduces = reducing_rounds(phase.collective, len(offsets) + 1, plain=1, reducing=levels - 1)
    lags = phase.endpoint.lags(np.array([*sizes, 0], np.int64), reduces)
    partners = np.arange(phase.members, dtype=np.int32) ^ np.array(offsets, np.int32)[:, None]
    return lockstep(phase, partners, np.array(sizes, np.int64), lags, rows)


def _exchanges(phase: CollectivePhase, levels: int) -> tuple[list[int], list[int]]:
    """Return the partner offsets and message sizes of each round."""
    up = [1 << level for level in range(levels)]
    halves = [phase.size >> (level + 1) for level in range(levels)]
    if phase.collective is RS:
        return up, halves
    first = phase.size if phase.collective is AG else 2 * (phase.size >> (levels + 1))
    doubles = [first << level for level in range(levels)]
    if phase.collective is AG:
        return up[::-1], doubles
    return up + up[::-1], halves + doubles


def parents(members: int, *, highest_root: bool) -> list[int]:
    r"""Return the parent of each member; the root is its own.

    Members stand in order in the tree; its root has one child, whose subtree is complete:

            3                0           the tree rooted at the highest of four members,
           /                  \          and the one rooted at the lowest
          1                  2
         / \                  / \
        0   2                1   3

    >>> parents(4, highest_root=True)
    [1, 3, 1, 3]
    """
    root, first = (members - 1, 0) if highest_root else (0, 1)
    parent = [root] * members

    def hang(low: int, high: int, under: int) -> None:
        if low <= high:
            middle = (low + high) // 2
            parent[middle] = under
            hang(low, middle - 1, middle)
            hang(middle + 1, high, middle)

    hang(first, first + members - 2, root)
    return parent


def double_binary_tree(phase: CollectivePhase, rows: MessageSizes) -> Template:
    """Return the template: first each member's message to its parent, then the result back to it.

    The root has neither, so that the tasks of member m are number m - (m > root) of their kind.
    """
    n = phase.members
    parent = parents(n, highest_root=phase.tree == 0)
    root = next(member for member in range(n) if parent[member] == member)
    child = np.delete(np.arange(n), root)
    sender = np.concatenate((child, np.array(parent)[child]))
    receiver = np.concatenate((sender[n - 1 :], child))
    from_tasks, arrivals = _tree_edges(phase, parent, root)
    return make_template(
        n,
        (sender, np.full(len(sender), rows.row(nonzero(phase.size, phase)))),
        (np.arange(len(sender)), sender, receiver),
        edges=joined(from_tasks),
        arrivals=joined(arrivals),
        name=phase.title,
    )


def _tree_edges(
    phase: CollectivePhase, parent: list[int], root: int
) -> tuple[list[TaskEdges], list[TaskEdges]]:
    """Return the edges among tasks and to members done, and those from arrivals."""
    n, plain = phase.members, phase.endpoint.delay
    reduced = plain + phase.endpoint.reduction(phase.size)
    up = [member - (member > root) for member in range(n)]
    down = [n - 1 + number for number in up]
    children: list[list[int]] = [[] for _ in range(n)]
    for member in range(n):
        if member != root:
            children[parent[member]].append(member)
    from_tasks, arrivals = [], []
    for member, below in enumerate(children):
        done = 2 * (n - 1) + member
        ups, downs = [up[child] for child in below], [down[child] for child in below]
        if not below:
            arrivals.append(edges(member, up[member], plain))
            from_tasks += [edges(up[member], done, plain, at_start=True), edges(down[member], done, plain)]
            continue
        for task in downs if member == root else [up[member]]:
            arrivals.append(edges(member, task, reduced))
            from_tasks.append(edges(ups, task, reduced))
        if member != root:
            from_tasks += [
                edges(up[member], downs, reduced, at_start=True),
                edges(down[member], downs, reduced),
            ]
        from_tasks.append(edges(downs[0], done, at_start=True))
    return from_tasks, arrivals


class PhaseAlgorithm(Struct, frozen=True):
    """How a collective among n members becomes a template, and which collectives it supports."""

    build: Callable[[CollectivePhase, MessageSizes], Template]
    collectives: frozenset[CollectiveType] = frozenset((AR, AG, RS, A2A))
    members: Callable[[int], bool] = lambda n: n > 1
    wanted: str = "more than one member"
    extended: bool = False
    """Whether only the extended dialect has it."""


def _is_power_of_two(n: int) -> bool:
    return n > 1 and n & (n - 1) == 0


def _is_square(n: int) -> bool:
    return n > 1 and isqrt(n) ** 2 == n


ALGORITHMS: Mapping[str, PhaseAlgorithm] = {
    "ring": PhaseAlgorithm(ring),
    "direct": PhaseAlgorithm(direct),
    "halvingDoubling": PhaseAlgorithm(
        halving_doubling, frozenset((AR, AG, RS)), _is_power_of_two, "a power of two of members"
    ),
    "doubleBinaryTree": PhaseAlgorithm(
        double_binary_tree, frozenset((AR,)), _is_power_of_two, "a power of two of members"
    ),
    "mesh": PhaseAlgorithm(mesh, extended=True),
    "hypercube": PhaseAlgorithm(hypercube, extended=True),
    "torus2d": PhaseAlgorithm(
        torus2d, members=_is_square, wanted="a square number of members", extended=True
    ),
}

_FLAT = {"oneRing": "ring", "oneDirect": "direct", "oneHalvingDoubling": "halvingDoubling"}

_WINDOW = re.compile(r"((?:d|oneD)irect)(\d+)\Z")


def is_flat(name: str) -> bool:
    """Return whether an implementation runs on one ring over all ranks instead of along the dimensions."""
    return _kind(name) in _FLAT


def build(phase: CollectivePhase, rows: MessageSizes) -> Template:
    """Return the template of a phase; a `ConfigError` says what the algorithm cannot do."""
    kind = _kind(phase.algorithm)
    name = _FLAT.get(kind, kind)
    known = [key for key, entry in ALGORITHMS.items() if phase.dialect == "extended" or not entry.extended]
    if name not in known:
        allowed = ", ".join([*known, *_FLAT])
        raise ConfigError(f"{phase.algorithm!r} is not one of {allowed}, direct with a window as in direct4")
    algorithm = ALGORITHMS[name]
    if phase.collective not in algorithm.collectives:
        allowed = ", ".join(sorted(kind.name for kind in algorithm.collectives))
        raise ConfigError(f"{phase.title}: {name} serves {allowed} only")
    if not algorithm.members(phase.members):
        raise ConfigError(f"{phase.title}: {name} needs {algorithm.wanted}")
    return algorithm.build(phase, rows)


def _kind(name: str) -> str:
    window = _WINDOW.match(name)
    return window[1] if window else name


class PhaseTemplates:
    """Numbers the templates of one program, and the channels that tags and sizes of messages distinguish."""

    def __init__(self, setup: Setup) -> None:
        self.sizes = MessageSizes()
        self._shared = Templates(self.sizes, BoundedCache())
        self._file = str(setup.files.system)
        self._channels: dict[tuple[int, int], int] = {}

    @property
    def numbered(self) -> tuple[Template, ...]:
        """The templates in order of their numbers."""
        return tuple(self._shared.numbered)

    def phase(self, phase: CollectivePhase) -> int:
        """Return the template number of a collective's phase."""
        return self._shared.number(phase, lambda: self._build(phase))

    def messages(self, sizes: Int64s) -> Int32s:
        """Return the template numbers of messages."""
        return self._shared.messages(sizes)

    def visit(self, size: int) -> int:
        """Return the template number of a use of remote memory."""
        name = f"{size} B from or to remote memory"
        return self._shared.number(("visit", size), lambda: self._shared.transfer(size, name, members=1))

    def channels(self, tags: Int64s, sizes: Int64s) -> Int32s:
        """Return the keys of messages between the same two ranks: their tag and size."""
        rows, place = distinct_rows(tags % _TAGS, sizes)
        stated = map(tuple, rows.tolist())
        numbers = [self._channels.setdefault(row, len(self._channels)) for row in stated]
        return np.array(numbers, np.int32)[place]

    def _build(self, phase: CollectivePhase) -> Template:
        try:
            return build(phase, self.sizes)
        except ConfigError as error:
            raise ConfigError(str(error), file=self._file) from None
