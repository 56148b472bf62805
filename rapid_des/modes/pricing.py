"""The first step of a simulation: a job's operators priced on a machine's device.

Ranks on GPUs that constant faults slow have prices of their own; a healthy machine has one price list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from rapid_des.device.operators import OperatorModel
from rapid_des.frontend import Job, JobTrace, build
from rapid_des.frontend.blocks import Blocks, blocks
from rapid_des.frontend.build import check_size
from rapid_des.machine import Machine

if TYPE_CHECKING:
    from rapid_des.device.model import Device

_Priced = TypeVar("_Priced")


@dataclass(frozen=True)
class PricedBlocks:
    """A job taken apart into blocks, and the same blocks at the pace of each slowed GPU that it uses."""

    blocks: Blocks
    on_slow_gpus: Mapping[int, Blocks] = field(default_factory=dict)


def price(job: Job, machine: Machine) -> JobTrace:
    """Return the trace of every rank of a job, its operators priced on the machine's device."""

    def priced(device: Device) -> JobTrace:
        clocked = at_job_clock(job, machine, device)
        decode = _decode_operators(job, clocked)
        return build(job, clocked.operators, gpus=machine.fabric.gpus, decode_operators=decode)

    trace, slow = _priced(job, machine, priced)
    if not slow:
        return trace
    from rapid_des.program.faults.slow_gpus import on_slow_gpus

    return replace(
        trace, traces=on_slow_gpus(trace.traces, {gpu: other.traces for gpu, other in slow.items()})
    )


def price_blocks(job: Job, machine: Machine) -> PricedBlocks:
    """Return the distinct blocks of a job, their operators priced on the machine's device."""

    def priced(device: Device) -> Blocks:
        clocked = at_job_clock(job, machine, device)
        return blocks(job, clocked.operators, decode_operators=_decode_operators(job, clocked))

    check_size(job, machine.fabric.gpus)
    return PricedBlocks(*_priced(job, machine, priced))


def at_job_clock(job: Job, machine: Machine, device: Device) -> Device:
    """Return the device at the clock that a job runs at: training, for hours, at the sustained one.

    `device.conditions.clock` set by hand goes before.
    """
    by_hand = any(key == "conditions.clock" for key, _ in machine.device_file.settings)
    return device.under(clock="sustained") if job.spec.phase == "training" and not by_hand else device


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


def _decode_operators(job: Job, device: Device) -> OperatorModel | None:
    """Return what prices decode steps that are launched as graphs; None: they are launched like the rest."""
    graphs = job.spec.inference is not None and job.spec.inference.cuda_graphs
    return device.under(launch="graph").operators if graphs else None
