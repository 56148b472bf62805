"""The rows of a plan as runs of weeks in which parts of the machine fail: which of them trains the most."""

from __future__ import annotations

from typing import Any

from rapid_des.bounded_cache import BoundedCache
from rapid_des.machine import Machine
from rapid_des.report.run_figures import failures_matter
from rapid_des.runs.asked import AskedRun
from rapid_des.studies.plan import OnProgress, Plan
from rapid_des.units import seconds

_S_PER_DAY = 86_400


def runs_of(
    plan: Plan, machine: Machine, run: AskedRun, on_progress: OnProgress = lambda *_: None
) -> dict[str, Any]:
    """Return plain data: the rows with the figures of their runs, the most tokens a day first.

    `others_tokens_per_day` is what a layout that is no row could reach at most, which is its healthy step
    without any loss; None: every layout is a row.
    """
    cache, rows = BoundedCache(), list[dict[str, Any]]()
    for number, row in enumerate(plan.rows, start=1):
        figures = run.figures(row.job, machine, row.result, cache)
        rate = row.job.tokens / seconds(row.step_time)
        rows.append({"id": number, "tokens_per_s": rate, **figures})
        on_progress("runs", number, len(plan.rows))
    others = plan.others
    tokens = plan.rows[0].job.tokens * _S_PER_DAY
    return {
        "reliability": run.reliability.name,
        "days": run.days,
        "rows": sorted(rows, key=lambda row: (-row["tokens_per_day"], row["id"])),
        "failures_matter": failures_matter(rows),
        "others_tokens_per_day": tokens / seconds(others) if others else None,
    }
