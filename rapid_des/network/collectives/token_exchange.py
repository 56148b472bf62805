"""Token exchanges with experts: the bytes between each two ranks, and the transfers that carry them.

All tokens of a group choose their experts with the same odds. An all-to-all that carries every copy by itself
sends each member its share of the copies. One that sends a copy *once* (DeepEP's normal kernels) expects a
member to be chosen by 1 - (1 - w)^k of the tokens, w being its share of the copies and k those of a token; a
token goes over the network once for each node, to the member at its own place there, which passes it on
inside. Where a token's experts are kept to m nodes (DeepSeek-AI 2024, section 2.1.2), nodes and members are
met as if there were m nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rapid_des.chakra.trace import Exchange
from rapid_des.network.collectives.schedule import Schedule

Shares = NDArray[np.float64]


def shares_of(exchange: Exchange, members: int) -> Shares:
    """Return which share of all copies each member's experts get.

    >>> shares_of(Exchange((3, 1)), 2).tolist()
    [0.75, 0.25]
    """
    if not exchange.copies:
        return np.full(members, 1 / members)
    copies: Shares = np.array(exchange.copies, np.float64) / sum(exchange.copies)
    return copies


def imbalance(exchange: Exchange) -> float:
    """Return how many times the even share the member with most copies gets.

    >>> imbalance(Exchange((3, 1)))
    1.5
    """
    if not exchange.copies:
        return 1.0
    return float(max(exchange.copies) * len(exchange.copies) / sum(exchange.copies))


def expected_places(parts: int, topk: int) -> float:
    """Return in how many of `parts` equal places a token's experts are expected.

    >>> expected_places(2, 2)
    1.5
    """
    return parts * (1.0 - (1.0 - 1.0 / parts) ** topk)


def _met(shares: Shares, topk: int, most: float) -> Shares:
    """Return by how many of a rank's tokens each place is met, over all places at most `most` of them."""
    odds = 1.0 - (1.0 - shares) ** topk
    met: Shares = odds * min(1.0, most / odds.sum())
    return met


def exchange_schedule(exchange: Exchange, size: int, counts: Sequence[int]) -> Schedule:
    """Return the transfers of an exchange of `size` bytes a rank among ranks 0..n-1 sorted by node.

    `counts` are the ranks on each node. Transfers do not wait for one another: a rank passes on what has
    come of a token while more comes.
    """
    members = sum(counts)
    if exchange.once and len(counts) > 1 and len(set(counts)) == 1:
        carried = _relayed(exchange, size, (len(counts), counts[0]))
    elif exchange.once:
        met = _met(shares_of(exchange, members), exchange.topk, members)
        carried = np.broadcast_to(met * size / exchange.topk, (members, members)).copy()
    else:
        carried = np.broadcast_to(shares_of(exchange, members) * size, (members, members)).copy()
    return _transfers(carried.T if exchange.returns else carried)


def _relayed(exchange: Exchange, size: int, grid: tuple[int, int]) -> Shares:
    """Return bytes [from, to]: over rails to each node once, then inside the node to each member once."""
    nodes, per_node = grid
    limit = min(nodes, exchange.nodes or nodes)
    shares, tokens = shares_of(exchange, nodes * per_node), size / exchange.topk
    of_node = _met(shares.reshape(grid).sum(1), exchange.topk, expected_places(limit, exchange.topk))
    of_rank = _met(shares, exchange.topk, expected_places(limit * per_node, exchange.topk))
    node, place = np.divmod(np.arange(nodes * per_node), per_node)
    # A token crosses to the same place of each other node (its rail), and is passed on inside that node.
    rail = (place[:, None] == place) & (node[:, None] != node)
    inside = (node[:, None] == node) & (place[:, None] != place)
    carried: Shares = rail * of_node[node] * tokens + inside * of_rank * tokens * nodes
    return carried


def _transfers(carried: Shares) -> Schedule:
    """Return a transfer for every pair that carries something, rounded up to bytes."""
    members = len(carried)
    source = np.repeat(np.arange(members), members - 1)
    # Each member sends to the next one first, then to the one after it: nobody is everybody's first.
    step = np.tile(np.arange(1, members), members)
    destination = (source + step) % members
    size = np.ceil(carried[source, destination]).astype(np.int64)
    moves = np.flatnonzero(size)
    return Schedule(
        members=members,
        source=source[moves].astype(np.int32),
        destination=destination[moves].astype(np.int32),
        size=size[moves],
        reduces=np.zeros(len(moves), np.bool_),
        offset=np.zeros(len(moves), np.int64),
        dependency_starts=np.zeros(len(moves) + 1, np.int64),
        dependencies=np.zeros(0, np.int32),
    )
