"""Which primitive operators become one kernel: four named policies, each an explicit list.

`EXPANSIONS` says what an unfused framework launches for a composite operator; a policy's `FUSIONS` say which
runs of operators it has a single kernel for. `kernels` expands, then fuses greedily, the longest run first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from rapid_des.device.vector.kinds import kind_of
from rapid_des.errors import InputError

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

FUSIONS: Mapping[str, Mapping[tuple[str, ...], str]] = {
    "eager": {},
    "torch_compile": {
        _RMS_NORM: "rms_norm",
        ("residual_add", *_RMS_NORM): "add_rms_norm",
        ("residual_add", "layer_norm"): "add_layer_norm",
        _ROPE: "rope",
        ("silu", "multiply"): "swiglu",
        ("bias_add", "gelu"): "bias_gelu",
        ("bias_add", "dropout", "residual_add"): "dropout_add",
        ("dropout", "residual_add"): "dropout_add",
        ("scale", "mask", "softmax"): "masked_softmax",
        ("mask", "softmax"): "masked_softmax",
    },
    "megatron": {
        _RMS_NORM: "rms_norm",
        _ROPE: "rope",
        ("silu", "multiply"): "swiglu",
        ("bias_add", "gelu"): "bias_gelu",
        ("bias_add", "dropout", "residual_add"): "dropout_add",
        ("dropout", "residual_add"): "dropout_add",
        ("scale", "mask", "softmax"): "masked_softmax",
    },
    "vllm": {
        _RMS_NORM: "rms_norm",
        ("residual_add", *_RMS_NORM): "add_rms_norm",
        ("residual_add", "layer_norm"): "add_layer_norm",
        _ROPE: "rope",
        ("silu", "multiply"): "swiglu",
        ("bias_add", "gelu"): "bias_gelu",
    },
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


def fusion_list(policy: Policy) -> str:
    """Return a policy's list as text, one fused run a line.

    >>> print(fusion_list("eager"))
    eager: every operator is a kernel of its own
    """
    if policy not in FUSIONS:
        raise InputError(f"fusion policy {policy!r} is not one of {', '.join(FUSIONS)}")
    table = FUSIONS[policy]
    if not table:
        return f"{policy}: every operator is a kernel of its own"
    return "\n".join(f"{policy}: {' + '.join(run)} -> {kernel}" for run, kernel in table.items())


def _expand(kind: str) -> tuple[str, ...]:
    kind_of(kind)
    if kind not in EXPANSIONS:
        return (kind,)
    return tuple(primitive for part in EXPANSIONS[kind] for primitive in _expand(part))
