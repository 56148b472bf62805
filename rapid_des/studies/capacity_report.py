"""The report of capacities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rapid_des.report.tables import Part, Table, columns, counted
from rapid_des.studies.attainment import LONG
from rapid_des.studies.capacity import Fleets, Layout, ServerLoad


def capacity_report(fleets: Fleets, demand: ServerLoad, title: str) -> Iterator[Part]:
    """Yield the fleets as a table, and the layouts that were refused."""
    yield title
    asked = f"{demand.share:.0%} of requests within {demand.slo.text}"
    drawn = f"runs of {demand.requests:,} and {LONG * demand.requests:,} requests, 95% intervals"
    yield f"{asked}; one replica of each layout; {drawn}" + (", interrupted" if fleets.interrupted else "")
    names = columns("layout", "gpus", rate="requests/s", tokens=("tokens/s/GPU", ",.0f"))
    names += columns(joules=("J/token", ".3g"), limit="limited by")
    if fleets.load:
        names += columns(fleet="fleet")
        names += columns(held="with failures") if demand.reliability else ()
    if fleets.price is not None:
        names += columns(cost=("cost/Mtoken", ".3f"))
    yield Table("", names, [_row(row, fleets) for row in fleets.rows])
    if any(map(fleets.as_good, fleets.rows[1:])):
        yield "~ may be as good as the first: the intervals meet; more --requests narrow them"
    yield from (f"{text} cannot serve: {why}" for text, why in fleets.refused)


def _row(row: Layout, fleets: Fleets) -> dict[str, Any]:
    fleet = row.fleet(fleets.load, fleets.price) if fleets.load else {}
    cost = None
    if fleets.price is not None:
        alone = row.cost_per_million_tokens(fleets.price)
        cost = fleet.get("cost_per_million_tokens") if fleets.load else alone
    return {
        "layout": row.name + " ~" * (row is not fleets.rows[0] and fleets.as_good(row)),
        "gpus": row.gpus,
        "rate": f"{row.rate:.3g}{_between(row.interval, '.3g')}",
        "tokens": row.output_tokens_per_gpu,
        "joules": None if row.energy is None else row.energy.joules_per_output_token,
        "limit": row.broken or "throughput",
        "fleet": counted(fleet["gpus"], "GPU") + _between(fleet["gpus_interval"], ",") if fleet else None,
        "held": counted(fleet["with_failures"]["gpus"], "GPU") if "with_failures" in fleet else None,
        "cost": cost,
    }


def _between(interval: Sequence[float | None], form: str) -> str:
    """Return an interval in parentheses, or nothing if its ends are alike; None: there is no upper end."""
    low, high = ("any number" if end is None else format(end, form) for end in interval)
    return f" ({low} to {high})" if low != high else ""
