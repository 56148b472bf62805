"""What is shown of a served workload: load over time, and a timeline with requests as tracks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Int64s
from rapid_des.report.timeline import write_events
from rapid_des.units import PS_PER_S, PS_PER_US

_POINTS = 400
"""Number of points of a curve over time, each the mean of an interval."""


class Drawn(Protocol):
    """The attributes of a serving result that are drawn."""

    @property
    def requests(self) -> Mapping[str, Int64s]:
        """Columns of the answered requests."""
        ...

    @property
    def loads(self) -> Sequence[Mapping[str, Int64s]]:
        """The columns of the iterations of each replica."""
        ...

    @property
    def pages(self) -> Sequence[int]:
        """Number of pages of each replica."""
        ...

    @property
    def elapsed(self) -> int:
        """Duration of the run in picoseconds."""
        ...

    @property
    def tokens_a_step(self) -> float | None:
        """Mean number of tokens that a decode step made of a request; None: one."""
        ...

    @property
    def ttft(self) -> Int64s:
        """Times to first tokens, in picoseconds."""
        ...

    @property
    def queue(self) -> Int64s:
        """Times in queues, in picoseconds."""
        ...

    @property
    def e2e(self) -> Int64s:
        """Times to last tokens, in picoseconds."""
        ...

    @property
    def tpot(self) -> NDArray[np.float64]:
        """Mean times per later token, in picoseconds."""
        ...


def over_time(result: Drawn) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Return seconds, and for each the means of what happens around it, all replicas together.

    `running` and `waiting` count requests, `KV cache` is the percentage of pages that are held, `tokens/s`
    counts decoded tokens.
    """
    edges = np.linspace(0, max(result.elapsed, 1), _POINTS + 1)

    def whole(value: Callable[[Mapping[str, Int64s]], Int64s | NDArray[np.float64]]) -> NDArray[np.float64]:
        return sum((_mean(each, value(each), edges) for each in result.loads), np.zeros(_POINTS))

    return (edges[:-1] + edges[1:]) / 2 / PS_PER_S, {
        "running": whole(lambda load: load["running"]),
        "waiting": whole(lambda load: load["waiting"]),
        "KV cache": 100 * whole(lambda load: load["pages"]) / sum(result.pages),
        "tokens/s": whole(_decoded_per_second) * (result.tokens_a_step or 1.0),
    }


def _decoded_per_second(load: Mapping[str, Int64s]) -> NDArray[np.float64]:
    made = load["decodes"] * load["steps"]
    rate: NDArray[np.float64] = made * float(PS_PER_S) / np.maximum(load["duration"], 1)
    return rate


def _mean(
    load: Mapping[str, Int64s], values: Int64s | NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the mean over time of a value that stretches of iterations hold, between edges."""
    ends = load["began"] + load["duration"]
    area = np.concatenate(([0.0], np.cumsum(values * load["duration"], dtype=np.float64)))
    times = np.stack((load["began"], ends), 1).ravel()
    areas = np.stack((area[:-1], area[1:]), 1).ravel()
    if not len(times):
        return np.zeros(len(edges) - 1)
    means: NDArray[np.float64] = np.diff(np.interp(edges, times, areas)) / np.diff(edges)
    return means


def write_served(result: Drawn, path: Path) -> None:
    """Write a timeline for ui.perfetto.dev: a track a request, counters a replica; packed if `.gz`."""
    write_events(path, _events(result))


_PHASES = (("client", "arrival", "received"), ("queue", "received", "started"),
           ("prefill", "started", "first_token"), ("decode", "first_token", "finished"))  # fmt: skip


def _events(result: Drawn) -> Iterator[str]:
    for number, load in enumerate(result.loads):
        yield _event(ph="M", name="process_name", pid=number, args={"name": f"replica {number}"})
        columns = (load[name].tolist() for name in ("began", "running", "waiting", "pages"))
        for began, running, waiting, pages in zip(*columns, strict=True):
            counts = {"running": running, "waiting": waiting}
            yield _event(ph="C", name="requests", pid=number, ts=began / PS_PER_US, args=counts)
            yield _event(ph="C", name="pages", pid=number, ts=began / PS_PER_US, args={"held": pages})
    for row in zip(*(column.tolist() for column in result.requests.values()), strict=True):
        request = dict(zip(result.requests, row, strict=True))
        for phase, begin, end in _PHASES:
            yield from _slice(phase, request, begin, end)


def _slice(phase: str, request: dict[str, int], begin: str, end: str) -> Iterator[str]:
    """Yield a phase of a request as a slice of the request's own track."""
    if request[end] <= request[begin]:
        return
    track: dict[str, Any] = {
        "cat": "request", "id": request["number"], "pid": request["replica"], "name": phase,
    }  # fmt: skip
    arguments = {"request": request["number"], "prompt": request["prompt"], "output": request["output"]}
    yield _event(ph="b", ts=request[begin] / PS_PER_US, args=arguments, **track)
    yield _event(ph="e", ts=request[end] / PS_PER_US, **track)


def _event(**fields: Any) -> str:
    return json.dumps(fields, separators=(",", ":"))
