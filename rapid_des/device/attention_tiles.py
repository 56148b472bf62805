"""Which key tiles a query tile has to visit, and how many bytes and FLOPs an attention has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rapid_des.device.operators import DTYPE_BITS, Attention
from rapid_des.device.roofline import visible_pairs

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one attention's operands, and its exact FLOPs (masked pairs excluded)."""

    query: float
    keys: float
    """K and V (one latent where it is shared)."""
    output: float
    flops: int

    @property
    def operands(self) -> float:
        """Q, K, V and O: what the kernel must move at least."""
        return self.query + self.keys + self.output


def value_dim(attention: Attention) -> int:
    """Return the width of a value head."""
    return attention.value_dim or attention.head_dim


def kv_dtype(attention: Attention) -> str:
    """Return the dtype in which keys and values are stored."""
    return attention.kv_dtype or attention.dtype


def group_size(attention: Attention) -> int:
    """Return how many query heads share one KV head."""
    return attention.heads // attention.kv_heads


def sizes(attention: Attention) -> Sizes:
    """Return the bytes and FLOPs of the forward pass.

    >>> sizes(Attention(1, 2, 2, heads=1, kv_heads=1, head_dim=64)).flops  # 3 visible pairs, 2 products
    768
    """
    width = DTYPE_BITS[attention.dtype] / 8
    rows = attention.batch * attention.query_length * attention.heads
    columns = attention.head_dim + (0 if attention.shared_latent else value_dim(attention))
    keys = attention.batch * read_keys(attention) * attention.kv_heads * columns
    pairs = attention.batch * attention.heads * visible_pairs(attention)
    return Sizes(
        query=rows * attention.head_dim * width,
        keys=keys * DTYPE_BITS[kv_dtype(attention)] / 8,
        output=rows * value_dim(attention) * width,
        flops=2 * pairs * (attention.head_dim + value_dim(attention)),
    )


def read_keys(attention: Attention) -> int:
    """Return how many key positions are read at all: with a window, only those some query sees.

    A paged cache is read in whole pages.
    """
    keys = attention.key_length
    if attention.window is not None:
        keys = min(keys, attention.window + attention.query_length - 1)
    if attention.page_size is not None:
        keys = -(-keys // attention.page_size) * attention.page_size
    return keys


def key_tiles(attention: Attention, tile_q: int, tile_kv: int, packed: int) -> Ints:
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
    tiles: Ints = last_key // tile_kv - first_key // tile_kv + 1
    return tiles
