"""How much load a server takes within limits, and which layout of it serves a load at the least cost.

The capacity of a layout is the highest rate of Poisson arrivals at which a stated share of the requests keeps
all limits. It is bracketed from above by the rate at which requests leave a server that always has enough of
them, then halved into. Every rate sees the same requests in the same order (common random numbers), so that
the share falls with the rate but for what batching does. Replicas share a load evenly and meet none of each
other's requests: one is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError, InfeasibleJobError, InputError
from rapid_des.frontend import Job, load_job
from rapid_des.machine import Machine
from rapid_des.serving.result import ServeResult, Slo, spread
from rapid_des.serving.server import serve
from rapid_des.units import PS_PER_S

_CLOSE = 1.03
"""A capacity is known when the next higher rate that fails is nearer than this factor."""
_LOWEST = 2**-10
"""Of the rate at which a full server answers: what fails there fails alone."""
CONCURRENCIES = (1, 4, 16, 64, 256)
"""Requests at a time of one replica, of which `curve` has a point each."""
Told = Callable[[str], None]


@dataclass(frozen=True)
class Demand:
    """What is asked of a server."""

    slo: Slo
    share: float = 0.99
    """Of the requests, that keep all limits."""
    requests: int = 1000
    """Of each simulation."""
    prompt: str | None = None
    """Tokens of prompts, as of `serve`; None: as the job says."""
    output: str | None = None
    seed: int = 0

    def served(
        self, job: Job, machine: Machine, arrivals: str, cache: BoundedCache, count: int
    ) -> ServeResult:
        """Return what becomes of so many requests that arrive so."""
        result = serve(
            job, machine, arrivals=arrivals, requests=count, prompt=self.prompt, output=self.output,
            seed=self.seed, cache=cache,
        )  # fmt: skip
        if result.interrupted:
            raise KeyboardInterrupt
        return result

    def kept(self, result: ServeResult) -> float:
        """Return which share of the requests keeps all limits."""
        return float(self.slo.kept(result).mean())


@dataclass(frozen=True)
class Layout:
    """What one replica of a layout takes; rates are requests a second."""

    settings: Mapping[str, int] = field(hash=False)
    """Its degrees of parallelism."""
    gpus: int
    rate: float
    """The capacity; 0 if a request alone breaks the limits."""
    full: float
    """At which rate a server that always has enough requests answers them."""
    at: ServeResult | None
    """What became of the requests at the capacity."""
    kept: float
    """The share of them that kept the limits."""
    broken: str
    """Which limit is broken most above the capacity; empty: none up to the full rate."""

    @property
    def name(self) -> str:
        """Its degrees, in the words of `--layout`."""
        return " ".join(f"{axis}={size}" for axis, size in self.settings.items())

    @property
    def output_tokens_per_gpu(self) -> float:
        """Tokens a second that each GPU generates at the capacity."""
        if self.at is None:
            return 0.0
        return self.rate * float(self.at.requests["output"].mean()) / self.gpus

    def fleet(self, load: float, price: float | None) -> dict[str, Any]:
        """Return the fleet for a load in requests a second; `price` of a GPU and hour."""
        if not self.rate:
            return {}
        replicas = ceil(load / self.rate)
        fleet: dict[str, Any] = {"replicas": replicas, "gpus": replicas * self.gpus}
        if price is not None and self.at is not None:
            tokens = load * float(self.at.requests["output"].mean()) * 3600
            fleet["cost_per_hour"] = fleet["gpus"] * price
            fleet["cost_per_million_tokens"] = fleet["cost_per_hour"] / tokens * 1e6
        return fleet

    def as_json(self) -> dict[str, Any]:
        """Return plain data; times are seconds."""
        plain: dict[str, Any] = {
            "layout": dict(self.settings),
            "gpus": self.gpus,
            "rate_per_s": self.rate,
            "full_rate_per_s": self.full,
            "kept": self.kept,
            "broken_above": self.broken,
            "output_tokens_per_s_per_gpu": self.output_tokens_per_gpu,
        }
        if self.at is not None:
            plain |= {"ttft_s": spread(self.at.ttft), "tpot_s": spread(self.at.tpot)}
        return plain


@dataclass(frozen=True)
class Point:
    """One replica at a number of requests at a time: what its users see, and what a GPU yields."""

    layout: str
    concurrency: int
    tokens_per_user: float
    """A second, by the median time of a token."""
    tokens_per_gpu: float
    """Generated a second."""


def capacity(job: Job, machine: Machine, demand: Demand, *, cache: BoundedCache | None = None) -> Layout:
    """Return the highest rate that one replica of a job takes, within 3 %.

    >>> from rapid_des.machine import load_machine
    >>> job = load_job("llama2_7b_inference", settings={"model.layers": 2})
    >>> found = capacity(job, load_machine("dgx_a100"), Demand(Slo.parse("tpot=1s"), requests=20))
    >>> found.gpus, 0 < found.rate <= found.full
    (2, True)
    """
    cache, job = BoundedCache() if cache is None else cache, _one_replica(job)
    full = _full_rate(job, machine, demand, cache)
    degrees = {axis: getattr(job.spec.parallelism, axis) for axis in ("tp", "pp", "ep")}
    degrees = {axis: size for axis, size in degrees.items() if size > 1 or axis == "tp"}
    found = Layout(degrees, job.gpus, rate=0.0, full=full, at=None, kept=0.0, broken="")

    def tried(rate: float) -> tuple[ServeResult, float]:
        result = demand.served(job, machine, f"poisson rate={rate:.6g}/s", cache, demand.requests)
        return result, demand.kept(result)

    low, high = 0.0, full
    rate = full
    while True:
        result, kept = tried(rate)
        if kept >= demand.share:
            found = replace(found, rate=rate, at=result, kept=kept)
            low = rate
        else:
            found = replace(found, broken=_worst(demand.slo, result))
            high = rate
        if low == full or (low and high / low < _CLOSE) or high < full * _LOWEST:
            return found
        rate = (low * high) ** 0.5 if low else high / 4


def _one_replica(job: Job) -> Job:
    if job.spec.parallelism.dp == 1 or job.spec.parallelism.ep > 1:
        return job
    return load_job(job, settings={"parallelism.dp": 1})


def _full_rate(job: Job, machine: Machine, demand: Demand, cache: BoundedCache) -> float:
    """Return how many requests a second leave a server that has a third of them at a time, in mid run."""
    clients = max(1, demand.requests // 3)
    result = demand.served(job, machine, f"clients count={clients}", cache, demand.requests)
    finished = np.sort(result.requests["finished"])
    first, last = len(finished) // 4, 3 * len(finished) // 4
    return (last - first) / (max(int(finished[last] - finished[first]), 1) / PS_PER_S)


def _worst(slo: Slo, result: ServeResult) -> str:
    """Return the limit that most requests break."""
    broken = {
        name: 1 - float(Slo("", {name: limit}).kept(result).mean()) for name, limit in slo.limits.items()
    }
    return max(broken, key=broken.__getitem__)


def layouts(job: Job, machine: Machine, texts: Iterable[str]) -> Iterator[Job | tuple[str, str]]:
    """Yield a job for every text such as `tp=4 pp=2`, or (text, why there is none)."""
    for text in texts:
        settings = {"parallelism.dp": 1}
        for word in text.split():
            axis, _, size = word.partition("=")
            if axis not in ("tp", "pp", "ep", "dp") or not size.isdigit() or not int(size):
                raise ConfigError(
                    f"{word!r} is not tp=…, pp=…, ep=… or dp=… with a number", file=f"--layout {text!r}"
                )
            settings[f"parallelism.{axis}"] = int(size)
        if settings["parallelism.dp"] > 1 and settings.get("parallelism.ep", 1) == 1:
            problem = "one replica is looked at, the fleet counts them: dp goes with ep, which spans it"
            raise ConfigError(problem, file=f"--layout {text!r}")
        try:
            found = load_job(job, settings=settings)
        except ConfigError as error:
            yield text, error.message
            continue
        if found.gpus > machine.fabric.gpus:
            yield text, f"needs {found.gpus} GPUs, {machine.name} has {machine.fabric.gpus}"
        else:
            yield found


def all_layouts(machine: Machine) -> tuple[str, ...]:
    """Return every power of two of tp in a node, and of stages over what is left of the machine."""
    node, gpus = machine.spec.gpus_per_node or machine.fabric.gpus, machine.fabric.gpus
    powers = [1 << bit for bit in range(gpus.bit_length())]
    return tuple(
        f"tp={tp} pp={pp}" if pp > 1 else f"tp={tp}"
        for tp in powers for pp in powers if tp <= node and tp * pp <= gpus
    )  # fmt: skip


@dataclass(frozen=True)
class Fleets:
    """Layouts by what they cost at a load, or by what a GPU yields at their capacity."""

    rows: tuple[Layout, ...]
    """The best first."""
    refused: tuple[tuple[str, str], ...]
    """Layouts that can not be, and why."""
    load: float | None
    price: float | None

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        rows = [
            row.as_json() | ({"fleet": row.fleet(self.load, self.price)} if self.load else {})
            for row in self.rows
        ]
        return {"rows": rows, "refused": [{"layout": text, "why": why} for text, why in self.refused],
                "load_per_s": self.load}  # fmt: skip


def fleets(  # noqa: PLR0913 - what is asked, by name
    job: Job,
    machine: Machine,
    demand: Demand,
    texts: Sequence[str],
    *,
    load: float | None = None,
    price: float | None = None,
    told: Told = lambda _: None,
) -> Fleets:
    """Return the capacity of each layout; `load` in requests a second, `price` of a GPU and hour.

    `InfeasibleJobError` if none of them fits into memory or on the machine.
    """
    rows, refused = list[Layout](), list[tuple[str, str]]()
    for number, chosen in enumerate(layouts(job, machine, texts) if texts else (job,)):
        if isinstance(chosen, tuple):
            refused.append(chosen)
            continue
        told(f"layout {number + 1} of {max(len(texts), 1)}")
        try:
            rows.append(capacity(chosen, machine, demand))
        except InfeasibleJobError as error:
            refused.append((texts[number] if texts else "the job's own", str(error).splitlines()[0]))
    if not rows:
        raise InfeasibleJobError("; ".join(f"{text}: {why}" for text, why in refused))

    def order(row: Layout) -> tuple[float, ...]:
        if load and row.rate:
            return 0, row.fleet(load, None)["gpus"], -row.output_tokens_per_gpu
        return 1, -row.output_tokens_per_gpu

    return Fleets(tuple(sorted(rows, key=order)), tuple(refused), load, price)


def curve(
    job: Job, machine: Machine, demand: Demand, *, cache: BoundedCache | None = None
) -> tuple[Point, ...]:
    """Return what users see and what a GPU yields at each of `CONCURRENCIES`, of one replica."""
    cache, job = BoundedCache() if cache is None else cache, _one_replica(job)
    split, found = job.spec.parallelism, []
    name = " ".join(
        f"{axis}={getattr(split, axis)}" for axis in ("tp", "pp", "ep") if getattr(split, axis) > 1
    )
    for count in CONCURRENCIES:
        result = demand.served(job, machine, f"clients count={count}", cache, max(32, 4 * count))
        if not len(result.tpot):
            raise InputError("requests of one token have no time between tokens: no curve of interactivity")
        per_gpu = result.throughput["output_tokens_per_s"] / job.gpus
        found.append(Point(name or "tp=1", count, PS_PER_S / float(np.median(result.tpot)), per_gpu))
    return tuple(found)


def front(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points that no other beats in both, by rising interactivity.

    >>> [point.concurrency for point in front([Point("", 1, 9, 1), Point("", 2, 5, 5), Point("", 3, 4, 4)])]
    [2, 1]
    """
    best, kept = 0.0, list[Point]()
    for point in sorted(points, key=lambda one: (-one.tokens_per_user, -one.tokens_per_gpu)):
        if point.tokens_per_gpu > best:
            best = point.tokens_per_gpu
            kept.append(point)
    return tuple(reversed(kept))


def draw_front(points: Sequence[Point], path: Path, *, title: str) -> None:
    """Draw interactivity against what a GPU yields, a line a layout, the front thick: PNG, SVG or PDF."""
    from rapid_des.report.pictures import new_figure, save

    figure = new_figure(path, figsize=(8, 5))
    axes = figure.subplots()
    best = front(points)
    axes.plot(
        [one.tokens_per_user for one in best], [one.tokens_per_gpu for one in best],
        color="0.8", linewidth=7, zorder=1, label="Pareto front", solid_capstyle="round",
    )  # fmt: skip
    for name in dict.fromkeys(point.layout for point in points):
        own = [point for point in points if point.layout == name]
        axes.plot([one.tokens_per_user for one in own], [one.tokens_per_gpu for one in own], "o-", label=name)
        for one in own:
            axes.annotate(str(one.concurrency), (one.tokens_per_user, one.tokens_per_gpu), fontsize=7,
                          xytext=(4, 4), textcoords="offset points")  # fmt: skip
    axes.set(
        xlabel="tokens/s a user (median)", ylabel="tokens/s a GPU", title=title, xscale="log", yscale="log"
    )
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(title="numbers: requests at a time")
    save(figure, path)


def capacity_lines(found: Fleets, demand: Demand, title: str) -> Iterator[str]:
    """Yield the lines of a report."""
    yield title
    asked = f"{demand.share:.0%} of {demand.requests:,} requests within {demand.slo.text}"
    yield f"  {asked}; one replica of each layout"
    yield ""
    heads = f"  {'layout':14}{'GPUs':>6}{'requests/s':>12}{'tokens/s/GPU':>14}{'limited by':>12}"
    yield heads + (f"{'fleet':>12}" if found.load else "") + (f"{'cost/Mtoken':>13}" if found.price else "")
    for row in found.rows:
        limit = row.broken or "throughput"
        line = f"  {row.name:14}{row.gpus:>6}{row.rate:>12.3g}{row.output_tokens_per_gpu:>14,.0f}{limit:>12}"
        fleet = row.fleet(found.load, found.price) if found.load else {}
        if fleet:
            line += f"{fleet['gpus']:>7} GPUs"
        if "cost_per_million_tokens" in fleet:
            line += f"{fleet['cost_per_million_tokens']:>13.3f}"
        yield line
    for text, why in found.refused:
        yield f"  {text:14}  -  {why}"
