"""How long bytes take to reach the SMs: from HBM, or from L2 where a warm working set still lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rapid_des.errors import ConfigError

if TYPE_CHECKING:
    from rapid_des.device.model import Device


@dataclass(frozen=True, slots=True)
class Transfer:
    """Seconds of a transfer, the level that sets them, and the bytes that came from HBM."""

    seconds: float
    bound: Literal["hbm", "l2"]
    hbm_bytes: float


def constant(constants: Mapping[str, float], section: str, name: str, device: Device) -> float:
    """Return a calibration constant; a missing one, or a utilisation above 1, is an error by name."""
    place = f"constants.{section}.{name}"
    if name not in constants:
        raise ConfigError(f"neither {device.spec.name} nor its family {device.spec.family} has it", key=place)
    value = constants[name]
    if value < 0 or (name.endswith(("utilisation", "share", "overlap")) and value > 1):
        raise ConfigError(f"{value} is out of range; a utilisation or share lies in 0 to 1", key=place)
    return value


def miss_share(device: Device, working_set: float, *, kept: bool = True) -> float:
    """Return the share of accesses that HBM serves.

    Warm operands stay in the part of L2 that one working set can use (`l2_share`: half of a two-partition L2
    holds copies of the other half's lines); beyond it the hits fade out until twice that size. `kept` says
    whether the operands are activations that the kernel before wrote; a cache of keys is not.
    """
    if device.conditions.l2 == "cold" or (device.conditions.l2 == "activations" and not kept):
        return 1.0
    constants = device.constants("memory")
    resident = device.spec.l2.capacity * constant(constants, "memory", "l2_share", device)
    return min(1.0, max(0.0, working_set / resident - 1.0))


def transfer(device: Device, moved: float, working_set: float, *, kept: bool = True) -> Transfer:
    """Return how long `moved` bytes take at a kernel's steady state, given the bytes it touches in all."""
    constants = device.constants("memory")
    l2_rate = device.spec.l2.bandwidth * device.clock_ratio
    from_hbm = moved * miss_share(device, working_set, kept=kept)
    hbm = from_hbm / (device.spec.hbm.bandwidth * constant(constants, "memory", "hbm_utilisation", device))
    l2 = moved / (l2_rate * constant(constants, "memory", "l2_utilisation", device))
    return Transfer(max(hbm, l2), "hbm" if hbm >= l2 else "l2", from_hbm)
