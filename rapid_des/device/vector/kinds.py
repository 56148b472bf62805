"""The registry of vector kernels: what each reads, writes and computes an element, and which become one.

`columns` is the width of the result: `swiglu` reads 2 x columns, `embedding` reads the rows it looks up,
optimizers and norms of gradients have one row. To add a kernel, add a line to `KINDS`.

`EXPANSIONS` says what an unfused framework launches for a composite operator; a policy's `FUSIONS` say which
runs of operators it has a single kernel for. `fused` expands, then fuses greedily, the longest run first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rapid_des.errors import InputError


@dataclass(frozen=True, slots=True)
class Traffic:
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

    def bytes_per_element(self, width: float) -> float:
        """Return what an element moves in all, in bytes."""
        return (self.reads + self.writes) * width + self.read_bytes + self.write_bytes


@dataclass(frozen=True, slots=True)
class VectorKind:
    """A kernel: `map` splits the elements evenly, `rows` gives each row a thread block."""

    summary: str
    pattern: Literal["map", "rows"]
    forward: Traffic
    backward: Traffic | None = None
    kernels: int = 1
    """Launches of the forward pass (two-stage reductions have two)."""


def _map(summary: str, forward: Traffic, backward: Traffic | None = None, kernels: int = 1) -> VectorKind:
    return VectorKind(summary, "map", forward, backward, kernels)


def _rows(summary: str, forward: Traffic, backward: Traffic | None = None) -> VectorKind:
    return VectorKind(summary, "rows", forward, backward)


KINDS: Mapping[str, VectorKind] = {
    "layer_norm": _rows(
        "mean, variance, scale and shift of each row",
        Traffic(1, 1, 8, row_reads=2),
        Traffic(2, 1, 14, row_reads=2),
    ),
    "rms_norm": _rows(
        "root mean square and scale of each row",
        Traffic(1, 1, 4, row_reads=2),
        Traffic(2, 1, 10, row_reads=2),
    ),
    "add_rms_norm": _rows(
        "residual add and rms_norm in one", Traffic(2, 2, 5, row_reads=2), Traffic(3, 1, 11, row_reads=2)
    ),
    "add_layer_norm": _rows(
        "residual add and layer_norm in one", Traffic(2, 2, 9, row_reads=2), Traffic(3, 1, 15, row_reads=2)
    ),
    "softmax": _rows("softmax of each row", Traffic(1, 1, 12, row_reads=3), Traffic(2, 1, 5, row_reads=2)),
    "masked_softmax": _rows("scale, causal mask and softmax in one", Traffic(1, 1, 13), Traffic(2, 1, 6)),
    "cross_entropy": _rows(
        "maximum, sum of exponentials and loss of each row of (vocab-parallel) logits",
        Traffic(1, 0, 12, row_reads=2),
        Traffic(1, 1, 5),
    ),
    "sample": _rows(
        "temperature, softmax and a draw from each row of logits", Traffic(2, 1, 16, row_reads=2)
    ),
    "relu": _map("max(x, 0)", Traffic(1, 1, 1), Traffic(2, 1, 1)),
    "gelu": _map("x times the normal distribution of x", Traffic(1, 1, 14), Traffic(2, 1, 22)),
    "bias_gelu": _map("bias add and gelu in one", Traffic(1, 1, 15), Traffic(2, 1, 23)),
    "silu": _map("x times its sigmoid", Traffic(1, 1, 8), Traffic(2, 1, 12)),
    "tanh": _map("hyperbolic tangent", Traffic(1, 1, 10), Traffic(2, 1, 3)),
    "swiglu": _rows(
        "silu(gate) x up, both in one tensor of 2 x columns", Traffic(2, 1, 9), Traffic(3, 2, 16)
    ),
    "multiply": _map("product of two tensors", Traffic(2, 1, 1), Traffic(3, 2, 2)),
    "divide": _map("quotient of two tensors", Traffic(2, 1, 8), Traffic(3, 2, 12)),
    "power": _map("x to the power y, both tensors", Traffic(2, 1, 40)),
    "scale": _map("tensor and scalar", Traffic(1, 1, 1), Traffic(1, 1, 1)),
    "power_scalar": _map("x to a scalar power", Traffic(1, 1, 24)),
    "residual_add": _map("sum of two tensors", Traffic(2, 1, 1), Traffic(1, 1, 0)),
    "bias_add": _map("bias of each column added", Traffic(1, 1, 1), Traffic(1, 0, 1)),
    "bias_gradient": _map("sum over rows", Traffic(1, 0, 1), kernels=2),
    "dropout": _map(
        "random mask and scale; a byte of mask an element",
        Traffic(1, 1, 10, write_bytes=1),
        Traffic(1, 1, 1, read_bytes=1),
    ),
    "dropout_add": _map(
        "bias, dropout and residual add in one",
        Traffic(2, 1, 12, write_bytes=1),
        Traffic(1, 1, 2, read_bytes=1),
    ),
    "mask": _map(
        "masked fill of scores, a byte of mask an element",
        Traffic(1, 1, 1, read_bytes=1),
        Traffic(1, 1, 1, read_bytes=1),
    ),
    "rope": _rows("rotation of pairs; sine and cosine are a row each", Traffic(1, 1, 6), Traffic(1, 1, 6)),
    "embedding": _map("rows looked up by index", Traffic(1, 1, 0)),
    "embedding_gradient": _rows("rows added up by index, atomically", Traffic(2, 1, 1)),
    "cast": _map(
        "format changed; the other format has 2 bytes",
        Traffic(1, 0, 1, write_bytes=2),
        Traffic(0, 1, 1, read_bytes=2),
    ),
    "copy": _map("memory to memory", Traffic(1, 1, 0), Traffic(1, 1, 0)),
    "fill": _map("memory set", Traffic(0, 1, 0)),
    "transpose": _map("memory to memory, axes exchanged", Traffic(1, 1, 0), Traffic(1, 1, 0)),
    "reduce": _map("sum of two tensors into one, as a collective's step", Traffic(2, 1, 1)),
    "row_scalar": _map("a scalar of each row (columns 1)", Traffic(1, 1, 4)),
    "row_mean": _rows("mean of each row", Traffic(1, 0, 1)),
    "sum": _map("sum of all elements", Traffic(1, 0, 1), kernels=2),
    "kv_cache_write": _rows("new keys or values into their pages", Traffic(1, 1, 0)),
    "quantize": _rows(
        "scale of each row found and applied, to one byte", Traffic(1, 0, 4, write_bytes=1, row_reads=2)
    ),
    "moe_gate": _rows("softmax over experts", Traffic(1, 1, 12)),
    "moe_topk": _rows("the largest of each row of expert scores", Traffic(1, 1, 8)),
    "moe_permute": _rows(
        "token rows copied into the order of their experts", Traffic(1, 1, 0), Traffic(1, 1, 1)
    ),
    "moe_unpermute": _rows(
        "expert rows weighted and added back into token order", Traffic(1, 1, 2), Traffic(1, 1, 2)
    ),
    "adam": _map(
        "fused Adam: fp32 master weight and two moments; gradient in the operator's dtype; 2-byte weight out",
        Traffic(1, 0, 14, read_bytes=12, write_bytes=14),
    ),
    "adamw": _map(
        "fused AdamW: as adam, with decoupled decay", Traffic(1, 0, 15, read_bytes=12, write_bytes=14)
    ),
    "sgd": _map("fused SGD with momentum", Traffic(1, 0, 4, read_bytes=8, write_bytes=10)),
    "gradient_norm": _map("sum of squares", Traffic(1, 0, 2), kernels=2),
    "gradient_clip": _map("scaled in place", Traffic(1, 1, 1)),
}


def kind_of(name: str) -> VectorKind:
    """Return a registered kernel; an unknown name is an `InputError` that lists all."""
    if name not in KINDS:
        raise InputError(f"vector kernel {name!r} is not one of {', '.join(KINDS)}")
    return KINDS[name]


def traffic_of(name: str, phase: str) -> Traffic:
    """Return the traffic of a pass; a kernel without a backward pass has none to price."""
    kind = kind_of(name)
    if phase == "forward":
        return kind.forward
    if kind.backward is None:
        raise InputError(f"vector kernel {name!r} has no backward pass; state the kernel that runs there")
    return kind.backward


Policy = Literal["eager", "torch_compile", "megatron", "vllm"]

EXPANSIONS: Mapping[str, tuple[str, ...]] = {
    # To fp32, square, mean, plus epsilon, inverse root, times the root, back, times the weight.
    "rms_norm": ("cast", "power_scalar", "row_mean", "row_scalar", "row_scalar", "scale", "cast", "scale"),
    # Times cosine; half negated and joined by copies; times sine; sum.
    "rope": ("scale", "scale", "copy", "scale", "residual_add"),
    "swiglu": ("silu", "multiply"),
    "masked_softmax": ("scale", "mask", "softmax"),
    "bias_gelu": ("bias_add", "gelu"),
    "dropout_add": ("bias_add", "dropout", "residual_add"),
    "add_rms_norm": ("residual_add", "rms_norm"),
    "add_layer_norm": ("residual_add", "layer_norm"),
}
"""Composite operators, as PyTorch's eager mode and the usual model code launch them."""

_RMS_NORM = EXPANSIONS["rms_norm"]
_ROPE = EXPANSIONS["rope"]

_EVERY_ENGINE: Mapping[tuple[str, ...], str] = {
    _RMS_NORM: "rms_norm",
    _ROPE: "rope",
    ("silu", "multiply"): "swiglu",
    ("bias_add", "gelu"): "bias_gelu",
}
_NORM_AND_SUM: Mapping[tuple[str, ...], str] = {
    ("residual_add", *_RMS_NORM): "add_rms_norm",
    ("residual_add", "layer_norm"): "add_layer_norm",
}
_TRAINING: Mapping[tuple[str, ...], str] = {
    ("bias_add", "dropout", "residual_add"): "dropout_add",
    ("dropout", "residual_add"): "dropout_add",
    ("scale", "mask", "softmax"): "masked_softmax",
    ("mask", "softmax"): "masked_softmax",
}
FUSIONS: Mapping[str, Mapping[tuple[str, ...], str]] = {
    "eager": {},
    "torch_compile": {**_EVERY_ENGINE, **_NORM_AND_SUM, **_TRAINING},
    "megatron": {**_EVERY_ENGINE, **_TRAINING},
    "vllm": {**_EVERY_ENGINE, **_NORM_AND_SUM},
}
"""Runs of operators that a policy executes as one kernel."""


def fused(kinds: Sequence[str], policy: Policy) -> tuple[str, ...]:
    """Return the kernels that a policy launches for a run of operators.

    >>> fused(["residual_add", "rms_norm", "swiglu"], "vllm")
    ('add_rms_norm', 'swiglu')
    >>> fused(["swiglu"], "eager")
    ('silu', 'multiply')
    """
    if policy not in FUSIONS:
        raise InputError(f"fusion policy {policy!r} is not one of {', '.join(FUSIONS)}")
    waiting = [primitive for kind in kinds for primitive in _expand(kind)]
    table = FUSIONS[policy]
    launched: list[str] = []
    while waiting:
        run = next(
            (run for run in sorted(table, key=len, reverse=True) if tuple(waiting[: len(run)]) == run), None
        )
        launched.append(table[run] if run else waiting[0])
        del waiting[: len(run) if run else 1]
    return tuple(launched)


def _expand(kind: str) -> tuple[str, ...]:
    kind_of(kind)
    if kind not in EXPANSIONS:
        return (kind,)
    return tuple(primitive for part in EXPANSIONS[kind] for primitive in _expand(part))
