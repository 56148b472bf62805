"""Collectives by direct messages to every other member, all at once or a window of them at a time.

Member m sends to m + 1, m + 2, … (or downwards), and awaits messages from m - 1, m - 2, … in return. With the
full window everything is sent on arrival; an all-reduce scatters so, awaits and reduces all messages, then
gathers so. With a window, each reduced message releases the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rapid_des.errors import UnsupportedByEngine
from rapid_des.replay.astra.endpoint import reducing_steps
from rapid_des.replay.astra.phases import AR, Phase, message_size
from rapid_des.replay.program import NONE, Bools, Int32s, Int64s, Template
from rapid_des.replay.services import Sizes

_MOST_EDGES = 2**24


def direct(phase: Phase, rows: Sizes) -> Template:
    """Return the template of `direct`, or of `direct4` and the like with their window."""
    digits = "".join(filter(str.isdigit, phase.algorithm))
    window = min(int(digits or phase.members), phase.members - 1)
    size = message_size(phase, halved=phase.dialect == "extended")
    row = int(rows.rows(np.array([size]))[0])
    if window < phase.members - 1:
        return _windowed(phase, window, size, row)
    return _all_at_once(phase, size, row)


def _lags(phase: Phase, window: int, size: int) -> Int64s:
    """Return the delay before each send and after each receipt, in the order that they are processed."""
    n = phase.members
    receipts = 2 * (n - 1) if phase.collective is AR else n - 1
    reducing = (n - 1) * window if phase.endpoint.local else window
    reduces = reducing_steps(phase.collective, window + receipts, plain=window, reducing=reducing)
    return phase.endpoint.lags(np.full(window + receipts, size, np.int64), reduces)


@dataclass(frozen=True)
class _Exchange:
    """Everyone to everyone: task j·n + m is member m's message number j."""

    members: int
    source: Int32s
    destination: Int32s

    @staticmethod
    def of(phase: Phase) -> _Exchange:
        n = phase.members
        member = np.arange(n, dtype=np.int32)
        number = np.arange(1, n, dtype=np.int32)[:, None]
        peer = (member + phase.step * number) % n
        return _Exchange(n, np.tile(member, n - 1), peer.ravel().astype(np.int32))

    def edges(self, tasks: int, lag: int) -> tuple[Int64s, Int32s, Int64s, Bools]:
        """Return (lengths of rows, targets, lags, at injection) of edges that count towards `tasks` + member.

        A message counts for its destination when it arrives, and a member's first message, which is sent
        together with all its others, stands for having asked for what it receives.
        """
        n, count = self.members, len(self.source)
        lengths = np.ones(count, np.int64)
        lengths[:n] = 2
        target = np.empty(count + n, np.int32)
        target[0 : 2 * n : 2] = self.destination[:n]
        target[1 : 2 * n : 2] = self.source[:n]
        target[2 * n :] = self.destination[n:]
        target += tasks
        at_injection = np.zeros(count + n, np.bool_)
        at_injection[1 : 2 * n : 2] = True
        return lengths, target, np.full(count + n, lag, np.int64), at_injection


def _all_at_once(phase: Phase, size: int, row: int) -> Template:
    n = phase.members
    exchange = _Exchange.of(phase)
    count = len(exchange.source)
    lags = _lags(phase, n - 1, size)
    member = np.arange(n, dtype=np.int32)
    pairs = np.arange(count, dtype=np.int32)
    if phase.collective is AR:
        joins = np.arange(count + n, 2 * count + n, dtype=np.int32).reshape(n - 1, n).T
        parts = [
            exchange.edges(count, int(lags[n - 1])),
            (np.full(n, n - 1), joins.ravel(), np.zeros(count, np.int64), np.zeros(count, np.bool_)),
            exchange.edges(2 * count + n, int(lags[-1])),
        ]
        source = np.concatenate((exchange.source, member, exchange.source))
        pair = np.concatenate((pairs, np.full(n, NONE, np.int32), pairs))
        need = np.ones(len(source), np.int32)
        need[count : count + n] = n
    else:
        parts = [exchange.edges(count, int(lags[-1]))]
        source, pair, need = exchange.source, pairs, np.ones(count, np.int32)
    lengths, target, lag, at_injection = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Template(
        members=n,
        pair=pair,
        pair_source=exchange.source,
        pair_destination=exchange.destination,
        source=source,
        size=np.full(len(source), row, np.int32),
        need=need,
        edge_starts=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        edge_target=target.astype(np.int32),
        edge_lag=lag,
        edge_at_injection=at_injection,
        arrival_starts=np.arange(0, count + 1, n - 1, dtype=np.int64),
        arrival_target=pairs.reshape(n - 1, n).T.ravel(),
        arrival_lag=np.full(count, lags[0], np.int64),
        member_need=np.full(n, n, np.int32),
        name=phase.title,
    )


def _windowed(phase: Phase, window: int, size: int, row: int) -> Template:
    """Return the template with one join a receipt: the message is there and its receive was posted.

    The i-th join to be met, whichever it is, releases send window + i (R1's counting predecessor).
    """
    n = phase.members
    exchange = _Exchange.of(phase)
    sends = 2 * (n - 1) if phase.collective is AR else n - 1
    awaited = np.maximum(np.arange(sends) - window + 1, 0)
    if phase.collective is AR:
        awaited[n - 1 :] = np.maximum(awaited[n - 1 :], n - 1)
    origin, target, lag, at_injection = _window_edges(
        exchange, awaited, _lags(phase, window, size), window=window, named=phase.title
    )
    tasks = sends * n
    order = np.argsort(origin, kind="stable")
    need = np.concatenate((np.repeat(np.maximum(awaited, 1), n), np.full(tasks, 2))).astype(np.int32)
    member = np.arange(n, dtype=np.int32)
    pair = np.tile(np.arange(len(exchange.source), dtype=np.int32), sends // (n - 1))
    return Template(
        members=n,
        pair=np.concatenate((pair, np.full(tasks, NONE, np.int32))),
        pair_source=exchange.source,
        pair_destination=exchange.destination,
        source=np.tile(member, 2 * sends),
        size=np.full(2 * tasks, row, np.int32),
        need=need,
        edge_starts=np.searchsorted(origin[order], np.arange(2 * tasks + 1)).astype(np.int64),
        edge_target=target[order].astype(np.int32),
        edge_lag=lag[order],
        edge_at_injection=at_injection[order],
        arrival_starts=np.arange(0, window * n + 1, window, dtype=np.int64),
        arrival_target=np.arange(window * n, dtype=np.int32).reshape(window, n).T.ravel(),
        arrival_lag=np.full(window * n, phase.endpoint.delay, np.int64),
        member_need=np.full(n, sends, np.int32),
        name=phase.title,
    )


def _window_edges(
    exchange: _Exchange, awaited: Int64s, lags: Int64s, *, window: int, named: str
) -> tuple[Int64s, Int64s, Int64s, Bools]:
    """Return (origin, target, lag, at injection); joins follow the sends, join j·n + m of receipt j at m."""
    n, sends = exchange.members, len(awaited)
    tasks = sends * n
    number = np.arange(sends)
    earlier, later = np.nonzero(number[:, None] < np.where(awaited > 0, number, 0))
    if len(earlier) * n > _MOST_EDGES:
        raise UnsupportedByEngine(f"{named}: a window among so many; allowed: the full one, {n - 1}")
    member = np.arange(n)
    task = np.arange(tasks)
    turns = sends // (n - 1)
    received = np.repeat(np.arange(sends), n) * n + np.tile(exchange.destination, turns)
    release_lag = lags[window + np.maximum(awaited, 1) - 1]
    parts = [
        (task, tasks + received, np.zeros(tasks, np.int64), False),
        (task, tasks + task, np.zeros(tasks, np.int64), True),
        (
            (tasks + earlier[:, None] * n + member).ravel(),
            (later[:, None] * n + member).ravel(),
            np.repeat(release_lag[later], n),
            False,
        ),
        (tasks + task, 2 * tasks + np.tile(member, sends), np.repeat(lags[window:], n), False),
    ]
    flags = [np.full(len(part[0]), part[3]) for part in parts]
    origin, target, lag = (np.concatenate([part[column] for part in parts]) for column in range(3))
    return origin, target, lag, np.concatenate(flags)
