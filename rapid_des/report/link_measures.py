"""What colours a link: how busy it is, over time too, who waits for it, the critical path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.arrays import ranges, rows_of
from rapid_des.modes.execution import Run
from rapid_des.program.program import LinkTrail
from rapid_des.report.critical_path.walk import Chain, StepKind

BINS = 24
"""The number of stretches of time of which each has its own utilisation."""
_Shares = NDArray[np.float64]


class LinkMeasure(Struct, frozen=True, eq=False):
    """A figure of each link."""

    name: str
    values: _Shares
    """The figure of each link, by its id."""
    unit: str
    """The words after a value, as in `% busy`; values of percentages are shares of 1."""

    def text(self, value: float) -> str:
        """Return a value with its unit.

        >>> LinkMeasure("utilisation", np.zeros(1), "% busy").text(0.125)
        '12.5 % busy'
        """
        return f"{100 * value if self.unit.startswith('%') else value:.3g} {self.unit}"


class LinksSeen(Struct, frozen=True, eq=False):
    """What is known of the links of a machine."""

    measures: Sequence[LinkMeasure] = ()
    """The first is shown first."""
    over_time: _Shares | None = None
    """[stretch of time, link] the share of the stretch in which the link is busy."""
    end: int = 0
    """The end of the last stretch in picoseconds."""


def utilisation_of(load: Mapping[int, float], links: int) -> LinkMeasure:
    """Return the measure of links whose utilisation is stated, 0 to 1, by id."""
    values = np.zeros(links)
    values[list(load)] = list(load.values())
    return LinkMeasure("utilisation", values, "% busy")


def links_seen(run: Run) -> LinksSeen:
    """Return what a run says of its links; the path and times need a run with a trail."""
    records = run.execution.records
    end = max(records.makespan, 1)
    measures = [LinkMeasure("utilisation", records.link_busy.sum(axis=1) / end, "% busy")]
    waits = records.link_wait.sum(axis=1) / end
    if waits.any():
        measures.append(LinkMeasure("queueing", waits, "messages wait, on average"))
    if records.trail is None:
        return LinksSeen(measures)
    on_path = path_shares(run, records.trail) / end
    measures.append(LinkMeasure("critical path", on_path, "% of the step on the critical path"))
    return LinksSeen(measures, busy_over_time(records.trail, len(waits), end), end)


def busy_over_time(trail: LinkTrail, links: int, end: int) -> _Shares:
    """Return the share of each stretch of time in which each link is busy.

    >>> hops = [np.array(column) for column in ([1], [0], [24], [24], [0], [0], [0])]
    >>> busy_over_time(LinkTrail(*hops), 2, 48)[:, 1].tolist()[11:13]
    [1.0, 0.0]
    """
    shares = np.zeros((BINS, links))
    edges = np.linspace(0, end, BINS + 1)
    for number in range(BINS):
        low, high = edges[number], edges[number + 1]
        inside = np.minimum(trail.finish, high) - np.maximum(trail.start, low)
        there = inside > 0
        shares[number] = np.bincount(trail.link[there], inside[there], links) / (high - low)
    return shares


def path_shares(run: Run, trail: LinkTrail) -> _Shares:
    """Return the picoseconds that each link serves messages for which the critical path waits then."""
    program, records = run.lowered.program, run.execution.records
    chain = Chain(program, records)
    rows = [
        (visit, step.begin, step.end)
        for step in chain.steps()
        if step.kind is StepKind.SERVICE
        for visit in chain.instance(step.visit)
    ]
    shares = np.zeros(program.links)
    if not rows:
        return shares
    visits, begins, ends = np.array(rows, np.int64).T
    order = np.argsort(trail.visit, kind="stable")
    first, last = (np.searchsorted(trail.visit[order], visits, side) for side in ("left", "right"))
    hops, step = order[ranges(first, last - first)], rows_of(last - first)
    inside = np.minimum(trail.finish[hops], ends[step]) - np.maximum(trail.start[hops], begins[step])
    np.add.at(shares, trail.link[hops], np.maximum(inside, 0))
    return shares
