"""How many rows each expert gets: the two distributions that the MoE measurements were taken with."""

from __future__ import annotations

import numpy as np


def balanced(pairs: int, experts: int) -> tuple[int, ...]:
    """Return the rows of each expert when `pairs` (token, expert) pairs are dealt out in turn.

    >>> balanced(10, 4)
    (3, 3, 2, 2)
    """
    each, more = divmod(pairs, experts)
    return tuple(each + (index < more) for index in range(experts))


def power_law(tokens: int, topk: int, experts: int, exponent: float) -> tuple[int, ...]:
    """Return the rows of each expert, most first, for popularities drawn from a bounded power law.

    Popularity runs from 1 to 0.8 tokens with density x**-exponent; instead of a random draw each expert takes
    its quantile. No expert gets more than every token once.

    >>> sum(power_law(64, 8, 16, 1.2))
    512
    """
    quantile = (np.arange(experts) + 0.5) / experts
    top, power = max(2.0, 0.8 * tokens), 1.0 - exponent
    popularity = ((top**power - 1.0) * quantile + 1.0) ** (1.0 / power)
    exact = np.sort(popularity)[::-1] / popularity.sum() * tokens * topk
    rows = np.minimum(np.floor(exact), tokens).astype(int)
    left = tokens * topk - int(rows.sum())
    for index in np.argsort(rows - exact, kind="stable"):
        added = min(max(left, 0), 1, tokens - int(rows[index]))
        rows[index] += added
        left -= added
    return _spread(rows.tolist(), left, tokens)


def _spread(rows: list[int], left: int, tokens: int) -> tuple[int, ...]:
    for index in range(len(rows)):
        added = min(left, tokens - rows[index])
        rows[index] += added
        left -= added
    return tuple(rows)


def hottest_rank(rows: tuple[int, ...], ranks: int, *, sorted_experts: bool = False) -> tuple[int, ...]:
    """Return the experts of the rank with the busiest one, most first.

    Experts are dealt to ranks in turn, or in blocks where the benchmark left them `sorted_experts`.

    >>> hottest_rank((9, 5, 2, 1), 2), hottest_rank((9, 5, 2, 1), 2, sorted_experts=True)
    ((9, 2), (9, 5))
    """
    return rows[: len(rows) // ranks] if sorted_experts else rows[::ranks]
