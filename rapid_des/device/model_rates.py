"""A device's rates at the clock in use, as plain floats for the operator models' inner loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rapid_des.device.operators import Dtype

if TYPE_CHECKING:
    from rapid_des.device.model import Device

_PORT_BYTES_A_CLOCK = 64
"""What one SM takes from L2 in a clock: 64 B on every NVIDIA and AMD data-centre GPU since Volta."""


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
    per_sm = _PORT_BYTES_A_CLOCK * spec.clock.peak * ratio
    return Rates(
        sms=spec.sms,
        tensor=device.tensor_rate(dtype),
        vector=device.vector_rate("fp32"),
        shared=spec.shared.bandwidth * ratio,
        port=per_sm if spec.kind == "gpu" else spec.l2.bandwidth * ratio / spec.sms,
        l2=spec.l2.bandwidth * ratio,
        hbm=float(spec.hbm.bandwidth),
        l2_capacity=float(spec.l2.capacity),
        shared_capacity=float(spec.shared.capacity),
        registers_capacity=float(spec.registers.capacity),
    )
