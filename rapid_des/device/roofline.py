"""The textbook roofline of every operator: compulsory bytes, datasheet peaks, one launch.

It is the first look (`operators: roofline`) and the null model that the real ones are measured against. What
a GPU and its host do for each other (copies of pinned memory, an optimizer on the processor) has no other.
"""

from __future__ import annotations

from rapid_des.device.device import Device
from rapid_des.device.operators import (
    Attention,
    Bound,
    Dtype,
    Estimate,
    Gemm,
    GroupedGemm,
    HostWork,
    Operator,
    Starts,
    Vector,
    width,
)
from rapid_des.errors import InputError
from rapid_des.units import PS_PER_S


def price(operator: Operator, device: Device) -> Estimate:
    """Price an operator of any kind."""
    match operator:
        case Gemm():
            return price_gemm(operator, device)
        case GroupedGemm():
            return price_grouped_gemm(operator, device)
        case Attention():
            return price_attention(operator, device)
        case Vector():
            return price_vector(operator, device)
        case HostWork():
            return price_host(operator, device)
        case Starts():
            return price_starts(operator)


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
    weights = active * gemm.n * gemm.k * width(gemm.weight_dtype or gemm.dtype)
    moved = (rows * gemm.k + rows * gemm.n) * size + weights
    return _roofline(device, gemm.dtype, 2 * rows * gemm.n * gemm.k, int(moved))


def price_attention(attention: Attention, device: Device) -> Estimate:
    """Price attention by its two (backward: five) products and one pass over Q, K, V and O."""
    columns = attention.head_dim + attention.value_width
    pairs = attention.batch * attention.heads * attention.visible_pairs
    flops, size = 2 * pairs * columns, width(attention.dtype)
    per_query = attention.heads * columns * size
    stored = attention.head_dim if attention.shared_latent else columns
    per_key = attention.kv_heads * stored * width(attention.cache_dtype)
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
    return Estimate(busy + device.launch_overhead, bound, flops, {"hbm": moved}, detail, "roofline")


def price_starts(starts: Starts) -> Estimate:
    """Price kernels' starts, which the software states."""
    return Estimate(starts.duration, "launch", 0, {}, {"model": "software"}, "software")


def price_host(work: HostWork, device: Device) -> Estimate:
    """Price bytes by the bandwidth that the device file states; `InputError` if it states none."""
    host = device.spec.host
    if host is None:
        raise InputError(f"device {device.spec.name} states no bandwidths of its `host`, to offload to")
    rate = getattr(host, work.what)
    duration = max(1, -(-work.size * PS_PER_S // int(rate)))
    return Estimate(duration, "host", 0, {}, {"model": "host"}, "host")
