"""Energy of a job: its kernels' FLOPs and bytes, its messages' bits, and what stands idle around them.

It is modelled, and for comparisons. What a machine file does not state (`energy` of a dimension,
`host_power`) is left out, and so is cooling.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, structs

from rapid_des.device.device import Device
from rapid_des.device.spec import Energy, operator_energy
from rapid_des.frontend import Job, JobTrace, PricedOperator
from rapid_des.frontend.inference import decode_time, passes
from rapid_des.frontend.parts import ModelSection, stage_sections
from rapid_des.frontend.trace import FinishedProgram
from rapid_des.machine import Machine
from rapid_des.report.network_energy import NetworkEnergy, network_energy
from rapid_des.units import seconds

_PJ = 10**12


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
    network: NetworkEnergy = NetworkEnergy()
    """The energy of links, NICs and switches, and of hosts, as far as the machine file states any."""

    @property
    def gpus_j(self) -> float:
        """Joules of the GPUs alone."""
        return self.arithmetic_j + self.memory_j + self.idle_j

    @property
    def by_part(self) -> dict[str, float]:
        """Joules by part; they add up to `joules`."""
        chips = {"arithmetic": self.arithmetic_j, "memory": self.memory_j, "idle": self.idle_j}
        return chips | self.network.by_part

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
        if not self.network.by_part:
            return f"{_joules(self.joules)}, {board}, {rate} (modelled, GPUs alone, for comparisons)"
        parts = {"GPUs": self.gpus_j, "network": self.network.network_j, "hosts": self.network.hosts_j}
        shares = ", ".join(f"{name} {_joules(part)}" for name, part in parts.items() if part)
        return f"{_joules(self.joules)}: {shares}; {board}, {rate} (modelled, for comparisons)"

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
            "links": self.network.as_json(),
            "left_out": [*self.network.left_out, "cooling"],
            "constants_from": "energy and idle_power of the device file, energy of the dimensions and "
            "host_power of the machine file",
            "constants": structs.asdict(self.constants),
        }


def energy_figures(
    trace: JobTrace,
    device: Device,
    machine: Machine,
    step_time: int,
    whole: Callable[[], Sequence[FinishedProgram]] | None = None,
) -> EnergyFigures | None:
    """Return the energy of a job that takes `step_time` picoseconds.

    `whole` returns the programs of whole ranks where the trace holds others. None where the device file lacks
    `energy`, one of its dtypes or `idle_power`, or where what prices operators does not count their bytes.
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
        network=network_energy(trace, whole or (lambda: trace.programs), machine, duration),
    )


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


def _joules(value: float) -> str:
    """Return an energy with three or four digits.

    >>> _joules(9123.0), _joules(0.25)
    ('9.123 kJ', '0.25 J')
    """
    for size, unit in ((10**6, "MJ"), (10**3, "kJ")):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.4g} J"
