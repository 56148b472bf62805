"""Reports of a run, of every mode, of a replay by ASTRA-sim's rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rapid_des.program.collectives.plans import ServedCollective
from rapid_des.report.evidence import (
    LEVEL,
    Basis,
    Interval,
    clock_text,
    host_line,
    in_order,
    jobs_text,
    validation_text,
)
from rapid_des.report.figures import JobFigures, RequestTimes
from rapid_des.report.memory_forecast import MemoryForecast
from rapid_des.report.result import Result
from rapid_des.report.tables import Part, Plain, Table, columns, counted, share_table
from rapid_des.units import Size

if TYPE_CHECKING:
    from rapid_des.importers.astra_sim import AstraResult

_PARTS = {
    "compute": "compute",
    "bubble": "bubble (waiting for a message or a late peer)",
    "host": "host (what could run is not issued yet)",
    "idle": "idle",
}
_GIB = 2**30
_OPERATORS = 6
_RANKS = 16


def result_report(result: Result, title: str) -> Iterator[Part]:
    """Yield a result: the job's figures, where the critical rank's time goes, what it ran longest."""
    yield title
    if result.figures is not None:
        yield from _figures(result, result.figures)
    else:
        yield {"finish": f"{result.step_time} (rank {result.critical_rank} is last)"}
    step, parts = result.step_time, result.breakdown.items()
    named = {_PARTS.get(part, f"exposed {part} communication"): time for part, time in parts}
    yield share_table(f"where the time of rank {result.critical_rank} goes", named, step, bars=True)
    yield share_table("busiest operators", dict([*result.busiest.items()][:_OPERATORS]), step)
    folded = f", one rank simulated for {result.folded:g}" if result.folded > 1 else ""
    yield (
        f"{result.mode}, {result.switching}, engine {result.engine}: "
        f"{result.hops:,} link hops in {result.wall_s:.2f} s{folded}"
    )
    if result.basis is not None:
        yield from _basis_lines(result.basis)
    yield from (f"note: {note}" for note in result.notes)


def _basis_lines(basis: Basis) -> Iterator[str]:
    names = ", ".join(
        name if operation == "default" else f"{operation} {name}"
        for operation, name in basis.collectives.items()
    )
    if basis.device is None:
        yield f"collectives {names}"
    else:
        spec, used = basis.device.spec, basis.device.conditions
        launch = f"launch {basis.launch}" if basis.host is None else host_line(basis.host)
        clock = clock_text(basis.device)
        if basis.decode_device is not None and clock_text(basis.decode_device) != clock:
            clock += f", decode at {clock_text(basis.decode_device)}"
        yield f"{spec.name}, {clock}, {launch}"
        yield f"{basis.software}, kernels {used.library}, collectives {names}"
    if basis.apart:
        yield f"collectives in fact: {', '.join(_served_lines(basis.apart))}"
    if basis.device is None:
        return
    jobs = jobs_text(basis.software, basis.device.spec.name)
    here = basis.measured_here
    if here is None:
        yield f"{validation_text(basis.validated, basis.matrix_dtype)}{jobs}"
    else:
        yield f"calibrated on {'; '.join(here.calibrated_on)}"


def _served_lines(served: Iterable[ServedCollective]) -> Iterator[str]:
    """Yield each operation with the number of its ranks and what served it, by size if that differs."""
    for (operation, ranks), sizes in groupby(served, lambda each: (each.operation, each.ranks)):
        every = list(sizes)
        hows = dict.fromkeys(map(_how, every))
        by = [f"{how} ({_span([each for each in every if _how(each) == how])})" for how in hows]
        if len(hows) == 1:
            by = [every[0].algorithm]
        yield f"{operation} of {ranks:,} ranks by {', '.join(by)}"


def _how(served: ServedCollective) -> str:
    return f"{served.algorithm} {served.protocol}".rstrip()


def _span(served: Sequence[ServedCollective]) -> str:
    ends = dict.fromkeys(f"{Size(each.size_bytes)}" for each in (served[0], served[-1]))
    return " to ".join(ends)


def _figures(result: Result, figures: JobFigures) -> Iterator[Part]:
    rows = {"GPUs": f"{figures.gpus:,}"}
    if result.forecast is not None:
        rows["forecast"] = _forecast_text(result.forecast)
    rows |= _times(result, figures)
    fullest = figures.memory.fullest
    slower = 1.0 if result.forecast is None else result.step_time / max(result.forecast.median, 1)
    rate = slower * figures.tokens_per_s
    simulated = "" if result.forecast is None else f" ({figures.tokens_per_s:,.0f} simulated)"
    each = "" if figures.requests is None else f", {rate / figures.gpus:,.1f} a GPU"
    rows["tokens/s"] = f"{rate:,.0f}{each}{simulated}"
    seen = "as far as causal" if figures.causal else "to both sides"
    rows["MFU"] = f"{slower * figures.mfu:.1%} of {figures.peak}, attention {seen}"
    rows["memory"] = f"{fullest.peak / _GIB:.1f} of {figures.memory_capacity / _GIB:.1f} GiB"
    rows |= _peak_row(figures.memory_forecast)
    if figures.kv_cache is not None:
        pool = figures.kv_cache
        held = f"{pool.size / _GIB:.1f} GiB hold {pool.tokens:,} tokens in pages of {pool.page}"
        rows["KV cache"] = f"{held}, of which these requests take {pool.needed:,}"
    if figures.energy is not None:
        rows["energy"] = figures.energy.text
    rows["bound by"] = result.bound
    yield rows
    parts = sorted(fullest.categories.items(), key=lambda entry: -entry[1])
    yield "  " + ", ".join(f"{name} {size / _GIB:.1f} GiB" for name, size in parts if size >= _GIB / 20)
    if figures.shortage:
        yield {"out of memory": f"{figures.shortage}; simulated all the same"}


def _forecast_text(expected: Interval) -> str:
    """Return where a measurement is expected, and by what evidence."""
    evidence = f"{expected.cases} measured jobs of {expected.source}"
    return f"{expected.median}, {LEVEL:.0%} between {expected.low} and {expected.high} ({evidence})"


def _times(result: Result, figures: JobFigures) -> dict[str, str]:
    """Return the times as simulated, with the bounds of the mode."""
    bounds = {} if result.mode_bound is None else result.mode_bound.row(result.step_time)
    if figures.requests is None:
        return {"step time": f"{result.step_time}{_simulated(result)}"} | bounds
    return _request_rows(result, figures.requests) | bounds | _interval_rows(result.intervals)


def _peak_row(expected: MemoryForecast | None) -> dict[str, str]:
    """Return where the measured peak of memory is expected."""
    if expected is None:
        return {}
    median, low, high = (f"{size / _GIB:.1f}" for size in (expected.median, expected.low, expected.high))
    fits = f"fits with a probability of {expected.fits:.0%}"
    return {"  forecast": f"{median} GiB, {LEVEL:.0%} between {low} and {high}; {fits}"}


def _simulated(result: Result) -> str:
    """Return what a simulated time is called beside a forecast, and that there is none without evidence."""
    return " simulated" if result.forecast is not None else " simulated; no measured jobs to forecast from"


def _interval_rows(intervals: Mapping[str, Interval]) -> dict[str, str]:
    """Return where measurements of the times above are expected, in their order."""
    if not intervals:
        return {}
    spans = "; ".join(f"{interval.low} to {interval.high}" for interval in in_order(intervals))
    last = in_order(intervals)[-1]
    return {f"{LEVEL:.0%} interval": f"{spans} (as {last.cases} measured jobs of {last.source})"}


def _request_rows(result: Result, requests: RequestTimes) -> dict[str, str]:
    rows = {"first token": f"{requests.first_token}"}
    if requests.earliest < requests.first_token:
        rows["first token"] += f" at the latest, {requests.earliest} at the earliest"
    if requests.per_output_token:
        rows["each next token"] = f"{requests.per_output_token}"
    rows["whole request"] = f"{result.step_time}"
    for number, kind in enumerate(requests.kinds if len(requests.kinds) > 1 else ()):
        times = f"whole request {kind.total}"
        if kind.output_length > 1:
            times = f"each next token {kind.per_output_token}, {times}"
        which = f"{kind.count:,} of {kind.prompt_length:,} in, {kind.output_length:,} out"
        rows[f"  kind {number}"] = f"{which}: {times}"
    return rows


def modes_report(results: Mapping[str, Result | str]) -> Iterator[Part]:
    """Yield every mode's step time against the first one's, and what each run cost, or why it was refused."""
    first = next(iter(results.values()))
    names = columns("mode", "step_time_ps", change=("longer", "+.2%"), most=("at most", "+.1%"))
    rows = [
        {"mode": mode, **_mode_row(result, None if isinstance(first, str) else first)}
        for mode, result in results.items()
        if not isinstance(result, str)
    ]
    yield Table("", names + columns(wall_s=("simulated in s", ".3f"), hops=("hops", ",")), rows)
    yield from (f"{mode} refused: {why}" for mode, why in results.items() if isinstance(why, str))


def _mode_row(result: Result, first: Result | None) -> Plain:
    change = {} if first is None else {"change": result.step_time / max(first.step_time, 1) - 1}
    most = {} if result.mode_bound is None else {"most": result.mode_bound.most(result.step_time)}
    return {"step_time_ps": result.step_time, **change, **most, "wall_s": result.wall_s, "hops": result.hops}


_ASTRA_TIMES = ("finish_ns", "exposed_communication_ns", "gpu_time_ns", "comm_time_ns", "overlap_ns")


def astra_report(result: AstraResult, title: str) -> Iterator[Part]:
    """Yield a replay by ASTRA-sim's rules: the first and the last ranks to finish, and what was noted."""
    plain = result.tree()["ranks"]
    assert isinstance(plain, dict)
    ranked = sorted(plain.items(), key=lambda row: (row[1]["finish_ns"], int(row[0])))
    rows = [{"rank": int(rank), **times} for rank, times in ranked]
    yield f"{title}: {counted(len(rows), 'rank')}"
    yield {"finish": f"{rows[-1]['finish_ns']:,} ns (rank {rows[-1]['rank']} is last)"}
    left_out = len(rows) - _RANKS
    if left_out > 0:
        rows[_RANKS // 2 : -_RANKS // 2] = []
    title = "by finish" + (f" ({left_out} in between are left out)" if left_out > 0 else "")
    names = {name: (name.removesuffix("_ns").replace("_", " ") + " ns", ",") for name in _ASTRA_TIMES}
    yield Table(title, columns("rank", **names), rows)
    yield f"engine {result.engine}: {result.hops:,} link hops in {result.wall_s:.2f} s"
    yield from (f"note: {note}" for note in result.notes)
