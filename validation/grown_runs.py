"""Runs that grew in data-parallel ranks: published pairs of steps beside `replay --dp` of a profile.

No profile of these runs is public. So the smaller run is simulated, its first rank is written down as a
profiler would see it, and that profile is asked for the larger number of ranks. The ratio of the two steps
stands beside the measured one. The null model says that the step stays as it is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from rapid_des.chakra.trace import CollectiveType, NodeKind
from rapid_des.frontend import load_job
from rapid_des.modes.execution import EngineChoice
from rapid_des.profiles import Profile
from rapid_des.profiles.columns import KERNEL, EventColumns
from rapid_des.profiles.events import Collective
from rapid_des.profiles.ranks import ProfileChanges
from rapid_des.program.lowering import rank_times
from rapid_des.report.result import Result
from rapid_des.simulation import FLATTENED, simulate
from rapid_des.studies.profile_replay import ask_profiles
from validation.jobs.cases import machine_at
from validation.jobs.rows import MeasuredJob
from validation.measurements import DataFolder
from validation.scoring import Row
from validation.training import dgxc, plain, published

FILES = (dgxc.FILE, plain.FILE)
_MOST_GPUS = 32
"""GPUs of the larger run. Every rank is replayed, so that 64 GPUs take four times as long."""
_PS_PER_NS = 1000


def rows(data: DataFolder) -> list[Row]:
    """Return the measured and the replayed ratio of each published pair of steps."""
    return [row for ladder in ladders(data) for row in _ladder_rows(ladder)]


def ladders(data: DataFolder) -> list[Sequence[MeasuredJob]]:
    """Return measured jobs that differ only in replicas, the batch of each being the same, by their number.

    Jobs with pipeline stages or experts are left out: their data-parallel groups are not the outermost ones,
    or the bytes of their exchanges do not follow from the number of ranks.
    """
    every = chain(
        dgxc.measured_rows(data),
        chain.from_iterable(published.measured_rows(data)),
        plain.measured_rows(data),
    )
    found = defaultdict[str, dict[int, MeasuredJob]](dict)
    for row in every:
        if len(row.cases) != 1:
            continue
        tree = json.loads(row.cases[0].job)
        layout, training = tree["parallelism"], tree["training"]
        ranks = layout.pop("dp")
        batch = training.pop("global_batch") / ranks
        if layout["pp"] == layout["ep"] == 1 and _gpus(row) <= _MOST_GPUS:
            found[json.dumps([row.topic, tree, batch])].setdefault(ranks, row)
    return [[row for _, row in sorted(each.items())] for each in found.values() if len(each) > 1]


def _gpus(row: MeasuredJob) -> int:
    return load_job(json.loads(row.cases[0].job)).gpus


def _ladder_rows(ladder: Sequence[MeasuredJob]) -> Iterator[Row]:
    """Yield a row of each larger run, beside the smallest one."""
    first, *larger = ladder
    place = machine_at(first.cases[0].place)
    job = load_job(json.loads(first.cases[0].job))
    profile = profile_of(simulate(job, place, mode=FLATTENED))
    size = job.spec.parallelism.dp * job.spec.parallelism.cp
    for row in larger:
        times = _gpus(row) // job.gpus
        wanted, machine = ProfileChanges(grown=(size, size * times)), machine_at(row.cases[0].place)
        asked = ask_profiles([profile], (place, machine), wanted, engine=EngineChoice())
        name = f"{first.case_id}: {job.gpus} to {_gpus(row)} GPUs"
        yield Row(name, row.measured / first.measured, asked.changed / asked.unchanged, 1.0)


def profile_of(result: Result) -> Profile:
    """Return the first rank of a simulated step as a profiler would see its GPU."""
    assert result.run is not None
    lowered = result.run.lowered
    rank = lowered.traces.ranks[0]
    nodes, times = rank.nodes, rank_times(lowered, result.run.execution.records, 0)
    starts, ends = times.start // _PS_PER_NS, times.finish // _PS_PER_NS
    columns = EventColumns(Path(f"{result.mode} step"))
    columns.rank = rank.rank
    for node in np.flatnonzero(~nodes.on_cpu & (ends > starts)).tolist():
        name, span = nodes.names[nodes.name[node]], (int(starts[node]), int(ends[node]))
        columns.check(name, *span)
        said = None
        if nodes.kind[node] == NodeKind.COLLECTIVE:
            group = rank.groups[nodes.group[node]]
            members = lowered.traces.groups[group]
            kind = CollectiveType(int(nodes.collective[node])).name.lower()
            said = Collective(kind, len(members), int(nodes.size[node]), group, json.dumps(list(members)))
        columns.add_event((name, KERNEL), int(nodes.stream[node]), span, (-1, -1), said)
    return columns.profile()
