"""The check of operator models: what an estimate must be whatever the model."""

from __future__ import annotations

from typing import get_args

from rapid_des.device import load_device
from rapid_des.device.operators import Attention, Bound, Gemm, Operator, Vector
from rapid_des.device.pricing import operator_model
from rapid_des.errors import InputError

OPERATORS: tuple[Operator, ...] = (
    Gemm(4096, 4096, 4096),
    Gemm(1, 4096, 4096),
    Gemm(512, 128, 64, batch=8, dtype="fp32"),
    Attention(1, 512, 512, heads=8, kv_heads=8, head_dim=64),
    Attention(2, 1, 1024, heads=8, kv_heads=2, head_dim=128),
    Vector("rms_norm", 4096, 4096),
)
"""Operators that a transformer has."""


def check_operators(
    operators: str, *, device: str = "h100_sxm", shapes: tuple[Operator, ...] = OPERATORS
) -> None:
    """Check what a device file states as `operators`: each shape has an estimate, or a refusal that says why.

    Durations are whole picoseconds above 0, the bound is one that reports know, and a second model of an
    equal device says the same.

    >>> check_operators("native")
    """
    spec = load_device({"base": device, "operators": operators})
    first, second = operator_model(spec), operator_model(spec)
    priced = 0
    for shape in shapes:
        try:
            estimate = first.estimate(shape)
        except InputError as error:
            assert str(error), f"the refusal of {shape} says nothing"
            continue
        priced += 1
        duration = estimate.duration
        assert isinstance(duration, int) and duration > 0, f"{shape}: duration {duration!r}; allowed: from 1"
        assert estimate.bound in get_args(Bound), f"{shape}: bound {estimate.bound!r} is unknown"
        assert estimate.flops >= 0 and all(count >= 0 for count in estimate.bytes.values()), (
            f"{shape}: below 0"
        )
        assert estimate == second.estimate(shape), f"{shape}: a second model gives another estimate"
    assert priced, "no operator has an estimate"
