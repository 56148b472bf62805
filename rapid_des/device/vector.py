"""Kernels on the vector unit: norms, softmax, activations, RoPE, optimizers, copies.

Three limits run side by side: the transfer from HBM or L2, the arithmetic, the latency of dependent loads.
The third is what makes small and badly vectorised kernels slow: a block of `block_threads` threads takes its
row in steps of `access_bytes` a thread, each step waits for memory once (`step_us`), and an SM holds
`sm_threads` threads; rows beyond that wait for the next wave.

`KINDS` says what each kernel reads, writes and computes an element; to add one, add a line. `columns` is the
width of the result: `swiglu` reads 2 x columns, `embedding` reads the rows it looks up, optimizers and norms
of gradients have one row. `EXPANSIONS` says what an unfused framework launches for a composite operator; a
policy's `FUSIONS` say which runs of operators it has a single kernel for. `fused` expands, then fuses
greedily, the longest run first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rapid_des.device.device import Device, miss_share, transfer
from rapid_des.device.operators import DTYPE_BITS, Bound, Estimate, Vector, width
from rapid_des.device.passes import Traffic, VectorKind, by_rows, over_elements
from rapid_des.device.spec import split_kernel
from rapid_des.device.updates import UPDATES, update_of
from rapid_des.errors import ConfigError, InputError
from rapid_des.units import PS_PER_S

KINDS: Mapping[str, VectorKind] = {
    "layer_norm": by_rows(
        "mean, variance, scale and shift of each row",
        Traffic(1, 1, 8, row_reads=2),
        Traffic(2, 1, 14, row_reads=2),
    ),
    "rms_norm": by_rows(
        "root mean square and scale of each row",
        Traffic(1, 1, 4, row_reads=2),
        Traffic(2, 1, 10, row_reads=2),
    ),
    "add_rms_norm": by_rows(
        "residual add and rms_norm in one", Traffic(2, 2, 5, row_reads=2), Traffic(3, 1, 11, row_reads=2)
    ),
    "add_layer_norm": by_rows(
        "residual add and layer_norm in one", Traffic(2, 2, 9, row_reads=2), Traffic(3, 1, 15, row_reads=2)
    ),
    "softmax": by_rows("softmax of each row", Traffic(1, 1, 12, row_reads=3), Traffic(2, 1, 5, row_reads=2)),
    "masked_softmax": by_rows("scale, causal mask and softmax in one", Traffic(1, 1, 13), Traffic(2, 1, 6)),
    "cross_entropy": by_rows(
        "maximum, sum of exponentials and loss of each row of (vocab-parallel) logits",
        Traffic(1, 0, 12, row_reads=2),
        Traffic(1, 1, 5),
    ),
    "sample": by_rows(
        "temperature, softmax and a draw from each row of logits", Traffic(2, 1, 16, row_reads=2)
    ),
    "relu": over_elements("max(x, 0)", Traffic(1, 1, 1), Traffic(2, 1, 1)),
    "gelu": over_elements("x times the normal distribution of x", Traffic(1, 1, 14), Traffic(2, 1, 22)),
    "bias_gelu": over_elements("bias add and gelu in one", Traffic(1, 1, 15), Traffic(2, 1, 23)),
    "silu": over_elements("x times its sigmoid", Traffic(1, 1, 8), Traffic(2, 1, 12)),
    "tanh": over_elements("hyperbolic tangent", Traffic(1, 1, 10), Traffic(2, 1, 3)),
    "swiglu": by_rows(
        "silu(gate) x up, both in one tensor of 2 x columns", Traffic(2, 1, 9), Traffic(3, 2, 16)
    ),
    "geglu": by_rows(
        "gelu(gate) x up, both in one tensor of 2 x columns", Traffic(2, 1, 15), Traffic(3, 2, 26)
    ),
    "squared_relu": over_elements("the square of max(x, 0)", Traffic(1, 1, 2), Traffic(2, 1, 3)),
    "multiply": over_elements("product of two tensors", Traffic(2, 1, 1), Traffic(3, 2, 2)),
    "divide": over_elements("quotient of two tensors", Traffic(2, 1, 8), Traffic(3, 2, 12)),
    "power": over_elements("x to the power y, both tensors", Traffic(2, 1, 40)),
    "scale": over_elements("tensor and scalar", Traffic(1, 1, 1), Traffic(1, 1, 1)),
    "power_scalar": over_elements("x to a scalar power", Traffic(1, 1, 24)),
    "residual_add": over_elements("sum of two tensors", Traffic(2, 1, 1), Traffic(1, 1, 0)),
    "bias_add": over_elements("bias of each column added", Traffic(1, 1, 1), Traffic(1, 0, 1)),
    "bias_gradient": over_elements("sum over rows", Traffic(1, 0, 1), kernels=2),
    "dropout": over_elements(
        "random mask and scale; a byte of mask an element",
        Traffic(1, 1, 10, write_bytes=1),
        Traffic(1, 1, 1, read_bytes=1),
    ),
    "dropout_add": over_elements(
        "bias, dropout and residual add in one",
        Traffic(2, 1, 12, write_bytes=1),
        Traffic(1, 1, 2, read_bytes=1),
    ),
    "mask": over_elements(
        "masked fill of scores, a byte of mask an element",
        Traffic(1, 1, 1, read_bytes=1),
        Traffic(1, 1, 1, read_bytes=1),
    ),
    "gated_rms_norm": by_rows(
        "x times silu of its gate, then rms_norm of the row (Mamba-2)",
        Traffic(2, 1, 14, row_reads=2),
        Traffic(3, 2, 30, row_reads=2),
    ),
    "conv_silu": over_elements(
        "causal convolution of four positions of each channel, and silu", Traffic(1, 1, 16), Traffic(2, 1, 32)
    ),
    "state_pass": over_elements(
        "states of chunks, each decayed and added to the next", Traffic(1, 1, 2), Traffic(2, 1, 4)
    ),
    "state_update": over_elements(
        "a decode step of a state: decayed, added to and summed up", Traffic(1, 1, 6)
    ),
    "rope": by_rows("rotation of pairs; sine and cosine are a row each", Traffic(1, 1, 6), Traffic(1, 1, 6)),
    "embedding": over_elements("rows looked up by index", Traffic(1, 1, 0)),
    "embedding_gradient": by_rows("rows added up by index, atomically", Traffic(2, 1, 1)),
    "cast": over_elements(
        "format changed; the other format has 2 bytes",
        Traffic(1, 0, 1, write_bytes=2),
        Traffic(0, 1, 1, read_bytes=2),
    ),
    "copy": over_elements("memory to memory", Traffic(1, 1, 0), Traffic(1, 1, 0)),
    "fill": over_elements("memory set", Traffic(0, 1, 0)),
    "transpose": over_elements("memory to memory, axes exchanged", Traffic(1, 1, 0), Traffic(1, 1, 0)),
    "reduce": over_elements("sum of two tensors into one, as a collective's step", Traffic(2, 1, 1)),
    "row_scalar": over_elements("a scalar of each row (columns 1)", Traffic(1, 1, 4)),
    "row_mean": by_rows("mean of each row", Traffic(1, 0, 1)),
    "sum": over_elements("sum of all elements", Traffic(1, 0, 1), kernels=2),
    "kv_cache_write": by_rows("new keys or values into their pages", Traffic(1, 1, 0)),
    "quantize": by_rows(
        "scale of each row found and applied, to one byte", Traffic(1, 0, 4, write_bytes=1, row_reads=2)
    ),
    "dequantize": over_elements(  # half a byte an element, and a byte of scale for 64
        "a matrix of four bits an element widened by the scale of each block",
        Traffic(0, 1, 2, read_bytes=0.5 + 1 / 64),
    ),
    "amax": over_elements("largest magnitude of a tensor", Traffic(1, 0, 1), kernels=2),
    "cast_transpose": over_elements(
        "to one byte an element, as it is and transposed, by a scale that is known",
        Traffic(1, 0, 2, write_bytes=2),
    ),
    "quantize_transpose": over_elements(  # a byte of scale for 32 elements, or four bytes for 128
        "scale of each block found and applied, to one byte an element, along rows and along columns",
        Traffic(1, 0, 6, write_bytes=2 * (1 + 1 / 32)),
    ),
    "quantize4_transpose": over_elements(
        "the same to half a byte an element, with a byte of scale for 16",
        Traffic(1, 0, 6, write_bytes=2 * (1 / 2 + 1 / 16)),
    ),
    "moe_gate": by_rows("softmax over experts", Traffic(1, 1, 12)),
    "moe_topk": by_rows("the largest of each row of expert scores", Traffic(1, 1, 8)),
    "moe_permute": by_rows(
        "token rows copied into the order of their experts", Traffic(1, 1, 0), Traffic(1, 1, 1)
    ),
    "moe_unpermute": by_rows(
        "expert rows weighted and added back into token order", Traffic(1, 1, 2), Traffic(1, 1, 2)
    ),
    **UPDATES,
    "gradient_norm": over_elements("sum of squares", Traffic(1, 0, 2), kernels=2),
    "gradient_clip": over_elements("scaled in place", Traffic(1, 1, 1)),
}


def kind_of(name: str) -> VectorKind:
    """Return a registered kernel, or an update in stated formats; an `InputError` lists all names."""
    kind = KINDS.get(name) or update_of(name)
    if kind is None:
        raise InputError(f"vector kernel {name!r} is not one of {', '.join(KINDS)}")
    return kind


def traffic_of(name: str, phase: str) -> Traffic:
    """Return the traffic of a pass; a kernel without a backward pass has none to price."""
    kind = kind_of(name)
    if phase == "forward":
        return kind.forward
    if kind.backward is None:
        raise InputError(f"vector kernel {name!r} has no backward pass; state the kernel that runs there")
    return kind.backward


Policy = Literal["eager", "torch_compile", "megatron", "vllm", "trtllm"]

EXPANSIONS: Mapping[str, tuple[str, ...]] = {
    # To fp32, square, mean, plus epsilon, inverse root, times the root, back, times the weight.
    "rms_norm": ("cast", "power_scalar", "row_mean", "row_scalar", "row_scalar", "scale", "cast", "scale"),
    # Times cosine; half negated and joined by copies; times sine; sum.
    "rope": ("scale", "scale", "copy", "scale", "residual_add"),
    "swiglu": ("silu", "multiply"),
    "geglu": ("gelu", "multiply"),
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
    ("gelu", "multiply"): "geglu",
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
    "trtllm": {**_EVERY_ENGINE, **_NORM_AND_SUM},
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


@dataclass(frozen=True, slots=True)
class VectorKernel:
    """How a library writes such kernels on one device: constants of section `vector`.

    A constant `KIND_NAME` holds for one kind alone. `sm_threads` (an SM holds), `block_threads`,
    `access_bytes` (a thread takes at once): geometry. `step_us`: latency of a dependent load round; `row_us`:
    start, reductions and end of a row's block; `kernel_us`: beyond the launch; `vector_utilisation`; `norm`:
    exponent that joins the three limits.
    """

    sm_threads: float
    block_threads: float
    access_bytes: float
    step_us: float
    row_us: float
    kernel_us: float
    vector_utilisation: float
    norm: float

    @classmethod
    def of(cls, device: Device, kind: str, dtype: str) -> VectorKernel:
        """Return the constants of one kind: `KIND_NAME` where there is one, else what holds for all."""
        known = device.constants("vector", dtype)
        strangers = {split_kernel(name)[0] for name in known} - KINDS.keys() - {""}
        if strangers:
            problem = f"{min(strangers)!r} is no vector kernel; allowed: {', '.join(KINDS)}"
            raise ConfigError(problem, file=device.spec.name, key="constants.vector")
        names = [specific if (specific := f"{kind}_{name}") in known else name for name in cls.__slots__]
        return cls(*device.chosen_constants("vector", names, dtype))


def price_vector(vector: Vector, device: Device) -> Estimate:
    """Price one vector kernel; an unknown kind or an empty shape is an `InputError`."""
    if vector.rows < 1 or vector.columns < 1:
        raise InputError(
            f"vector {vector.kind}: rows {vector.rows} and columns {vector.columns} must be at least 1"
        )
    kind, traffic = kind_of(vector.kind), traffic_of(vector.kind, vector.phase)
    kernel = VectorKernel.of(device, vector.kind, vector.dtype)
    if traffic.flops:
        device.tensor_rate(vector.dtype)  # refuses a dtype that the device can not compute in
    moved = vector_bytes(vector)
    elements = vector.rows * vector.columns
    body = transfer(device, moved + _reread(vector, traffic, kernel, device), moved)
    arithmetic = elements * traffic.flops / (device.vector_rate("fp32") * kernel.vector_utilisation)
    latency = _latency(vector, kind, traffic, kernel=kernel, device=device)
    limits: dict[Bound, float] = {body.bound: body.seconds, "vector": arithmetic, "latency": latency}
    seconds = math.fsum(limit**kernel.norm for limit in limits.values()) ** (1 / kernel.norm)
    fixed = kind.kernels * (device.launch_overhead + kernel.kernel_us * 1e6)
    bound: Bound = max(limits, key=lambda name: limits[name])
    if fixed > seconds * PS_PER_S:
        bound = "launch"
    detail = {
        "model": "vector",
        "kernels": kind.kernels,
        "transfer_us": body.seconds * 1e6,
        "arithmetic_us": arithmetic * 1e6,
        "latency_us": latency * 1e6,
    }
    duration = int(seconds * PS_PER_S + fixed)
    moved_bytes = {"hbm": int(body.hbm_bytes), "l2": int(moved)}
    return Estimate(duration, bound, int(elements * traffic.flops), moved_bytes, detail, "vector")


def vector_bytes(vector: Vector) -> float:
    """Return the compulsory bytes: every operand once.

    >>> vector_bytes(Vector("swiglu", 1, 100))  # 2 x 100 in, 100 out, 2 bytes each
    600.0
    """
    traffic = traffic_of(vector.kind, vector.phase)
    return vector.rows * vector.columns * traffic.bytes_per_element(width(vector.dtype))


def _row_block(vector: Vector, kernel: VectorKernel) -> tuple[int, int]:
    """Return the threads of a row's block (a power of two), and the blocks that an SM holds."""
    elements = max(1, int(kernel.access_bytes * 8 / DTYPE_BITS[vector.dtype]))
    needed = max(32, vector.columns // elements)
    threads = min(int(kernel.block_threads), 1 << (needed.bit_length() - 1))
    return threads, max(1, min(32, int(kernel.sm_threads) // threads))


def _latency(
    vector: Vector, kind: VectorKind, traffic: Traffic, *, kernel: VectorKernel, device: Device
) -> float:
    """Return the seconds that waiting for loads takes, were bandwidth unlimited."""
    size = width(vector.dtype)
    if kind.pattern == "map":
        in_flight = device.spec.sms * kernel.sm_threads * kernel.access_bytes
        rounds = vector.rows * vector.columns * size / in_flight
        return max(1.0, rounds) * kernel.step_us * 1e-6
    threads, resident = _row_block(vector, kernel)
    steps = traffic.row_reads * math.ceil(vector.columns * size / (threads * kernel.access_bytes))
    waves = max(1.0, vector.rows / (device.spec.sms * resident))
    return waves * (kernel.row_us + steps * kernel.step_us) * 1e-6


def _reread(vector: Vector, traffic: Traffic, kernel: VectorKernel, device: Device) -> float:
    """Return the bytes of second readings that L2 no longer holds: the rows in flight exceed it."""
    if traffic.row_reads == 1:
        return 0.0
    row = vector.columns * traffic.reads * width(vector.dtype)
    _, resident = _row_block(vector, kernel)
    in_flight = min(vector.rows, device.spec.sms * resident) * row
    share = device.constant("memory", "l2_share")
    lost = min(1.0, max(0.0, in_flight / (share * device.spec.l2.capacity) - 1.0))
    return (traffic.row_reads - 1) * vector.rows * row * lost * miss_share(device, vector_bytes(vector))
