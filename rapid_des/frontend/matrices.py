"""Weight matrices split over tp: products, narrow operands, messages around them, residuals behind.

With sequence parallelism shards of the sequence are gathered before a column-parallel matrix (and before the
backward of a row-parallel one), and partial sums scattered after a row-parallel one. `training.overlap_tp`
cuts both, with their product, into tp pieces, each of which travels beside the product of another: `ring`
passes shards, or their partial sums, from rank to rank (Wang et al. 2023, "Overlap communication with
dependent computation via decomposition"; Transformer Engine's ring exchange; PyTorch's asynchronous tensor
parallelism, which copies each shard straight from its rank); `pipeline` calls a collective for each piece.
Transformer Engine's user buffers gather by a ring and scatter in a pipeline. What no product depends on,
gathers and sums of a column-parallel backward, travels beside the other gradient's product, unless
`training.overlap_tp_gradients` says that sums wait for it. PyTorch's tensors have sequences along their
second dimension and its collectives work along the first, so that a kernel copies all of a tensor behind each
gather and before each sum that is whole (`training.sequence_copies`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from msgspec import Struct

from rapid_des.device.operators import Dtype, Gemm, Vector
from rapid_des.device.vector import fused
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.operations import (
    Counts,
    OperatorList,
    Shard,
    before_residual,
    launch,
    residual_in_norm,
)
from rapid_des.frontend.spec import Recipe
from rapid_des.units import ceil_divide
from rapid_des.values import replace


class Linear(Struct, frozen=True):
    """One weight matrix of this rank, `columns` outputs by `inner` inputs."""

    name: str
    columns: int
    inner: int
    bias: bool
    rows: int
    """Number of positions that pass through it."""
    narrow: bool = True
    """Whether it multiplies in the job's GEMM format with its stored weights; otherwise as activations."""
    tied: bool = False
    """Whether it shares its weights with another operator, whose backward completes their gradient."""

    @property
    def parameters(self) -> int:
        """Number of its own weights and biases on this rank."""
        return self.columns * self.inner * (not self.tied) + self.columns * self.bias


def _gathers(shard: Shard) -> bool:
    return shard.tp > 1 and shard.sequence_parallel


class _Product(Struct, frozen=True):
    """The product of a tensor that is whole along the sequence with a matrix, in one or in several pieces."""

    linear: Linear
    name: str
    columns: int
    inner: int
    """Width of the tensor that is multiplied."""
    saved: int = 0
    weights: int = 0

    @classmethod
    def forward(cls, linear: Linear, shard: Shard, saved: int) -> _Product:
        """Return the product of a forward; `saved` bytes of its input are kept."""
        weights = linear.columns * linear.inner if shard.is_narrow(linear.name, linear.narrow) else 0
        return cls(linear, linear.name, linear.columns, linear.inner, saved, weights)

    def append(
        self, operations: OperatorList, shard: Shard, *, pieces: int = 1, last: bool = True,
        after: tuple[int, ...] | None = None,
    ) -> int:  # fmt: skip
        """Append one piece of the product, the last with what the whole keeps; return its position."""
        rows = ceil_divide(self.linear.rows, pieces)
        narrow = shard.is_narrow(self.linear.name, self.linear.narrow)
        gemm = shard.gemm(rows, self.columns, self.inner, narrow=narrow)
        if not last:
            output = shard.activation_bytes(rows * self.columns)
            return operations.kernel(f"{self.name}.piece", gemm, after=after, output=output)
        output = shard.activation_bytes(self.linear.rows * self.columns)
        return operations.kernel(
            self.name, gemm, after=after, saved=self.saved, output=output, weights=self.weights
        )


def forward_gemm(operations: OperatorList, shard: Shard, linear: Linear, *, saved: int) -> None:
    """Append the product of a matrix with its input, of which `saved` bytes are kept; no message."""
    _Product.forward(linear, shard, saved).append(operations, shard)


def column_forward(operations: OperatorList, shard: Shard, linear: Linear, *, saved: int) -> None:
    """Append the forward of a column-parallel matrix whose kept input has `saved` bytes.

    Its input comes from a norm, which writes it narrow where scales are known beforehand.
    """
    if shard.recipe != "delayed":
        cast(operations, shard, linear, shard.norm_tokens if _gathers(shard) else linear.rows)
    if not _gathers(shard):
        forward_gemm(operations, shard, linear, saved=saved)
        return
    _gathered(operations, shard, _Product.forward(linear, shard, saved), f"{linear.name}.gather")


def row_forward(operations: OperatorList, shard: Shard, linear: Linear, *, saved: int) -> None:
    """Append the forward of a row-parallel matrix and the reduction of its output."""
    cast(operations, shard, linear, linear.rows)
    product = _Product.forward(linear, shard, saved)
    how = _SCATTERS[shard.overlap_tp] if _gathers(shard) and linear.narrow else _scatter_after
    how(operations, shard, product)


CASTS: Mapping[Recipe, tuple[str, ...]] = {
    "delayed": ("cast_transpose",),
    "current": ("amax", "cast_transpose"),
    "blockwise": ("quantize_transpose",),
    "mxfp8": ("quantize_transpose",),
    "nvfp4": ("amax", "quantize4", "hadamard4_transpose"),
}
"""The kernels that make an operand narrow, along both of its axes, for the products of a training step.

Transformer Engine quantises to four bits in three passes, as columns alone are transformed
(pytorch/csrc/quantizer.cpp, `NVFP4Quantizer::quantize_impl`).
"""
LAUNCHES: Mapping[Recipe, int] = {"delayed": 1, "current": 4, "blockwise": 1, "mxfp8": 1, "nvfp4": 4}
"""What Transformer Engine launches for each of these casts. Its largest value: set to zero, found, made a
scale (common/recipe/current_scaling.cu), and the cast."""


def cast(
    operations: OperatorList, shard: Shard, linear: Linear, rows: int, *, gradient: bool = False
) -> None:
    """Append what makes the input (or the output's gradient) of a narrow matrix narrow, on this many rows."""
    if shard.recipe is None or not linear.narrow:
        return
    columns = linear.columns if gradient else linear.inner
    name = f"{linear.name}.{'gradient_cast' if gradient else 'cast'}"
    *early, last = CASTS[shard.recipe]
    for kind in early:
        operations.kernel(f"{name}.{kind}", shard.vector(kind, rows, columns))
    operations.kernel(
        name, shard.vector(last, rows, columns), output=2 * byte_count(rows * columns, shard.gemm_dtype)
    )


def _travels_as(shard: Shard, linear: Linear) -> Dtype | None:
    """Return the format in which a matrix's input or gradient is gathered: narrow, if cast before."""
    return shard.gemm_dtype if shard.recipe is not None and linear.narrow else None


def _copy(operations: OperatorList, shard: Shard, name: str, elements: int, after: int | None = None) -> int:
    """Append the kernel that moves sequences to a tensor's first dimension or back; return its position."""
    size = shard.activation_bytes(elements)
    return operations.kernel(f"{name}{COPY}", shard.vector("copy", 1, elements), after=after, output=size)


COPY = ".copy"
"""The end of the names of these kernels."""


def reduce_output(operations: OperatorList, shard: Shard, name: str, elements: int) -> None:
    """Append the sum of partial results over tp: whole, or to sequence shards."""
    if shard.tp > 1 and not shard.partial:
        role = "sp.scatter" if shard.sequence_parallel else "tp.reduce"
        if shard.sequence_copies and shard.sequence_parallel:
            _copy(operations, shard, f"{name}.scatter", elements)
        size = shard.message(role, elements)
        operations.message(f"{name}.{role.partition('.')[2]}", role, size, output=size)


def gather_gradient(operations: OperatorList, shard: Shard, name: str, elements: int) -> None:
    """Append the gather of a gradient that stands in sequence shards, in the format of activations."""
    if _gathers(shard):
        size = shard.message("sp.gather", elements)
        name = f"{name}.gather_gradient"
        operations.message(name, "sp.gather", size, output=shard.activation_bytes(elements))
        if shard.sequence_copies:
            _copy(operations, shard, name, elements)


def _gathered(operations: OperatorList, shard: Shard, product: _Product, name: str) -> int:
    """Append a gather of sequence shards and the product of what they make; return who has the last of it."""
    how = _GATHERS[shard.overlap_tp] if product.linear.narrow else _gather_before
    return how(operations, shard, product, name)


def _shard_size(shard: Shard, product: _Product) -> int:
    elements = product.linear.rows * product.inner
    return shard.message("sp.gather", elements, _travels_as(shard, product.linear))


def _gather_before(operations: OperatorList, shard: Shard, product: _Product, name: str) -> int:
    output = shard.activation_bytes(product.linear.rows * product.inner)
    gathered = operations.message(name, "sp.gather", _shard_size(shard, product), output=output)
    if shard.sequence_copies:
        gathered = _copy(operations, shard, name, product.linear.rows * product.inner)
    product.append(operations, shard)
    return gathered


def _gather_in_ring(operations: OperatorList, shard: Shard, product: _Product, name: str) -> int:
    """Append passes of a ring: while one shard is multiplied the next comes."""
    size, begin, pieces = _shard_size(shard, product), operations.waits, shard.tp
    there: tuple[int, ...] = ()
    come: tuple[int, ...] = ()
    for piece in range(pieces):
        waits, last = (*there, *begin), piece == pieces - 1
        if not last:
            there = operations.pass_on(name, "sp.ring", size, step=1, after=waits)
            come = (*come, there[1])
        product.append(
            operations, shard, pieces=pieces, last=last, after=(*come[:-1], *waits) if last else waits
        )
    return come[-1]


def _gather_in_pieces(operations: OperatorList, shard: Shard, product: _Product, name: str) -> int:
    """Append a gather of a part of every shard for each piece, beside the product of the one before."""
    begin, pieces = operations.waits, shard.tp
    size = ceil_divide(_shard_size(shard, product), pieces)
    come: tuple[int, ...] = ()
    for piece in range(pieces):
        last = piece == pieces - 1
        output = shard.activation_bytes(ceil_divide(product.linear.rows, pieces) * product.inner)
        come = (*come, operations.message(name, "sp.gather", size, after=begin, output=output))
        product.append(operations, shard, pieces=pieces, last=last, after=come if last else come[-1:])
    return come[-1]


def _scatter_after(operations: OperatorList, shard: Shard, product: _Product) -> None:
    product.append(operations, shard)
    reduce_output(operations, shard, product.name, product.linear.rows * product.columns)


def _scatter_in_ring(operations: OperatorList, shard: Shard, product: _Product) -> None:
    """Append passes of a ring: the sums of a shard go on beside the product of the next, and are added."""
    rows, pieces = ceil_divide(product.linear.rows, shard.tp), shard.tp
    add, name = shard.vector("residual_add", rows, product.columns), f"{product.name}.scatter"
    size = shard.activation_bytes(rows * product.columns)
    there: tuple[int, ...] = ()
    for piece in range(pieces):
        last = piece == pieces - 1
        newest = product.append(operations, shard, pieces=pieces, last=last)
        if there:
            label = name if last else f"{name}.add"
            newest = operations.kernel(label, add, after=(*there, newest), output=size)
        if not last:
            there = operations.pass_on(name, "sp.ring", size, step=1, after=(newest,))
            operations.go_on_after(newest)


def _scatter_in_pieces(operations: OperatorList, shard: Shard, product: _Product) -> None:
    """Append a sum of each piece beside the product of the next."""
    pieces = shard.tp
    rows = ceil_divide(product.linear.rows, pieces)
    size = shard.message("sp.scatter", rows * product.columns)
    for piece in range(pieces):
        last = piece == pieces - 1
        newest = product.append(operations, shard, pieces=pieces, last=last)
        operations.message(f"{product.name}.scatter", "sp.scatter", size, output=size)
        if not last:
            operations.go_on_after(newest)


_GATHERS = {
    "none": _gather_before,
    "ring": _gather_in_ring,
    "pipeline": _gather_in_pieces,
    "userbuffers": _gather_in_ring,
}
_SCATTERS = {
    "none": _scatter_after,
    "ring": _scatter_in_ring,
    "pipeline": _scatter_in_pieces,
    "userbuffers": _scatter_in_pieces,
}


def column_backward(operations: OperatorList, shard: Shard, linear: Linear) -> int:
    """Append the backward of a column-parallel matrix; return the position that holds the input gradient."""
    cast(operations, shard, linear, linear.rows, gradient=True)
    incoming = operations.last
    elements = linear.rows * linear.inner
    output = shard.activation_bytes(elements)
    gathered = incoming
    if _gathers(shard):
        size = shard.message("sp.gather", elements, _travels_as(shard, linear))
        gathered = operations.message(f"{linear.name}.regather", "sp.gather", size, output=output)
        if shard.sequence_copies and shard.gathers_again:
            gathered = _copy(operations, shard, f"{linear.name}.regather", elements, gathered)
    gemm = shard.gemm(linear.rows, linear.inner, linear.columns, narrow=linear.narrow)
    ready = operations.kernel(f"{linear.name}.input_gradient", gemm, after=incoming, output=output)
    across = elements if _stands_across(shard, linear, made_by_norm=True) else 0
    if not shard.overlap_tp_gradients:
        _weight_gradient(operations, shard, linear, gathered, across)
    if shard.tp > 1:
        role = "sp.scatter" if shard.sequence_parallel else "tp.reduce_gradient"
        if shard.sequence_copies and shard.sequence_parallel:
            ready = _copy(operations, shard, f"{linear.name}.reduce_gradient", elements, ready)
        after = tuple(dict.fromkeys((ready, operations.last)))
        ready = operations.message(
            f"{linear.name}.reduce_gradient", role, shard.message(role, elements), after=after
        )
    if shard.overlap_tp_gradients:
        _weight_gradient(operations, shard, linear, gathered, across)
    return ready


def row_backward(operations: OperatorList, shard: Shard, linear: Linear) -> None:
    """Append the backward of a row-parallel matrix."""
    cast(operations, shard, linear, shard.norm_tokens if _gathers(shard) else linear.rows, gradient=True)
    product = _Product(linear, f"{linear.name}.input_gradient", linear.inner, linear.columns)
    incoming = operations.last
    if _gathers(shard):
        incoming = _gathered(operations, shard, product, f"{linear.name}.gather_gradient")
    else:
        product.append(operations, shard)
    across = linear.rows * linear.columns if _stands_across(shard, linear, made_by_norm=False) else 0
    _weight_gradient(operations, shard, linear, incoming, across)


def append_weight_gradient(
    operations: OperatorList, shard: Shard, name: str, gemm: Gemm, *, after: int, **counts: Unpack[Counts]
) -> None:
    """Append the product of a weight gradient, and an addition if the product does not accumulate."""
    counts["deferrable"] = True
    if shard.fused_accumulation:
        accumulating = replace(gemm, out_dtype=shard.precision.gradients, accumulate=True)
        operations.kernel(name, accumulating, after=after, **counts)
        return
    alone = replace(gemm, out_dtype=shard.precision.activations)
    operations.kernel(name, alone, after=after, deferrable=True, expert=counts.get("expert", False))
    add = Vector("gradient_add", gemm.batch * gemm.m, gemm.n, shard.precision.gradients)
    operations.kernel(f"{name}.add", add, **counts)


def _stands_across(shard: Shard, linear: Linear, *, made_by_norm: bool) -> bool:
    """Return whether an operand of a weight's gradient stands along its channels alone, and not along tokens.

    Transformer Engine casts to both at once (`cast_transpose`), but the kernel of a norm writes one of them,
    and one is gathered (`module/layernorm_linear.py`, `module/base.py`: `fp8_transpose`).
    """
    by_tensor = shard.recipe in ("delayed", "current") and linear.narrow
    return by_tensor and (_gathers(shard) or (made_by_norm and shard.recipe == "delayed"))


def _weight_gradient(operations: OperatorList, shard: Shard, linear: Linear, after: int, across: int) -> None:
    dtype = shard.gemm_dtype if linear.narrow else shard.precision.activations
    gemm = Gemm(linear.columns, linear.inner, linear.rows, dtype=dtype, across=across)
    name = f"{linear.name}.weight_gradient"
    marked = 0 if linear.bias else linear.parameters
    append_weight_gradient(operations, shard, name, gemm, after=after, parameters=marked)
    if not linear.bias:
        return
    reduction = Vector("bias_gradient", linear.rows, linear.columns, shard.precision.activations)
    operations.kernel(
        f"{linear.name}.bias_gradient", reduction, after=after, parameters=linear.parameters, deferrable=True
    )


def scale_forward(operations: OperatorList, shard: Shard, name: str) -> None:
    """Append the gain a channel of what a half adds, and keep what it scales."""
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    kernel = shard.vector("scale", rows, columns)
    operations.kernel(f"{name}.layer_scale", kernel, saved=size, output=size)


def scale_backward(operations: OperatorList, shard: Shard, name: str) -> None:
    """Append the gradients of those gains, and of what they scale."""
    rows, columns = shard.norm_tokens, shard.hidden
    gains, kernel = (shard.vector(kind, rows, columns) for kind in ("norm_gradient", "scale"))
    operations.kernel(f"{name}.layer_scale.gains", gains, parameters=columns)
    operations.kernel(f"{name}.layer_scale", kernel, output=shard.activation_bytes(rows * columns))


def residual_forward(operations: OperatorList, shard: Shard, name: str, *, bias: bool) -> None:
    """Append dropout and the residual addition; `bias`: the matrix before has one."""
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    mask = rows * columns * shard.dropout
    kinds = before_residual(shard, bias=bias) + (() if residual_in_norm(shard) else ("residual_add",))
    if kinds:
        launch(operations, shard, f"{name}.residual", kinds, (rows, columns), saved=mask, output=size)


def residual_backward(
    operations: OperatorList, shard: Shard, name: str, *, after: int | tuple[int, ...]
) -> int:
    """Append the sum of a half's input gradient with the gradient that passed beside it."""
    kernel = shard.vector("residual_add", shard.norm_tokens, shard.hidden)
    output = shard.activation_bytes(kernel.rows * kernel.columns)
    return operations.kernel(f"{name}.residual", kernel, after=after, output=output)


def dropout_backward(operations: OperatorList, shard: Shard, name: str, *, bias: bool) -> None:
    """Append the backward of the dropout before the residual addition."""
    if shard.dropout:
        before = before_residual(shard, bias=bias)
        after = () if residual_in_norm(shard) else ("residual_add",)
        kinds = fused((*before, *after), shard.fusion)
        kind = next(kind for kind in kinds if kind in {"dropout", "dropout_add"})
        kernel = shard.vector(kind, shard.norm_tokens, shard.hidden, backward=True)
        size = shard.activation_bytes(kernel.rows * kernel.columns)
        operations.kernel(f"{name}.dropout", kernel, output=size)
