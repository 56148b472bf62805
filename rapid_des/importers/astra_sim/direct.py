"""Collectives by direct messages to every other member, all at once or a window of them at a time.

Member m sends to m + 1, m + 2, … (or downwards), and awaits messages from m - 1, m - 2, … in return. With the
full window everything is sent on arrival; an all-reduce scatters so, awaits and reduces all messages, then
gathers so. With a window, each reduced message releases the next. Through a switch port messages arrive one
after the other, so that an all-reduce's second half starts while the last ones are still being reduced.
"""

from __future__ import annotations

from math import trunc

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s
from rapid_des.errors import UnsupportedByEngine
from rapid_des.importers.astra_sim.phases import AR, CollectivePhase, message_size, reducing_rounds
from rapid_des.program.builders import make_template
from rapid_des.program.program import NONE, TaskEdges, Template, edges, joined
from rapid_des.program.rounds import RoundsAtOnce, rounds_template
from rapid_des.program.services import MessageSizes
from rapid_des.units import PS_PER_NS

_MOST_EDGES = 2**24


class DirectAllToAll(Struct, frozen=True):
    """All to all: task j·n + m is member m's message j; pairs ascend by (source, destination)."""

    members: int
    source: Int32s
    destination: Int32s
    pair: Int32s
    pair_source: Int32s
    pair_destination: Int32s

    @staticmethod
    def of(phase: CollectivePhase) -> DirectAllToAll:
        """Return the messages of a phase's members."""
        n = phase.members
        member, others = np.arange(n, dtype=np.int32), np.arange(n - 1, dtype=np.int32)
        peer = member + phase.direction * (others + 1)[:, None]
        peer %= n
        pair = member * np.int32(n - 1) + peer
        pair -= peer > member
        return DirectAllToAll(
            members=n,
            source=np.tile(member, n - 1),
            destination=peer.ravel(),
            pair=pair.ravel(),
            pair_source=np.repeat(member, n - 1),
            pair_destination=(others + (others >= member[:, None])).ravel(),
        )

    def received(self, sends: int, target: int, lag: int) -> list[TaskEdges]:
        """Return the edges of the messages, tasks from `sends` on, that count towards `target` + member.

        A message counts for its destination when it arrives, and a member's first message, which is sent
        together with all its others, stands for having asked for what it receives.
        """
        member = np.arange(self.members, dtype=np.int32)
        message = np.arange(len(self.source), dtype=np.int32)
        return [
            edges(sends + message, target + self.destination, lag),
            edges(sends + member, target + member, lag, at_start=True),
        ]

    def sent(self, lag: int) -> TaskEdges:
        """Return the edges of members that send all their messages `lag` after their arrival."""
        n = self.members
        member, first = np.arange(n, dtype=np.int32)[:, None], n * np.arange(n - 1, dtype=np.int32)
        return edges(member, member + first, lag)


def direct(phase: CollectivePhase, rows: MessageSizes) -> Template:
    """Return the template of `direct`, or of `direct4` and the like with their window."""
    digits = "".join(filter(str.isdigit, phase.algorithm))
    window = min(int(digits or phase.members), phase.members - 1)
    size = message_size(phase, halved=phase.dialect == "extended")
    row = int(rows.rows(np.array([size]))[0])
    lags = _lags(phase, window, size)
    if window < phase.members - 1:
        return _windowed(phase, window, lags, row)
    unprocessed = _unprocessed(phase, size, int(lags[phase.members - 1]))
    if phase.collective is AR and unprocessed > 1:
        return _staggered_all_reduce(phase, unprocessed, lags, row)
    return _all_at_once(phase, lags, row)


def _lags(phase: CollectivePhase, window: int, size: int) -> Int64s:
    """Return the delay before each send and after each receipt, in the order that they are processed."""
    n = phase.members
    receipts = 2 * (n - 1) if phase.collective is AR else n - 1
    reducing = (n - 1) * window if phase.endpoint.local else window
    reduces = reducing_rounds(phase.collective, window + receipts, plain=window, reducing=reducing)
    return phase.endpoint.lags(np.full(window + receipts, size, np.int64), reduces)


def _unprocessed(phase: CollectivePhase, size: int, lag: int) -> int:
    """Return how many receipts of an all-reduce's first half are unprocessed when its last message arrives.

    Through a switch port messages arrive one serialization apart, and each takes `lag` to process.
    """
    if not phase.port:
        return 1
    apart = max(1, trunc(size / phase.port) * PS_PER_NS)
    return min(lag // apart + 1, phase.members - 1)


def _all_at_once(phase: CollectivePhase, lags: Int64s, row: int) -> Template:
    exchange, n = DirectAllToAll.of(phase), phase.members
    ends = exchange.pair_source, exchange.pair_destination
    if phase.collective is not AR:
        partner, pair = exchange.destination.reshape(n - 1, n), exchange.pair.reshape(n - 1, n)
        rounds = RoundsAtOnce(partner, pair, np.full(n - 1, row, np.int32), lags[[0, -1]])
        return rounds_template(rounds, *ends, phase.title)
    count, member = len(exchange.source), np.arange(n, dtype=np.int32)
    second = count + n  # one join a member: all of its first half are reduced
    releases = edges(count + member[:, None], second + member[:, None] + n * np.arange(n - 1))
    received = [
        *exchange.received(0, count, int(lags[n - 1])),
        releases,
        *exchange.received(second, second + count, int(lags[-1])),
    ]
    source = np.concatenate((exchange.source, member, exchange.source))
    pair = np.concatenate((exchange.pair, np.full(n, NONE, np.int32), exchange.pair))
    return make_template(
        n,
        (source, np.full(len(source), row, np.int32)),
        (pair, *ends),
        edges=joined(received),
        arrivals=exchange.sent(int(lags[0])),
        name=phase.title,
    )


def _windowed(phase: CollectivePhase, window: int, lags: Int64s, row: int) -> Template:
    """Return the template with one join a receipt: the message is there and its receive was posted.

    The i-th join to be met, whichever it is, releases send window + i (R1's counting predecessor). An
    all-reduce sends nothing of its second half before all of the first was received.
    """
    exchange = DirectAllToAll.of(phase)
    n, sends = phase.members, 2 * (phase.members - 1) if phase.collective is AR else phase.members - 1
    tasks = sends * n
    number = np.arange(sends)
    # How many receipts each send waits for: those that slide the window over it.
    awaited = np.maximum(number - window + 1, 0)
    if phase.collective is AR:
        awaited[n - 1 :] = np.maximum(awaited[n - 1 :], n - 1)
    # All pairs (receipt, later send that waits): a send's predecessors are counted, whichever come first.
    earlier, later = np.nonzero(number[:, None] < np.where(awaited > 0, number, 0))
    _require_few(phase, len(earlier) * n)
    task, member = np.arange(tasks), np.arange(n)
    # The join at the receiver for each message. Joins stand behind all tasks, in the same order.
    received = np.repeat(number, n) * n + np.tile(exchange.destination, sends // (n - 1))
    release_lag = lags[window + np.maximum(awaited, 1) - 1]
    # A send needs its receipts, or its member's arrival; a join needs the message and its own send.
    need = np.concatenate((np.repeat(np.maximum(awaited, 1), n), np.full(tasks, 2)))
    pair = np.concatenate((np.tile(exchange.pair, sends // (n - 1)), np.full(tasks, NONE)))
    first = np.arange(window)[:, None] * n
    return make_template(
        n,
        (np.tile(member, 2 * sends), np.full(2 * tasks, row)),
        (pair, exchange.pair_source, exchange.pair_destination),
        edges=joined(
            [
                edges(task, tasks + received),
                edges(task, tasks + task, at_start=True),
                edges(
                    tasks + earlier[:, None] * n + member,
                    later[:, None] * n + member,
                    release_lag[later][:, None],
                ),
                edges(tasks + task, 2 * tasks + np.tile(member, sends), np.repeat(lags[window:], n)),
            ]
        ),
        arrivals=edges(member, first + member, phase.endpoint.delay),
        need=need,
        name=phase.title,
    )


def _staggered_all_reduce(phase: CollectivePhase, unprocessed: int, lags: Int64s, row: int) -> Template:
    """Return the all-reduce whose last `unprocessed` receipts of the first half are still being reduced.

    A member starts its second half once all of the first was received and the next reduction is over; each
    later reduction releases one more message. Task groups: first half, all-received joins, the joins that
    count reductions, second half.
    """
    exchange = DirectAllToAll.of(phase)
    n, count = phase.members, len(exchange.source)
    _require_few(phase, count * (unprocessed + 2))
    member = np.arange(n)
    # Counting joins, a row for each number of reductions that releases a message, a column for each member.
    thresholds = np.arange(n - unprocessed, n)
    counting = count + n + np.arange(unprocessed)[:, None] * n
    second = count + n + unprocessed * n
    total = second + count
    reduced, last = int(lags[n - 1]), int(lags[-1])
    # Message k of the second half follows k reductions; below the first threshold, that many.
    first, counted = np.arange(count), np.maximum(np.arange(1, n), thresholds[0]) - thresholds[0]
    sends = second + np.arange(n - 1)[:, None] * n + member
    need = np.ones(total, np.int32)
    need[count : count + n] = n - 1
    need[count + n : second] = np.repeat(thresholds, n)
    # The all-received join, a counting join, and a reduction's time after the member's first message.
    need[second:] = 3
    joins = np.full(second - count, NONE, np.int32)
    return make_template(
        n,
        (np.tile(member, total // n), np.full(total, row)),
        (
            np.concatenate((exchange.pair, joins, exchange.pair)),
            exchange.pair_source,
            exchange.pair_destination,
        ),
        edges=joined(
            [
                edges(first, count + exchange.destination),
                edges(first, counting + exchange.destination, reduced),
                edges(member, sends, reduced, at_start=True),
                edges(count + member, sends),
                edges(count + n + counted[:, None] * n + member, sends),
                *exchange.received(second, total, last),
            ]
        ),
        arrivals=exchange.sent(int(lags[0])),
        need=need,
        name=phase.title,
    )


def _require_few(phase: CollectivePhase, edges: int) -> None:
    if edges > _MOST_EDGES:
        raise UnsupportedByEngine(f"{phase.title}: {edges} dependencies; allowed: up to {_MOST_EDGES}")
