"""The reads, writes and FLOPs of each kernel on the vector unit, for an element of its result.

A table and no more: to add a kernel, add a line to `KINDS`; `rapid_des.device.vector` prices what it says.
`columns` is the width of the result: `swiglu` reads 2 x columns, `embedding` reads the rows it looks up,
optimizers and norms of gradients have one row. Updates in other formats of states and master weights are
made from their names (`vector.update_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct


class VectorPass(Struct, frozen=True):
    """One pass of a kernel, an element of its result.

    `reads` and `writes` count elements of the operator's dtype; `read_bytes` and `write_bytes` are in other
    formats (fp32 states, masks, indices). `row_reads` says how often a row is read: above 1 the later
    readings find it in L1 or L2, unless the rows in flight are too many.
    """

    reads: float
    writes: float
    flops: float
    read_bytes: float = 0.0
    write_bytes: float = 0.0
    row_reads: int = 1


class VectorKind(Struct, frozen=True):
    """A kernel: `map` splits the elements evenly, `rows` gives each row a thread block."""

    summary: str
    pattern: Literal["map", "rows"]
    forward: VectorPass
    backward: VectorPass | None = None
    kernels: int = 1
    """The number of launches in the forward pass (two for two-stage reductions)."""


def over_elements(
    summary: str, forward: VectorPass, backward: VectorPass | None = None, kernels: int = 1
) -> VectorKind:
    """Return a kernel that splits its elements evenly."""
    return VectorKind(summary, "map", forward, backward, kernels)


def by_rows(summary: str, forward: VectorPass, backward: VectorPass | None = None) -> VectorKind:
    """Return a kernel that gives each row a thread block."""
    return VectorKind(summary, "rows", forward, backward)


UPDATES: Mapping[str, VectorKind] = {
    "adam": over_elements(
        "fused Adam: fp32 master weight and two moments; gradient in the operator's dtype; 2-byte weight out",
        VectorPass(1, 0, 14, read_bytes=12, write_bytes=14),
    ),
    "adamw": over_elements(
        "fused AdamW: as adam, with decoupled decay", VectorPass(1, 0, 15, read_bytes=12, write_bytes=14)
    ),
    "sgd": over_elements("fused SGD with momentum", VectorPass(1, 0, 4, read_bytes=8, write_bytes=10)),
    "adam_8bit": over_elements(  # moments of a byte and a scale of four bytes for 256, read and written
        "fused Adam with block-wise quantised moments",
        VectorPass(1, 0, 30, read_bytes=4 + 2 * (1 + 4 / 256), write_bytes=6 + 2 * (1 + 4 / 256)),
    ),
    "muon_momentum": over_elements(
        "fp32 momentum updated, normalised bf16 matrix out", VectorPass(1, 0, 6, read_bytes=4, write_bytes=6)
    ),
    "muon": over_elements(
        "orthogonal bf16 matrix scaled into fp32 master weight; 2-byte weight out",
        VectorPass(0, 0, 4, read_bytes=6, write_bytes=6),
    ),
}

KINDS: Mapping[str, VectorKind] = {
    "layer_norm": by_rows(
        "mean, variance, scale and shift of each row",
        VectorPass(1, 1, 8, row_reads=2),
        VectorPass(2, 1, 14, row_reads=2),
    ),
    "rms_norm": by_rows(
        "root mean square and scale of each row",
        VectorPass(1, 1, 4, row_reads=2),
        VectorPass(2, 1, 10, row_reads=2),
    ),
    "add_rms_norm": by_rows(
        "residual add and rms_norm in one",
        VectorPass(2, 2, 5, row_reads=2),
        VectorPass(3, 1, 11, row_reads=2),
    ),
    "norm_in_sum": VectorKind(  # the kernel of the sum reads and writes the rest anyhow
        "what residual add and rms_norm add to the kernel of an all-reduce",
        "rows",
        VectorPass(1, 1, 5),
        kernels=0,
    ),
    "add_layer_norm": by_rows(
        "residual add and layer_norm in one",
        VectorPass(2, 2, 9, row_reads=2),
        VectorPass(3, 1, 15, row_reads=2),
    ),
    "softmax": by_rows(
        "softmax of each row", VectorPass(1, 1, 12, row_reads=3), VectorPass(2, 1, 5, row_reads=2)
    ),
    "masked_softmax": by_rows(
        "scale, causal mask and softmax in one", VectorPass(1, 1, 13), VectorPass(2, 1, 6)
    ),
    "cross_entropy": by_rows(
        "maximum, sum of exponentials and loss of each row of (vocab-parallel) logits",
        VectorPass(1, 0, 12, row_reads=2),
        VectorPass(1, 1, 5),
    ),
    # Megatron-LM's tensor_parallel/cross_entropy.py on fp32 logits: maximum, subtracted, exponential, sum,
    # divided; backward: times the loss's gradient, and back to two bytes. Joined (fused_cross_entropy.py) the
    # maximum is found by the cast, and what also reduces writes a copy and copies back (a note there).
    "cross_entropy_separate": over_elements(
        "cross_entropy as PyTorch's kernels, one a step",
        VectorPass(5, 3, 12),
        VectorPass(2, 1, 4, write_bytes=2),
        kernels=5,
    ),
    "cross_entropy_compiled": over_elements(
        "the same with steps joined by torch.compile",
        VectorPass(3, 3, 12),
        VectorPass(2, 1, 4, write_bytes=2),
        kernels=3,
    ),
    # PyTorch's SoftMax.cu and Loss: rows of logits do not stay in a cache, so that each of the three passes
    # of the forward and the two of the backward reads them; the loss's gradient is filled with zeros first.
    "cross_entropy_torch": over_elements(
        "logarithm of the softmax, and the loss of it; the gradients of both",
        VectorPass(3, 1, 14),
        VectorPass(4, 2, 8),
        kernels=2,
    ),
    "cross_entropy_online": over_elements(  # Transformer Engine's common/triton/cross_entropy.py
        "cross_entropy in two passes over logits as they are, the gradient in their place; then scaled",
        VectorPass(2, 1, 14),
        VectorPass(1, 1, 1),
        kernels=2,
    ),
    "sample": by_rows(
        "temperature, softmax and a draw from each row of logits", VectorPass(2, 1, 16, row_reads=2)
    ),
    "relu": over_elements("max(x, 0)", VectorPass(1, 1, 1), VectorPass(2, 1, 1)),
    "gelu": over_elements("x times the normal distribution of x", VectorPass(1, 1, 14), VectorPass(2, 1, 22)),
    "bias_gelu": over_elements("bias add and gelu in one", VectorPass(1, 1, 15), VectorPass(2, 1, 23)),
    "silu": over_elements("x times its sigmoid", VectorPass(1, 1, 8), VectorPass(2, 1, 12)),
    "tanh": over_elements("hyperbolic tangent", VectorPass(1, 1, 10), VectorPass(2, 1, 3)),
    "swiglu": by_rows(
        "silu(gate) x up, both in one tensor of 2 x columns", VectorPass(2, 1, 9), VectorPass(3, 2, 16)
    ),
    "geglu": by_rows(
        "gelu(gate) x up, both in one tensor of 2 x columns", VectorPass(2, 1, 15), VectorPass(3, 2, 26)
    ),
    "squared_relu": over_elements("the square of max(x, 0)", VectorPass(1, 1, 2), VectorPass(2, 1, 3)),
    "multiply": over_elements("product of two tensors", VectorPass(2, 1, 1), VectorPass(3, 2, 2)),
    "divide": over_elements("quotient of two tensors", VectorPass(2, 1, 8), VectorPass(3, 2, 12)),
    "power": over_elements("x to the power y, both tensors", VectorPass(2, 1, 40)),
    "scale": over_elements("tensor and scalar", VectorPass(1, 1, 1), VectorPass(1, 1, 1)),
    "power_scalar": over_elements("x to a scalar power", VectorPass(1, 1, 24)),
    "residual_add": over_elements("sum of two tensors", VectorPass(2, 1, 1), VectorPass(1, 1, 0)),
    "bias_add": over_elements("bias of each column added", VectorPass(1, 1, 1), VectorPass(1, 0, 1)),
    "bias_gradient": over_elements("sum over rows", VectorPass(1, 0, 1), kernels=2),
    "norm_gradient": over_elements(
        "sums over rows of a norm's gradient, and of it times the input: its scale's and shift's",
        VectorPass(2, 0, 4),
    ),
    "dropout": over_elements(
        "random mask and scale; a byte of mask an element",
        VectorPass(1, 1, 10, write_bytes=1),
        VectorPass(1, 1, 1, read_bytes=1),
    ),
    "dropout_add": over_elements(
        "bias, dropout and residual add in one",
        VectorPass(2, 1, 12, write_bytes=1),
        VectorPass(1, 1, 2, read_bytes=1),
    ),
    "mask": over_elements(
        "masked fill of scores, a byte of mask an element",
        VectorPass(1, 1, 1, read_bytes=1),
        VectorPass(1, 1, 1, read_bytes=1),
    ),
    "gated_rms_norm": by_rows(
        "x times silu of its gate, then rms_norm of the row (Mamba-2)",
        VectorPass(2, 1, 14, row_reads=2),
        VectorPass(3, 2, 30, row_reads=2),
    ),
    "conv_silu": over_elements(
        "causal convolution of four positions of each channel, and silu",
        VectorPass(1, 1, 16),
        VectorPass(2, 1, 32),
    ),
    "state_pass": over_elements(
        "states of chunks, each decayed and added to the next", VectorPass(1, 1, 2), VectorPass(2, 1, 4)
    ),
    "state_update": over_elements(
        "a decode step of a state: decayed, added to and summed up", VectorPass(1, 1, 6)
    ),
    "rope": by_rows(
        "rotation of pairs; sine and cosine are a row each", VectorPass(1, 1, 6), VectorPass(1, 1, 6)
    ),
    "embedding": over_elements("rows looked up by index", VectorPass(1, 1, 0)),
    "embedding_gradient": by_rows("rows added up by index, atomically", VectorPass(2, 1, 1)),
    "cast": over_elements(
        "format changed; the other format has 2 bytes",
        VectorPass(1, 0, 1, write_bytes=2),
        VectorPass(0, 1, 1, read_bytes=2),
    ),
    "gradient_add": over_elements(
        "a gradient of 2 bytes added to the accumulated one", VectorPass(1, 1, 1, read_bytes=2)
    ),
    "copy": over_elements("memory to memory", VectorPass(1, 1, 0), VectorPass(1, 1, 0)),
    "fill": over_elements("memory set", VectorPass(0, 1, 0)),
    "transpose": over_elements("memory to memory, axes exchanged", VectorPass(1, 1, 0), VectorPass(1, 1, 0)),
    "reduce": over_elements("sum of two tensors into one, as a collective's step", VectorPass(2, 1, 1)),
    "row_scalar": over_elements("a scalar of each row (columns 1)", VectorPass(1, 1, 4)),
    "row_mean": by_rows("mean of each row", VectorPass(1, 0, 1)),
    "sum": over_elements("sum of all elements", VectorPass(1, 0, 1), kernels=2),
    "kv_cache_write": by_rows("new keys or values into their pages", VectorPass(1, 1, 0)),
    "quantize": by_rows(
        "scale of each row found and applied, to one byte", VectorPass(1, 0, 4, write_bytes=1, row_reads=2)
    ),
    "dequantize": over_elements(  # half a byte an element, and a byte of scale for 64
        "a matrix of four bits an element widened by the scale of each block",
        VectorPass(0, 1, 2, read_bytes=0.5 + 1 / 64),
    ),
    "widen": over_elements(  # a byte an element, and four bytes of scale for 2,048 (ZeRO++)
        "a tensor of one byte an element widened by the scale of each block",
        VectorPass(0, 1, 2, read_bytes=1 + 4 / 2048),
    ),
    "amax": over_elements("largest magnitude of a tensor", VectorPass(1, 0, 1), kernels=2),
    "cast_transpose": over_elements(
        "to one byte an element, as it is and transposed, by a scale that is known",
        VectorPass(1, 0, 2, write_bytes=2),
    ),
    "quantize_transpose": over_elements(  # a byte of scale for 32 elements, or four bytes for 128
        "scale of each block found and applied, to one byte an element, along rows and along columns",
        VectorPass(1, 0, 6, write_bytes=2 * (1 + 1 / 32)),
    ),
    "quantize4": over_elements(
        "the same along rows alone, to half a byte an element, with a byte of scale for 16",
        VectorPass(1, 0, 6, write_bytes=1 / 2 + 1 / 16),
    ),
    "hadamard4_transpose": over_elements(
        "the same along columns, after a random Hadamard transform of each 16 (tensor cores)",
        VectorPass(1, 0, 6, write_bytes=1 / 2 + 1 / 16),
    ),
    "moe_gate": by_rows("softmax over experts", VectorPass(1, 1, 12)),
    "moe_topk": by_rows("the largest of each row of expert scores", VectorPass(1, 1, 8)),
    "moe_permute": by_rows(
        "token rows copied into the order of their experts", VectorPass(1, 1, 0), VectorPass(1, 1, 1)
    ),
    "moe_unpermute": by_rows(
        "expert rows weighted and added back into token order", VectorPass(1, 1, 2), VectorPass(1, 1, 2)
    ),
    **UPDATES,
    "gradient_norm": over_elements("sum of squares", VectorPass(1, 0, 2), kernels=2),
    "gradient_clip": over_elements("scaled in place", VectorPass(1, 1, 1)),
}
