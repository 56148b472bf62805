"""A device that a fault slows: a lower clock, a slower memory."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from msgspec import structs

from rapid_des.device.model import Device
from rapid_des.device.spec import Store
from rapid_des.errors import UnsupportedByEngine

_Quantity = TypeVar("_Quantity", bound=int)


def slowed(device: Device, *, compute: Fraction, hbm: Fraction) -> Device:
    """Return the device at shares of its clock and of its memory bandwidth, both above 0 and at most 1.

    The clock carries everything on the chip: arithmetic, registers, shared memory, L2. Launches keep their
    time. `UnsupportedByEngine` for learned operator models, which know only the devices they were fitted on.
    """
    spec = device.spec
    if spec.operators.startswith("learned:"):
        raise UnsupportedByEngine(f"{spec.name}: operators {spec.operators} can not price a slowed device")
    chip = {name: _narrowed(getattr(spec, name), compute) for name in ("registers", "shared", "l2")}
    return replace(
        device,
        spec=structs.replace(
            spec,
            clock=structs.replace(
                spec.clock,
                peak=_scaled(spec.clock.peak, compute),
                boost=_scaled(spec.clock.boost, compute),
                sustained=_scaled(spec.clock.sustained, compute),
            ),
            tensor_peak={dtype: _scaled(peak, compute) for dtype, peak in spec.tensor_peak.items()},
            vector_peak={dtype: _scaled(peak, compute) for dtype, peak in spec.vector_peak.items()},
            hbm=_narrowed(spec.hbm, hbm),
            **chip,
        ),
    )


def _narrowed(store: Store, share: Fraction) -> Store:
    return structs.replace(store, bandwidth=_scaled(store.bandwidth, share))


def _scaled(quantity: _Quantity, share: Fraction) -> _Quantity:
    return type(quantity)(max(1, quantity * share // 1))
