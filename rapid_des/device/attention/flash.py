"""FlashAttention over many queries: thread blocks of one query tile each, that loop over key tiles.

A block of the grid holds one query tile of one head and visits the key tiles its queries can see. Per visited
tile it does two products on the matrix unit and the softmax on the vector unit; blocks that share an SM, or
the warps of one block, overlap the two in part. Blocks are issued in order to SMs (wave quantisation), short
ones leave early (causal). Beside that runs the transfer of Q, K, V and O.

The backward kernel holds one key tile a block and loops over query tiles: five products a tile (scores again,
dP, dV, dK, dQ), dQ added up in fp32 through L2, a pass before it (row sums of dO x O) and one after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Floats, Int64s
from rapid_des.compiling import CompiledKernel, compilable
from rapid_des.compiling.kinds import FloatColumn, Int64Column
from rapid_des.device.device import Device, transfer
from rapid_des.device.operators import Attention, Bound, Dtype, Estimate, Sizes
from rapid_des.units import PS_PER_S
from rapid_des.values import fields

SIMULATED_ROUNDS = 12
"""The rounds of resident blocks that are simulated; a longer grid is extended at the steady rate of its
period.
"""
INTERPRETED_BLOCKS = 60_000
"""Blocks that are simulated as Python, 1 µs each: a job has a tenth of them, and a scheduler that goes on
to more is likely to have the many for which loading the compiled form (0.04 s) or compiling it (1 s) pays."""


class BlockScheduler:
    """The simulation: interpreted at first, compiled once enough blocks have come for loading that to pay.

    Both give the same bits. `blocks` counts what was simulated so far.
    """

    def __init__(self) -> None:
        self.blocks = 0

    def makespan(self, pattern: Floats, repeats: int, sms: int, pace: Floats) -> float:
        """Return the seconds until the last block ends.

        `pattern` holds the seconds that each block of one head would take alone on an SM, in issue order, and
        is issued `repeats` times. With k blocks resident on an SM each advances at `pace[k-1]`; `len(pace)`
        blocks fit on one SM. A free slot takes the next block in issue order.

        >>> BlockScheduler().makespan(np.array([1.0, 1.0]), 3, 2, np.array([1.0]))
        3.0
        """
        slots = sms * len(pace)
        simulated = min(repeats, -(-SIMULATED_ROUNDS * slots // len(pattern)))
        rest = (repeats - simulated) * float(pattern.sum()) / (slots * float(pace[-1]))
        work = np.tile(pattern, simulated)
        self.blocks += len(work)
        pays = self.blocks > INTERPRETED_BLOCKS or _SIMULATION.is_loaded
        return (compiled if pays else interpreted)(work, sms, pace) + rest


def interpreted(work: Floats, sms: int, pace: Floats) -> float:
    """Simulate as Python, which indexes lists four times as fast as arrays."""
    left, due = [0.0] * (sms * len(pace)), [np.inf] * sms
    return _simulate(work.tolist(), pace.tolist(), left, due, ([0] * sms, [0.0] * sms, [0] * sms))


def compiled(work: Floats, sms: int, pace: Floats) -> float:
    """Simulate as machine code."""
    left, due = np.zeros(sms * len(pace)), np.full(sms, np.inf)
    scratch = np.zeros(sms, np.int64), np.zeros(sms), np.zeros(sms, np.int64)
    last = np.zeros(1)
    _SIMULATION(np.ascontiguousarray(work), np.ascontiguousarray(pace), left, due, *scratch, last)
    return float(last[0])


@compilable
def _simulate(  # noqa: C901, PLR0912, PLR0915 - one loop that compiles as it stands
    work: Any,
    pace: Any,
    left: Any,
    due: Any,
    scratch: tuple[Any, Any, Any],
) -> float:
    """Simulate each SM as a processor-sharing server; a binary heap holds the SMs by their next finish.

    `left` holds the work left by SM and slot, `due` when each SM's next block ends; both begin as if all
    were empty. `scratch` is for the blocks on each SM, since when they advance, and the heap.
    """
    count, since, heap = scratch
    blocks, slots, sms = len(work), len(pace), len(due)
    # The first blocks go round the SMs, a slot at a time.
    issued = 0
    for slot in range(slots):
        for sm in range(sms):
            if issued < blocks:
                left[sm * slots + slot] = work[issued]
                count[sm] += 1
                issued += 1
    # Each SM's blocks advance at one pace, that of their number: the one with the least left ends first.
    size = 0
    for sm in range(sms):
        if count[sm] > 0:
            least = np.inf
            for slot in range(sm * slots, sm * slots + slots):
                if 0.0 < left[slot] < least:
                    least = left[slot]
            due[sm] = least / pace[count[sm] - 1]
            # Sift up from the end of the heap.
            at = size
            while at > 0 and due[heap[(at - 1) // 2]] > due[sm]:
                heap[at] = heap[(at - 1) // 2]
                at = (at - 1) // 2
            heap[at] = sm
            size += 1
    now = 0.0
    while size > 0:
        # The SM whose block ends next: all its blocks have advanced alike since it was looked at last.
        sm = heap[0]
        now = due[sm]
        done = (now - since[sm]) * pace[count[sm] - 1]
        since[sm] = now
        least = np.inf
        for slot in range(sm * slots, sm * slots + slots):
            if left[slot] > 0.0:
                rest = left[slot] - done
                if rest <= 1e-15:
                    # The slot is free: the next block takes it, or none is left.
                    rest = 0.0
                    if issued < blocks:
                        rest = work[issued]
                        issued += 1
                    else:
                        count[sm] -= 1
                left[slot] = rest
                if 0.0 < rest < least:
                    least = rest
        if count[sm] == 0:
            size -= 1
            sm = heap[size]
        else:
            due[sm] = now + least / pace[count[sm] - 1]
        # Sift down from the root.
        at, child, key = 0, 1, due[sm]
        while child < size:
            if child + 1 < size and due[heap[child + 1]] < due[heap[child]]:
                child += 1
            if due[heap[child]] >= key:
                break
            heap[at] = heap[child]
            at, child = child, 2 * child + 1
        heap[at] = sm
    return now


def _simulate_to(  # noqa: PLR0913 - as `_simulate`, whose result it writes
    work: FloatColumn,
    pace: FloatColumn,
    left: FloatColumn,
    due: FloatColumn,
    count: Int64Column,
    since: FloatColumn,
    heap: Int64Column,
    last: FloatColumn,
) -> None:
    last[0] = _simulate(work, pace, left, due, (count, since, heap))


_SIMULATION = CompiledKernel(_simulate_to)


class FlashKernel(Struct, frozen=True):
    """One kernel library's forward or backward kernel on one device; times in microseconds.

    Geometry (from the kernels' source): tiles, blocks an SM holds, longest blocks first, heads of a group
    packed into one tile, products in the dtype of the cache. Fitted: `tensor_utilisation` of the matrix
    unit inside a tile, `softmax_ops` vector operations an element, `overlap` of the two, `cta_us` of a
    block's start and end, `kernel_us` beyond the launch, `input_passes` over Q, K and V by preparing kernels.
    """

    tile_q: float
    tile_kv: float
    resident: float
    longest_first: float
    pack_heads: float
    products_in_kv_dtype: float
    tensor_utilisation: float
    softmax_ops: float
    overlap: float
    cta_us: float
    kernel_us: float
    input_passes: float
    norm: float
    """The exponent of the norm that joins compute and transfer times: 1 adds them, infinity takes the longer.
    """

    @classmethod
    def of(cls, device: Device, section: str, dtype: str) -> FlashKernel:
        """Return the kernel that the device's constants describe."""
        return cls(*device.chosen_constants(section, fields(cls), dtype))


def price_flash(attention: Attention, device: Device, scheduler: BlockScheduler, section: str) -> Estimate:
    """Price the forward kernel with the constants of `section`."""
    kernel = FlashKernel.of(device, section, attention.cache_dtype)
    packed = attention.group_size if kernel.pack_heads else 1
    tiles = key_tiles(attention, int(kernel.tile_q), int(kernel.tile_kv), packed)
    width = attention.head_dim + attention.value_width
    block, pace = _tile_seconds(kernel, device, _product_dtype(kernel, attention), width)
    heads = attention.batch * attention.heads // packed
    compute = scheduler.makespan(_order(kernel, tiles, block), heads, device.spec.sms, pace)
    total = attention.sizes
    columns = attention.heads * attention.head_dim + attention.kv_heads * width
    inputs = attention.batch * attention.query_length * columns * 2.0
    return _estimate(_Work(attention, total, compute, inputs, tiles, heads), kernel, device)


def price_flash_backward(attention: Attention, device: Device, scheduler: BlockScheduler) -> Estimate:
    """Price the backward pass: row sums, the five products, the conversion of dQ."""
    kernel = FlashKernel.of(device, "attention_backward", attention.cache_dtype)
    # A block holds one key tile; the causal mask spares it the queries before that tile: as many as the
    # forward tiles, counted by key.
    tiles = key_tiles(attention, int(kernel.tile_kv), int(kernel.tile_q), 1)
    width = 3 * attention.head_dim + 2 * attention.value_width
    block, pace = _tile_seconds(kernel, device, attention.dtype, width)
    heads = attention.batch * attention.heads
    compute = scheduler.makespan(_order(kernel, tiles, block), heads, device.spec.sms, pace)
    forward = attention.sizes
    # Q, K, V, O, dO read; dQ, dK, dV written; dQ in fp32 written and read once more by its conversion.
    query_grads = 2 * attention.batch * attention.query_length * attention.heads * attention.head_dim * 4.0
    total = Sizes(
        query=2 * forward.query + 2 * forward.output,
        keys=2 * forward.keys,
        output=query_grads,
        flops=forward.flops // (attention.head_dim + attention.value_width) * width,
    )
    return _estimate(_Work(attention, total, compute, 2 * forward.output, tiles, heads), kernel, device)


class _Work(Struct, frozen=True):
    attention: Attention
    sizes: Sizes
    compute: float
    inputs: float
    tiles: Int64s
    heads: int


def _product_dtype(kernel: FlashKernel, attention: Attention) -> Dtype:
    if kernel.products_in_kv_dtype and attention.kv_dtype is not None:
        return attention.kv_dtype
    return attention.dtype


def _tile_seconds(kernel: FlashKernel, device: Device, dtype: Dtype, width: int) -> tuple[float, Floats]:
    """Return the seconds of one tile for a block alone on its SM, and the pace of 1..resident blocks."""
    sms, pairs = device.spec.sms, kernel.tile_q * kernel.tile_kv
    products = 2 * pairs * width * sms / (device.tensor_rate(dtype) * kernel.tensor_utilisation)
    softmax = pairs * kernel.softmax_ops * sms / device.vector_rate("fp32")
    busy = max(products, softmax) + (1 - kernel.overlap) * min(products, softmax)
    resident = int(kernel.resident)
    if resident == 1:
        return busy, np.ones(1)
    alone = products + softmax
    paces = [1.0] + [min(1.0, alone / busy / blocks) for blocks in range(2, resident + 1)]
    return alone, np.array(paces)


def _order(kernel: FlashKernel, tiles: Int64s, tile_seconds: float) -> Floats:
    """Return the seconds of each block alone on its SM, in issue order."""
    blocks: Floats = kernel.cta_us * 1e-6 + tiles.astype(np.float64) * tile_seconds
    return np.sort(blocks)[::-1] if kernel.longest_first else blocks


def _estimate(work: _Work, kernel: FlashKernel, device: Device) -> Estimate:
    moved = work.sizes.operands
    touched = moved + work.sizes.keys
    body = transfer(device, moved, touched)
    seconds = (work.compute**kernel.norm + body.seconds**kernel.norm) ** (1 / kernel.norm)
    prepared = transfer(device, kernel.input_passes * work.inputs, touched)
    fixed = device.launch_overhead + kernel.kernel_us * 1e6
    duration = int((seconds + prepared.seconds) * PS_PER_S + fixed)
    bound: Bound = "tensor" if work.compute >= body.seconds else body.bound
    if fixed > duration / 2:
        bound = "launch"
    blocks = len(work.tiles) * work.heads
    detail = {
        "model": "flash" if work.attention.phase == "forward" else "flash backward",
        "tile": [int(kernel.tile_q), int(kernel.tile_kv)],
        "blocks": blocks,
        "waves": round(blocks / (device.spec.sms * kernel.resident), 3),
        "tiles_visited": int(work.tiles.sum()) * work.heads,
        "compute_us": work.compute * 1e6,
        "transfer_us": body.seconds * 1e6,
    }
    moved_bytes = {"hbm": int(body.hbm_bytes + prepared.hbm_bytes), "l2": int(_through_l2(work, kernel))}
    return Estimate(duration, bound, work.sizes.flops, moved_bytes, detail, "attention.flash")


def _through_l2(work: _Work, kernel: FlashKernel) -> float:
    """Every visited tile reads its keys and values (backward: Q, dO and dQ) through L2 once more."""
    attention = work.attention
    per_tile = kernel.tile_kv * (attention.head_dim + attention.value_width) * 2.0
    return work.sizes.operands + float(work.tiles.sum()) * work.heads * per_tile


def key_tiles(attention: Attention, tile_q: int, tile_kv: int, packed: int) -> Int64s:
    """Return how many key tiles each query tile of one head visits, first queries first.

    `packed` query heads of a KV head share a tile: row r is query r // packed. Tiles that the causal mask or
    the window hides wholly are skipped; tiles on an edge cost as much as full ones.

    >>> key_tiles(Attention(1, 256, 256, 1, 1, 64), 128, 64, 1).tolist()
    [2, 4]
    """
    rows = attention.query_length * packed
    first_row = np.arange(0, rows, tile_q)
    last_row = np.minimum(first_row + tile_q, rows) - 1
    past = attention.key_length - attention.query_length
    keys = attention.key_length
    last_key = past + last_row // packed if attention.causal else np.full_like(last_row, keys - 1)
    if attention.window is None:
        first_key = np.zeros_like(first_row)
    else:
        first_key = np.maximum(0, past + first_row // packed - attention.window + 1)
    tiles: Int64s = last_key // tile_kv - first_key // tile_kv + 1
    return tiles
