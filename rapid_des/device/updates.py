"""What optimizers' updates move and compute, an element of the parameters that they update."""

from __future__ import annotations

from collections.abc import Mapping

from rapid_des.device.operators import DTYPE_BITS, width
from rapid_des.device.passes import Traffic, VectorKind, over_elements

_WEIGHT = 2
"""Bytes of a weight as kernels read it."""
_PLAIN: Mapping[str, tuple[int, int]] = {"adam": (2, 14), "adamw": (2, 15), "sgd": (1, 4)}
"""States of an element, and FLOPs."""


def update_kind(optimizer: str, states: str, master: str | None) -> str:
    """Return the kernel of an update whose states and master weights have these formats (None: no master).

    >>> update_kind("adamw", "fp32", "fp32"), update_kind("adamw", "bf16", None)
    ('adamw', 'adamw_bf16_none')
    """
    if optimizer not in _PLAIN or (states, master) == ("fp32", "fp32"):
        return optimizer
    return f"{optimizer}_{states}_{master or 'none'}"


def update_of(name: str) -> VectorKind | None:
    """Return the kernel that such a name stands for: states and master, or the weight, read and written."""
    optimizer, _, formats = name.partition("_")
    states, _, master = formats.partition("_")
    if optimizer not in _PLAIN or states not in DTYPE_BITS or master not in (*DTYPE_BITS, "none"):
        return None
    count, flops = _PLAIN[optimizer]
    alone = master == "none"
    kept = count * width(states) + (_WEIGHT if alone else width(master))
    traffic = Traffic(1, 0, flops, read_bytes=kept, write_bytes=kept + (0 if alone else _WEIGHT))
    return over_elements(f"{optimizer} with {states} states and {master} master weights", traffic)


UPDATES: Mapping[str, VectorKind] = {
    "adam": over_elements(
        "fused Adam: fp32 master weight and two moments; gradient in the operator's dtype; 2-byte weight out",
        Traffic(1, 0, 14, read_bytes=12, write_bytes=14),
    ),
    "adamw": over_elements(
        "fused AdamW: as adam, with decoupled decay", Traffic(1, 0, 15, read_bytes=12, write_bytes=14)
    ),
    "sgd": over_elements("fused SGD with momentum", Traffic(1, 0, 4, read_bytes=8, write_bytes=10)),
    "adam_8bit": over_elements(  # moments of a byte and a scale of four bytes for 256, read and written
        "fused Adam with block-wise quantised moments",
        Traffic(1, 0, 30, read_bytes=4 + 2 * (1 + 4 / 256), write_bytes=6 + 2 * (1 + 4 / 256)),
    ),
    "muon_momentum": over_elements(
        "fp32 momentum updated, normalised bf16 matrix out", Traffic(1, 0, 6, read_bytes=4, write_bytes=6)
    ),
    "muon": over_elements(
        "orthogonal bf16 matrix scaled into fp32 master weight; 2-byte weight out",
        Traffic(0, 0, 4, read_bytes=6, write_bytes=6),
    ),
}
