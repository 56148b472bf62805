"""Kernels on the vector unit: norms, softmax, activations, RoPE, optimizers, copies.

Three limits run side by side: the transfer from HBM or L2, the arithmetic, the latency of dependent loads.
The third is what makes small and badly vectorised kernels slow: a block of `block_threads` threads takes its
row in steps of `access_bytes` a thread, each step waits for memory once (`step_us`), and an SM holds
`sm_threads` threads; rows beyond that wait for the next wave.

What each kernel reads, writes and computes is the table `vector_kinds.KINDS`. `EXPANSIONS` says what an
unfused framework launches for a composite operator; a policy's `FUSIONS` say which runs of operators it has
a single kernel for. `fused` expands, then fuses greedily, the longest run first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from rapid_des.device.device import Device, miss_share, transfer
from rapid_des.device.operators import DTYPE_BITS, Bound, Dtype, Estimate, Vector, width
from rapid_des.device.spec import split_kernel
from rapid_des.device.vector_kinds import KINDS, VectorKind, VectorPass, over_elements
from rapid_des.errors import ConfigError, InputError
from rapid_des.units import PS_PER_S
from rapid_des.values import fields

Policy = Literal["eager", "torch_compile", "megatron", "vllm", "trtllm", "flash_attn"]

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

EAGER: frozenset[Policy] = frozenset({"eager", "flash_attn"})
"""Policies under which autograd runs model code an operator at a time."""

_RMS_NORM = EXPANSIONS["rms_norm"]
_NARROW_NORM_BACKWARD = ("scale", "multiply", "bias_gradient")
"""The backward of the product with the weight: by the weight, by the input, and that summed over rows."""
_WIDE_NORM_BACKWARD = (
    "cast",
    "scale", "multiply", "row_mean",  # by the root; by the input and summed up, for the root
    "row_scalar", "row_scalar", "row_scalar",  # its cube, times the sum, halved
    "fill", "copy", "scale", "multiply",  # the mean's; pow_backward: x to the first power, twice, times that
    "residual_add",
    "cast",
)  # fmt: skip
"""The rest of it runs in fp32 (PyTorch, derivatives.yaml and FunctionsManual.cpp: pow_backward)."""
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
    "flash_attn": {_RMS_NORM: "rms_norm", _ROPE: "rope"},
}
"""The sequences of operators that a fusion policy executes as one kernel, by policy."""


_WEIGHT = 2
"""Bytes of a weight as kernels read it."""
_PLAIN: Mapping[str, tuple[int, int]] = {"adam": (2, 14), "adamw": (2, 15), "sgd": (1, 4)}
"""The number of state values of an element and its FLOPs, by optimizer."""


def kind_of(name: str) -> VectorKind:
    """Return a registered kernel, or an update in stated formats; an `InputError` lists all names."""
    kind = KINDS.get(name) or update_of(name)
    if kind is None:
        raise InputError(f"vector kernel {name!r} is not one of {', '.join(KINDS)}")
    return kind


def traffic_of(name: str, phase: str) -> VectorPass:
    """Return the traffic of a pass; a kernel without a backward pass has none to price."""
    kind = kind_of(name)
    if phase == "forward":
        return kind.forward
    if kind.backward is None:
        raise InputError(f"vector kernel {name!r} has no backward pass; state the kernel that runs there")
    return kind.backward


def bytes_per_element(traffic: VectorPass, width: float) -> float:
    """Return the bytes that an element moves in all, given the bytes of the operator's dtype."""
    return (traffic.reads + traffic.writes) * width + traffic.read_bytes + traffic.write_bytes


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
    state_bytes = count * width(states) + (_WEIGHT if alone else width(master))
    traffic = VectorPass(
        1, 0, flops, read_bytes=state_bytes, write_bytes=state_bytes + (0 if alone else _WEIGHT)
    )
    return over_elements(f"{optimizer} with {states} states and {master} master weights", traffic)


def fused(kinds: Sequence[str], policy: Policy) -> tuple[str, ...]:
    """Return the kernels that a policy launches for a run of operators.

    >>> fused(["residual_add", "rms_norm", "swiglu"], "vllm")
    ('add_rms_norm', 'swiglu')
    >>> fused(["swiglu"], "eager")
    ('silu', 'multiply')
    """
    return _fused(tuple(kinds), policy)


@lru_cache(maxsize=1024)
def _fused(kinds: tuple[str, ...], policy: Policy) -> tuple[str, ...]:
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


def rms_norm_steps(policy: Policy, dtype: Dtype, *, backward: bool) -> tuple[tuple[str, Dtype], ...]:
    """Return the kernels of an RMS norm that a policy runs an operator at a time; none if it has one kernel.

    Between its casts it computes in fp32, whatever the activations' format.

    >>> [kind for kind, dtype in rms_norm_steps("eager", "bf16", backward=False) if dtype == "bf16"]
    ['scale']
    """
    if fused(("rms_norm",), policy) != _RMS_NORM:
        return ()
    narrow, wide = (
        (_NARROW_NORM_BACKWARD, _WIDE_NORM_BACKWARD) if backward else (_RMS_NORM[-1:], _RMS_NORM[:-1])
    )
    steps: list[tuple[str, Dtype]] = [(kind, "fp32") for kind in wide]
    last: list[tuple[str, Dtype]] = [(kind, dtype) for kind in narrow]
    return tuple(last + steps if backward else steps + last)


def _expand(kind: str) -> tuple[str, ...]:
    kind_of(kind)
    if kind not in EXPANSIONS:
        return (kind,)
    return tuple(primitive for part in EXPANSIONS[kind] for primitive in _expand(part))


class VectorKernel(Struct, frozen=True):
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
        names = [specific if (specific := f"{kind}_{name}") in known else name for name in fields(cls)]
        return cls(*device.chosen_constants("vector", names, dtype))


def price_vector(vector: Vector, device: Device, kernel: VectorKernel) -> Estimate:
    """Price one vector kernel by its kind's constants; a strange kind or shape is an `InputError`."""
    if vector.rows < 1 or vector.columns < 1:
        raise InputError(
            f"vector {vector.kind}: rows {vector.rows} and columns {vector.columns} must be at least 1"
        )
    kind, traffic = kind_of(vector.kind), traffic_of(vector.kind, vector.phase)
    if traffic.flops:
        device.tensor_rate(vector.dtype)  # refuses a dtype that the device cannot compute in
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
    return vector.rows * vector.columns * bytes_per_element(traffic, width(vector.dtype))


def _row_block(vector: Vector, kernel: VectorKernel) -> tuple[int, int]:
    """Return the threads of a row's block (a power of two), and the blocks that an SM holds."""
    elements = max(1, int(kernel.access_bytes * 8 / DTYPE_BITS[vector.dtype]))
    needed = max(32, vector.columns // elements)
    threads = min(int(kernel.block_threads), 1 << (needed.bit_length() - 1))
    return threads, max(1, min(32, int(kernel.sm_threads) // threads))


def _latency(
    vector: Vector, kind: VectorKind, traffic: VectorPass, *, kernel: VectorKernel, device: Device
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


def _reread(vector: Vector, traffic: VectorPass, kernel: VectorKernel, device: Device) -> float:
    """Return the bytes of second readings that L2 no longer holds: the rows in flight exceed it."""
    if traffic.row_reads == 1:
        return 0.0
    row = vector.columns * traffic.reads * width(vector.dtype)
    _, resident = _row_block(vector, kernel)
    in_flight = min(vector.rows, device.spec.sms * resident) * row
    share = device.constant("memory", "l2_share")
    lost = min(1.0, max(0.0, in_flight / (share * device.spec.l2.capacity) - 1.0))
    return (traffic.row_reads - 1) * vector.rows * row * lost * miss_share(device, vector_bytes(vector))
