"""Models that price operators on a device: native models, the roofline, or regressors on measurements.

An operator model is made for one job; what it works out stays in the cache it was given, so that the next
model of an equal device need not work it out again.

Which kernel an attention runs as:

- many queries: FlashAttention forward or backward (`attention.flash`);
- so few queries that one tile holds all rows of a KV head: decode with split keys (`attention.decode`);
- `fused=False`: separate kernels, and the scores and the probabilities go through memory. Forward: scores =
  Q K^T (batched GEMM), scale + mask + softmax (one kernel), O = P V. Backward: dV = P^T dO, dP = dO V^T,
  softmax backward, dQ = dS K, dK = dS^T Q. Masked pairs are computed all the same.

The textbook roofline (`operators: roofline`) takes compulsory bytes, datasheet peaks and one launch. It is
the first look and the null model that the real ones are measured against. What a GPU and its host do for each
other (copies of pinned memory, an optimizer on the processor) has no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import index
from pathlib import Path
from typing import SupportsIndex

from msgspec import Struct

from rapid_des.bounded_cache import BoundedCache
from rapid_des.device.attention.decode import price_decode, rows_of, shares_keys
from rapid_des.device.attention.flash import BlockScheduler, price_flash, price_flash_backward
from rapid_des.device.device import Device
from rapid_des.device.gemm import gemm_model, grouped_model, price_gemm, price_grouped_gemm
from rapid_des.device.operators import (
    DTYPE_BITS,
    Attention,
    Bound,
    Dtype,
    Estimate,
    Gemm,
    GroupedGemm,
    HostWork,
    Operator,
    OperatorModel,
    Starts,
    Vector,
    width,
)
from rapid_des.device.spec import operator_file
from rapid_des.device.vector import VectorKernel, price_vector
from rapid_des.errors import InputError
from rapid_des.extensions import OPERATORS, find
from rapid_des.units import PS_PER_S
from rapid_des.values import fields

MOST_PRICES = 1 << 15
"""The number of estimates kept for a device, each of about a kilobyte."""
_WEIGHT = 1 << 20
"""The approximate bytes of the prices that one job needs."""


def _no_notes(_: Iterable[OperatorModel]) -> tuple[str, ...]:
    return ()


class OperatorSource(Struct, frozen=True):
    """Operators priced by a file, as `operators: NAME:FILE` says; an entry point of `rapid_des.operators`."""

    model: Callable[[Path, Device, BoundedCache], OperatorModel]
    """Returns the model of a file for a device; the cache is the one that `operator_model` takes."""
    notes: Callable[[Iterable[OperatorModel]], tuple[str, ...]] = _no_notes
    """Returns the notes of a result, from the models that priced it."""


def operator_source(operators: str) -> OperatorSource | None:
    """Return what reads the file of a device's `operators`; None for the models of this package."""
    name, file = operator_file(operators)
    return find(OPERATORS, name, OperatorSource) if file else None


def operator_model(device: Device, memory: BoundedCache | None = None) -> OperatorModel:
    """Return the operator model of the device file; `memory` keeps prices for later models.

    >>> from rapid_des.device import load_device
    >>> operator_model(load_device("h100_sxm")).estimate(Gemm(4096, 4096, 4096)).bound
    'tensor'
    """
    if memory is None:
        memory = BoundedCache(_WEIGHT)
    source = operator_source(device.spec.operators)
    if source is not None:
        return source.model(Path(operator_file(device.spec.operators)[1]), device, memory)
    prices = prices_of(device, memory)
    if device.spec.operators == "roofline":
        return RooflineOperators(device, prices)
    return NativeOperators(device, prices)


def prices_of(device: Device, memory: BoundedCache) -> BoundedCache:
    """Return the part of the memory that holds what equal devices cost."""
    return memory.get_or_make(("prices", device), lambda: BoundedCache(MOST_PRICES), weight=lambda _: _WEIGHT)


def estimate(operator: Operator, device: Device) -> Estimate:
    """Return the time of one operator on a device under its conditions, and what bounds it.

    Times are picoseconds, launch included, bytes those moved at each level. `InputError` for arithmetic or
    kernels that the device has not. Many operators are faster with one `operator_model`.

    >>> from rapid_des.device import load_device
    >>> known = estimate(Gemm(4096, 4096, 4096), load_device("h100_sxm"))
    >>> known.bound, known.flops, known.duration < 10**9
    ('tensor', 137438953472, True)
    """
    check_shape(operator)
    return operator_model(device).estimate(operator)


_SIZES: Mapping[type, tuple[str, ...]] = {
    Gemm: ("m", "n", "k", "batch"),
    GroupedGemm: ("n", "k"),
    Attention: ("batch", "query_length", "key_length", "heads", "kv_heads", "head_dim"),
    Vector: ("rows", "columns"),
    HostWork: (),
    Starts: (),
}


def check_shape(operator: Operator) -> None:
    """Raise `InputError` for what is no operator, for sizes that are none and formats that are none."""
    if type(operator) not in _SIZES:
        names = ", ".join(each.__name__ for each in _SIZES)
        raise InputError(f"{operator!r} is no operator; allowed: {names}")
    for name in _SIZES[type(operator)]:
        _check_whole(operator, name, getattr(operator, name), 1)
    rows = operator.rows if isinstance(operator, GroupedGemm) else ()
    if not isinstance(rows, tuple):
        raise InputError(f"GroupedGemm: rows is {rows!r}; allowed: a tuple of whole numbers, one a group")
    for row in rows:
        _check_whole(operator, "rows", row, 0)
    for name in fields(operator):
        value = getattr(operator, name)
        if name.endswith("dtype") and value is not None and value not in DTYPE_BITS:
            allowed = ", ".join(DTYPE_BITS)
            raise InputError(f"{type(operator).__name__}: {name} is {value!r}; allowed: {allowed}")


def _check_whole(operator: Operator, name: str, value: object, least: int) -> None:
    if not isinstance(value, SupportsIndex) or index(value) < least:
        raise InputError(
            f"{type(operator).__name__}: {name} is {value!r}; allowed: whole numbers from {least}"
        )


class RooflineOperators:
    """The textbook roofline of every operator."""

    def __init__(self, device: Device, prices: BoundedCache) -> None:
        self._device, self._prices = device, prices

    def estimate(self, operator: Operator) -> Estimate:
        """Return the latency of one operator."""
        return self._prices.get_or_make(
            operator, lambda: price_by_roofline(operator, self._device.for_arithmetic(operator.dtype))
        )


class NativeOperators:
    """The models of the kernels that libraries run; their tables are remembered beside the prices."""

    def __init__(self, device: Device, prices: BoundedCache) -> None:
        self._device, self._prices = device, prices

    def estimate(self, operator: Operator) -> Estimate:
        """Return the latency of one operator."""
        return self._prices.get_or_make(operator, partial(self._price, operator))

    def _price(self, operator: Operator) -> Estimate:
        device, table = self._device.for_arithmetic(operator.dtype), self._prices.get_or_make
        match operator:
            case Gemm(dtype=dtype, weight_dtype=stored, batch=batch, quantised=narrow):
                key = ("gemm", dtype, stored, batch > 1, narrow)
                kernels = table(
                    key, lambda: gemm_model(device, dtype, stored, batched=batch > 1, quantised=narrow)
                )
                return price_gemm(operator, kernels, device)
            case GroupedGemm(dtype=dtype, weight_dtype=stored):
                key = ("grouped", dtype, stored, False, False)
                kernels = table(key, lambda: grouped_model(device, dtype, weight_dtype=stored))
                return price_grouped_gemm(operator, kernels, device)
            case Attention(fused=False):
                return price_unfused(operator, self.estimate)
            case Attention():
                return price_attention(operator, device, table("block scheduler", BlockScheduler))
            case Vector(kind=kind, dtype=dtype):
                constants = table(("vector", kind, dtype), lambda: VectorKernel.of(device, kind, dtype))
                return price_vector(operator, device, constants)
            case HostWork():
                return price_host(operator, device)
            case Starts():
                return price_starts(operator)


def price_attention(attention: Attention, device: Device, scheduler: BlockScheduler) -> Estimate:
    """Price one fused attention operator; an impossible shape is an `InputError` that says why."""
    section = section_of(attention, device)
    if section == "attention_backward":
        return price_flash_backward(attention, device, scheduler)
    if section in _DECODE:
        return price_decode(attention, device, section)
    return price_flash(attention, device, scheduler, section)


def price_unfused(attention: Attention, price: Callable[[Operator], Estimate]) -> Estimate:
    """Price one unfused attention operator: its kernels, by `price`, one after the other."""
    _check_attention(attention)
    parts = unfused_kernels(attention)
    estimates = [price(part) for part in parts]
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
    flops = sum(estimate.flops for estimate in estimates)
    return Estimate(duration, slowest.bound, flops, moved, detail, "attention.unfused")


def unfused_kernels(attention: Attention) -> Sequence[Operator]:
    """Return the kernels of the forward or backward pass; heads that share a KV head are rows of one GEMM.

    >>> parts = unfused_kernels(Attention(1, 8, 8, heads=2, kv_heads=1, head_dim=64))
    >>> [type(part).__name__ for part in parts]
    ['Gemm', 'Vector', 'Gemm']
    """
    batch = attention.batch * attention.kv_heads
    rows = attention.query_length * attention.group_size
    keys, width, dtype = attention.key_length, attention.head_dim, attention.dtype

    def product(m: int, n: int, k: int) -> Gemm:
        return Gemm(m, n, k, batch=batch, dtype=dtype)

    softmax = Vector("masked_softmax", batch * rows, keys, dtype=dtype, phase=attention.phase)
    if attention.phase == "forward":
        return (product(rows, keys, width), softmax, product(rows, attention.value_width, keys))
    return (
        product(keys, attention.value_width, rows),
        product(rows, keys, attention.value_width),
        softmax,
        product(rows, width, keys),
        product(keys, width, rows),
    )


def section_of(attention: Attention, device: Device) -> str:
    """Return the section of the constants that prices a fused operator.

    Kernels with unequal head sizes are MLA's. Decode kernels have sections for MLA's latent, for groups of
    query heads and for one query head a KV head, which also serves groups that do not share their keys.
    """
    _check_attention(attention)
    if attention.phase == "backward":
        return "attention_backward"
    prefill = "attention" if attention.value_width == attention.head_dim else "mla_prefill"
    if attention.query_length > 1 and not _is_packed(attention, device, prefill):
        return prefill
    if attention.shared_latent:
        return "mla_decode"
    return "decode" if attention.group_size > 1 and shares_keys(attention, device) else "decode_mha"


_DECODE = ("mla_decode", "decode", "decode_mha")


def _is_packed(attention: Attention, device: Device, prefill: str) -> bool:
    """Return whether all rows of a KV head share one tile, in a library whose kernels pack heads together."""
    if prefill == "mla_prefill" and not attention.shared_latent:
        return False
    tile, packs = device.chosen_constants("attention", ("tile_q", "pack_heads"), attention.cache_dtype)
    return bool(packs) and rows_of(attention) <= tile


def _check_attention(attention: Attention) -> None:
    for name in ("batch", "query_length", "key_length", "heads", "kv_heads", "head_dim"):
        if getattr(attention, name) < 1:
            raise InputError(f"attention: {name} is {getattr(attention, name)}, it must be at least 1")
    if attention.heads % attention.kv_heads:
        problem = f"heads {attention.heads} is no multiple of kv_heads {attention.kv_heads}"
        raise InputError(f"attention: {problem}")
    if attention.key_length < attention.query_length and attention.causal:
        problem = f"query_length {attention.query_length} is more than key_length {attention.key_length}"
        raise InputError(f"attention: {problem}")
    if attention.shared_latent and attention.kv_heads != 1:
        raise InputError(f"attention: a shared latent has one KV head, not {attention.kv_heads}")


def _name(part: Operator) -> str:
    return f"gemm {part.batch}x{part.m}x{part.n}x{part.k}" if isinstance(part, Gemm) else "masked_softmax"


def price_by_roofline(operator: Operator, device: Device) -> Estimate:
    """Price an operator of any kind."""
    match operator:
        case Gemm():
            return roofline_gemm(operator, device)
        case GroupedGemm():
            return roofline_grouped_gemm(operator, device)
        case Attention():
            return roofline_attention(operator, device)
        case Vector():
            return roofline_vector(operator, device)
        case HostWork():
            return price_host(operator, device)
        case Starts():
            return price_starts(operator)


def roofline_gemm(gemm: Gemm, device: Device) -> Estimate:
    """Price a GEMM by FLOPs at peak or compulsory traffic, whichever is longer."""
    flops = 2 * gemm.batch * gemm.m * gemm.n * gemm.k
    return _roofline(device, gemm.dtype, flops, gemm_bytes(gemm))


def gemm_bytes(gemm: Gemm) -> int:
    """Return the compulsory traffic of a GEMM: each operand read once, the result written once."""
    weights = gemm.n * gemm.k * width(gemm.weight_dtype or gemm.dtype)
    result = gemm.m * gemm.n * width(gemm.out_dtype or gemm.dtype) * (2 if gemm.accumulate else 1)
    return int(gemm.batch * (gemm.m * gemm.k * width(gemm.dtype) + weights + result))


def roofline_grouped_gemm(gemm: GroupedGemm, device: Device) -> Estimate:
    """Price a grouped GEMM; a group without rows reads no weights."""
    rows, active = sum(gemm.rows), sum(1 for count in gemm.rows if count)
    size = width(gemm.dtype)
    weights = active * gemm.n * gemm.k * width(gemm.weight_dtype or gemm.dtype)
    moved = (rows * gemm.k + rows * gemm.n) * size + weights
    return _roofline(device, gemm.dtype, 2 * rows * gemm.n * gemm.k, int(moved))


def roofline_attention(attention: Attention, device: Device) -> Estimate:
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


def roofline_vector(vector: Vector, device: Device) -> Estimate:
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
