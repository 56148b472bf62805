"""Attention as separate kernels: the scores and the probabilities go through memory.

Forward: scores = Q K^T (batched GEMM), scale + mask + softmax (one kernel), O = P V. Backward: dV = P^T dO,
dP = dO V^T, softmax backward, dQ = dS K, dK = dS^T Q. Masked pairs are computed all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rapid_des.device.attention_tiles import group_size, value_dim
from rapid_des.device.operators import Attention, Estimate, Gemm, Operator, Vector

if TYPE_CHECKING:
    from rapid_des.device.model import Device


def price_unfused(attention: Attention, device: Device) -> Estimate:
    """Price the kernels one after the other."""
    parts = kernels(attention)
    estimates = [device.operators.estimate(part) for part in parts]
    slowest = max(estimates, key=lambda estimate: estimate.duration)
    moved: dict[str, int] = {}
    for estimate in estimates:
        for level, count in estimate.bytes.items():
            moved[level] = moved.get(level, 0) + count
    detail = {
        "model": "unfused",
        "kernels": [
            {"kernel": _name(part), "duration_ps": estimate.duration, "bound": estimate.bound}
            for part, estimate in zip(parts, estimates, strict=True)
        ],
    }
    duration = sum(estimate.duration for estimate in estimates)
    return Estimate(duration, slowest.bound, sum(estimate.flops for estimate in estimates), moved, detail)


def kernels(attention: Attention) -> Sequence[Operator]:
    """Return the kernels of the forward or backward pass; heads that share a KV head are rows of one GEMM.

    >>> [type(part).__name__ for part in kernels(Attention(1, 8, 8, heads=2, kv_heads=1, head_dim=64))]
    ['Gemm', 'Vector', 'Gemm']
    """
    batch = attention.batch * attention.kv_heads
    rows = attention.query_length * group_size(attention)
    keys, width, dtype = attention.key_length, attention.head_dim, attention.dtype

    def product(m: int, n: int, k: int) -> Gemm:
        return Gemm(m, n, k, batch=batch, dtype=dtype)

    softmax = Vector("masked_softmax", batch * rows, keys, dtype=dtype, phase=attention.phase)
    if attention.phase == "forward":
        return (product(rows, keys, width), softmax, product(rows, value_dim(attention), keys))
    return (
        product(keys, value_dim(attention), rows),
        product(rows, keys, value_dim(attention)),
        softmax,
        product(rows, width, keys),
        product(keys, width, rows),
    )


def _name(part: Operator) -> str:
    return f"gemm {part.batch}x{part.m}x{part.n}x{part.k}" if isinstance(part, Gemm) else "masked_softmax"
