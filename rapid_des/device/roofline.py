"""The textbook roofline of every operator: compulsory bytes, datasheet peaks, one launch.

It is the first look (`operators: roofline`) and the null model that the real ones are measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from rapid_des.device.operators import (
    DTYPE_BITS,
    Attention,
    Bound,
    Dtype,
    Estimate,
    Gemm,
    GroupedGemm,
    Operator,
    Vector,
)
from rapid_des.units import PS_PER_S

if TYPE_CHECKING:
    from rapid_des.device.model import Device


def width(dtype: str) -> float:
    """Return the bytes of one element.

    >>> width("fp4"), width("bf16")
    (0.5, 2.0)
    """
    return DTYPE_BITS[dtype] / 8


def price_gemm(gemm: Gemm, device: Device) -> Estimate:
    """Price a GEMM by FLOPs at peak or compulsory traffic, whichever is longer."""
    flops = 2 * gemm.batch * gemm.m * gemm.n * gemm.k
    return _roofline(device, gemm.dtype, flops, gemm_bytes(gemm))


def gemm_bytes(gemm: Gemm) -> int:
    """Return the compulsory traffic of a GEMM: each operand read once, the result written once."""
    weights = gemm.n * gemm.k * width(gemm.weight_dtype or gemm.dtype)
    result = gemm.m * gemm.n * width(gemm.out_dtype or gemm.dtype) * (2 if gemm.accumulate else 1)
    return int(gemm.batch * (gemm.m * gemm.k * width(gemm.dtype) + weights + result))


def price_grouped_gemm(gemm: GroupedGemm, device: Device) -> Estimate:
    """Price a grouped GEMM; a group without rows reads no weights."""
    rows, active = sum(gemm.rows), sum(1 for count in gemm.rows if count)
    size = width(gemm.dtype)
    moved = (rows * gemm.k + active * gemm.n * gemm.k + rows * gemm.n) * size
    return _roofline(device, gemm.dtype, 2 * rows * gemm.n * gemm.k, int(moved))


def visible_pairs(attention: Attention) -> int:
    """Return how many (query, key) pairs one head of one sequence looks at.

    >>> visible_pairs(Attention(1, 4, 4, 1, 1, 64)), visible_pairs(Attention(1, 4, 4, 1, 1, 64, window=2))
    (10, 7)
    """
    queries, keys = attention.query_length, attention.key_length
    if not attention.causal:
        return queries * min(keys, attention.window or keys)
    window = min(attention.window or keys, keys)
    # Query i (0-based) sees the min(window, first + i) latest keys.
    first = keys - queries + 1
    growing = max(0, min(queries, window - first))
    return growing * first + growing * (growing - 1) // 2 + (queries - growing) * window


def price_attention(attention: Attention, device: Device) -> Estimate:
    """Price attention by its two (backward: five) products and one pass over Q, K, V and O."""
    value_dim = attention.value_dim or attention.head_dim
    pairs = attention.batch * attention.heads * visible_pairs(attention)
    flops = 2 * pairs * (attention.head_dim + value_dim)
    size, kv_size = width(attention.dtype), width(attention.kv_dtype or attention.dtype)
    per_query = attention.heads * (attention.head_dim + value_dim) * size
    per_key = (
        attention.kv_heads * (attention.head_dim + (0 if attention.shared_latent else value_dim)) * kv_size
    )
    keys = min(attention.key_length, (attention.window or attention.key_length) + attention.query_length - 1)
    moved = attention.batch * (attention.query_length * per_query + keys * per_key)
    if attention.phase == "backward":
        flops, moved = flops * 5 // 2, moved * 2
    if not attention.fused:
        moved += 4 * pairs * size
    return _roofline(device, attention.dtype, flops, int(moved))


def price_vector(vector: Vector, device: Device) -> Estimate:
    """Price a vector kernel as one read and one write of its elements."""
    elements = vector.rows * vector.columns
    moved = int(elements * width(vector.dtype) * (3 if vector.phase == "backward" else 2))
    return _slower(device, (elements / device.vector_rate("fp32"), "vector"), elements, moved)


def _roofline(device: Device, dtype: Dtype, flops: int, moved: int) -> Estimate:
    return _slower(device, (flops / device.tensor_rate(dtype), "tensor"), flops, moved)


def _slower(device: Device, work: tuple[float, Bound], flops: int, moved: int) -> Estimate:
    hbm: tuple[float, Bound] = (moved / device.spec.hbm.bandwidth, "hbm")
    seconds, bound = max(work, hbm)
    busy = int(seconds * PS_PER_S)
    if device.launch_overhead > busy:
        bound = "launch"
    detail = {"model": "roofline", "launch_ps": device.launch_overhead}
    return Estimate(busy + device.launch_overhead, bound, flops, {"hbm": moved}, detail)


PRICERS: Mapping[type, Callable[[Operator, Device], Estimate]] = cast(
    "Mapping[type, Callable[[Operator, Device], Estimate]]",
    {Gemm: price_gemm, GroupedGemm: price_grouped_gemm, Attention: price_attention, Vector: price_vector},
)
