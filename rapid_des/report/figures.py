"""What a job's run means in the units of its users: tokens a second, MFU, latencies, memory, energy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from rapid_des.device.device import Device
from rapid_des.frontend import JobMemory, JobTrace, PricedOperator
from rapid_des.frontend.inference import decode_time, passes
from rapid_des.frontend.memory import KvCapacity, kv_capacity, shortage
from rapid_des.frontend.spec import RequestsSpec
from rapid_des.program.lowering import Lowered, rank_times
from rapid_des.program.program import Records
from rapid_des.report.energy import EnergyFigures
from rapid_des.report.evidence import Interval
from rapid_des.report.memory_forecast import MemoryForecast, memory_forecast
from rapid_des.units import Duration, FlopRate, seconds

_PJ = 10**12
_MILLIWATTS = 1000


class KindTimes(Struct, frozen=True):
    """Times of equal requests of a batch, in picoseconds; all requests share the first token's time."""

    count: int
    prompt_length: int
    output_length: int
    per_output_token: Duration
    """Mean time per token after the first."""
    total: Duration

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "count": self.count,
            "prompt_length": self.prompt_length,
            "output_length": self.output_length,
            "time_per_output_token_s": seconds(self.per_output_token),
            "end_to_end_s": seconds(self.total),
        }


class RequestTimes(Struct, frozen=True):
    """Times of a static batch of requests, in picoseconds."""

    first_token: Duration
    """Time to the first token of the request that has it last."""
    earliest: Duration
    """Time to the first token of the request that has it first, if prompts take several passes."""
    per_output_token: Duration
    """Mean time per token after the first, over all requests."""
    total: Duration
    """Time to the last token of the last request."""
    kinds: tuple[KindTimes, ...] = ()
    """Times by kind of requests, in the job's order."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        plain: dict[str, Any] = {
            "time_to_first_token_s": seconds(self.first_token),
            "time_per_output_token_s": seconds(self.per_output_token),
            "end_to_end_s": seconds(self.total),
        }
        if self.earliest < self.first_token:
            plain["earliest_token_s"] = seconds(self.earliest)
        if len(self.kinds) > 1:
            plain["requests"] = [kind.as_json() for kind in self.kinds]
        return plain


class JobFigures(Struct, frozen=True):
    """One training step, or one batch of requests from prompt to last token."""

    gpus: int
    tokens: int
    tokens_per_s: float
    mfu: float
    """Model FLOPs (attention under the causal mask) over the step time and `peak` of all GPUs."""
    peak: FlopRate
    """The dense matrix peak of one GPU in the job's precision, as the device file states it or, where that is
    more, as the clock in use gives it."""
    memory: JobMemory
    memory_capacity: int
    requests: RequestTimes | None = None
    energy: EnergyFigures | None = None
    kv_cache: KvCapacity | None = None
    """The KV pool of an inference job; None in training."""
    software: str = ""
    causal: bool = True
    """Whether attention sees no later positions."""

    @property
    def shortage(self) -> str:
        """What is missing of a GPU's memory; empty where the job fits."""
        if self.memory.fullest.peak > self.memory_capacity:
            return shortage(self.memory, self.memory_capacity)
        return "" if self.kv_cache is None else self.kv_cache.shortage

    @property
    def memory_forecast(self) -> MemoryForecast | None:
        """Where the measured peak of the fullest GPU is expected; None of requests, which fill their pool."""
        if self.requests is not None:
            return None
        return memory_forecast(self.memory, self.memory_capacity, self.software)

    def as_json(self, expected: Interval | None = None) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds. `expected` is the forecast of the step's time."""
        fullest, peak = self.memory.fullest, self.memory_forecast
        plain: dict[str, Any] = {
            "gpus": self.gpus,
            "tokens": self.tokens,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s / self.gpus,
            "tokens_per_s_forecast": expected and expected.rates(self.tokens_per_s),
            "mfu": self.mfu,
            "mfu_forecast": expected and expected.rates(self.mfu),
            "mfu_peak_flop_per_s": int(self.peak),
            "mfu_attention": "causal" if self.causal else "full",
            "memory_bytes": fullest.peak,
            "memory_capacity_bytes": self.memory_capacity,
            "memory_fits": self.shortage == "",
            "memory_forecast_bytes": peak and peak.as_json(),
            "fits": peak and peak.fits,
            "memory_breakdown_bytes": dict(fullest.categories),
            "energy": None if self.energy is None else self.energy.as_json(),
        }
        if self.requests is not None:
            plain |= self.requests.as_json()
        if self.kv_cache is not None:
            plain["kv_cache"] = self.kv_cache.as_json()
        return plain


def job_figures(  # noqa: PLR0913 - what is known of a run, by name
    trace: JobTrace,
    device: Device,
    step_time: int,
    *,
    memory: JobMemory,
    requests: RequestTimes | None,
    energy: EnergyFigures | None,
) -> JobFigures:
    """Return the figures of a step that takes `step_time` picoseconds."""
    job = trace.job
    precision = job.spec.precision
    dtype = precision.gemm or precision.activations
    rate = FlopRate(max(device.spec.tensor_peak.get(dtype, 0), round(device.tensor_rate(dtype))))
    duration = seconds(step_time)
    return JobFigures(
        gpus=job.gpus,
        tokens=job.tokens,
        tokens_per_s=job.tokens / duration,
        mfu=job.model_flops / (duration * job.gpus * rate),
        peak=rate,
        memory=memory,
        memory_capacity=int(device.spec.hbm.capacity),
        requests=requests,
        energy=energy,
        kv_cache=None if requests is None else kv_capacity(job, int(device.spec.hbm.capacity)),
        software=job.software.name,
        causal=job.model.is_causal,
    )


def compute_bound(
    times: Mapping[str, int], priced: Iterable[PricedOperator], requests: RequestTimes | None
) -> str:
    """Return what limits most of a rank's time in kernels: `hbm`, `launch`, or `compute` on the chip.

    `times` are those of operators by name. Of requests it is the longer of prefill and decode that counts.
    """
    decode = requests is not None and 2 * requests.first_token < requests.total
    phase = [each for each in priced if requests is None or (each.step > 0) == decode]
    whole: Counter[str] = Counter()
    for kernel in phase:
        whole[kernel.name] += kernel.duration
    limits: Counter[str] = Counter({"compute": 0})
    for kernel in phase:
        share = kernel.duration / max(whole[kernel.name], 1)
        limits[_LIMITS.get(kernel.bound, "compute")] += round(share * times.get(kernel.name, 0))
    return max(limits, key=lambda name: limits[name])


_LIMITS = {"hbm": "hbm", "launch": "launch", "latency": "launch"}


def request_times(trace: JobTrace, lowered: Lowered, records: Records) -> RequestTimes:
    """Return first-token and inter-token times from when passes leave the last pipeline stage.

    Decode steps that were not simulated are interpolated between those that were.
    """
    last = len(trace.segments) - 1
    ends: dict[int, int] = {}
    for position, stage in enumerate(trace.stage_of_rank):
        if stage == last:
            finish = rank_times(lowered, records, position).finish
            for segment in trace.segments[last]:
                end = int(finish[segment.start : segment.stop].max())
                ends[segment.step] = max(ends.get(segment.step, 0), end)
    steps = sorted(step for step in ends if step >= 0)
    samples = [(step, ends[step] - ends[before]) for before, step in zip(steps, steps[1:], strict=False)]
    first = Duration(ends[steps[0]])
    spec = trace.job.inference
    kinds = tuple(_kind_times(kind, first, samples, (steps[0], spec.steps_of(kind))) for kind in spec.kinds)
    later = [(kind, kind.count * (kind.output_length - 1)) for kind in kinds if kind.output_length > 1]
    tokens = sum(count for _, count in later)
    return RequestTimes(
        first_token=first,
        earliest=Duration(min((ends[at.step] for at in passes(trace.job) if at.sampled), default=first)),
        per_output_token=Duration(
            sum(kind.count * (kind.total - first) for kind, _ in later) // max(tokens, 1)
        ),
        total=max(kind.total for kind in kinds),
        kinds=kinds,
    )


def _kind_times(
    kind: RequestsSpec, first: Duration, samples: Sequence[tuple[int, int]], steps: tuple[int, int]
) -> KindTimes:
    """Return the times of requests of one kind; `steps` are that of the first token, and how many in all."""
    begin, later = steps[0], kind.output_length - 1
    decode = decode_time(samples, begin + 1, begin + steps[1] - 1) if steps[1] > 1 else 0
    return KindTimes(
        kind.count,
        kind.prompt_length,
        kind.output_length,
        per_output_token=Duration(decode // max(later, 1)),
        total=Duration(first + decode),
    )


def until_last_token(
    parts: Callable[[int | None], dict[str, int]], requests: RequestTimes | None, makespan: int
) -> tuple[int, dict[str, int]]:
    """Return the step time and its parts, including decode steps that were not simulated."""
    whole = parts(None)
    if requests is None or requests.total == makespan:
        return makespan, whole
    return requests.total, _stretched(parts(requests.first_token), whole, requests.total)


def _stretched(head: Mapping[str, int], whole: Mapping[str, int], total: int) -> dict[str, int]:
    """Return the parts when only some decode steps were simulated: the decode phase grows in proportion."""
    tail = {part: spent - head[part] for part, spent in whole.items()}
    wanted, simulated = total - sum(head.values()), max(sum(tail.values()), 1)
    parts = {part: head[part] + tail[part] * wanted // simulated for part in whole}
    parts["idle"] += total - sum(parts.values())
    return parts
