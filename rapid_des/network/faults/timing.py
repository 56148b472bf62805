"""Faults that come and go: timetables of links and GPUs, known before the run (rules R6 and R8)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import reduce
from math import log
from operator import itemgetter
from typing import Generic, TypeAlias, TypeVar

from msgspec import Struct, structs

from rapid_des.errors import TopologyError
from rapid_des.network.fabric import Fabric, check_latency
from rapid_des.network.faults.effects import (
    ONE,
    GpuFactors,
    LinkEffect,
    gpu_effect,
    hits,
    link_effect,
    mixed,
    share,
    touches_links,
)
from rapid_des.network.faults.specs import Fault
from rapid_des.units import Duration

RATE_ONE = 1 << 20
"""The integer that represents a rate of 1 in a timetable."""
LEAST_RATE = Fraction(1, 10_000)
"""The least rate left by a timed fault; a timetable's rounding is then within half a percent of it."""
MOST_STEPS = 1_000_000
"""The most changes of one fault up to the horizon; more is a mistake in the file."""
MOST_BURSTS = 2_000_000
"""The most bursts of one fault up to the horizon, on all its links; to compute these takes ten seconds."""

_Effect = TypeVar("_Effect")
Interval: TypeAlias = tuple[int, int | None]
Timetable: TypeAlias = tuple[tuple[int, int, int], ...]
"""(time in ps, rate in 1 / `RATE_ONE`, added latency in ps), from time 0 on; each lasts until the next."""
GpuTimetable: TypeAlias = tuple[tuple[int, GpuFactors], ...]
"""(time in ps, what is left of the GPU from then on), ascending from time 0."""


def placed_in_time(faults: Iterable[Fault], step_time: int, steps: int = 1) -> tuple[Fault, ...]:
    """Return the faults with steps and progress turned into times of a healthy run.

    Step k starts at k·step_time; progress is the share of `steps` healthy steps.
    """
    return tuple(_placed(fault, step_time, step_time * steps) for fault in faults)


def _placed(fault: Fault, step_time: int, run_time: int) -> Fault:
    def time(step: int | None, progress: float | None) -> Duration | None:
        if step is not None:
            return Duration(step * step_time)
        return None if progress is None else Duration(Fraction(str(progress)) * run_time // 1)

    if not fault.relative:
        return fault
    start = time(fault.from_step, fault.from_progress)
    end = time(fault.until_step, fault.until_progress)
    relative = dict.fromkeys(("from_step", "until_step", "from_progress", "until_progress"))
    return structs.replace(fault, from_=start or Duration(0), until=end, **relative)


def active_intervals(fault: Fault, horizon: int) -> Iterator[Interval]:
    """Yield the times during which a fault is there, up to `horizon`; None is no end."""
    if fault.relative:
        raise TopologyError("steps and progress must be placed in time first")
    start, end = fault.from_ or 0, fault.until
    if fault.every is None or fault.for_ is None:
        yield start, end
        return
    stop = horizon if end is None else min(end, horizon)
    if (stop - start) // fault.every > MOST_STEPS:
        raise TopologyError(f"every: {fault.every} makes more than {MOST_STEPS} flaps in {Duration(horizon)}")
    while start < stop:
        yield start, start + fault.for_ if end is None else min(start + fault.for_, end)
        start += fault.every


def link_timetables(
    fabric: Fabric, faults: Iterable[Fault], horizon: int, gpus_per_node: int | None = None
) -> dict[int, Timetable]:
    """Return the timetable of each link that a timed fault hits, by ascending link id.

    Rates are shares of `fabric`'s, which has the constant faults applied. Flaps and jitter are laid out up to
    `horizon` picoseconds: run again with a larger one if the run lasts longer.
    """
    spans: dict[int, list[_Span[LinkEffect]]] = {}
    for fault, hit in hits(fabric, faults, gpus_per_node):
        _check_bursts(fault, len(hit.links), horizon)
        for link in hit.links.tolist() if fault.timed and touches_links(fault) else ():
            effect = link_effect(fault, int(fabric.bandwidth[link]), int(fabric.latency[link]))
            spanned = [_Span(*interval, effect) for interval in active_intervals(fault, horizon)]
            drawn = (*_jitter(fault, link, horizon), *_bursts(fault, link, horizon))
            spans.setdefault(link, []).extend([*spanned, *drawn])
    tables = {}
    for link in sorted(spans):
        swept = _swept(spans[link], LinkEffect(ONE, 0), LinkEffect.combined)
        done = {
            effect: (_rate(effect.left, fabric.link_name(link)), _lag(effect.latency, fabric, link))
            for effect in dict.fromkeys(effect for _, effect in swept)  # many bursts have few effects
        }
        tables[link] = tuple((time, *done[effect]) for time, effect in swept)
    return tables


def dead_at(tables: Mapping[int, Timetable], time: int) -> frozenset[int]:
    """Return the links that are down at a time, by their timetables."""
    rates = {
        link: table[bisect_right(table, time, key=itemgetter(0)) - 1][1] for link, table in tables.items()
    }
    return frozenset(link for link, rate in rates.items() if not rate)


def gpu_timetables(
    fabric: Fabric, faults: Iterable[Fault], horizon: int, gpus_per_node: int | None = None
) -> dict[int, GpuTimetable]:
    """Return the timetable of each GPU that a timed fault slows or stops, by ascending id.

    `TopologyError` for a share too small to hold.
    """
    spans: dict[int, list[_Span[GpuFactors]]] = {}
    healthy = GpuFactors(ONE, ONE)
    for fault, hit in hits(fabric, faults, gpus_per_node):
        effect = gpu_effect(fault)
        for gpu in hit.gpus.tolist() if fault.timed and effect != healthy else ():
            spanned = [_Span(*interval, effect) for interval in active_intervals(fault, horizon)]
            spans.setdefault(gpu, []).extend(spanned)
    tables = {gpu: _swept(spans[gpu], healthy, GpuFactors.combined) for gpu in sorted(spans)}
    for gpu, table in tables.items():
        for _, left in table:
            _rate(left.compute, f"gpu{gpu}")
            _rate(left.hbm, f"gpu{gpu}")
    return {gpu: tuple(table) for gpu, table in tables.items()}


def _rate(rate: Fraction, name: str) -> int:
    """Return a rate in 1 / `RATE_ONE`, rounded to nearest; `TopologyError` for one too small to hold."""
    if 0 < rate < LEAST_RATE:
        allowed = f"allowed: {float(LEAST_RATE)} and more, or down=true"
        raise TopologyError(f"timed faults leave {name} {float(rate):.3g} of its rate; {allowed}")
    return round(rate * RATE_ONE)


def _lag(added: int, fabric: Fabric, link: int) -> int:
    """Return the latency that faults add; `TopologyError` where the link's would pass what a fabric holds."""
    check_latency(fabric, int(fabric.latency[link]) + added, fabric.link_name(link))
    return added


class _Span(Struct, Generic[_Effect], frozen=True):
    """A time during which something has an effect; without an end where it stays."""

    start: int
    end: int | None
    effect: _Effect


def _jitter(fault: Fault, link: int, horizon: int) -> Iterator[_Span[LinkEffect]]:
    if fault.jitter is None or fault.jitter_every is None or fault.seed is None:
        return
    period = int(fault.jitter_every)
    if horizon // period > MOST_STEPS:
        raise TopologyError(f"jitter_every: more than {MOST_STEPS} draws in {Duration(horizon)}")
    for start, end in active_intervals(fault, horizon):
        last = horizon if end is None else min(end, horizon)
        for draw in range(start // period, -(-last // period)):
            added = mixed(fault.seed, link, draw) % (fault.jitter + 1)
            yield _Span(max(start, draw * period), min(last, (draw + 1) * period), LinkEffect(ONE, added))


def _check_bursts(fault: Fault, links: int, horizon: int) -> None:
    """Refuse bursts that are too many to be laid out, those of all links together."""
    if fault.burst is None or fault.load is None or fault.peak is None:
        return
    bursts = links * horizon * share(fault.load) // (int(fault.burst) * share(fault.peak))
    if bursts > MOST_BURSTS:
        problem = f"{fault.burst} makes {bursts} bursts in {Duration(horizon)} on all its links together"
        raise TopologyError(f"burst: {problem}; allowed: {MOST_BURSTS}")


def _bursts(fault: Fault, link: int, horizon: int) -> Iterator[_Span[LinkEffect]]:
    """Yield the bursts of other tenants' traffic on a link: an on-off process, stationary from time 0 on."""
    if fault.burst is None or fault.load is None or fault.peak is None or fault.seed is None:
        return
    load, peak = share(fault.load), share(fault.peak)
    pause = int(fault.burst) * (peak / load - 1)
    active, effect = [*active_intervals(fault, horizon)], LinkEffect(ONE, 0, peak)
    on = mixed(fault.seed, link, 0) * peak.numerator * load.denominator < (
        load.numerator * peak.denominator << 64
    )
    time = draw = 0
    while time < horizon:
        draw += 1
        lasts = _exponential(int(fault.burst) if on else int(pause), fault.seed, link, draw)
        for start, end in active if on else ():
            first, last = max(start, time), time + lasts if end is None else min(end, time + lasts)
            if first < last:
                yield _Span(first, last, effect)
        time, on = time + lasts, not on


def _exponential(mean: int, *numbers: int) -> int:
    """Return an exponentially distributed draw in whole picoseconds, by inversion; 0 if the mean is."""
    return int(-mean * log((mixed(*numbers) + 1) / 2**64))


def _swept(
    spans: list[_Span[_Effect]], healthy: _Effect, joined: Callable[[_Effect, _Effect], _Effect]
) -> list[tuple[int, _Effect]]:
    """Return the combined effect of all spans from each time on at which it changes."""
    waiting = sorted(spans, key=lambda span: span.start, reverse=True)
    ends = {span.end for span in spans if span.end is not None}
    active: list[_Span[_Effect]] = []
    known: dict[tuple[_Effect, ...], _Effect] = {}
    table: list[tuple[int, _Effect]] = []
    for time in sorted({0, *ends, *(span.start for span in spans)}):
        active = [span for span in active if span.end is None or span.end > time]
        while waiting and waiting[-1].start <= time:
            active.append(waiting.pop())
        effects = tuple(span.effect for span in active)
        if effects not in known:
            known[effects] = reduce(joined, effects, healthy)
        if not table or table[-1][1] != known[effects]:
            table.append((time, known[effects]))
    return table
