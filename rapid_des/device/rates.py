"""How fast a device computes and moves bytes under the conditions in use, for the models' inner loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rapid_des.device.device import Device
from rapid_des.device.operators import Dtype


@dataclass(frozen=True)
class Rates:
    """Whole-device rates a second (FLOP/s, bytes/s), `port` one SM's; capacities in bytes."""

    sms: int
    tensor: float
    vector: float
    shared: float
    port: float
    l2: float
    hbm: float
    l2_capacity: float
    shared_capacity: float
    registers_capacity: float


def rates_of(device: Device, dtype: Dtype) -> Rates:
    """Return the rates for arithmetic in `dtype`; all but HBM follow the clock."""
    spec, ratio = device.spec, device.clock_ratio
    return Rates(
        sms=spec.sms,
        tensor=device.tensor_rate(dtype),
        vector=device.vector_rate("fp32"),
        shared=spec.shared.bandwidth * ratio,
        port=spec.l2_port_bytes_per_clock * spec.clock.peak * ratio,
        l2=spec.l2.bandwidth * ratio,
        hbm=float(spec.hbm.bandwidth),
        l2_capacity=float(spec.l2.capacity),
        shared_capacity=float(spec.shared.capacity),
        registers_capacity=float(spec.registers.capacity),
    )


@dataclass(frozen=True, slots=True)
class Transfer:
    """Seconds of a transfer to the SMs, the level that sets them, and the bytes that came from HBM."""

    seconds: float
    bound: Literal["hbm", "l2"]
    hbm_bytes: float


def transfer(device: Device, moved: float, working_set: float, *, activations: bool = True) -> Transfer:
    """Return how long `moved` bytes take at a kernel's steady state, given the bytes it touches in all.

    `activations` as in `miss_share`.
    """
    l2_rate = device.spec.l2.bandwidth * device.clock_ratio
    from_hbm = moved * miss_share(device, working_set, activations=activations)
    hbm = from_hbm / (device.spec.hbm.bandwidth * device.constant("memory", "hbm_utilisation"))
    l2 = moved / (l2_rate * device.constant("memory", "l2_utilisation"))
    return Transfer(max(hbm, l2), "hbm" if hbm >= l2 else "l2", from_hbm)


def miss_share(device: Device, working_set: float, *, activations: bool = True) -> float:
    """Return the share of accesses that HBM serves.

    Warm operands stay in the part of L2 that one working set can use (`l2_share`: half of a two-partition L2
    holds copies of the other half's lines); beyond it the hits fade out until twice that size. `activations`
    says whether the kernel before wrote the operands; a cache of keys is older.
    """
    if device.conditions.l2 == "cold" or (device.conditions.l2 == "activations" and not activations):
        return 1.0
    resident = device.spec.l2.capacity * device.constant("memory", "l2_share")
    return min(1.0, max(0.0, working_set / resident - 1.0))
