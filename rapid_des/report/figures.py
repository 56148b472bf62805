"""What a job's run means in the units of its users: tokens a second, MFU, latencies, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from msgspec import structs

from rapid_des.chakra.trace import CollectiveType
from rapid_des.device.device import Device, load_device
from rapid_des.frontend import JobMemory, JobTrace
from rapid_des.frontend.host import HostSpec
from rapid_des.frontend.inference import decode_time
from rapid_des.frontend.operations import PricedOperator
from rapid_des.program.lowering import Lowered
from rapid_des.program.plans import PLAIN, SCALAR, SEND, Served
from rapid_des.program.program import Records
from rapid_des.report.breakdown import rank_times
from rapid_des.report.energy import EnergyFigures, energy_figures
from rapid_des.report.host_text import host_json
from rapid_des.units import Duration, FlopRate, seconds

MEASURED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "A100-SXM4-80GB": ("a100_sxm_80gb", ("attention", "collectives", "experts", "gemm", "layers")),
    "A40": ("a40", ("collectives", "layers")),
    "A6000": ("a6000", ("layers",)),
    "B200-SXM-180GB": ("b200", ("attention", "collectives", "experts", "gemm")),
    "B300-SXM-270GB": ("b300", ("collectives",)),
    "GB200": ("gb200", ("attention", "collectives", "experts", "gemm")),
    "GB300": ("gb300", ("collectives",)),
    "GH200-96GB": ("gh200", ("layers",)),
    "H100-SXM-80GB": ("h100_sxm", ("attention", "collectives", "experts", "gemm", "layers")),
    "H200-SXM-141GB": ("h200", ("collectives",)),
    "L40S": ("l40s", ("collectives", "gemm")),
    "MI210": ("mi210", ("layers",)),
    "P100-PCIE-16GB": ("p100_pcie", ("gemm",)),
    "RTX3090": ("rtx_3090", ("layers",)),
    "RTX4090": ("rtx_4090", ("layers",)),
    "RTXPRO6000": ("rtx_pro_6000", ("layers",)),
    "T4": ("t4", ("gemm",)),
    "TPU-v6e-1": ("tpu_v6e", ("layers",)),
    "V100-SXM2-16GB": ("v100_sxm2", ("gemm",)),
}
"""Devices that `validation/data` holds measurements of: name, preset, and of what."""


GEMM_DTYPES: Mapping[str, tuple[str, ...]] = {
    "A100-SXM4-80GB": ("bf16", "fp16"),
    "B200-SXM-180GB": ("fp4", "fp8"),
    "GB200": ("bf16", "fp4", "fp8"),
    "H100-SXM-80GB": ("bf16", "fp16", "fp8"),
    "L40S": ("bf16", "fp8"),
    "P100-PCIE-16GB": ("fp16", "fp32"),
    "T4": ("fp16", "fp32"),
    "V100-SXM2-16GB": ("fp16", "fp32"),
}
"""In which dtypes `validation/data` holds GEMMs of those devices."""


def measured_topics(device: Device, dtype: str) -> tuple[str, ...]:
    """Return of what a device was measured: nothing if its numbers are not those of that preset.

    GEMMs count in the `dtype` of the matrices alone.
    """
    preset, topics = MEASURED.get(device.spec.name, ("", ()))
    if not topics:
        return ()
    stated = structs.replace(load_device(preset).spec, conditions=device.conditions)
    if stated != device.spec:
        return ()
    absent = () if dtype in GEMM_DTYPES.get(device.spec.name, ()) else ("gemm",)
    return tuple(topic for topic in topics if topic not in absent)


def validation_text(topics: Sequence[str], dtype: str) -> str:
    """Return what a report says of measurements behind its prices.

    >>> validation_text((), "bf16")
    'not validated: there are no measurements of this device as it is stated here'
    """
    if not topics:
        return "not validated: there are no measurements of this device as it is stated here"
    missing = "" if "gemm" in topics else f"; matrix products in {dtype} are not validated"
    return f"validated against measurements of {', '.join(topics)}{missing}"


@dataclass(frozen=True)
class Basis:
    """What a run was priced with; of foreign traces, whose durations are stated, the collectives alone."""

    collectives: Mapping[str, str]
    """The algorithm by collective that the machine file asks for, `default` for those that it leaves open."""
    served: tuple[Served, ...] = ()
    """What the run's collectives got."""
    device: Device | None = None
    """At the clock, and with the launches, that the job runs at."""
    decode_launch: str = ""
    """How decode steps launch their kernels; empty in training."""
    validated: tuple[str, ...] = ()
    """Of what there are measurements of this device."""
    matrix_dtype: str = ""
    """Of the job's matrix products."""
    software: str = ""
    """The job's framework or engine."""
    host: HostSpec | None = None
    """What issuing its work takes; None: launches are in the kernels' times."""

    @property
    def launch(self) -> str:
        """How kernels are launched."""
        stated = "" if self.device is None else self.device.conditions.launch
        differs = self.decode_launch not in ("", stated)
        return f"{stated}, decode {self.decode_launch}" if differs else stated

    @property
    def apart(self) -> tuple[Served, ...]:
        """What collectives got where the machine file leaves that open, as a list of algorithms does."""
        return tuple(one for one in self.served if one.operation != SEND and self._is_apart(one))

    def _is_apart(self, served: Served) -> bool:
        asked = self.collectives.get(served.operation, self.collectives["default"]).split("/")
        plain = {SCALAR, PLAIN[CollectiveType.BARRIER]}
        return len(set(asked)) > 1 or not {name.split()[0] for name in served.algorithm.split("/")} <= {
            *asked,
            *plain,
        }

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; the clock in Hz."""
        plain: dict[str, Any] = {
            "collectives": dict(self.collectives),
            "served": [asdict(served) for served in self.served],
        }
        if self.device is None:
            return plain
        spec, used = self.device.spec, self.device.conditions
        return plain | {
            "device": spec.name,
            "clock": used.clock,
            "clock_hz": int(getattr(spec.clock, used.clock)),
            **_sustained_as_json(self.device),
            "launch": self.launch,
            "l2": used.l2,
            "software": self.software,
            "host": None if self.host is None else host_json(self.host),
            "library": used.library,
            "attention": used.attention or used.library,
            "operators": spec.operators,
            "validated": list(self.validated),
        }


def _sustained_as_json(device: Device) -> dict[str, Any]:
    """Return where the sustained clock is from and those of other dtypes; nothing at the boost clock."""
    clock = device.spec.clock
    if device.conditions.clock == "boost":
        return {}
    return {
        "clock_hz_by_dtype": {dtype: int(own) for dtype, own in clock.sustained_by_dtype.items()},
        "clock_from": clock.sustained_from,
        "clock_within": clock.sustained_within,
    }


@dataclass(frozen=True)
class RequestTimes:
    """A static batch of requests: picoseconds."""

    first_token: Duration
    per_output_token: Duration
    """Mean over the tokens after the first."""
    total: Duration


@dataclass(frozen=True)
class JobFigures:
    """One training step, or one batch of requests from prompt to last token."""

    gpus: int
    tokens: int
    tokens_per_s: float
    mfu: float
    """Model FLOPs, attention as far as causal, over the step time and `peak` of all GPUs."""
    peak: FlopRate
    """Of one GPU: the dense matrix peak of the job's precision that the device file states, or what the clock
    in use gives where that is more."""
    memory: JobMemory
    memory_capacity: int
    requests: RequestTimes | None = None
    energy: EnergyFigures | None = None

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        fullest = self.memory.fullest
        plain: dict[str, Any] = {
            "gpus": self.gpus,
            "tokens": self.tokens,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "mfu_peak_flop_per_s": int(self.peak),
            "mfu_attention": "causal",
            "memory_bytes": fullest.peak,
            "memory_capacity_bytes": self.memory_capacity,
            "memory_breakdown_bytes": dict(fullest.categories),
            "energy": None if self.energy is None else self.energy.as_json(),
        }
        if self.requests is not None:
            plain["time_to_first_token_s"] = seconds(self.requests.first_token)
            plain["time_per_output_token_s"] = seconds(self.requests.per_output_token)
        return plain


def job_figures(
    trace: JobTrace,
    device: Device,
    step_time: int,
    *,
    memory: JobMemory,
    requests: RequestTimes | None = None,
) -> JobFigures:
    """Return the figures of a step that takes `step_time` picoseconds."""
    job = trace.job
    precision = job.spec.precision
    dtype = precision.gemm or precision.activations
    stated = device.spec.tensor_peak.get(dtype, 0)
    rate = FlopRate(max(stated, round(device.tensor_rate(dtype))))
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
        energy=energy_figures(trace, device, step_time),
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
    steps = sorted(ends)
    samples = [(step, ends[step] - ends[before]) for before, step in zip(steps, steps[1:], strict=False)]
    generated = trace.job.inference.output_length - 1
    decode = decode_time(samples, 1, generated) if samples else 0
    return RequestTimes(
        first_token=Duration(ends[steps[0]]),
        per_output_token=Duration(decode // max(generated, 1)),
        total=Duration(ends[steps[0]] + decode),
    )


def until_last_token(
    parts: Callable[[int | None], dict[str, int]], requests: RequestTimes | None, makespan: int
) -> tuple[int, dict[str, int]]:
    """Return the step time and its parts, with the decode steps that were not simulated."""
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
