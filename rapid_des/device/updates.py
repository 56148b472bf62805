"""What optimizers' updates move and compute, an element of the parameters that they update."""

from __future__ import annotations

from collections.abc import Mapping

from rapid_des.device.passes import Traffic, VectorKind, over_elements

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
