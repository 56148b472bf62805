"""Fault studies as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rapid_des.studies.faults import Criticality
from rapid_des.studies.scenario import Change, Scenario
from rapid_des.units import Duration

_ROWS = 8


def scenario_lines(found: Scenario) -> Iterator[str]:
    """Yield a scenario as lines, the largest changes first."""
    yield f"healthy      {found.healthy.step_time}"
    yield f"with faults  {found.faulty.step_time}  ({found.slowdown - 1:+.2%})"
    yield f"critical rank {found.healthy.critical_rank} without, {found.faulty.critical_rank} with the faults"
    sections = (
        ("where the critical rank's time goes", found.kinds),
        ("collectives, summed over their members", found.collectives),
        ("links: time that they serve", found.busy),
        ("links: time that transfers wait for them", found.links),
        ("ranks: waiting for peers", found.ranks),
    )
    for title, rows in sections:
        yield from _section(title, rows)


def _section(title: str, rows: Sequence[Change]) -> Iterator[str]:
    if not rows:
        return
    yield f"\n{title}"
    shown = rows if len(rows) <= _ROWS else [*rows[: _ROWS - 2], *rows[-2:]]
    width = max(len(row.name) for row in shown)
    for row in shown:
        before, after = Duration(row.healthy), Duration(row.faulty)
        sign, added = "-" if row.added < 0 else "+", Duration(abs(row.added))
        yield f"  {row.name:<{width}}  {before!s:>10} to {after!s:>10}  {sign}{added}"
    if len(rows) > len(shown):
        yield f"  … {len(rows) - len(shown)} more in between"


def criticality_lines(ranked: Criticality, top: int | None) -> Iterator[str]:
    """Yield a ranking as lines."""
    yield f"healthy step {ranked.healthy.step_time}; each part alone at {ranked.derate:g} of its speed"
    width = max([5, *(len(row.part.kind) for row in ranked.rows[:top])])
    yield f"{'kind':<{width}} {'part':<22} {'step time':>12} {'cost':>12} {'slower':>8}  from"
    for row in ranked.rows[:top]:
        share = row.cost / max(ranked.healthy.step_time, 1)
        cost = f"{'-' if row.cost < 0 else ''}{Duration(abs(row.cost))}"
        what = f"{row.part.kind:<{width}} {row.part.name:<22} {row.step_time!s:>12}"
        yield f"{what} {cost:>12} {share:>8.2%}  {row.source}"
    hidden = len(ranked.rows) - len(ranked.rows[:top])
    yield f"{ranked.simulations} simulations for {len(ranked.rows)} parts" + (
        f"; {hidden} rows not shown" if hidden else ""
    )
    if ranked.left:
        yield f"interrupted: {ranked.left} parts were not reached"
