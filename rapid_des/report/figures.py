"""What a job's run means in the units of its users: tokens a second, MFU, latencies, memory, energy.

Energy is modelled, and for comparisons. What a machine file does not state (`energy` of a dimension,
`host_power`) is left out, and so is cooling.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from rapid_des.device.device import Device
from rapid_des.device.spec import Energy, operator_energy
from rapid_des.frontend import Job, JobMemory, JobTrace, PricedOperator
from rapid_des.frontend.inference import decode_time, passes
from rapid_des.frontend.memory import KvCapacity, kv_capacity, shortage
from rapid_des.frontend.parts import ModelSection, stage_sections
from rapid_des.frontend.spec import RequestsSpec
from rapid_des.machine import Machine
from rapid_des.program.lowering import Lowered, rank_times
from rapid_des.program.program import Records
from rapid_des.report.evidence import Interval
from rapid_des.report.memory_forecast import MemoryForecast, memory_forecast
from rapid_des.report.network_energy import NetworkEnergy, network_energy
from rapid_des.report.tables import joules_text
from rapid_des.units import Duration, FlopRate, seconds

if TYPE_CHECKING:
    from rapid_des.modes.blocks.inner import BlockRun

_PJ = 10**12
_AROUND = "links", "NICs", "switches", "hosts"
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

    @property
    def ends(self) -> tuple[int, int]:
        """The times of the first token and of the last one."""
        return self.first_token, self.total

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


class EnergyFigures(Struct, frozen=True):
    """Joules that a job takes in one step, or in one batch of requests.

    >>> known = {"limit_w": 8.0, "constants": Energy({}, 0, 0, 0)}
    >>> figures = EnergyFigures(6.0, 3.0, 1.0, gpus=2, duration_s=0.5, tokens=100, **known)
    >>> figures.joules, figures.average_power_w, figures.tokens_per_joule
    (10.0, 10.0, 10.0)
    """

    arithmetic_j: float
    memory_j: float
    idle_j: float
    """Idle energy of the boards over that time, in joules."""
    gpus: int
    duration_s: float
    tokens: int
    limit_w: float | None
    """Power limit of one board in watts, as its device file states it."""
    constants: Energy
    """The energy constants of the device file."""
    network: NetworkEnergy | None = None
    """The energy of links, NICs and switches, and of hosts; None: the machine file states none."""

    @property
    def gpus_j(self) -> float:
        """Joules of the GPUs alone."""
        return self.arithmetic_j + self.memory_j + self.idle_j

    @property
    def by_part(self) -> dict[str, float]:
        """Joules by part; they add up to `joules`."""
        chips = {"arithmetic": self.arithmetic_j, "memory": self.memory_j, "idle": self.idle_j}
        return chips if self.network is None else chips | self.network.by_part

    @property
    def joules(self) -> float:
        """Sum of all parts."""
        return sum(self.by_part.values())

    @property
    def average_power_w(self) -> float:
        """Average power of one GPU, in watts."""
        return self.gpus_j / (self.duration_s * self.gpus)

    @property
    def tokens_per_joule(self) -> float:
        """Tokens trained on, or generated, per joule."""
        return self.tokens / self.joules

    @property
    def text(self) -> str:
        """The energy as one line of a report."""
        limit = "" if self.limit_w is None else f" of {self.limit_w:,.0f}"
        board, rate = f"{self.average_power_w:,.0f}{limit} W a GPU", f"{self.tokens_per_joule:.3g} tokens/J"
        if self.network is None:
            return f"{joules_text(self.joules)}, {board}, {rate} (modelled, GPUs alone, for comparisons)"
        parts = {"GPUs": self.gpus_j, "network": self.network.network_j, "hosts": self.network.hosts_j}
        shares = ", ".join(f"{name} {joules_text(part)}" for name, part in parts.items() if part)
        return f"{joules_text(self.joules)}: {shares}; {board}, {rate} (modelled, for comparisons)"

    @property
    def notes(self) -> Iterator[str]:
        """A warning if the average power is above what a board can draw."""
        if self.limit_w is not None and self.average_power_w > self.limit_w:
            yield (
                f"energy: the modelled {self.average_power_w:,.0f} W a GPU are above the board's limit of "
                f"{self.limit_w:,.0f} W: its `energy` constants, or its clock, are too high here"
            )

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "modelled": True,
            "joules": self.joules,
            "joules_by_part": self.by_part,
            "average_power_w": self.average_power_w,
            "power_limit_w": self.limit_w,
            "tokens_per_joule": self.tokens_per_joule,
            "links": {} if self.network is None else self.network.as_json(),
            "left_out": [*(_AROUND if self.network is None else self.network.left_out), "cooling"],
            "constants_from": "energy and idle_power of the device file, energy of the dimensions and "
            "host_power of the machine file",
            "constants": structs.asdict(self.constants),
        }


def energy_figures(
    trace: JobTrace,
    device: Device,
    machine: Machine,
    step_time: int,
    blocks: BlockRun | None = None,
) -> EnergyFigures | None:
    """Return the energy of a job that takes `step_time` picoseconds.

    `blocks` is the run where the trace is the graph around blocks. None where the device file lacks `energy`,
    one of its dtypes or `idle_power`, or where what prices operators does not count their bytes.
    """
    job, spec = trace.job, device.spec
    if spec.idle_power is None or spec.energy is None:
        return None
    costs = _costs(trace.operators, spec.energy)
    if costs is None:
        return None
    arithmetic, memory = _of_passes(job, costs) if job.spec.phase == "inference" else _of_step(job, costs)
    duration = seconds(step_time)
    return EnergyFigures(
        arithmetic / _PJ,
        memory / _PJ,
        spec.idle_power.watts * duration * job.gpus,
        gpus=job.gpus,
        duration_s=duration,
        tokens=trace.tokens,
        limit_w=None if spec.power is None else spec.power.watts,
        constants=spec.energy,
        network=network_energy(trace, blocks, machine, duration) if _stated(machine) else None,
    )


def _stated(machine: Machine) -> bool:
    of_dimensions = (getattr(dimension, "energy", None) for dimension in machine.spec.fabric)
    return machine.spec.host_power is not None or any(of_dimensions)


_Pair = tuple[float, float]
"""Picojoules of arithmetic, and of memory traffic."""


def _costs(priced: Iterable[PricedOperator], constants: Energy) -> list[tuple[PricedOperator, _Pair]] | None:
    costs = []
    for kernel in priced:
        energy = operator_energy(constants, kernel.arithmetic, kernel.flops, kernel.bytes)
        if energy is None or (kernel.flops and not kernel.bytes):
            return None
        costs.append((kernel, (energy.arithmetic, energy.memory)))
    return costs


def _runs(job: Job) -> Counter[ModelSection]:
    """Return how often all ranks together run each section in one pass of all micro-batches."""
    sections: Counter[ModelSection] = sum(
        (stage_sections(job, stage) for stage in range(job.stages)), Counter[ModelSection]()
    )
    ranks, copies = job.gpus // job.stages, len(job.copies[0])  # each micro-batch passes one of a part's
    runs = {section: count * ranks * job.micro_batches // copies for section, count in sections.items()}
    return Counter(runs)


def _summed(terms: Iterable[tuple[int, _Pair]]) -> _Pair:
    counted = list(terms)
    return sum(n * pair[0] for n, pair in counted), sum(n * pair[1] for n, pair in counted)


def _of_step(job: Job, costs: Iterable[tuple[PricedOperator, _Pair]]) -> _Pair:
    """Return the energy of a step: sections by micro-batches, what a stage runs once by its ranks."""
    runs, ranks = _runs(job), job.gpus // job.stages
    return _summed((ranks if kernel.stage >= 0 else runs[_section(kernel)], pair) for kernel, pair in costs)


def _of_passes(job: Job, costs: Iterable[tuple[PricedOperator, _Pair]]) -> _Pair:
    """Return the energy of prefill and all decode steps, linear between those that were priced.

    Of passes like an earlier one only the kernels that see the cache are listed: the others are as there.
    """
    runs = _runs(job)
    by_step: defaultdict[int, dict[tuple[ModelSection, str], _Pair]] = defaultdict(dict)
    for kernel, pair in costs:
        by_step[kernel.step][_section(kernel), kernel.name] = pair
    alike = {current.step: current.alike for current in passes(job)}
    whole = {step: by_step[alike[step]] | new for step, new in by_step.items()}
    parts = {step: _summed((runs[key[0]], pair) for key, pair in row.items()) for step, row in whole.items()}
    prompts = [parts.pop(step) for step in sorted(parts) if step <= 0]
    total = sum(pair[0] for pair in prompts), sum(pair[1] for pair in prompts)
    if not parts:
        return total
    last = job.inference.steps - 1 + int(not prompts)
    arithmetic, memory = (
        decode_time([(step, round(pair[part])) for step, pair in parts.items()], 1, last) for part in (0, 1)
    )
    return total[0] + arithmetic, total[1] + memory


def _section(kernel: PricedOperator) -> ModelSection:
    return ModelSection(kernel.section, kernel.kind)
