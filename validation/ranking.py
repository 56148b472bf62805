"""How well layouts of one job are ranked: `ranking/SOURCE` for sources that print three or more of a job.

A job is a model, a number of GPUs of a machine, a batch, a sequence length and formats; layouts that differ
in nothing that is simulated are one. Of each job a row has the shortest measured step, beside it the measured
step of the layout that the simulation likes best, of the one that the other sources' forecast does, and as
the null model the mean of all, which choosing blindly gives. So a row's error is the regret. Beside it stands
the mean over jobs of Spearman's coefficient, by simulation and by forecast.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from statistics import fmean

from validation import all_topics
from validation.jobs.sources import ratios_of
from validation.measurements import DataFolder
from validation.scoring import RANKED, JobError, Row, Topic, rank_correlation


class _Layout:
    """One layout: its measured step, what is simulated, what is forecast; in seconds."""

    def __init__(self, topic: str, errors: Sequence[JobError]) -> None:
        best = min(errors, key=lambda each: each.predicted)
        self.measured = fmean(each.predicted * math.exp(each.error) for each in errors)
        self.simulated = best.predicted
        self.forecast = best.predicted * (ratios_of(topic, best.kind)[0] if best.kind else 1.0)


Jobs = Mapping[str, Sequence[_Layout]]


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `ranking/SOURCE`."""
    by_source = defaultdict[str, list[Topic]](list)
    for topic in all_topics(data, ["training/"]):
        if topic.layouts is not None and "excluded" not in topic.name and topic.unit == "s":
            by_source[topic.name.split("/")[1]].append(topic)
    for source, members in by_source.items():
        wanted = {topic.name: _ranked(topic) for topic in members}
        if any(wanted.values()):
            jobs = partial(_jobs, members, wanted)
            yield Topic(
                f"ranking/{source}",
                partial(_rows, jobs),
                unit="s",
                split=False,
                abandon=members[0].abandon,
                correlations=partial(_correlations, jobs),
            )


def _ranked(topic: Topic) -> Mapping[str, str]:
    """Return the job of each case of a topic that has enough layouts beside it."""
    assert topic.layouts is not None
    cases = defaultdict[str, list[str]](list)
    for case, job in topic.layouts().items():
        cases[job].append(case)
    return {case: job for job, found in cases.items() if len(found) >= RANKED for case in found}


def _jobs(members: Sequence[Topic], wanted: Mapping[str, Mapping[str, str]]) -> Jobs:
    """Return the layouts of each job, named by its first case."""
    found: dict[str, Sequence[_Layout]] = {}
    for topic in members:
        assert topic.job_errors is not None
        cases = defaultdict[tuple[str, str], list[JobError]](list)
        for each in topic.job_errors(wanted[topic.name].__contains__):
            cases[wanted[topic.name][each.case_id], each.case_id].append(each)
        jobs = defaultdict[str, dict[float, list[JobError]]](lambda: defaultdict(list))
        names: dict[str, str] = {}
        for (job, case), errors in cases.items():
            names.setdefault(job, case)
            jobs[job][min(each.predicted for each in errors)] += errors
        for job, layouts in jobs.items():
            if len(layouts) >= RANKED:
                found[f"{topic.name}: {names[job]} and others"] = [
                    _Layout(topic.name, errors) for errors in layouts.values()
                ]
    return found


def _rows(jobs: partial[Jobs]) -> list[Row]:
    return [_row(name, layouts) for name, layouts in jobs().items()]


def _row(name: str, layouts: Sequence[_Layout]) -> Row:
    chosen = [min(layouts, key=attrgetter(figure)).measured for figure in ("simulated", "forecast")]
    measured = [layout.measured for layout in layouts]
    return Row(name, min(measured), chosen[0], fmean(measured), forecast=chosen[1])


def _correlations(jobs: partial[Jobs]) -> Mapping[str, float]:
    """Return the means over jobs of Spearman's coefficient."""
    means = dict[str, float]()
    for name, figure in (("rank_correlation", "simulated"), ("forecast_rank_correlation", "forecast")):
        each = [
            rank_correlation([(one.measured, getattr(one, figure)) for one in layouts])
            for layouts in jobs().values()
        ]
        if each:
            means[name] = fmean(each)
    return means
