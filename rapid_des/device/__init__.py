"""A GPU (or TPU) and what its operators cost: device files, conditions, operators and their prices."""

from rapid_des.device.device import Device, load_device, load_device_spec
from rapid_des.device.operators import (
    Attention,
    Estimate,
    Gemm,
    GroupedGemm,
    Operator,
    OperatorModel,
    Vector,
)
from rapid_des.device.spec import Conditions, DeviceSpec

__all__ = [
    "Attention",
    "Conditions",
    "Device",
    "DeviceSpec",
    "Estimate",
    "Gemm",
    "GroupedGemm",
    "Operator",
    "OperatorModel",
    "Vector",
    "load_device",
    "load_device_spec",
]
