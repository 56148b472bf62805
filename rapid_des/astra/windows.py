"""Direct collectives whose messages are released one by one: windows, and all-reduces through a switch."""

from __future__ import annotations

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.astra.edges import Edges
from rapid_des.astra.exchange import Exchange
from rapid_des.astra.phases import AR, Phase
from rapid_des.errors import UnsupportedByEngine
from rapid_des.program.program import NONE, Template

_MOST_EDGES = 2**24


def windowed(phase: Phase, window: int, lags: Int64s, row: int) -> Template:
    """Return the template with one join a receipt: the message is there and its receive was posted.

    The i-th join to be met, whichever it is, releases send window + i (R1's counting predecessor). An
    all-reduce sends nothing of its second half before all of the first was received.
    """
    exchange = Exchange.of(phase)
    n, sends = phase.members, 2 * (phase.members - 1) if phase.collective is AR else phase.members - 1
    tasks = sends * n
    number = np.arange(sends)
    awaited = np.maximum(number - window + 1, 0)
    if phase.collective is AR:
        awaited[n - 1 :] = np.maximum(awaited[n - 1 :], n - 1)
    earlier, later = np.nonzero(number[:, None] < np.where(awaited > 0, number, 0))
    _require_few(phase, len(earlier) * n)
    task, member = np.arange(tasks), np.arange(n)
    received = np.repeat(number, n) * n + np.tile(exchange.destination, sends // (n - 1))
    release_lag = lags[window + np.maximum(awaited, 1) - 1]
    edges = Edges()
    edges.add(task, tasks + received, 0)
    edges.add(task, tasks + task, 0, at_injection=True)
    edges.add(tasks + earlier[:, None] * n + member, later[:, None] * n + member, release_lag[later][:, None])
    edges.add(tasks + task, 2 * tasks + np.tile(member, sends), np.repeat(lags[window:], n))
    rows = edges.rows(2 * tasks)
    pair = np.tile(exchange.pair, sends // (n - 1))
    need = np.concatenate((np.repeat(np.maximum(awaited, 1), n), np.full(tasks, 2)))
    return Template(
        members=n,
        pair=np.concatenate((pair, np.full(tasks, NONE, np.int32))),
        pair_source=exchange.pair_source,
        pair_destination=exchange.pair_destination,
        source=np.tile(member.astype(np.int32), 2 * sends),
        size=np.full(2 * tasks, row, np.int32),
        need=need.astype(np.int32),
        edge_starts=rows.starts,
        edge_target=rows.target,
        edge_lag=rows.lag,
        edge_at_injection=rows.at_injection,
        arrival_starts=np.arange(0, window * n + 1, window, dtype=np.int64),
        arrival_target=np.arange(window * n, dtype=np.int32).reshape(window, n).T.ravel(),
        arrival_lag=np.full(window * n, phase.endpoint.delay, np.int64),
        member_need=np.full(n, sends, np.int32),
        name=phase.title,
    )


def staggered_all_reduce(phase: Phase, unprocessed: int, lags: Int64s, row: int) -> Template:
    """Return the all-reduce whose last `unprocessed` receipts of the first half are still being reduced.

    A member starts its second half once all of the first was received and the next reduction is over; each
    later reduction releases one more message. Task groups: first half, all-received joins, the joins that
    count reductions, second half.
    """
    exchange = Exchange.of(phase)
    n, count = phase.members, len(exchange.source)
    _require_few(phase, count * (unprocessed + 2))
    member = np.arange(n)
    thresholds = np.arange(n - unprocessed, n)
    counting = count + n + np.arange(unprocessed)[:, None] * n
    second = count + n + unprocessed * n
    total = second + count
    reduced, last = int(lags[n - 1]), int(lags[-1])
    first, place = np.arange(count), np.maximum(np.arange(1, n), thresholds[0]) - thresholds[0]
    sends = second + np.arange(n - 1)[:, None] * n + member
    edges = Edges()
    edges.add(first, count + exchange.destination, 0)
    edges.add(first, counting + exchange.destination, reduced)
    edges.add(member, sends, reduced, at_injection=True)
    edges.add(count + member, sends, 0)
    edges.add(count + n + place[:, None] * n + member, sends, 0)
    edges.add(second + first, total + exchange.destination, last)
    edges.add(second + member, total + member, last, at_injection=True)
    rows = edges.rows(total)
    need = np.ones(total, np.int32)
    need[count : count + n] = n - 1
    need[count + n : second] = np.repeat(thresholds, n)
    need[second:] = 3
    return Template(
        members=n,
        pair=np.concatenate((exchange.pair, np.full(second - count, NONE, np.int32), exchange.pair)),
        pair_source=exchange.pair_source,
        pair_destination=exchange.pair_destination,
        source=np.tile(member.astype(np.int32), total // n),
        size=np.full(total, row, np.int32),
        need=need,
        edge_starts=rows.starts,
        edge_target=rows.target,
        edge_lag=rows.lag,
        edge_at_injection=rows.at_injection,
        arrival_starts=np.arange(0, count + 1, n - 1, dtype=np.int64),
        arrival_target=first.astype(np.int32).reshape(n - 1, n).T.ravel(),
        arrival_lag=np.full(count, lags[0], np.int64),
        member_need=np.full(n, n, np.int32),
        name=phase.title,
    )


def _require_few(phase: Phase, edges: int) -> None:
    if edges > _MOST_EDGES:
        raise UnsupportedByEngine(f"{phase.title}: {edges} dependencies; allowed: up to {_MOST_EDGES}")
