"""A long day by windows: as much of it is served as is needed, and stands for the rest.

The time is cut into stretches of equal length. In the middle of each a window is measured. The fleet serves
from `warmup` before a window, to fill up. Requests come for `warmup` after it, until all that came in it are
answered: so nothing measured meets a start or a drain. The requests are those of the whole day, and each one
that is measured stands for as many as came in its stretch for one in its window. What follows is an estimate:
the midpoint rule over a load that changes, with intervals from batches of requests within windows. A change
that a stretch has and its window does not, or a queue that lasts longer than the time before a window, is not
seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Floats
from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import Document, Spec, decode
from rapid_des.errors import ConfigError
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.means import student
from rapid_des.network.faults.specs import read_value, stated_words
from rapid_des.serving.autoscaler import looks_back
from rapid_des.serving.fleet import Watch
from rapid_des.serving.pools import pools_of
from rapid_des.serving.result import ServeResult
from rapid_des.serving.sampling import SHARES
from rapid_des.serving.server import scaled_startup, serve_workload, workload_of
from rapid_des.serving.slo import Slo
from rapid_des.serving.workload import Workload
from rapid_des.units import PS_PER_S, Duration
from rapid_des.values import replace

_BATCHES = 10
"""Batches of a window's requests, whose means say how far that of the window is off."""
_LONG = ("sessions", "agents", "prefix_cache", "host_cache", "outages", "beside", "lora")
"""Keys of `serving` whose effects last longer than a window is filled up."""


class Windows(Spec, frozen=True):
    """Which parts of a day are measured."""

    every: Duration
    """Length of a stretch, which has one window in its middle."""
    window: Duration
    """Length of a window."""
    warmup: Duration
    """Time that is served before a window, and after it at most until what came in it is answered."""

    @classmethod
    def parse(cls, text: str) -> Windows:
        """Return what a text such as `every=1h window=2min warmup=1min` states.

        >>> Windows.parse("every=1h window=2min warmup=1min").window
        Duration('120 s')
        """
        file = f"--sample {text!r}"
        stated = {key: read_value(value) for key, value in stated_words(text, file).items()}
        found = decode(Document(Path(file), stated), cls)
        if not found.window or found.window > found.every:
            problem = f"{found.window}; allowed: above 0 s, at most that of `every` ({found.every})"
            raise ConfigError(problem, file=file, key="window")
        if int(found.window) + 2 * int(found.warmup) > int(found.every):
            problem = f"{found.warmup} on both sides of a window is more than `every`; serve all of it"
            raise ConfigError(problem, file=file, key="warmup")
        return found


class WindowResult(Struct, frozen=True):
    """The measured requests of one window, in picoseconds."""

    begin: int
    end: int
    stands_for: float
    """Number of requests of its stretch for each one measured."""
    times: Mapping[str, Floats]
    """Latencies by name: `ttft`, `tpot`, `e2e`."""
    within: Floats | None
    """1 for each request that keeps all limits, else 0; None: no limits are stated."""
    gpus: float
    """Mean number of GPUs that are up."""
    stretch: int
    """Length of its stretch."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data; times are seconds."""
        count = len(self.times["ttft"])
        late = {f"{name}_p99_s": _p99(times) for name, times in self.times.items()}
        return {
            "from_s": self.begin / PS_PER_S,
            "rate_per_s": count / ((self.end - self.begin) / PS_PER_S),
            "measured": count,
            "stands_for": self.stands_for,
            "gpus": self.gpus,
            "within": None if self.within is None or not count else float(self.within.mean()),
            **late,
        }


def _p99(times: Floats) -> float | None:
    return float(np.quantile(times, 0.99)) / PS_PER_S if len(times) else None


def _known(width: float) -> float | None:
    """Return half an interval; None where windows have too few requests to say."""
    return width if isfinite(width) else None


class SampledDay(Struct, frozen=True):
    """What windows say of all requests."""

    name: str
    gpus: int
    requests: int
    served: int
    """Number of requests that were simulated."""
    elapsed: int
    windows: tuple[WindowResult, ...]
    slo: Slo | None
    interrupted: bool = False

    def _mean(self, name: str) -> tuple[float, float] | None:
        """Return the mean of a column over all requests, and half its 95 % interval."""
        parts = [
            (each.within if name == "within" else each.times[name], each.stands_for) for each in self.windows
        ]
        counted = [(part, weight) for part, weight in parts if part is not None and len(part)]
        whole = sum(weight * len(part) for part, weight in counted)
        if not whole:
            return None
        mean, error, freedom = 0.0, 0.0, 0
        for part, weight in counted:
            share = weight * len(part) / whole
            mean += share * float(part.mean())
            batches = [float(batch.mean()) for batch in np.array_split(part, _BATCHES) if len(batch)]
            freedom += len(batches) - 1
            error += (share**2) * float(np.var(batches, ddof=1)) / len(batches) if len(batches) > 1 else 0.0
        return mean, student(freedom) * error**0.5 if freedom else float("inf")

    def _spread(self, name: str) -> dict[str, float | None]:
        found = self._mean(name)
        if found is None:
            return dict.fromkeys(("mean", *SHARES))
        times = np.concatenate([each.times[name] for each in self.windows])
        weights = np.concatenate([np.full(len(each.times[name]), each.stands_for) for each in self.windows])
        order = np.argsort(times)
        passed = np.cumsum(weights[order])
        places = np.searchsorted(passed, np.array(list(SHARES.values())) * passed[-1])
        quantiles = times[order][np.minimum(places, len(times) - 1)] / PS_PER_S
        return {"mean": found[0] / PS_PER_S, **dict(zip(SHARES, map(float, quantiles), strict=True))}

    def _gpus(self) -> float:
        """Return the mean number of GPUs that are up, by the lengths of stretches."""
        lengths = [each.stretch for each in self.windows]
        return float(np.average([each.gpus for each in self.windows], weights=lengths))

    def as_json(self) -> dict[str, Any]:
        """Return plain data; times are seconds."""
        kept, names = self._mean("within"), ("ttft", "tpot", "e2e")
        means = {name: self._mean(name) for name in names}
        seconds = max(self.elapsed, 1) / PS_PER_S
        return {
            "job": self.name,
            "gpus": self.gpus,
            "requests": self.requests,
            "simulated": self.served,
            "measured": sum(len(each.times["ttft"]) for each in self.windows),
            "interrupted": self.interrupted,
            "elapsed_s": seconds,
            "requests_per_s": self.requests / seconds,
            **{f"{name}_s": self._spread(name) for name in names},
            "ci95": {f"{name}_s": None if found is None else _known(found[1] / PS_PER_S)
                     for name, found in means.items()},
            "goodput": None if self.slo is None or kept is None else
                       {"slo": self.slo.text, "attained": kept[0], "ci95": _known(kept[1])},
            "gpu_s": self._gpus() * seconds if self.windows else None,
            "windows": [each.as_json() for each in self.windows],
        }  # fmt: skip


def serve_sampled(  # noqa: PLR0913 - what a server is asked, by name
    job: Job,
    machine: Machine,
    windows: Windows,
    *,
    arrivals: str | None = None,
    requests: int = 1000,
    prompt: str | None = None,
    output: str | None = None,
    seed: int = 0,
    slo: Slo | None = None,
    watch: Watch = lambda *_: None,
) -> SampledDay:
    """Serve windows of requests that come as `arrivals` says, and return what they say of all.

    `ConfigError` for a service with a memory that a window does not fill up: sessions, caches of prefixes,
    outages, or an autoscaler that looks back longer than the time before a window.
    """
    cache, found, served, interrupted = BoundedCache(), list[WindowResult](), 0, False
    _check(job, machine, windows, cache)
    texts = {"arrivals": arrivals, "prompt": prompt, "output": output}
    day = workload_of(job, texts, requests=requests, seed=seed)
    if day.arrival is None or day.has_kinds or {"task", "session"} & day.marks.keys():
        problem = "windows are of requests of one class that come each by itself: at a rate, or by a trace"
        raise ConfigError(problem, file="--sample")
    places, gpus = list(_places(day, windows)), 0
    for number, place in enumerate(places):
        start = max(0, place.begin - int(windows.warmup))
        part = _part(day, start, place.end + int(windows.warmup))
        assert part.arrival is not None
        measured = int(np.searchsorted(part.arrival, place.end - start))
        # A fleet that scales is watched to the end: its size in all of the window counts.
        until = None if job.spec.serving and job.spec.serving.autoscaler else measured
        result = serve_workload(job, machine, part, until=until, cache=cache)
        served, gpus, interrupted = served + len(result), result.gpus, result.interrupted
        if interrupted:
            break
        found.append(_measured(result, place, start, slo))
        watch(number + 1, len(places))
    elapsed = int(day.arrival[-1])
    return SampledDay(job.name, gpus, len(day), served, elapsed, tuple(found), slo, interrupted)


def _check(job: Job, machine: Machine, windows: Windows, cache: BoundedCache) -> None:
    spec = job.spec.serving
    if spec is None:
        return
    for key in _LONG:
        if getattr(spec, key):
            problem = "lasts longer than a window of --sample is filled up; serve the whole time"
            raise ConfigError(problem, file=job.file, key=f"serving.{key}")
    if spec.order == "fair":
        problem = "fair counts what each user ever got, which no window knows; allowed: fcfs, priority"
        raise ConfigError(problem, file=job.file, key="serving.order")
    if spec.max_queued is not None:
        problem = "requests that are turned away are in no window of --sample; serve the whole time"
        raise ConfigError(problem, file=job.file, key="serving.max_queued")
    if spec.autoscaler is not None:
        least = looks_back(spec.autoscaler) + scaled_startup(spec, pools_of(job), machine, cache)
        if windows.warmup < least:
            problem = (
                f"the autoscaler looks back {Duration(least)}, start-up included: state a warmup of that"
            )
            raise ConfigError(problem, file="--sample", key="warmup")


class _Place(NamedTuple):
    """A window in the day, in picoseconds."""

    begin: int
    end: int
    stands_for: float
    """Number of requests of its stretch for each one in it."""
    stretch: int
    """Length of its stretch."""


def _places(day: Workload, windows: Windows) -> Iterator[_Place]:
    """Yield the windows of a day."""
    assert day.arrival is not None
    last, every, window = int(day.arrival[-1]), int(windows.every), int(windows.window)
    if last < 2 * every:
        problem = f"requests come for {Duration(last)} (--requests), less than two times {windows.every}"
        raise ConfigError(problem, file="--sample", key="every")
    for low in range(0, last + 1, every):
        high = min(low + every, last + 1)
        begin = low + max(0, high - low - window) // 2
        end = min(begin + window, high)
        every_one, inside = (
            np.diff(np.searchsorted(day.arrival, ends))[0] for ends in ((low, high), (begin, end))
        )
        if inside:
            yield _Place(begin, end, int(every_one) / int(inside), high - low)
        elif every_one:
            problem = (
                f"none of {every_one} requests from {Duration(low)} on is in the window: state a longer one"
            )
            raise ConfigError(problem, file="--sample", key="window")


def _part(day: Workload, start: int, end: int) -> Workload:
    """Return the requests of a part of a day, whose clock begins at `start`."""
    assert day.arrival is not None
    chosen = slice(*np.searchsorted(day.arrival, (start, end)))
    marks = {name: column[chosen] for name, column in day.marks.items()}
    return replace(
        day,
        prompt=day.prompt[chosen],
        output=day.output[chosen],
        arrival=day.arrival[chosen] - start,
        marks=marks,
    )


def _measured(result: ServeResult, place: _Place, start: int, slo: Slo | None) -> WindowResult:
    """Return what was measured in a window of a run whose clock begins at `start`."""
    begin, end = place.begin - start, place.end - start
    arrival = result.requests["arrival"]
    inside = (arrival >= begin) & (arrival < end)
    later = result.requests["output"] - 1
    per_token = (result.e2e - result.ttft) / np.maximum(later, 1)
    order = np.argsort(arrival[inside], kind="stable")
    columns = {"ttft": result.ttft, "e2e": result.e2e}
    times = {name: column[inside][order].astype(np.float64) for name, column in columns.items()}
    several = inside & (later > 0)
    times["tpot"] = per_token[several][np.argsort(arrival[several], kind="stable")]
    within = None if slo is None else slo.met_by(result)[inside][order].astype(np.float64)
    gpus = float(result.gpus)
    if result.sizes:
        gpus = sum(
            size.gpus * (size.replica_time(end) - size.replica_time(begin)) / max(end - begin, 1)
            for size in result.sizes
        )
    return WindowResult(place.begin, place.end, place.stands_for, times, within, gpus, place.stretch)
