"""The first step of a simulation: a job's operators priced on a machine's device.

Ranks on GPUs that constant faults slow have prices of their own; a healthy machine has one price list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct, field, structs

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.device.device import Device, check_library
from rapid_des.device.operators import OperatorModel
from rapid_des.device.pricing import operator_model, operator_source
from rapid_des.errors import ConfigError, UnsupportedByEngine
from rapid_des.frontend import Job, JobTrace, build
from rapid_des.frontend.build import check_size
from rapid_des.frontend.spec import InferenceSpec
from rapid_des.machine import Machine
from rapid_des.network.faults import GpuFactors
from rapid_des.program.services import service_times
from rapid_des.values import replace

if TYPE_CHECKING:
    from rapid_des.frontend.blocks import JobBlocks
    from rapid_des.program.faults.slow_gpus import Pace

_Priced = TypeVar("_Priced")
_BYTES_A_NODE = 400
"""What remembering a block takes, about."""


class PricedBlocks(Struct, frozen=True):
    """A job taken apart into blocks, and the same blocks at the pace of each slowed GPU that it uses."""

    blocks: JobBlocks
    on_slow_gpus: Mapping[int, JobBlocks] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What there is to say about the prices."""


def price(job: Job, machine: Machine, *, cache: BoundedCache | None = None) -> JobTrace:
    """Return the trace of every rank of a job, its operators priced on the machine's device.

    `cache` remembers prices from one job to the next. Durations are picoseconds.

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> trace = price(load_job("llama2_7b_train"), load_machine("dgx_a100"))
    >>> len(trace.traces.ranks), trace.operators[0].name
    (8, 'forward.embedding')
    """
    job = issued_on(job, machine)
    models = _Models(job, machine, cache)

    def priced(device: Device) -> JobTrace:
        operators, decode = models.on(device)
        return build(job, operators, gpus=machine.fabric.gpus, decode_operators=decode)

    trace, slow = _priced(job, machine, priced)
    trace = replace(trace, notes=(*trace.notes, *models.notes()))
    if not slow:
        return trace
    from rapid_des.program.faults.slow_gpus import on_slow_gpus

    return replace(
        trace, traces=on_slow_gpus(trace.traces, {gpu: other.traces for gpu, other in slow.items()})
    )


def pace(job: Job, machine: Machine, *, cache: BoundedCache | None = None) -> Pace:
    """Return a function that gives durations of a job's nodes on a GPU slowed by faults; see `price`."""
    job = issued_on(job, machine)
    models = _Models(job, machine, cache)

    @functools.cache
    def on_slow_gpu(factors: GpuFactors) -> tuple[Int64s, ...]:
        device = machine.device.slowed(compute=factors.compute, hbm=factors.hbm)
        operators, decode = models.on(device)
        traces = build(job, operators, gpus=machine.fabric.gpus, decode_operators=decode).traces
        tables = traces.table_numbers()
        nodes = {number: rank.nodes for number, rank in zip(tables, traces.ranks, strict=True)}
        times = {number: service_times(table, device) for number, table in nodes.items()}
        return tuple(times[number] for number in tables)

    return lambda position, factors: on_slow_gpu(factors)[position]


def price_blocks(job: Job, machine: Machine, *, cache: BoundedCache | None = None) -> PricedBlocks:
    """Return the distinct blocks of a job, their operators priced on the machine's device; see `price`."""
    from rapid_des.frontend.blocks import blocks

    check_size(job, machine.fabric.gpus)
    if job.spec.inference is not None and job.inference.two_batches is not None:
        raise UnsupportedByEngine(
            f"{job.file}: half-batches take turns across layers (inference.two_batches), and blocks run "
            "alone: use --mode flattened"
        )
    issued = issued_on(job, machine)
    models = _Models(issued, machine, cache)

    def priced(device: Device) -> JobBlocks:
        operators, decode = models.on(device)
        return blocks(issued, operators, decode_operators=decode)

    def make() -> PricedBlocks:
        return PricedBlocks(*_priced(issued, machine, priced), notes=models.notes())

    if cache is None or machine.slowed:
        return make()
    machine.require_alive(range(job.gpus))
    # Blocks follow from the job as its hosts issue it and from the devices as it uses them.
    key = ("blocks", issued, models.devices(machine.device))
    return cache.get_or_make(key, make, weight=_blocks_weight)


def _blocks_weight(priced: PricedBlocks) -> int:
    return sum(_BYTES_A_NODE * len(block.table) for block in priced.blocks.blocks.values())


def issued_on(job: Job, machine: Machine) -> Job:
    """Return a job as the hosts of a machine issue it: slower cores need longer."""
    speed = machine.spec.host_speed
    host = job.spec.host
    if host is None or speed is None:
        return job
    try:
        return replace(job, spec=structs.replace(job.spec, host=host.at_speed(speed)))
    except ValueError as error:
        raise ConfigError(f"{error}; at host_speed {speed:g} it is more", file=job.file, key="host") from None


def as_used(job: Job, machine: Machine, device: Device, *, decoding: bool = False) -> Device:
    """Return the device as a job uses it: with its software's kernels, at the sustained clock.

    `decoding` waits for memory and draws less power: it runs at the clock of the device file. What the
    machine file or `device.conditions.clock` set by hand says goes before.
    """
    clock = machine.spec.clock or (None if decoding else "sustained")
    software = job.software
    launch = "graph"  # issuing takes the host's time, not the kernel's
    if job.host is None:
        launch = decode_launch(job.inference) if decoding else device.conditions.launch
    stated = {
        "clock": clock,
        "library": software.kernels,
        "attention": software.attention,
        "experts": software.expert_kernels,
        "decode": software.decode,
        "launch": launch,
    }
    used = device.under(**{name: value for name, value in stated.items() if value is not None})
    check_library(used.spec, used.family)
    if job.spec.precision.recipe == "mxfp8" and "fp4" not in used.spec.tensor_peak:
        problem = (
            f"{used.spec.name} multiplies no blocks of 32 values with a scale (mxfp8), as Blackwell does"
        )
        known = "delayed, current and blockwise"
        raise ConfigError(f"{problem}; allowed: {known}", file=job.file, key="precision.recipe")
    return used


def decode_launch(serving: InferenceSpec) -> Literal["eager", "graph"]:
    """Return how decode steps launch their kernels: as the job says, not the device."""
    return "graph" if serving.cuda_graphs else "eager"


def _priced(
    job: Job, machine: Machine, price_on: Callable[[Device], _Priced]
) -> tuple[_Priced, Mapping[int, _Priced]]:
    """Return what `price_on` makes of the machine's device, and of those of slowed GPUs that the job uses."""
    machine.require_alive(range(job.gpus))
    healthy = price_on(machine.device)
    if not machine.slowed:
        return healthy, {}
    from rapid_des.program.faults.slow_gpus import priced_on_slow_gpus

    return healthy, priced_on_slow_gpus(machine, price_on, range(job.gpus))


class _Models:
    """The operator models that price one job."""

    def __init__(self, job: Job, machine: Machine, cache: BoundedCache | None) -> None:
        self._job, self._machine, self._cache = job, machine, cache
        self._used: list[OperatorModel] = []

    def devices(self, device: Device) -> tuple[Device, Device | None]:
        """Return a device as the job uses it and, where they run under other conditions, for decode steps."""
        used = as_used(self._job, self._machine, device)
        if self._job.spec.inference is None:
            return used, None
        decoding = as_used(self._job, self._machine, device, decoding=True)
        return used, None if decoding == used else decoding

    def on(self, device: Device) -> tuple[OperatorModel, OperatorModel | None]:
        """Return what prices operators and, where they run under other conditions, those of decode steps."""
        used, decoding = self.devices(device)
        operators = operator_model(used, self._cache)
        self._used.append(operators)
        if decoding is None:
            return operators, None
        decode = operator_model(decoding, self._cache)
        self._used.append(decode)
        return operators, decode

    def notes(self) -> tuple[str, ...]:
        """Return what the models have to say after pricing."""
        source = operator_source(self._machine.device.spec.operators)
        return source.notes(self._used) if source is not None else ()
