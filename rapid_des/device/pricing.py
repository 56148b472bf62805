"""What prices operators on a device: its native models, the roofline, or regressors on measurements.

An operator model is made for one job; what it works out stays in the cache it was given, so that the next
model of an equal device need not work it out again.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rapid_des.bounded_cache import BoundedCache
from rapid_des.device import roofline
from rapid_des.device.attention import price_attention, price_unfused
from rapid_des.device.attention.flash import BlockScheduler
from rapid_des.device.device import Device
from rapid_des.device.gemm import gemm_model, grouped_model, price_gemm, price_grouped_gemm
from rapid_des.device.operators import Attention, Estimate, Gemm, GroupedGemm, Operator, OperatorModel, Vector
from rapid_des.device.spec import LEARNED
from rapid_des.device.vector import price_vector

MOST_PRICES = 1 << 15
"""Estimates that are remembered for a device, each of about a kilobyte."""
_WEIGHT = 1 << 20
"""Bytes, about, of the prices that a job asks for."""


def operator_model(device: Device, memory: BoundedCache | None = None) -> OperatorModel:
    """Return what prices operators as the device's file says; `memory` remembers prices for later models.

    >>> from rapid_des.device import load_device
    >>> operator_model(load_device("h100_sxm")).estimate(Gemm(4096, 4096, 4096)).bound
    'tensor'
    """
    if memory is None:
        memory = BoundedCache(_WEIGHT)
    prices = memory.get_or_make(
        ("prices", device), lambda: BoundedCache(MOST_PRICES), weight=lambda _: _WEIGHT
    )
    if device.spec.operators == "roofline":
        return RooflineOperators(device, prices)
    if device.spec.operators == "native":
        return NativeOperators(device, prices)
    from rapid_des.device.learned import LearnedOperators, load_learned

    path = Path(device.spec.operators.removeprefix(LEARNED))
    file = prices.get_or_make("file", lambda: load_learned(path))
    return LearnedOperators(file, path.name, operator_model(device.priced_by(file.fallback), memory), prices)


def estimate(operator: Operator, device: Device) -> Estimate:
    """Return what one operator takes on a device as its conditions state, and why.

    Times are picoseconds, launch included, bytes those moved at each level. `InputError` for arithmetic or
    kernels that the device has not. Many operators are faster with one `operator_model`.

    >>> from rapid_des.device import load_device
    >>> known = estimate(Gemm(4096, 4096, 4096), load_device("h100_sxm"))
    >>> known.bound, known.flops, known.duration < 10**9
    ('tensor', 137438953472, True)
    """
    return operator_model(device).estimate(operator)


class RooflineOperators:
    """The textbook roofline of every operator."""

    def __init__(self, device: Device, prices: BoundedCache) -> None:
        self._device, self._prices = device, prices

    def estimate(self, operator: Operator) -> Estimate:
        """Return the latency of one operator."""
        return self._prices.get_or_make(operator, lambda: roofline.price(operator, self._device))


class NativeOperators:
    """The models of the kernels that libraries run; their tables are remembered beside the prices."""

    def __init__(self, device: Device, prices: BoundedCache) -> None:
        self._device, self._prices = device, prices

    def estimate(self, operator: Operator) -> Estimate:
        """Return the latency of one operator."""
        return self._prices.get_or_make(operator, partial(self._price, operator))

    def _price(self, operator: Operator) -> Estimate:
        device, table = self._device, self._prices.get_or_make
        match operator:
            case Gemm(dtype=dtype, weight_dtype=weight_dtype):
                key = ("gemm", dtype, weight_dtype)
                kernels = table(key, lambda: gemm_model(device, dtype, weight_dtype))
                return price_gemm(operator, kernels, device)
            case GroupedGemm(dtype=dtype):
                kernels = table(("grouped", dtype), lambda: grouped_model(device, dtype))
                return price_grouped_gemm(operator, kernels, device)
            case Attention(fused=False):
                return price_unfused(operator, self.estimate)
            case Attention():
                return price_attention(operator, device, table("block scheduler", BlockScheduler))
            case Vector():
                return price_vector(operator, device)
