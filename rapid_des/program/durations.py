"""How long nodes serve that say it, and those that do not."""

from __future__ import annotations

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable
from rapid_des.device.device import Device
from rapid_des.units import PS_PER_S


def service_times(nodes: NodeTable, device: Device) -> Int64s:
    """Return the nodes' durations, unstated ones by the device's roofline.

    Compute: the longer of `flops` at the matrix unit's bf16 peak and `tensor_bytes` through HBM, plus
    a launch. Memory nodes: `size` through HBM.
    """
    duration = nodes.duration.copy()
    unstated = duration == UNSTATED
    if not unstated.any():
        return duration
    bandwidth = float(device.spec.hbm.bandwidth)
    moved = np.where(nodes.kind == NodeKind.COMPUTE, nodes.tensor_bytes, nodes.size).astype(np.float64)
    arithmetic = np.where(nodes.kind == NodeKind.COMPUTE, nodes.flops, 0) / device.tensor_rate("bf16")
    busy = np.ceil(np.maximum(arithmetic, np.maximum(moved, 0) / bandwidth) * PS_PER_S).astype(np.int64)
    launched = np.where((nodes.kind == NodeKind.COMPUTE) & ~nodes.on_cpu, device.launch_overhead, 0)
    return np.where(unstated, busy + launched, duration)
