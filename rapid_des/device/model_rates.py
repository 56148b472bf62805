"""A device's rates at the clock in use, as plain floats for the operator models' inner loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rapid_des.device.operators import Dtype

if TYPE_CHECKING:
    from rapid_des.device.model import Device


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
