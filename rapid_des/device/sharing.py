"""How much slower a kernel is beside others that take SMs and memory bandwidth from it.

A collective's kernel keeps SMs to itself: NCCL's blocks do not share them with other kernels (its maintainer
in github.com/NVIDIA/nccl, issue 689), and its data pass HBM two or three times (issue 1428). What is left:

    time beside = launch + busy · max(S / (S - taken), u · B / (B - taken))

of S SMs and B bytes a second of HBM. The first holds for kernels that the chip bounds (arithmetic, shared
memory, L2, whose ports are the SMs'), smoothly: a last wave of blocks that just fills the whole GPU takes up
to twice as long, one that has room for more does not. u is the share of the bandwidth that the kernel uses
itself, 1 if that bounds it. Who wants all of the memory gets half of it at least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rapid_des.arrays import Floats, Int64s
from rapid_des.device.device import Device
from rapid_des.device.operators import Bound
from rapid_des.units import PS_PER_S

_ON_CHIP: frozenset[Bound] = frozenset({"tensor", "vector", "shared", "l2"})


@dataclass(frozen=True, order=True, slots=True)
class Taken:
    """What a kernel takes of its GPU from those beside it."""

    sms: int = 0
    traffic: int = 0
    """Bytes a second from and to HBM."""


NOTHING = Taken()


def slowdowns(device: Device, kernel: tuple[Bound, int, int], sms: Int64s, traffic: Int64s) -> Floats:
    """Return how many times as long a kernel takes beside each of several takers.

    `kernel` is what bounds it, its picoseconds alone (launch included), and its bytes from and to HBM.

    >>> from rapid_des.device.device import load_device
    >>> gemm = ("tensor", 10**9 + load_device("h100_sxm").launch_overhead, 0)
    >>> beside = slowdowns(load_device("h100_sxm"), gemm, np.array([0, 24]), np.array([0, 0]))
    >>> [round(float(factor), 2) for factor in beside]
    [1.0, 1.22]
    """
    bound, duration, moved = kernel
    whole, bandwidth = device.spec.sms, float(device.spec.hbm.bandwidth)
    busy = max(duration - device.launch_overhead, 0)
    used = 1.0 if bound == "hbm" else min(1.0, moved / bandwidth * PS_PER_S / max(busy, 1))
    memory = used * bandwidth / (bandwidth - np.minimum(traffic, bandwidth / 2))
    chip = whole / (whole - np.minimum(sms, whole - 1)) if bound in _ON_CHIP else np.ones(len(sms))
    slower: Floats = np.maximum(np.maximum(chip, memory), 1.0)
    if duration <= 0:
        return np.ones_like(slower)
    return 1.0 + busy / duration * (slower - 1.0)
