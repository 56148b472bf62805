"""Collectives whose members send one message at a time: rings, halving and doubling, and their kin.

Every member posts the receive of a message when it sends its own, so what arrives earlier waits for that:
the next round follows the later of the arrival and the member's own injection. Message sizes floor.
"""

from __future__ import annotations

from math import ceil, isqrt, log

import numpy as np

from rapid_des.arrays import Int32s, Int64s
from rapid_des.astra.phases import A2A, AG, AR, RS, CollectivePhase, message_size, nonzero, reducing_rounds
from rapid_des.program.program import Template
from rapid_des.program.rounds import Rounds, rounds_template
from rapid_des.program.services import Sizes


def lockstep(phase: CollectivePhase, partners: Int32s, sizes: Int64s, lags: Int64s, rows: Sizes) -> Template:
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


def relay(phase: CollectivePhase, rows: Sizes, *, rounds: int, size: int, reducing: int) -> Template:
    """Return a chain of neighbour messages around the ring, one in flight a member."""
    sizes = np.full(rounds, size, np.int64)
    reduces = reducing_rounds(phase.collective, rounds + 1, plain=1, reducing=reducing)
    lags = phase.endpoint.lags(np.full(rounds + 1, size, np.int64), reduces)
    neighbour = (np.arange(phase.members) + phase.direction) % phase.members
    return lockstep(phase, neighbour[None, :].astype(np.int32), sizes, lags, rows)


def ring(phase: CollectivePhase, rows: Sizes) -> Template:
    """Return the ring; an all-to-all relays every message past those in between."""
    return _ring(phase, rows, halved=phase.dialect == "extended")


def mesh(phase: CollectivePhase, rows: Sizes) -> Template:
    """Return the extended dialect's mesh: a ring with the stock sizes."""
    return _ring(phase, rows, halved=False)


def _ring(phase: CollectivePhase, rows: Sizes, *, halved: bool) -> Template:
    n = phase.members
    rounds = {AR: 2 * (n - 1), A2A: n * (n - 1) // 2}.get(phase.collective, n - 1)
    return relay(phase, rows, rounds=rounds, size=message_size(phase, halved=halved), reducing=n - 1)


def hypercube(phase: CollectivePhase, rows: Sizes) -> Template:
    """Return the extended dialect's hypercube: ceil(ln n) neighbour messages (the natural logarithm)."""
    n = phase.members
    once = ceil(log(n))
    rounds = {AR: 2 * once, A2A: n * (n - 1) // 2}.get(phase.collective, once)
    return relay(phase, rows, rounds=rounds, size=message_size(phase, halved=False), reducing=n - 1)


def torus2d(phase: CollectivePhase, rows: Sizes) -> Template:
    """Return the extended dialect's torus2d: fewer neighbour messages on one logical ring."""
    n, edge = phase.members, isqrt(phase.members)
    rounds = {AR: 4 * (edge - 1), A2A: (n - 1) * edge // 2}.get(phase.collective, (n - 1) // 2)
    return relay(phase, rows, rounds=rounds, size=message_size(phase, halved=False), reducing=edge - 1)


def halving_doubling(phase: CollectivePhase, rows: Sizes) -> Template:
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
