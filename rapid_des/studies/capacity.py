"""The load that a server takes within limits, and the layout that serves a load at the least cost.

The capacity of a layout is the highest rate of Poisson arrivals at which a stated share of the requests keeps
all limits in the long run (`attainment`). Its upper bound is the rate at which requests leave a server that
always has requests waiting; bisection finds it below, with an interval. One replica is simulated: replicas
share a load evenly and are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil, inf
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError, InfeasibleJobError
from rapid_des.frontend import Job, load_job
from rapid_des.machine import Machine
from rapid_des.means import student
from rapid_des.serving.energy import ServedEnergy, served_energy
from rapid_des.serving.failures import replicas_held
from rapid_des.serving.outages import availability
from rapid_des.serving.pools import embeds, pools_of, server_gpus
from rapid_des.serving.result import ServeResult
from rapid_des.serving.sampling import spread
from rapid_des.serving.server import serve, workload_of
from rapid_des.serving.slo import Slo
from rapid_des.serving.uncertainty import forecasts
from rapid_des.studies.attainment import Trial, about, between, highest_rate, worst_limit
from rapid_des.units import PS_PER_S
from rapid_des.values import replace

_FULL_DRAWS = 4
"""Number of runs behind the interval of a full server's rate."""
_AXES = ("tp", "pp", "ep", "dp", "prefill", "decode", "prefill_tp")
_Refused = tuple[str, str]


class ServerLoad(Struct, frozen=True):
    """The requests of a server, and the limits that they must keep."""

    slo: Slo
    share: float = 0.99
    """The share of the requests that must keep all limits."""
    requests: int = 1000
    """The number of requests of a short run; the longest has eight times as many."""
    prompt: str | None = None
    """The lengths of prompts in tokens, as for `serve`; None: those of the job."""
    output: str | None = None
    seed: int = 0
    reliability: str | None = None
    """A reliability file or preset, by which the fleet has replicas for those that are out."""

    def served(
        self, job: Job, machine: Machine, arrivals: str, cache: BoundedCache, count: int
    ) -> ServeResult:
        """Return the result of serving `count` requests with these arrivals."""
        result = serve(
            job, machine, arrivals=arrivals, requests=count, prompt=self.prompt, output=self.output,
            seed=self.seed, cache=cache,
        )  # fmt: skip
        if result.interrupted:
            raise KeyboardInterrupt
        return result


@dataclass(frozen=True)
class Layout:
    """The capacity of one replica of a layout; rates are requests a second."""

    settings: Mapping[str, int] = field(hash=False)
    """The degrees of parallelism of the layout."""
    gpus: int
    rate: float
    """The capacity in requests a second; 0 if a request alone breaks the limits."""
    interval: tuple[float, float]
    """The 95 % interval of the capacity."""
    full: float
    """The rate at which a server answers that always has requests waiting."""
    at: ServeResult | None
    """The result of serving at the tried rate that is nearest; None if the capacity is 0."""
    attainment: float
    """The share of the requests that kept the limits in the last run, the nearest to the capacity."""
    broken: str
    """The limit that most requests break above the capacity; empty: none up to the full rate."""
    above: float | None = None
    """The lowest tried rate that breaks the limits; None: none did."""
    energy: ServedEnergy | None = None
    """The energy of the requests at the capacity; None if the device file has no energy constants."""
    availability: float | None = None
    """The share of the time in which a replica runs; None: no failures are stated."""
    share: float = 0.99

    @property
    def name(self) -> str:
        """The degrees of parallelism as `--layout` takes them."""
        return " ".join(f"{axis}={size}" for axis, size in self.settings.items())

    @property
    def output_tokens_per_gpu(self) -> float:
        """Tokens a second that each GPU makes at the capacity; of prompts alone, those that it reads."""
        if self.at is None:
            return 0.0
        return self.rate * float(self.at.tokens.mean()) / self.gpus

    def cost_per_million_tokens(self, price: float) -> float | None:
        """Return what a million generated tokens cost at the capacity; `price` of a GPU and hour."""
        tokens = self.output_tokens_per_gpu * 3600
        return price / tokens * 1e6 if tokens else None

    def fleet(self, load: float, price: float | None) -> dict[str, Any]:
        """Return the fleet for a load in requests a second; `price` of a GPU and hour."""
        if not self.rate:
            return {}
        low, high = self.interval
        replicas, fewest = ceil(load / self.rate), ceil(load / high)
        gpus, ends = replicas * self.gpus, [fewest * self.gpus, ceil(load / low) * self.gpus if low else None]
        fleet: dict[str, Any] = {"replicas": replicas, "gpus": gpus, "gpus_interval": ends}
        if price is not None and self.at is not None:
            tokens = load * float(self.at.tokens.mean()) * 3600
            fleet["cost_per_hour"] = gpus * price
            fleet["cost_per_million_tokens"] = gpus * price / tokens * 1e6
            fleet["cost_per_million_tokens_interval"] = [end and end * price / tokens * 1e6 for end in ends]
        if self.availability is not None:
            held = replicas_held(replicas, self.availability, self.share)
            fleet["with_failures"] = {"replicas": held, "gpus": held * self.gpus}
        return fleet

    def as_json(self, price: float | None = None) -> dict[str, Any]:
        """Return plain data; times are seconds."""
        plain: dict[str, Any] = {
            "layout": dict(self.settings),
            "gpus": self.gpus,
            "rate_per_s": self.rate,
            "rate_interval_per_s": list(self.interval),
            "full_rate_per_s": self.full,
            "kept": self.attainment,
            "broken_above": self.broken,
            "broken_from_rate_per_s": self.above,
            "output_tokens_per_s_per_gpu": self.output_tokens_per_gpu,
        }
        if self.at is not None:
            plain |= {"ttft_s": spread(self.at.ttft), "tpot_s": spread(self.at.tpot)}
            plain["forecast_s"] = forecasts(self.at.intervals)
        plain["availability"] = self.availability
        plain["energy"] = None if self.energy is None else self.energy.as_json()
        if price is not None:
            plain["cost_per_million_tokens"] = self.cost_per_million_tokens(price)
        return plain


def capacity(
    job: Job,
    machine: Machine,
    demand: ServerLoad,
    *,
    cache: BoundedCache | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Layout:
    """Return the highest rate that one replica of a job serves within the limits.

    `on_progress` gets the rate that is tried next, and between which rates the answer lies.

    >>> from rapid_des.machine import load_machine
    >>> job = load_job("llama2_7b_inference", settings={"model.layers": 2})
    >>> found = capacity(job, load_machine("dgx_a100"), ServerLoad(Slo.parse("tpot=1s"), requests=20))
    >>> found.gpus, 0 < found.rate <= found.full
    (2, True)
    """
    cache, job = BoundedCache() if cache is None else cache, one_replica(job)
    demand.slo.of_requests(embeds=embeds(job))
    on_progress("the rate of a full server")
    full = _full_rate(job, machine, demand, cache)

    trials, runs = list[Trial](), dict[float, ServeResult]()

    def tried(rate: float, lengths: int) -> Trial:
        arrivals, count = f"poisson rate={rate:.6g}/s", demand.requests * lengths
        on_progress(f"{count:,} requests at {rate:.3g}/s{between(trials)}")
        runs[rate] = demand.served(job, machine, arrivals, cache, count)
        trials.append(Trial.of(rate, runs[rate], demand.slo, demand.share))
        return trials[-1]

    found = highest_rate(tried, full)
    interval = (found.low, found.high) if found.above else _full_interval(full, job, machine, demand, cache)
    near = min(runs, key=lambda each: abs(each - found.rate))
    at = runs[near] if found.rate else None
    return Layout(
        degrees_of(job), server_gpus(job), rate=found.rate, interval=interval, full=full, at=at,
        attainment=found.share, broken=worst_limit(demand.slo, runs[found.above]) if found.above else "",
        above=found.above,
        energy=None if at is None else served_energy(at, job, machine, cache=cache),
        availability=availability(job, machine, demand.reliability, cache), share=demand.share,
    )  # fmt: skip


def one_replica(job: Job) -> Job:
    """Return the job of one replica of a layout."""
    if job.spec.serving is not None and job.spec.serving.beside:
        problem = "a capacity is that of replicas of one job: state no others, and find that of each job"
        raise ConfigError(problem, file=job.file, key="serving.beside")
    if job.spec.serving is not None and job.spec.serving.documents is not None:
        problem = "a capacity is of requests that come one by one: ask for that of pairs, and leave this out"
        raise ConfigError(problem, file=job.file, key="serving.documents")
    if job.spec.parallelism.dp == 1 or job.spec.parallelism.ep > 1 or _prefilling(job):
        return job
    return load_job(job, settings={"parallelism.dp": 1})


def _prefilling(job: Job) -> int:
    """Return the number of replicas that only compute prompts."""
    pools = pools_of(job)
    return pools[0].replicas if len(pools) > 1 else 0


def degrees_of(job: Job) -> dict[str, int]:
    """Return a layout's degrees as `--layout` takes them."""
    split, prefilling = job.spec.parallelism, _prefilling(job)
    degrees = {axis: getattr(split, axis) for axis in ("tp", "pp", "ep")}
    degrees = {axis: size for axis, size in degrees.items() if size > 1 or axis == "tp"}
    if split.ep > 1 and split.dp > 1:
        degrees["dp"] = split.dp
    if not prefilling:
        return degrees
    prompting, answering = pools_of(job)
    degrees |= {"prefill": prefilling, "decode": answering.replicas}
    return degrees if prompting.each == answering.each else degrees | {"prefill_tp": prompting.each}


def _full_rate(job: Job, machine: Machine, demand: ServerLoad, cache: BoundedCache) -> float:
    """Return the requests a second that leave a server with a third of them in flight, in the middle half."""
    clients = max(1, demand.requests // 3)
    result = demand.served(job, machine, f"clients count={clients}", cache, demand.requests)
    finished = np.sort(result.requests["finished"])
    first, last = len(finished) // 4, 3 * len(finished) // 4
    return (last - first) / (max(int(finished[last] - finished[first]), 1) / PS_PER_S)


def _full_interval(
    full: float, job: Job, machine: Machine, demand: ServerLoad, cache: BoundedCache
) -> tuple[float, float]:
    """Return where the rate of a full server lies, by draws of other seeds."""
    seeds = (demand.seed + (number << 32) for number in range(1, _FULL_DRAWS))
    draws = [_full_rate(job, machine, replace(demand, seed=seed), cache) for seed in seeds]
    width = student(_FULL_DRAWS - 1) * float(np.std([full, *draws], ddof=1))
    return max(full - width, 0.0), full + width


def _check_front_ends(job: Job, demand: ServerLoad, load: float) -> None:
    """Raise `ConfigError` where the stated front ends take fewer requests than the load has."""
    number, host = job.spec.serving.front_ends if job.spec.serving else None, job.host
    if number is None or host is None:
        return
    texts = {"arrivals": "clients count=1", "prompt": demand.prompt, "output": demand.output}
    prompts = workload_of(job, texts, requests=demand.requests, seed=demand.seed).prompt
    each = int(host.request or 0) + int(host.prompt_token or 0) * float(prompts.mean())
    if load * each > number * PS_PER_S:
        most, needed = number * PS_PER_S / each, int(load * each / PS_PER_S) + 1
        problem = f"{number} take at most {most:.3g} requests/s, the load is {load:.3g}/s; it needs {needed}"
        raise ConfigError(problem, file=job.file, key="serving.front_ends")


def _settings(text: str) -> dict[str, object]:
    """Return the settings that a text such as `tp=4 prefill=1 decode=3` stands for."""
    sizes = dict[str, int]()
    if not text.split():
        raise ConfigError("says nothing; as in: tp=4 pp=2", file=f"--layout {text!r}")
    for word in text.split():
        axis, _, size = word.partition("=")
        if axis not in _AXES or not size.isdigit() or not int(size):
            problem = f"{word!r} is not one of {', '.join(f'{axis}=…' for axis in _AXES)} with a number"
            raise ConfigError(problem, file=f"--layout {text!r}")
        sizes[axis] = int(size)
    prefill, decode, apart = (sizes.pop(axis, 0) for axis in ("prefill", "decode", "prefill_tp"))
    if bool(prefill) != bool(decode) or (prefill and ("dp" in sizes or sizes.get("ep", 1) > 1)):
        problem = "prefill=… and decode=…, numbers of replicas, go together, without dp and ep"
        raise ConfigError(problem, file=f"--layout {text!r}")
    if apart and not prefill:
        raise ConfigError("prefill_tp=… is of prefill=… replicas", file=f"--layout {text!r}")
    if sizes.get("dp", 1) > 1 and sizes.get("ep", 1) == 1:
        problem = "one replica is looked at, the fleet counts them: dp goes with ep, which spans it"
        raise ConfigError(problem, file=f"--layout {text!r}")
    alike = prefill if not apart else 0
    settings: dict[str, object] = {"parallelism.dp": alike + decode or 1}
    settings |= {f"parallelism.{axis}": size for axis, size in sizes.items()}
    settings["serving.prefill_replicas"] = alike or None
    settings["serving.prefill_parallelism"] = {"tp": apart, "dp": prefill} if apart else None
    return settings


def layouts(job: Job, machine: Machine, texts: Iterable[str]) -> Iterator[Job | tuple[str, str]]:
    """Yield a job for every text such as `tp=4 pp=2`, or (text, why there is none)."""
    for text in texts:
        settings = _settings(text)
        try:
            candidate = load_job(job, settings=settings)
        except ConfigError as error:
            yield text, error.message
            continue
        if server_gpus(candidate) > machine.fabric.gpus:
            yield text, f"needs {server_gpus(candidate)} GPUs, {machine.name} has {machine.fabric.gpus}"
        else:
            yield candidate


def with_splits(texts: Sequence[str], replicas: int) -> tuple[str, ...]:
    """Return the layouts, and each with its replicas divided into some for prompts and some for answers.

    >>> with_splits(["tp=4"], 3)
    ('tp=4', 'tp=4 prefill=1 decode=2', 'tp=4 prefill=2 decode=1')
    """
    split = (
        f"{text} prefill={prefill} decode={replicas - prefill}"
        for text in texts
        for prefill in range(1, replicas)
    )
    return (*texts, *split)


def all_layouts(machine: Machine) -> tuple[str, ...]:
    """Return all layouts of a power of two of tp within a node, and a power of two of stages."""
    node, gpus = machine.spec.gpus_per_node or machine.fabric.gpus, machine.fabric.gpus
    powers = [1 << bit for bit in range(gpus.bit_length())]
    return tuple(
        f"tp={tp} pp={pp}" if pp > 1 else f"tp={tp}"
        for tp in powers for pp in powers if tp <= node and tp * pp <= gpus
    )  # fmt: skip


class Fleets(Struct, frozen=True):
    """Layouts by their cost at a load, or by the throughput of a GPU at their capacity."""

    rows: tuple[Layout, ...]
    """The layouts that can serve, the best first."""
    refused: tuple[tuple[str, str], ...]
    """Layouts that cannot serve, and why."""
    load: float | None
    price: float | None
    interrupted: bool = False

    def as_good(self, row: Layout) -> bool:
        """Return whether a layout may be as good as the first: the intervals of what orders them meet."""
        return self._ordering(row)[0] <= self._ordering(self.rows[0])[1]

    def _ordering(self, row: Layout) -> tuple[float, float]:
        """Return the interval of what orders layouts: GPUs for the load, or for a request a second."""
        slow, fast = row.interval
        if self.load is None:
            return row.gpus / max(fast, 1e-12), row.gpus / max(slow, 1e-12)
        fewest, most = row.fleet(self.load, None).get("gpus_interval", (inf, inf))
        return fewest or inf, most or inf

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        rows = [
            row.as_json(self.price)
            | {"as_good_as_first": self.as_good(row)}
            | ({"fleet": row.fleet(self.load, self.price)} if self.load else {})
            for row in self.rows
        ]
        return {"rows": rows, "refused": [{"layout": text, "why": why} for text, why in self.refused],
                "load_per_s": self.load, "interrupted": self.interrupted}  # fmt: skip


def _fitting(job: Job | _Refused, text: str, capacity_of: Callable[[Job], Layout]) -> Layout | _Refused:
    """Return the capacity of a layout, or (its text, why it does not fit into memory), as given or found."""
    if isinstance(job, tuple):
        return job
    try:
        return capacity_of(job)
    except InfeasibleJobError as error:
        return text, str(error).splitlines()[0]


def fleets(  # noqa: PLR0913 - what is asked, by name
    job: Job,
    machine: Machine,
    demand: ServerLoad,
    texts: Sequence[str],
    *,
    load: float | None = None,
    price: float | None = None,
    cache: BoundedCache | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Fleets:
    """Return the capacity of each layout; `load` in requests a second, `price` of a GPU and hour.

    Simulations of all layouts share a cache. `InfeasibleJobError` if no layout fits into memory or on the
    machine. An interrupt (^C) ends it with the layouts that are done, if there are any.
    """
    if load:
        _check_front_ends(job, demand, load)
    outcomes, interrupted = list[Layout | _Refused](), False
    find = partial(capacity, machine=machine, demand=demand, cache=BoundedCache() if cache is None else cache)
    try:
        for number, chosen in enumerate(layouts(job, machine, texts) if texts else (job,)):
            text = texts[number] if texts else "the job's own"
            where = f"layout {number + 1} of {max(len(texts), 1)}"
            on_progress(where)
            outcomes.append(_fitting(chosen, text, partial(find, on_progress=about(on_progress, where))))
    except KeyboardInterrupt:
        if not any(isinstance(outcome, Layout) for outcome in outcomes):
            raise
        interrupted = True
    rows = [outcome for outcome in outcomes if isinstance(outcome, Layout)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
    if not rows:
        raise InfeasibleJobError("; ".join(f"{text}: {why}" for text, why in refused))

    def order(row: Layout) -> tuple[float, ...]:
        if load and row.rate:
            return 0, row.fleet(load, None)["gpus"], -row.output_tokens_per_gpu
        return 1, -row.output_tokens_per_gpu

    return Fleets(tuple(sorted(rows, key=order)), tuple(refused), load, price, interrupted)
