"""A machine with more faults than its file states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rapid_des.errors import TopologyError
from rapid_des.machine import Machine
from rapid_des.network.detours import FaultAwareRouter
from rapid_des.network.faults import Fault, apply_static, gpu_factors


def with_faults(machine: Machine, faults: Iterable[Fault]) -> Machine:
    """Return the machine with faults on top of its own; it keeps the device as it has been read."""
    every = (*machine.faults, *faults)
    per_node = machine.spec.gpus_per_node
    try:
        fabric, dead = apply_static(machine.healthy, every, per_node)
        left = gpu_factors(machine.healthy, every, per_node)
    except TopologyError as error:
        raise TopologyError(f"{machine.path}: {error}") from None
    changed = replace(
        machine,
        fabric=fabric,
        router=FaultAwareRouter(fabric, machine.planned, dead) if dead else machine.planned,
        dead=dead,
        lost=frozenset(gpu for gpu, share in left.items() if not share.compute),
        faults=every,
    )
    vars(changed)["device"] = machine.device  # the prices of its operators are remembered there
    return changed
