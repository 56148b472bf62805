"""A job's operators priced on a machine's device, and once more for every pace of GPUs that faults slow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rapid_des.device.operators import OperatorModel
from rapid_des.frontend import Job, JobTrace, build
from rapid_des.frontend.blocks import Blocks, blocks
from rapid_des.machine import Machine
from rapid_des.program.faults.gpus import on_slow_gpus, priced_for, require_alive

if TYPE_CHECKING:
    from rapid_des.device.model import Device


def trace_of(job: Job, machine: Machine) -> JobTrace:
    """Return the traces of a job; ranks on slowed GPUs have their own prices."""

    def priced(stated: Device) -> JobTrace:
        device = clocked(job, machine, stated)
        decode = _decode(job, device)
        return build(job, device.operators, gpus=machine.fabric.gpus, decode_operators=decode)

    healthy = priced(machine.device)
    slow = {gpu: other.traces for gpu, other in priced_for(machine, priced, range(job.gpus)).items()}
    return replace(healthy, traces=on_slow_gpus(healthy.traces, slow)) if slow else healthy


def _decode(job: Job, device: Device) -> OperatorModel | None:
    """Return what prices decode steps that are launched as graphs; None: they are launched like the rest."""
    graphs = job.spec.inference is not None and job.spec.inference.cuda_graphs
    return device.under(launch="graph").operators if graphs else None


def clocked(job: Job, machine: Machine, device: Device) -> Device:
    """Return the device at the clock that a job runs at: training, for hours, at the sustained one.

    `device.conditions.clock` set by hand goes before.
    """
    by_hand = any(key == "conditions.clock" for key, _ in machine.device_settings)
    return device.under(clock="sustained") if job.spec.phase == "training" and not by_hand else device


def blocks_of(job: Job, machine: Machine) -> tuple[Blocks, Mapping[int, Blocks]]:
    """Return a job taken apart, and the same at the pace of each slowed GPU that it uses."""
    require_alive(machine, range(job.gpus))

    def taken(stated: Device) -> Blocks:
        device = clocked(job, machine, stated)
        return blocks(job, device.operators, decode_operators=_decode(job, device))

    return taken(machine.device), priced_for(machine, taken, range(job.gpus))
