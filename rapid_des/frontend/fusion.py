"""Small kernels of a layer under a fusion policy; which runs are one kernel is the device package's list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from rapid_des.device.fusion import Policy, fused
from rapid_des.device.operators import Vector
from rapid_des.frontend.shard import Shard
from rapid_des.frontend.steps import Counts, Steps

DEFERRED_BIAS: frozenset[Policy] = frozenset({"megatron"})
"""Policies whose matrices leave the bias to the kernel that follows; elsewhere it rides in the GEMM."""


def defers_bias(shard: Shard) -> bool:
    """Return whether biases are added after the GEMM, not in it."""
    return shard.fusion in DEFERRED_BIAS


@dataclass(frozen=True)
class Run:
    """Operators in a row on one tensor of `rows` × `columns`."""

    kinds: tuple[str, ...]
    rows: int
    columns: int


def launch(steps: Steps, shard: Shard, name: str, run: Run, **counts: Unpack[Counts]) -> None:
    """Append the kernels that the policy launches for a run of operators; the counts go to the last."""
    *early, last = fused(run.kinds, shard.fusion)
    output = counts.get("output", 0)
    for index, kind in enumerate(early):
        steps.kernel(f"{name}.{index}.{kind}", _kernel(shard, kind, run), output=output)
    steps.kernel(name, _kernel(shard, last, run), **counts)


def _kernel(shard: Shard, kind: str, run: Run) -> Vector:
    return shard.vector(kind, run.rows, 1 if kind == "row_scalar" else run.columns)


def before_residual(shard: Shard, *, bias: bool) -> tuple[str, ...]:
    """Return what runs between a row-parallel matrix and the residual addition.

    A deferred bias without dropout is added by the residual's kernel at no cost in traffic.
    """
    if not shard.dropout:
        return ()
    return ("bias_add", "dropout") if bias and defers_bias(shard) else ("dropout",)


def residual_in_norm(shard: Shard) -> bool:
    """Return whether the norm that follows adds the residual."""
    norm = shard.model.spec.norm
    run = (*before_residual(shard, bias=False), "residual_add", norm)
    return fused(run, shard.fusion)[-1] == f"add_{norm}"


def norm_kind(shard: Shard) -> str:
    """Return the operator of a norm: with the residual addition in it where the policy fuses them."""
    norm = shard.model.spec.norm
    return f"add_{norm}" if residual_in_norm(shard) else norm


def dropout_kind(shard: Shard, *, bias: bool) -> str:
    """Return the kernel that drops out before the residual addition."""
    before = before_residual(shard, bias=bias)
    after = () if residual_in_norm(shard) else ("residual_add",)
    return next(kind for kind in fused((*before, *after), shard.fusion) if kind in {"dropout", "dropout_add"})


def activation_kinds(shard: Shard) -> tuple[str, ...]:
    """Return the kernels of the activation, in forward order."""
    ffn = shard.model.spec.feed_forward
    bias = ("bias_add",) if ffn.bias and defers_bias(shard) else ()
    return fused((*bias, ffn.activation), shard.fusion)
