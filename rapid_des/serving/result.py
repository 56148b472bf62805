"""Results of serving: latencies of requests, throughput, and the load of replicas over time."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Floats, Int64s
from rapid_des.report.evidence import FIRST_TOKEN, PER_TOKEN, Interval
from rapid_des.report.pictures.serving import write_served
from rapid_des.report.tables import Part, Report
from rapid_des.report.writing import replacing, require_extra
from rapid_des.serving.agents import task_times
from rapid_des.serving.autoscaler import FleetSize
from rapid_des.serving.classes import RequestClass, Unanswered, class_rows
from rapid_des.serving.fleet_record import FleetRecord
from rapid_des.serving.groups import ReplicaGroup, group_rows
from rapid_des.serving.prefix_cache import PrefixHits
from rapid_des.serving.records import Stop, gap_quantiles, mean_gap
from rapid_des.serving.sampling import INTERVALS, SHARES, SteadyWindow, half_widths, spread
from rapid_des.serving.slo import Slo
from rapid_des.serving.uncertainty import forecasts
from rapid_des.serving.uncertainty import intervals as intervals_of
from rapid_des.units import PS_PER_S

_QUEUED = 0.5
_COUNTS = ("number", "replica", "prompt", "output", "preemptions")
_COLUMNS = ("number", "kind", "task", "arrival", "prompt", "output", "replica", "front_end_queue",
            "encoding", "received", "started", "first_token", "transfer", "finished", "preemptions",
            "retries")  # fmt: skip


class ServeResult(Report, Struct, frozen=True, eq=False, dict=True):
    """A served workload; times are picoseconds unless a name says seconds (`_s`).

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> from rapid_des.serving.server import serve
    >>> job, machine = load_job("llama2_7b_inference"), load_machine("dgx_a100")
    >>> result = serve(job, machine, arrivals="poisson rate=2/s", requests=20)
    >>> len(result), bool((result.ttft == result.client + result.queue + result.prefill).all())
    (20, True)
    """

    name: str
    gpus: int
    requests: Mapping[str, Int64s]
    """Columns of the answered requests, by request number."""
    loads: Sequence[Mapping[str, Int64s]]
    """The columns of each replica's iterations (`records.COLUMNS`)."""
    gaps: Int64s
    """Number of tokens by the time since the one before, in bins."""
    pages: Sequence[int]
    """Number of pages of each replica's KV cache."""
    elapsed: int
    """The time at which the last request was answered, or the run interrupted."""
    interrupted: bool = False
    lost: Sequence[int] = ()
    """Arrival times of requests that a stopped replica held and that were never answered."""
    shed: Sequence[int] = ()
    """Arrival times of requests that were turned away."""
    classes: Sequence[RequestClass] = ()
    """The classes of requests; empty: the job states none."""
    unanswered: Sequence[Unanswered] = ()
    """How many requests of each class were never answered."""
    groups: Sequence[ReplicaGroup] = ()
    """The replicas by engine; empty: all are of one job."""
    stops: Sequence[Stop] = ()
    """Intervals in which replicas were down or slow."""
    startup: int = 0
    """Picoseconds that a replica needs after an outage until it serves."""
    turns_waited: int = 0
    """Number of turns that came before the answer before them was there, and waited for it."""
    device: str = ""
    """Device name; its measured servers give the intervals of means."""
    drafts: bool = False
    """Whether decode steps check drafted tokens."""
    prompts_alone: bool = False
    """Whether requests are answered by their prompts, and make no tokens."""
    prefix_cache: PrefixHits | None = None
    """What requests found in caches of prefixes; None: there are none."""
    hashed: bool = False
    """Whether a trace states the content of prompts, which a cache of prefixes reads."""
    sizes: Sequence[FleetSize] = ()
    """How many replicas there were over time, by pool; empty: all always."""
    inside: int = 0
    """Number of requests between sending and answer, integrated over time: request-picoseconds."""
    cut: bool = False
    """Whether it ended with the requests that were asked for, while others were under way."""

    def __post_init__(self) -> None:
        # Little's law: the mean number inside is the rate of requests times the mean time of each
        known = not (self.interrupted or self.cut)
        assert not known or self.inside == int(self.e2e.sum()), "requests were lost"

    @classmethod
    def of(cls, fleet: FleetRecord, *, name: str, gpus: int, interrupted: bool = False) -> ServeResult:
        """Return the result of the requests that a fleet has answered."""
        ordered = sorted(fleet.done, key=lambda request: request.number)
        columns = {
            name: np.fromiter((getattr(each, name) for each in ordered), np.int64, len(ordered))
            for name in _COLUMNS
        }
        loads = [member.load for member in fleet.members]
        return cls(
            name=name,
            gpus=gpus,
            device=fleet.device if len({group.device for group in fleet.groups}) == 1 else "",
            requests=columns,
            loads=[load.table() for load in loads],
            gaps=np.sum([load.gaps for load in loads], axis=0),
            pages=[member.engine.pages for member in fleet.members],
            elapsed=int(fleet.env.now),
            interrupted=interrupted,
            drafts=fleet.engine.drafts is not None,
            lost=tuple(request.arrival for request in fleet.lost),
            shed=tuple(request.arrival for request in fleet.shed),
            prompts_alone=not fleet.engine.samples,
            classes=fleet.classes if fleet.workload.has_kinds else (),
            unanswered=[
                Unanswered(
                    *(sum(each.kind == kind for each in dropped) for dropped in (fleet.lost, fleet.shed))
                )
                for kind in range(len(fleet.classes))
            ],
            groups=fleet.groups if fleet.beside else (),
            stops=tuple(fleet.stops),
            startup=fleet.startup,
            turns_waited=fleet.turns.waited,
            hashed=fleet.workload.blocks is not None,
            prefix_cache=PrefixHits.of([member.content for member in fleet.members]),
            sizes=fleet.sizes,
            inside=fleet.area,
            cut=fleet.until is not None,
        )

    def __len__(self) -> int:
        return len(self.requests["number"])

    @property
    def tokens(self) -> Int64s:
        """The tokens that count for each request: those that it made, or those of its prompt alone."""
        return self.requests["prompt" if self.prompts_alone else "output"]

    @cached_property
    def ttft(self) -> Int64s:
        """Time from sending each request to its first token."""
        return self.requests["first_token"] - self.requests["arrival"]

    @cached_property
    def client(self) -> Int64s:
        """Part of it from the client to a replica: the front ends' queue and their tokenizers."""
        return self.requests["received"] - self.requests["arrival"]

    @cached_property
    def queue(self) -> Int64s:
        """Part of it in the replica's queue, until an iteration computes a part of the request."""
        return self.requests["started"] - self.requests["received"]

    @cached_property
    def prefill(self) -> Int64s:
        """The rest of it, from then to the first token."""
        return self.requests["first_token"] - self.requests["started"]

    @cached_property
    def e2e(self) -> Int64s:
        """Time from sending each request to its last token."""
        return self.requests["finished"] - self.requests["arrival"]

    @cached_property
    def tpot(self) -> Floats:
        """Mean time per token after the first, for requests that have such tokens."""
        later = self.requests["output"] - 1
        return ((self.e2e - self.ttft) / np.maximum(later, 1))[later > 0]

    @property
    def intervals(self) -> Mapping[str, Interval]:
        """Where measured means of `first_token` and `per_token` are expected.

        Of first tokens that are mostly queue there is none: at another rate that would be another; nor where
        tokens are drafted or prompts are all, which no measured server did.
        """
        if self.drafts or self.prompts_alone:
            return {}
        times: dict[str, Int64s | Floats] = {}
        if self.queue.sum() < _QUEUED * self.ttft.sum():
            times[FIRST_TOKEN] = self.ttft
        times[PER_TOKEN] = self.tpot
        return intervals_of(
            {name: float(each.mean()) for name, each in times.items() if len(each)}, self.device
        )

    @property
    def throughput(self) -> dict[str, float]:
        """Requests and tokens a second."""
        seconds = max(self.elapsed, 1) / PS_PER_S
        return {
            "requests_per_s": len(self) / seconds,
            "output_tokens_per_s": int(self.requests["output"].sum()) / seconds,
            "total_tokens_per_s": int((self.requests["prompt"] + self.requests["output"]).sum()) / seconds,
        }

    @cached_property
    def steady(self) -> SteadyWindow | None:
        """When the server neither starts nor drains; None: too few requests are answered between these."""
        return SteadyWindow.of(self.requests["arrival"], self.requests["finished"])

    @property
    def gpu_seconds(self) -> float:
        """The time of all GPUs: of a fleet that grows and shrinks only of its replicas that are up."""
        if not self.sizes:
            return self.gpus * self.elapsed / PS_PER_S
        return sum(size.gpus * size.replica_time(self.elapsed) for size in self.sizes) / PS_PER_S

    def goodput(self, slo: Slo) -> float:
        """Return how many requests a second are answered within all limits."""
        return float(slo.met_by(self).sum()) / (max(self.elapsed, 1) / PS_PER_S)

    def attained(self, slo: Slo) -> dict[str, float | None]:
        """Return which share of requests keeps all limits: of all, of those an outage met, of the others.

        One is met if a replica was out or slow at any time from its coming to its end. Lost ones and those
        that were turned away keep none.
        """
        lost = np.asarray((*self.lost, *self.shed), np.int64)
        arrival = np.concatenate([self.requests["arrival"], lost])
        finished = np.concatenate([self.requests["finished"], lost])
        within = np.concatenate([slo.met_by(self), np.zeros(len(lost), np.bool_)])
        met = np.zeros(len(within), np.bool_)
        for stop in self.stops:
            met |= (arrival < stop.end) & (finished >= stop.begin)
        chosen = {"all": within, "during_outages": within[met], "otherwise": within[~met]}
        return {name: float(each.mean()) if len(each) else None for name, each in chosen.items()}

    @property
    def kv_occupancy(self) -> dict[str, float]:
        """Share of the pages that are held: mean over the time of iterations, and maximum."""
        time = sum(int(load["duration"].sum()) for load in self.loads)
        shares = [load["pages"] / pages for load, pages in zip(self.loads, self.pages, strict=True)]
        held = sum(
            float((load["duration"] * share).sum()) for load, share in zip(self.loads, shares, strict=True)
        )
        most = max((float(share.max(initial=0)) for share in shares), default=0.0)
        return {"mean": held / max(time, 1), "max": most}

    @property
    def tokens_a_step(self) -> float | None:
        """Mean number of tokens that a decode step made of a request; None: no tokens were drafted."""
        if not self.drafts:
            return None
        steps = sum(int((load["steps"] * load["decodes"]).sum()) for load in self.loads)
        return int((self.requests["output"] - 1).sum()) / max(steps, 1)

    def as_json(self, slo: Slo | None = None) -> dict[str, Any]:
        """Return plain data; times are seconds."""
        plain: dict[str, Any] = {
            "job": self.name,
            "gpus": self.gpus,
            "requests": len(self),
            "interrupted": self.interrupted,
            "elapsed_s": self.elapsed / PS_PER_S,
            "ttft_s": spread(self.ttft),
            "client_s": spread(self.client),
            "front_end_queue_s": spread(self.requests["front_end_queue"]),
            "encoder_s": spread(self.requests["encoding"][self.requests["encoding"] > 0]),
            "queue_s": spread(self.queue),
            "prefill_s": spread(self.prefill),
            "tpot_s": spread(self.tpot),
            "itl_s": self._gaps,
            "e2e_s": spread(self.e2e),
            "transfer_s": self._transfers,
            "throughput": self.throughput,
            **self._steady,
            "goodput": None if slo is None else self._kept(slo),
            "kv_occupancy": self.kv_occupancy,
            "tokens_a_step": self.tokens_a_step,
            "preemptions": int(self.requests["preemptions"].sum()),
            "retries": int(self.requests["retries"].sum()),
            "task": "embed" if self.prompts_alone else "generate",
            "lost": len(self.lost),
            "shed": len(self.shed),
            "tasks": task_times(self.requests),
            "classes": list(class_rows(self.classes, self, self.unanswered)) or None,
            "groups": list(group_rows(self.groups, self.requests)) or None,
            "turns_waited": self.turns_waited,
            "hash_ids": self.hashed,
            "prefix_cache": self.prefix_cache and self.prefix_cache.as_json(),
            "startup_s": self.startup / PS_PER_S,
            "autoscaling": [size.as_json(self.elapsed) for size in self.sizes] or None,
            "gpu_s": self.gpu_seconds,
            "outages": [
                {"replica": replica, "from_s": begin / PS_PER_S, "until_s": end / PS_PER_S, "fault": fault}
                for replica, begin, end, fault in self.stops
            ],
            "intervals": {name: interval.as_json() for name, interval in self.intervals.items()},
            "forecast_s": forecasts(self.intervals),
            "ci95": {
                "method": INTERVALS,
                **{name: half_widths(times) for name, times in self._times.items()},
            },
        }
        return plain

    def _kept(self, slo: Slo) -> dict[str, Any]:
        steady = None if self.steady is None else self.steady.rate(slo.met_by(self))
        return {
            "slo": slo.text,
            "requests_per_s": self.goodput(slo),
            "steady_requests_per_s": steady,
            "attained": self.attained(slo),
        }

    @property
    def _steady(self) -> dict[str, Any]:
        """The rates of the steady window, and the interval of the rate of requests."""
        window, names = self.steady, ("steady_requests_per_s", "steady_output_tokens_per_s")
        if window is None:
            return {**dict.fromkeys(names), "throughput_interval": None, "drain_s": None}
        rates = window.rate(), window.rate(self.requests["output"])
        drain = (self.elapsed - window.end) / PS_PER_S
        return {
            **dict(zip(names, rates, strict=True)),
            "throughput_interval": window.interval,
            "drain_s": drain,
        }

    @property
    def _gaps(self) -> dict[str, float]:
        """Quantiles of the times between two tokens of a request; empty if there are none."""
        shares = gap_quantiles(self.gaps, tuple(SHARES.values()))
        if not shares:
            return {}
        every = dict(zip(("mean", *SHARES), (mean_gap(self.gaps), *shares), strict=True))
        return {name: gap / PS_PER_S for name, gap in every.items()}

    @property
    def _transfers(self) -> dict[str, float | None] | None:
        times = self.requests["transfer"]
        return spread(times[times > 0]) if times.any() else None

    @property
    def _times(self) -> dict[str, Int64s | Floats]:
        return {"ttft_s": self.ttft, "tpot_s": self.tpot, "e2e_s": self.e2e}

    def table(self) -> dict[str, Sequence[int] | Sequence[float]]:
        """Return a column a figure, a row an answered request; times are seconds."""
        counts = {name: self.requests[name].tolist() for name in _COUNTS}
        if self.classes:
            counts["class"] = self.requests["kind"].tolist()
        later = np.maximum(self.requests["output"] - 1, 1)
        times = {
            "arrival_s": self.requests["arrival"],
            "client_s": self.client,
            "queue_s": self.queue,
            "prefill_s": self.prefill,
            "transfer_s": self.requests["transfer"],
            "ttft_s": self.ttft,
            "tpot_s": (self.e2e - self.ttft) / later,
            "e2e_s": self.e2e,
        }
        return counts | {name: (column / PS_PER_S).tolist() for name, column in times.items()}

    def write_requests(self, path: str | Path) -> None:
        """Write a row a request: Parquet if so named (needs the extra `parquet`), else CSV."""
        path, table = Path(path), self.table()
        with replacing(path) as beside:
            if path.suffix == ".parquet":
                require_extra("pyarrow", "parquet", f"{path}: Parquet")
                import pyarrow
                from pyarrow import parquet

                parquet.write_table(pyarrow.table(table), beside)
                return
            with beside.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(table)
                writer.writerows(zip(*table.values(), strict=True))

    def plot(self, path: str | Path | None = None, *, title: str = "") -> Any:
        """Return a figure of latencies, and of the load over time; written as PNG, SVG or PDF to a path."""
        from rapid_des.report.charts.servers import served_charts
        from rapid_des.report.pictures.charts import draw_charts

        return draw_charts(
            served_charts(self, {}), None if path is None else Path(path), title=title or self.name
        )

    def report(self) -> Iterator[Part]:
        """Yield the report that `rapid-des serve` prints."""
        from rapid_des.report.serve_text import serve_report

        return serve_report(self.as_json(), self.name, len(self.loads))

    def write_timeline(self, path: str | Path) -> None:
        """Write a timeline for ui.perfetto.dev: a track a request, counters a replica."""
        write_served(self, Path(path))
