"""The result of a simulation, in any mode, and the one place that makes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapid_des.errors import InputError, UnsupportedByEngine
from rapid_des.frontend import JobMemory, JobTrace, PricedOperator
from rapid_des.modes.execution import Run
from rapid_des.modes.mode_bound import ModeBound
from rapid_des.modes.pricing import as_used
from rapid_des.report import evidence
from rapid_des.report.breakdown import (
    RankRun,
    breakdown,
    busiest,
    compute_bound,
    congestion_notes,
    contention_notes,
    critical_position,
    finish_times,
    host_busy,
    host_notes,
    in_whole_step,
    inside_times,
    operator_times,
    until_last_token,
    with_inside,
)
from rapid_des.report.evidence import Basis, basis_of
from rapid_des.report.figures import (
    JobFigures,
    RequestTimes,
    energy_figures,
    job_figures,
    request_times,
)
from rapid_des.report.forecast import JobKind, intervals_of, kind_of, own_steps
from rapid_des.report.plotted import Plotted
from rapid_des.report.tables import Part, Report
from rapid_des.units import Duration, seconds
from rapid_des.values import replace

if TYPE_CHECKING:  # what few ask of a result is imported when they do
    from rapid_des.modes.blocks.inner import BlockRun
    from rapid_des.report.attribution import Attribution
    from rapid_des.report.rows import LinkRow, MessageRow, OperatorRow
    from rapid_des.report.timeline import Extract


@dataclass(frozen=True, repr=False)
class Result(Plotted, Report):
    """A predicted step: how long, and where the time of its critical rank goes.

    Attributes:
        step_time: until the last rank finished.
        breakdown: compute, exposed communication by kind, bubble and idle; adds up to `step_time`.
        critical_rank: the rank that finishes last, the lowest of equals.
        finish: when each rank finished.
        busiest: the compute operators that take most of the critical rank's time.
        figures: what the step means for the job, if there is one.
        run: the flattened program with what an engine saw; None in the other modes.

    `print` shows the report of `rapid-des run`. Each `plot_…` returns a matplotlib figure, and writes it as
    PNG, SVG or PDF if a path is given. Times are picoseconds that print themselves; `as_json` and rows have
    seconds. Modes without a flattened run refuse rows and pictures of links (`UnsupportedByEngine`). A rank
    that is not there is an `InputError`.

    >>> from rapid_des.machine import load_machine
    >>> from rapid_des.simulation import load_trace, replay
    >>> result = replay(load_trace("workloads/traces/two_stages"), load_machine("dgx_a100"))
    >>> [(row.operation, row.bytes) for row in result.messages()]
    [('send', 1048576), ('recv', 1048576)]
    >>> [(row.operator, row.runs) for row in result.operators(1)], len(result.links())
    ([('backward', 1), ('forward', 1)], 16)
    """

    step_time: Duration
    breakdown: Mapping[str, Duration]
    critical_rank: int
    finish: Mapping[int, Duration]
    busiest: Mapping[str, Duration]
    mode: str
    engine: str
    switching: str
    wall_s: float = field(compare=False)
    """Wall time of the simulation in seconds."""
    hops: int
    folded: float = 1.0
    """Number of ranks that each simulated rank stood for (symmetry folding, exact)."""
    figures: JobFigures | None = None
    basis: Basis | None = None
    """The device, libraries and host that priced the run."""
    compute_bound: str = "compute"
    """What limits most of the critical rank's kernels; `compute` is arithmetic and the caches."""
    notes: tuple[str, ...] = ()
    mode_bound: ModeBound | None = None
    """Bounds of the flattened step, as far as a mode knows them; None for a flattened result."""
    work: Mapping[str, int] = field(default_factory=dict)
    """For jobs: picoseconds of the critical rank's work by class, from which intervals are computed."""
    run: Run | None = field(default=None, repr=False, compare=False)
    stream_kinds: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    """For jobs: the parallelism that each stream's time counts for."""
    priced: tuple[PricedOperator, ...] = field(default=(), repr=False, compare=False)
    """For jobs: the cost of each distinct kernel, with details."""
    blocks: BlockRun | None = field(default=None, repr=False, compare=False)
    """The runs of blocks behind a result of the modes of blocks."""
    computed: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    """Picoseconds that the critical rank computes, by operator."""
    trace: JobTrace | None = field(default=None, repr=False, compare=False)
    """For jobs: the trace that was run; with blocks, the outer graph."""

    critical: RankRun | None = field(default=None, repr=False, compare=False)
    """The run of the critical rank."""
    attributed: Attribution | None = field(default=None, repr=False, compare=False)
    """The attribution, computed in advance, of a result without its run."""

    def __repr__(self) -> str:
        return f"<Result: {self.title}, {self.mode}, {self.step_time}>"

    def __hash__(self) -> int:
        return hash((self.step_time, self.mode, self.switching, *self.breakdown.items()))

    @property
    def bound(self) -> str:
        """The largest part of the breakdown; of compute, what limits most of it."""
        part = max(self.breakdown, key=lambda part: self.breakdown[part])
        return self.compute_bound if part == "compute" else part

    @cached_property
    def attribution(self) -> Attribution:
        """What stands behind each part of `breakdown`: operators, collectives, messages, to picoseconds.

        The names of a part add up to it.
        """
        run = self.run if self.blocks is None else self.blocks.run
        if self.attributed is not None or run is None:
            return self.attributed or {}
        from rapid_des.report.attribution import attribution

        assert self.critical is not None, "who has the run has its rank"
        inside = None if self.blocks is None else (self.blocks, self.computed)
        return attribution(run, self.critical, self.breakdown, inside=inside)

    @cached_property
    def intervals(self) -> Mapping[str, evidence.Interval]:
        """Where the measurements of the job's times are expected; nothing on devices that were not measured.

        They contain what the mode leaves out.

        `step`, and of requests `first_token` and `per_token`.
        """
        requests = self.figures.requests if self.figures else None
        times = {evidence.STEP: self.step_time}
        if requests is not None:
            times |= {
                evidence.FIRST_TOKEN: requests.first_token,
                evidence.PER_TOKEN: requests.per_output_token,
            }
        here = None if self.basis is None else self.basis.measured_here
        own = own_steps(here.steps) if here else ()
        return intervals_of(times, self.work, self.origin, self.kind, self.mode_bound, own)

    @property
    def kind(self) -> JobKind | None:
        """What a forecast of a training step depends on; None of other runs."""
        served = self.figures is None or self.figures.requests is not None
        return None if served else kind_of(self.basis, self.work, self.breakdown)

    @property
    def forecast(self) -> evidence.Interval | None:
        """What a measurement of the step or of whole requests is expected to show; None without evidence.

        Its `median`, `low` and `high` are picoseconds.
        """
        return self.intervals.get(evidence.STEP)

    @property
    def origin(self) -> evidence.Origin | None:
        """Identifies the measurements that times are compared to; None on devices that were not measured."""
        basis = self.basis
        if basis is None or basis.device is None or not basis.validated:
            return None
        return evidence.Origin(basis.device.spec.name, basis.software)

    def distinguishable(self, other: Result) -> bool | None:
        """Return whether the faster of two predictions is also measured to be faster, with `LEVEL` certainty.

        None where no layouts of such jobs were measured.
        """
        times, works = (self.step_time, other.step_time), (self.work, other.work)
        return None if self.origin is None else evidence.distinguishable(times, works, self.origin)

    @property
    def light(self) -> Result:
        """The result without what only rows and pictures need: small enough to send to another process."""
        return replace(
            self,
            run=None,
            blocks=None,
            trace=None,
            critical=None,
            priced=(),
            computed={},
            attributed=self.attribution,
            figures=None if self.figures is None else replace(self.figures, memory=self.figures.memory.light),
        )

    @property
    def title(self) -> str:
        """The job and the machine, as far as the result knows them."""
        run = self.run if self.blocks is None else self.blocks.run
        job = "" if self.trace is None else self.trace.job.name
        machine = "" if run is None else run.machine.name
        return " on ".join(name for name in (job, machine) if name) or "a run"

    def report(self) -> Iterator[Part]:
        """Yield the report that `rapid-des run` prints."""
        text = import_module("rapid_des.report.result_text")  # it knows this class; no circle of imports
        parts: Iterator[Part] = text.result_report(self, self.title)
        return parts

    def rank_breakdown(self, rank: int) -> dict[str, Duration]:
        """Return where a rank's time goes until it ends, as `breakdown` says of the critical rank."""
        if rank == self.critical_rank:
            return dict(self.breakdown)
        run = self._run("breakdown of ranks") if self.blocks is None else self.blocks.run
        requests = self.figures.requests if self.figures else None
        position = self._position(run, rank)
        followed = RankRun(run.lowered, run.execution.records, position, self.stream_kinds)
        _, spent = _time_and_parts(followed, requests, self.blocks)
        return {part: Duration(time) for part, time in spent.items()}

    def write_timeline(
        self, path: str | Path, extract: Extract | None = None, *, bounded: bool = False
    ) -> None:
        """Write a timeline for ui.perfetto.dev, packed if the path ends in .gz.

        A path that ends in .pftrace is in Perfetto's own format, with flows of messages and the memory of a
        training step as counters; others are JSON. Links and messages are on it if run with `trail=True`.
        `extract` chooses ranks and a window of time (unset: all); if it is `bounded`, one above 200 MB is an
        `InputError`.
        """
        from rapid_des.report.perfetto import ENDINGS, memory_counters, write_perfetto
        from rapid_des.report.timeline import EVERYTHING, chosen_of, write_timeline

        run, file = self._run("timeline"), Path(path)
        chosen = chosen_of(run, extract or EVERYTHING, bounded=bounded)
        if file.name.removesuffix(".gz").endswith(ENDINGS):
            counters = self.figures and self.trace and memory_counters(self.figures.memory, self.trace, run)
            write_perfetto(file, run, chosen, list(counters or ()))
        else:
            write_timeline(file, run, chosen)

    def write_links(self, path: str | Path) -> None:
        """Write what every link carried, by kind of traffic: Parquet if so named, else CSV."""
        from rapid_des.report.rows import write_links

        run = self._run("link table")
        write_links(Path(path), run.lowered.program, run.execution.records, run.machine.fabric)

    def operators(self, rank: int | None = None, *, runs: bool = False) -> tuple[OperatorRow, ...]:
        """Return the compute operators of a rank (the critical one), the longest first.

        With `runs` each run of them is a row, in the order of their start.
        """
        from rapid_des.report.rows import operator_rows, operator_runs

        run, rows = self._run("rows of operators"), operator_runs if runs else operator_rows
        position = self._position(run, rank)
        return rows(run.lowered, run.execution.records, position, priced=self.priced)

    def messages(self, rank: int | None = None) -> tuple[MessageRow, ...]:
        """Return the collectives, sends and receives of a rank (the critical one) in program order."""
        from rapid_des.report.rows import message_rows

        run = self._run("rows of messages")
        position = self._position(run, rank)
        return message_rows(run.lowered, run.execution.records, position, kinds=self.stream_kinds)

    def links(self) -> tuple[LinkRow, ...]:
        """Return what every link carried, by kind of traffic."""
        from rapid_des.report.rows import link_rows

        run = self._run("link table")
        return tuple(link_rows(run.lowered.program, run.execution.records, run.machine.fabric))

    def _position(self, run: Run, rank: int | None) -> int:
        ranks = [binding.rank for binding in run.lowered.program.bindings]
        wanted = self.critical_rank if rank is None else rank
        if wanted not in ranks and self.blocks is not None:
            wanted = self.blocks.followed(wanted)
        if wanted not in ranks:
            raise InputError(f"rank {wanted}: the run has ranks {ranks[0]} to {ranks[-1]}")
        return ranks.index(wanted)

    def _run(self, what: str) -> Run:
        if self.run is None:
            raise UnsupportedByEngine(f"mode {self.mode} has no {what}; use mode flattened")
        return self.run

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        plain: dict[str, Any] = {
            "step_time_s": seconds(self.step_time),
            "step_time_ps": int(self.step_time),
            "forecast_s": None if self.forecast is None else self.forecast.forecast(),
            "breakdown_s": {part: seconds(spent) for part, spent in self.breakdown.items()},
            "attribution_ps": {
                part: {name: int(spent) for name, spent in names.items()}
                for part, names in self.attribution.items()
                if names
            },
            "mode_bound_s": None if self.mode_bound is None else self.mode_bound.as_json(),
            "intervals": {figure: interval.as_json() for figure, interval in self.intervals.items()},
            "bound": self.bound,
            "critical_rank": self.critical_rank,
            "busiest_operators_s": {name: seconds(spent) for name, spent in self.busiest.items()},
            "mode": self.mode,
            "engine": self.engine,
            "switching": self.switching,
            "hops": self.hops,
            "folded": self.folded,
            "simulation_wall_s": round(self.wall_s, 6),
            "spread": None if self.origin is None else evidence.spread(self.work, self.origin.device),
            "priced_with": {} if self.basis is None else self.basis.as_json(),
            "notes": list(self.notes),
        }
        return plain | (self.figures.as_json(self.forecast) if self.figures else {})


def result_of(
    run: Run,
    *,
    trace: JobTrace | None = None,
    memory: JobMemory | None = None,
    blocks: BlockRun | None = None,
) -> Result:
    """Return the result of a finished run.

    `trace` and `memory` are the job's, if there is one; `blocks` what stands behind the compute nodes of
    `run`, where that is the graph around blocks.
    """
    lowered, records = run.lowered, run.execution.records
    position = critical_position(lowered, records)
    serves = trace is not None and trace.job.spec.phase == "inference"
    requests = request_times(trace, lowered, records) if trace is not None and serves else None
    kinds = None if trace is None else trace.stream_kinds
    rank = RankRun(lowered, records, position, kinds)
    step_time, spent = _time_and_parts(rank, requests, blocks)
    times = operator_times(rank) if blocks is None else inside_times(blocks, rank)
    later = 0 if blocks is None or blocks.repeated is None else blocks.repeated.left_out
    finish = lowered.of_every_rank((finish_times(lowered, records) + later).tolist())
    result = Result(
        step_time=Duration(step_time),
        breakdown={part: Duration(time) for part, time in spent.items()},
        critical_rank=lowered.program.bindings[position].rank,
        finish={rank: Duration(end) for rank, end in finish.items()},
        busiest={name: Duration(time) for name, time in busiest(times).items()},
        mode="flattened" if blocks is None else blocks.mode.name,
        engine=run.execution.engine,
        switching=run.machine.switching.mode,
        wall_s=run.execution.wall_s if blocks is None else blocks.wall_s,
        hops=records.hops if blocks is None else blocks.simulated_hops,
        folded=run.execution.folded,
        basis=basis_of(run, None if trace is None else trace.job, (blocks or lowered).served),
        notes=(*(lowered.traces if trace is None else trace).notes, *_notes(run, position, spent, blocks)),
        mode_bound=None if blocks is None else blocks.bound,
        run=run if blocks is None else None,
        computed=times,
        blocks=blocks,
        critical=rank,
    )
    if trace is not None:
        result = _of_job(result, run, trace, memory, requests)
    return result if blocks is None else replace(result, notes=(blocks.mode.note, *result.notes))


def _notes(run: Run, position: int, spent: Mapping[str, int], blocks: BlockRun | None) -> Iterator[str]:
    """Yield what there is to say about the host, links and kernels beside each other."""
    repeated = None if blocks is None else blocks.repeated
    issuing = 0 if repeated is None else repeated.times * int(repeated.host[position])
    yield from host_notes(spent, host_busy(run.lowered, position) + issuing)
    yield from congestion_notes(run)
    yield from contention_notes(run.lowered, run.execution.records, position, repeated)


def _of_job(
    result: Result, run: Run, trace: JobTrace, memory: JobMemory | None, requests: RequestTimes | None
) -> Result:
    """Return a result with what it means for the job that was run."""
    figures, notes = None, result.notes
    if memory is not None:
        device = as_used(trace.job, run.machine, run.machine.device)
        step = int(result.step_time)
        energy = energy_figures(trace, device, run.machine, step, result.blocks)
        figures = job_figures(trace, device, step, memory=memory, requests=requests, energy=energy)
        notes = (*notes, *(figures.energy.notes if figures.energy else ()))
    models = {row.name: row.model for row in trace.operators}
    return replace(
        result,
        figures=figures,
        compute_bound=compute_bound(result.computed, trace.operators, requests.ends if requests else None),
        notes=notes,
        work=evidence.work_of(result.computed, models, result.breakdown),
        stream_kinds=trace.stream_kinds,
        trace=trace,
        priced=trace.operators,
    )


def _time_and_parts(
    rank: RankRun, requests: RequestTimes | None, blocks: BlockRun | None
) -> tuple[int, dict[str, int]]:
    """Return the step time and where the time of a rank goes."""
    records = rank.records

    def parts(end: int | None) -> dict[str, int]:
        outside = breakdown(rank, end=end)
        return outside if blocks is None else with_inside(blocks, rank, outside, end=end)

    if blocks is not None and blocks.repeated is not None:
        return records.makespan + blocks.repeated.left_out, in_whole_step(parts, blocks.repeated)
    return until_last_token(parts, requests.ends if requests else None, records.makespan)
