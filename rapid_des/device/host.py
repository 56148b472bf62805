"""What a GPU and its host do for each other: copies of pinned memory, an optimizer on the processor."""

from __future__ import annotations

from rapid_des.device.device import Device
from rapid_des.device.operators import Estimate, HostWork
from rapid_des.errors import InputError
from rapid_des.units import PS_PER_S


def price_host(work: HostWork, device: Device) -> Estimate:
    """Price bytes by the bandwidth that the device file states; `InputError` if it states none."""
    host = device.spec.host
    if host is None:
        raise InputError(f"device {device.spec.name} states no bandwidths of its `host`, to offload to")
    rate = getattr(host, work.what)
    duration = max(1, -(-work.size * PS_PER_S // int(rate)))
    return Estimate(duration, "host", 0, {}, {"model": "host"}, "host")
