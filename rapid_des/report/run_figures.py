"""Figures of runs with failures beside those of steps: their names, and whether they change the order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RUN_FIGURES = ("goodput", "tokens_per_day")
"""The figures of a run; more of each is better."""


def failures_matter(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the best of rows with failures and without, by `id`, and what choosing the latter would cost.

    None: no row has figures of a run.

    >>> rows = [{"id": 1, "tokens_per_s": 9.0, "tokens_per_day": 5.0}]
    >>> failures_matter([*rows, {"id": 2, "tokens_per_s": 8.0, "tokens_per_day": 6.0}])
    {'best': 2, 'healthy_best': 1, 'tokens_per_day_lost': 1.0}
    """
    known = [row for row in rows if row.get("tokens_per_day")]
    if not known:
        return None
    best = max(known, key=lambda row: (row["tokens_per_day"], -row["id"]))
    healthy = max(known, key=lambda row: (row["tokens_per_s"], -row["id"]))
    lost = best["tokens_per_day"] - healthy["tokens_per_day"]
    return {"best": best["id"], "healthy_best": healthy["id"], "tokens_per_day_lost": lost}
