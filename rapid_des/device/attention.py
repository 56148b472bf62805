"""Attention of every kind: which kernel runs, and what it costs.

- many queries: FlashAttention forward or backward (`attention_flash`);
- so few queries that one tile holds all rows of a KV head: decode with split keys (`attention_decode`);
- `fused=False`: separate kernels through memory (`attention_unfused`).

MLA, absorbed, is decode (or flash) over one latent KV head of 576 columns whose first 512 are the values
(`shared_latent`); not absorbed it is flash with head_dim 192 and value_dim 128. Both have constants of their
own (`mla_decode`, `mla_prefill`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rapid_des.device.attention_decode import price_decode, rows_of
from rapid_des.device.attention_flash import price_flash, price_flash_backward
from rapid_des.device.attention_tiles import group_size, kv_dtype, value_dim
from rapid_des.device.attention_unfused import price_unfused
from rapid_des.device.operators import Attention, Estimate
from rapid_des.device.vector_memory import constant
from rapid_des.errors import InputError

if TYPE_CHECKING:
    from rapid_des.device.model import Device

SECTIONS = ("attention", "attention_backward", "decode", "decode_mha", "mla_prefill", "mla_decode")
"""Sections of a device's or a family's constants that these models read."""


def price_attention(attention: Attention, device: Device) -> Estimate:
    """Price one attention operator; an impossible shape is an `InputError` that says why."""
    _check(attention)
    if not attention.fused:
        return price_unfused(attention, device)
    if attention.phase == "backward":
        return price_flash_backward(attention, device)
    if _has_few_queries(attention, device):
        return price_decode(attention, device, decode_section(attention))
    return price_flash(attention, device, prefill_section(attention))


def section_of(attention: Attention, device: Device) -> str:
    """Return the section of the constants that prices a fused operator."""
    _check(attention)
    if attention.phase == "backward":
        return "attention_backward"
    few = _has_few_queries(attention, device)
    return decode_section(attention) if few else prefill_section(attention)


def _has_few_queries(attention: Attention, device: Device) -> bool:
    return attention.query_length == 1 or _is_packed(attention, device)


def _is_packed(attention: Attention, device: Device) -> bool:
    """Return whether all rows of a KV head share one tile, in a library whose kernels pack heads together."""
    if prefill_section(attention) == "mla_prefill" and not attention.shared_latent:
        return False
    constants = device.constants("attention", kv_dtype(attention))
    tile = constant(constants, "attention", "tile_q", device)
    packs = constant(constants, "attention", "pack_heads", device)
    return bool(packs) and rows_of(attention) <= tile


def decode_section(attention: Attention) -> str:
    """Return the constants for few queries: MLA's latent, one query head a KV head, or a group."""
    if attention.shared_latent:
        return "mla_decode"
    return "decode" if group_size(attention) > 1 else "decode_mha"


def prefill_section(attention: Attention) -> str:
    """Return the constants for many queries: kernels with unequal head sizes are MLA's."""
    return "attention" if value_dim(attention) == attention.head_dim else "mla_prefill"


def _check(attention: Attention) -> None:
    for name in ("batch", "query_length", "key_length", "heads", "kv_heads", "head_dim"):
        if getattr(attention, name) < 1:
            raise InputError(f"attention: {name} is {getattr(attention, name)}, it must be at least 1")
    if attention.heads % attention.kv_heads:
        raise InputError(
            f"attention: heads {attention.heads} is no multiple of kv_heads {attention.kv_heads}"
        )
    if attention.key_length < attention.query_length and attention.causal:
        raise InputError(
            f"attention: query_length {attention.query_length} is more than key_length {attention.key_length}"
        )
    if attention.shared_latent and attention.kv_heads != 1:
        raise InputError(f"attention: a shared latent has one KV head, not {attention.kv_heads}")
