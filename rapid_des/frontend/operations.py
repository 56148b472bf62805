"""Ordered operator lists: kernels and messages with what they wait for and keep.

Layers are written with the functions that append: matrices split over tp, norms and residual additions, and
what is fused around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack

from rapid_des.chakra.trace import Exchange
from rapid_des.device.operators import Operator, Vector
from rapid_des.device.vector import Policy, fused
from rapid_des.frontend.shard import Shard
from rapid_des.frontend.template import INPUT, Domain


class Counts(TypedDict, total=False):
    """What an `Operation` keeps, makes and depends on, as keywords."""

    saved: int
    core: int
    logits: int
    held: int
    output: int
    parameters: int
    weights: int
    sees_cache: bool
    expert: bool
    exchange: Exchange | None
    deferrable: bool


@dataclass(frozen=True)
class Operation:
    """One kernel or one message of a rank."""

    name: str
    after: tuple[int, ...]
    """Positions in the list, or ports; a stream's own order holds besides."""
    operator: Operator | None = None
    """None: a message."""
    role: str = ""
    """A key of `TRAFFIC`; empty: a kernel."""
    size: int = 0
    """Bytes of a message (comm_size)."""
    sends: bool = False
    """Of a message between two ranks: whether it leaves; else it comes."""
    step: int = 0
    """Of such a message: how many places on in its group the other rank is; 0: a collective."""
    saved: int = 0
    """Bytes kept from this forward operation to the backward."""
    core: int = 0
    """Bytes kept besides unless the attention core is recomputed."""
    logits: int = 0
    """Bytes of logits kept besides."""
    held: int = 0
    """Bytes recomputed here and kept until the end of this list."""
    output: int = 0
    """Bytes of the result, alive while its consumer runs."""
    parameters: int = 0
    """Parameters of this rank whose gradients are final after this (backward) operation."""
    weights: int = 0
    """Elements of this rank's weight matrix that a serving job stores in its format of weights."""
    sees_cache: bool = False
    """Serving: whether its cost depends on how many positions the KV cache holds."""
    expert: bool = False
    """Whether its parameters are a routed expert's."""
    frozen: bool = False
    """Whether its parameters are not trained."""
    exchange: Exchange | None = None
    """Of an all-to-all: how it spreads, where that is not every copy by itself and evenly."""
    deferrable: bool = False
    """Whether it makes gradients of weights, for which nothing in a backward waits."""

    @property
    def domain(self) -> Domain:
        """Whose replicas hold its parameters."""
        return "frozen" if self.frozen else "expert" if self.expert else "dense"


@dataclass
class OperationList:
    """Collects a list in order; each operation waits for the one before unless told otherwise."""

    entries: list[Operation] = field(default_factory=list)
    _awaited: tuple[int, ...] = ()
    """What the next operation waits for instead of the last one; empty: the last one."""

    def go_on_after(self, *positions: int) -> None:
        """Have the next operation wait for these positions unless it is told otherwise."""
        self._awaited = tuple(dict.fromkeys(positions))

    @property
    def last(self) -> int:
        """The position that the next operation waits for: the last one's, or the input."""
        if self._awaited:
            return self._awaited[0]
        return len(self.entries) - 1 if self.entries else INPUT

    @property
    def waits(self) -> tuple[int, ...]:
        """All that the next operation waits for unless it is told otherwise."""
        return self._awaited or (self.last,)

    def finish(self) -> tuple[Operation, ...]:
        """Return the list."""
        return tuple(self.entries)

    def kernel(
        self,
        name: str,
        operator: Operator,
        *,
        after: int | tuple[int, ...] | None = None,
        **counts: Unpack[Counts],
    ) -> int:
        """Append a kernel and return its position; `counts` are fields of `Operation`."""
        return self._append(Operation(name, self._after(after), operator=operator, **counts))

    def message(
        self,
        name: str,
        role: str,
        size: int,
        *,
        after: int | tuple[int, ...] | None = None,
        **counts: Unpack[Counts],
    ) -> int:
        """Append a message of this rank's group and return its position; `counts` as for kernels."""
        return self._append(Operation(name, self._after(after), role=role, size=size, **counts))

    def pass_on(
        self, name: str, role: str, size: int, *, step: int, after: tuple[int, ...]
    ) -> tuple[int, int]:
        """Append a message to the rank `step` places on in the role's group, and one from as far back.

        Returns the positions of what is sent and of what is received; both stand while they travel.
        """
        leaves = Operation(f"{name}.send", after, role=role, size=size, sends=True, step=step, output=size)
        comes = Operation(f"{name}.receive", after, role=role, size=size, step=-step, output=size)
        return self._append(leaves), self._append(comes)

    def _after(self, after: int | tuple[int, ...] | None) -> tuple[int, ...]:
        if isinstance(after, tuple):
            return after
        return self.waits if after is None else (after,)

    def _append(self, operation: Operation) -> int:
        self._awaited = ()
        self.entries.append(operation)
        return self.last


DEFERRED_BIAS: frozenset[Policy] = frozenset({"megatron"})
"""Policies whose matrices leave the bias to the kernel that follows; elsewhere it rides in the GEMM."""


def defers_bias(shard: Shard) -> bool:
    """Return whether biases are added after the GEMM, not in it."""
    return shard.fusion in DEFERRED_BIAS


def launch(
    operations: OperationList, shard: Shard, name: str, kinds: tuple[str, ...], shape: tuple[int, int],
    **counts: Unpack[Counts],
) -> None:  # fmt: skip
    """Append the kernels that the policy launches for operators in a row on one tensor.

    `kinds` names the operators, `shape` is (rows, columns) of the tensor; the counts go to the last kernel.
    """
    *early, last = fused(kinds, shard.fusion)
    output = counts.get("output", 0)
    for index, kind in enumerate(early):
        operations.kernel(f"{name}.{index}.{kind}", _kernel(shard, kind, shape), output=output)
    operations.kernel(name, _kernel(shard, last, shape), **counts)


def _kernel(shard: Shard, kind: str, shape: tuple[int, int]) -> Vector:
    rows, columns = shape
    return shard.vector(kind, rows, 1 if kind == "row_scalar" else columns)


def _before_residual(shard: Shard, *, bias: bool) -> tuple[str, ...]:
    """Return what runs between a row-parallel matrix and the residual addition.

    A deferred bias without dropout is added by the residual's kernel at no cost in traffic.
    """
    if not shard.dropout:
        return ()
    return ("bias_add", "dropout") if bias and defers_bias(shard) else ("dropout",)


def _residual_in_norm(shard: Shard) -> bool:
    """Return whether the norm that follows adds the residual; only one that reads the stream can."""
    norm = shard.model.norm
    if shard.model.norms == "after" or shard.model.block != "sequential":
        return False
    kinds = (*_before_residual(shard, bias=False), "residual_add", norm)
    return fused(kinds, shard.fusion)[-1] == f"add_{norm}"


def norm_forward(operations: OperationList, shard: Shard, name: str, rows: int, *, adds: bool = True) -> None:
    """Append a norm, with the residual addition in it where the policy fuses them and it `adds`."""
    norm = shard.model.norm
    kind = f"add_{norm}" if adds and _residual_in_norm(shard) else norm
    size = shard.activation_bytes(rows * shard.hidden)
    launch(operations, shard, name, (kind,), (rows, shard.hidden), saved=size, output=size)


def norm_backward(operations: OperationList, shard: Shard, name: str, after: int) -> int:
    """Append a norm's backward, which waits for the input gradient of what follows it."""
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    kernel = shard.vector(shard.model.norm, rows, columns, backward=True)
    counts: Counts = {"output": size, "parameters": shard.model.norm_parameters}
    if shard.fusion != "eager" or shard.model.norm != "layer_norm":
        return operations.kernel(name, kernel, after=after, **counts)
    # PyTorch's layer_norm_kernel.cu: the input's gradient and the parameters' are kernels of their own.
    operations.kernel(f"{name}.parameters", shard.vector("norm_gradient", rows, columns), after=after)
    return operations.kernel(name, kernel, **counts)


def residual_forward(operations: OperationList, shard: Shard, name: str, *, bias: bool) -> None:
    """Append dropout and the residual addition; `bias`: the matrix before has one."""
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    mask = rows * columns * shard.dropout
    kinds = _before_residual(shard, bias=bias) + (() if _residual_in_norm(shard) else ("residual_add",))
    if kinds:
        launch(operations, shard, f"{name}.residual", kinds, (rows, columns), saved=mask, output=size)


def residual_backward(
    operations: OperationList, shard: Shard, name: str, *, after: int | tuple[int, ...]
) -> int:
    """Append the sum of a half's input gradient with the gradient that passed beside it."""
    kernel = shard.vector("residual_add", shard.norm_tokens, shard.hidden)
    output = shard.activation_bytes(kernel.rows * kernel.columns)
    return operations.kernel(f"{name}.residual", kernel, after=after, output=output)


def dropout_backward(operations: OperationList, shard: Shard, name: str, *, bias: bool) -> None:
    """Append the backward of the dropout before the residual addition."""
    if shard.dropout:
        before = _before_residual(shard, bias=bias)
        after = () if _residual_in_norm(shard) else ("residual_add",)
        kinds = fused((*before, *after), shard.fusion)
        kind = next(kind for kind in kinds if kind in {"dropout", "dropout_add"})
        kernel = shard.vector(kind, shard.norm_tokens, shard.hidden, backward=True)
        operations.kernel(
            f"{name}.dropout", kernel, output=shard.activation_bytes(kernel.rows * kernel.columns)
        )


def following(first: Sequence[Operation], operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return a list behind another, whose end is its input."""
    count = len(first)
    moved = (
        replace(each, after=tuple(other + count if other >= INPUT else other for other in each.after))
        for each in operations
    )
    return (*first, *moved)
