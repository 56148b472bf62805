"""Attention of few queries over a long cache: one thread block a KV head, the keys split over blocks.

All query heads that share a KV head (and, in absorbed MLA, all heads) form the rows of one tile. Where that
gives fewer blocks than the GPU holds, the keys are split: each block takes some key tiles, a second kernel
combines the partial results. Equal blocks run in waves; in each wave the blocks take as long as one block's
loop or as its bytes need from HBM or L2.
"""

from __future__ import annotations

import math

from msgspec import Struct

from rapid_des.device.device import Device, Transfer, transfer
from rapid_des.device.operators import Attention, Bound, Dtype, Estimate, width
from rapid_des.units import PS_PER_S
from rapid_des.values import fields, replace

NEVER, GROUPED, ALWAYS = 0, 1, 2
"""The values of the constant `split`: a kernel never splits keys, only where heads share a KV head, or
always.
"""


class DecodeKernel(Struct, frozen=True):
    """One kernel library's decode kernel on one device; times in microseconds.

    Geometry (from the kernels' source): tiles, blocks an SM holds, whether heads of a group share a block,
    when keys are split and how far. Fitted: `gain` in throughput of a full SM over a lone block,
    `stream_gbps` that one block's loop draws, `cta_us` of a block's start and end, `kernel_us` beyond the
    launch, `combine_us` and `combine_split_us` (a split) of the combining kernel, `regroup_us` where heads
    are copied together first, `row_passes` over Q and O by preparing kernels.
    """

    tile_q: float
    tile_kv: float
    resident: float
    group_heads: float
    split: float
    max_splits: float
    products_in_kv_dtype: float
    tensor_utilisation: float
    gain: float
    stream_gbps: float
    cta_us: float
    kernel_us: float
    combine_us: float
    combine_split_us: float
    regroup_us: float
    row_passes: float
    norm: float

    @classmethod
    def of(cls, device: Device, section: str, dtype: str) -> DecodeKernel:
        """Return the kernel that the device's constants describe."""
        return cls(*device.chosen_constants(section, fields(cls), dtype))


class Grid(Struct, frozen=True):
    """The thread blocks of one decode kernel."""

    groups: int
    """The number of blocks before the keys are split."""
    splits: int
    tiles: int
    """The number of key tiles that each block processes."""

    @property
    def blocks(self) -> int:
        """Return the blocks of the launch."""
        return self.groups * self.splits


def rows_of(attention: Attention) -> int:
    """Return the query rows that can share one pass over a KV head."""
    return attention.query_length * attention.group_size


def shares_keys(attention: Attention, device: Device) -> bool:
    """Return whether the query heads of a KV head read it together, by the policy in use."""
    policy = device.conditions.decode
    enough = attention.batch * attention.kv_heads >= policy.blocks_per_sm * device.spec.sms
    group = policy.groups is None or attention.group_size in policy.groups
    return enough and group and (policy.head_dims is None or attention.head_dim in policy.head_dims)


def price_decode(attention: Attention, device: Device, section: str) -> Estimate:
    """Price attention of so few queries that one tile holds all rows of a KV head.

    Where query heads do not share their keys, they have blocks as if each had keys of its own. Blocks of one
    KV head run side by side: HBM brings its bytes once, L2 gives them to each.
    """
    total = attention.sizes
    if section == "decode_mha":
        attention = replace(attention, kv_heads=attention.heads)
    kernel = DecodeKernel.of(device, section, attention.cache_dtype)
    if not device.conditions.decode.split:
        kernel = replace(kernel, split=NEVER)
    grid = decode_grid(attention, kernel, device.spec.sms)
    passes = transfer(device, kernel.row_passes * (total.query + total.output), total.operands)
    body = transfer(
        device, attention.sizes.operands, total.operands, activations=False, distinct=total.operands
    )
    block = kernel.cta_us * 1e-6 + grid.tiles * _tile_seconds(attention, kernel, device)
    kernels = _waves(grid.blocks, block, body.seconds, kernel=kernel, sms=device.spec.sms)
    extra_us = kernel.kernel_us
    if grid.splits > 1:
        extra_us += kernel.combine_us + kernel.combine_split_us * grid.splits
    if attention.batch > 1 and attention.kv_heads > 1 and attention.group_size > 1:
        extra_us += kernel.regroup_us
    fixed = device.launch_overhead + extra_us * 1e6
    duration = int((kernels + passes.seconds) * PS_PER_S + fixed)
    detail = {
        "model": "decode",
        "tile": [int(kernel.tile_q), int(kernel.tile_kv)],
        "blocks": grid.blocks,
        "splits": grid.splits,
        "waves": round(grid.blocks / (device.spec.sms * kernel.resident), 3),
        "transfer_us": body.seconds * 1e6,
        "block_us": block * 1e6,
    }
    bound = _bound(fixed / duration, kernels, body)
    return Estimate(
        duration,
        bound,
        total.flops,
        {"hbm": int(body.hbm_bytes), "l2": int(attention.sizes.operands)},
        detail,
        "attention.decode",
    )


def decode_grid(attention: Attention, kernel: DecodeKernel, sms: int) -> Grid:
    """Return the launch: groups of rows, splits of the keys, key tiles a block."""
    grouped = bool(kernel.group_heads) or attention.group_size == 1
    rows = rows_of(attention) if grouped else attention.query_length
    kv_heads = attention.kv_heads if grouped else attention.heads
    groups = attention.batch * kv_heads * -(-rows // int(kernel.tile_q))
    tiles = -(-attention.read_keys // int(kernel.tile_kv))
    splits = 1
    if kernel.split == ALWAYS or (kernel.split == GROUPED and attention.group_size > 1):
        splits = choose_splits(groups, sms * int(kernel.resident), min(tiles, int(kernel.max_splits)), tiles)
    return Grid(groups, splits, -(-tiles // splits))


def choose_splits(groups: int, slots: int, most: int, tiles: int) -> int:
    """Return the fewest splits whose waves are 85 % as full as the best choice's (FlashAttention's rule).

    >>> choose_splits(8, 216, 128, 256), choose_splits(200, 216, 128, 256)
    (24, 1)
    """
    if groups >= 0.8 * slots:
        return 1
    candidates = [
        splits
        for splits in range(1, min(most, slots) + 1)
        if splits == 1 or -(-tiles // splits) != -(-tiles // (splits - 1))
    ]
    waves = {splits: groups * splits / slots for splits in candidates}
    full = {splits: wave / math.ceil(wave) for splits, wave in waves.items()}
    good = 0.85 * max(full.values())
    return next(splits for splits in candidates if full[splits] >= good)


def _tile_seconds(attention: Attention, kernel: DecodeKernel, device: Device) -> float:
    """Return the time of one key tile in a lone block: its products, or the transfer of its bytes."""
    columns = attention.head_dim + attention.value_width
    stored = attention.head_dim if attention.shared_latent else columns
    size = kernel.tile_kv * stored * width(attention.cache_dtype)
    dtype: Dtype = attention.dtype
    if kernel.products_in_kv_dtype and attention.kv_dtype is not None:
        dtype = attention.kv_dtype
    rate = device.tensor_rate(dtype) * kernel.tensor_utilisation / device.spec.sms
    products = 2 * kernel.tile_q * kernel.tile_kv * columns / rate
    return max(products, size / (kernel.stream_gbps * 1e9))


def _waves(blocks: int, block: float, transfer_seconds: float, *, kernel: DecodeKernel, sms: int) -> float:
    """Return the time of all waves; each takes the longer of its blocks' loop and its share of a transfer."""
    slots = sms * int(kernel.resident)
    full, tail = divmod(blocks, slots)

    def wave(count: int) -> float:
        crowd = -(-count // sms)
        compute = block * max(1.0, crowd / kernel.gain)
        moved = transfer_seconds * count / blocks
        return float((compute**kernel.norm + moved**kernel.norm) ** (1 / kernel.norm))

    return full * wave(slots) + (wave(tail) if tail else 0.0)


def _bound(fixed_share: float, kernels: float, body: Transfer) -> Bound:
    if fixed_share > 0.5:
        return "launch"
    return body.bound if body.seconds > 0.5 * kernels else "latency"
