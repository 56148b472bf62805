"""Collectives by direct messages to every other member, all at once or a window of them at a time.

Member m sends to m + 1, m + 2, … (or downwards), and awaits messages from m - 1, m - 2, … in return. With the
full window everything is sent on arrival; an all-reduce scatters so, awaits and reduces all messages, then
gathers so. With a window, each reduced message releases the next.
"""

from __future__ import annotations

from math import trunc

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.astra.endpoint import reducing_steps
from rapid_des.astra.exchange import Exchange
from rapid_des.astra.phases import AR, Phase, message_size
from rapid_des.astra.windows import staggered_all_reduce, windowed
from rapid_des.program.program import NONE, Template
from rapid_des.program.services import Sizes
from rapid_des.units import PS_PER_NS


def direct(phase: Phase, rows: Sizes) -> Template:
    """Return the template of `direct`, or of `direct4` and the like with their window."""
    digits = "".join(filter(str.isdigit, phase.algorithm))
    window = min(int(digits or phase.members), phase.members - 1)
    size = message_size(phase, halved=phase.dialect == "extended")
    row = int(rows.rows(np.array([size]))[0])
    lags = _lags(phase, window, size)
    if window < phase.members - 1:
        return windowed(phase, window, lags, row)
    unprocessed = _unprocessed(phase, size, int(lags[phase.members - 1]))
    if phase.collective is AR and unprocessed > 1:
        return staggered_all_reduce(phase, unprocessed, lags, row)
    return _all_at_once(phase, lags, row)


def _lags(phase: Phase, window: int, size: int) -> Int64s:
    """Return the delay before each send and after each receipt, in the order that they are processed."""
    n = phase.members
    receipts = 2 * (n - 1) if phase.collective is AR else n - 1
    reducing = (n - 1) * window if phase.endpoint.local else window
    reduces = reducing_steps(phase.collective, window + receipts, plain=window, reducing=reducing)
    return phase.endpoint.lags(np.full(window + receipts, size, np.int64), reduces)


def _unprocessed(phase: Phase, size: int, lag: int) -> int:
    """Return how many receipts of an all-reduce's first half are unprocessed when its last message arrives.

    Through a switch port messages arrive one serialization apart, and each takes `lag` to process.
    """
    if not phase.port:
        return 1
    apart = max(1, trunc(size / phase.port) * PS_PER_NS)
    return min(lag // apart + 1, phase.members - 1)


def _all_at_once(phase: Phase, lags: Int64s, row: int) -> Template:
    n = phase.members
    exchange = Exchange.of(phase)
    count = len(exchange.source)
    member = np.arange(n, dtype=np.int32)
    firsts = np.arange(count, dtype=np.int32)
    if phase.collective is AR:
        joins = np.arange(count + n, 2 * count + n, dtype=np.int32).reshape(n - 1, n).T
        parts = [
            exchange.edges(count, int(lags[n - 1])),
            (np.full(n, n - 1), joins.ravel(), np.zeros(count, np.int64), np.zeros(count, np.bool_)),
            exchange.edges(2 * count + n, int(lags[-1])),
        ]
        source = np.concatenate((exchange.source, member, exchange.source))
        pair = np.concatenate((exchange.pair, np.full(n, NONE, np.int32), exchange.pair))
        need = np.ones(len(source), np.int32)
        need[count : count + n] = n
    else:
        parts = [exchange.edges(count, int(lags[-1]))]
        source, pair, need = exchange.source, exchange.pair, np.ones(count, np.int32)
    lengths, target, lag, at_injection = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Template(
        members=n,
        pair=pair,
        pair_source=exchange.pair_source,
        pair_destination=exchange.pair_destination,
        source=source,
        size=np.full(len(source), row, np.int32),
        need=need,
        edge_starts=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        edge_target=target.astype(np.int32),
        edge_lag=lag,
        edge_at_injection=at_injection,
        arrival_starts=np.arange(0, count + 1, n - 1, dtype=np.int64),
        arrival_target=firsts.reshape(n - 1, n).T.ravel(),
        arrival_lag=np.full(count, lags[0], np.int64),
        member_need=np.full(n, n, np.int32),
        name=phase.title,
    )
