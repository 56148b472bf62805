"""Low-rank adapters beside frozen matrices: LoRA (Hu et al., arXiv 2106.09685), QLoRA (arXiv 2305.14314).

A matrix W of `columns` by `inner` stays as it is, and B·A of rank r is added to it: of the columns-by-r
matrix B and the r-by-inner matrix A alone there are gradients. Lists of a model that trains everything are
rewritten: gradients of frozen weights go, products with A and B stand beside those with W, and where W is
stored narrow it is widened before each product. Of the two factors tp splits the one that it splits W
along; what the other makes, or its gradient, is summed over tp. Routed experts are frozen and have no
adapters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from rapid_des.device.operators import DTYPE_BITS, Gemm, GroupedGemm, Vector
from rapid_des.frontend.layers import Layer
from rapid_des.frontend.operations import Operation, Shard
from rapid_des.frontend.spec import AdaptersSpec
from rapid_des.values import replace

A, B = "adapter.a", "adapter.b"
"""Names of the factors' products, appended to the name of their matrix."""
INPUT_GRADIENT, WEIGHT_GRADIENT = ".input_gradient", ".weight_gradient"
_NEEDED_FOR_WEIGHTS = (WEIGHT_GRADIENT, ".bias_gradient", ".regather")
"""Name endings of operations that only the gradient of a weight needs."""
_AGAIN = "recompute."
_ROUTER = "ffn.router"
_ROUTED = ("ffn.in", "ffn.out")
"""The matrices of routed experts, in layers that have a router."""
_NARROW_BITS = 4


def matrices(operations: Sequence[Operation]) -> tuple[str, ...]:
    """Return the names of the matrices in a forward's list that an adapter can stand beside."""
    routed = _routed(operations)
    return tuple(
        operation.name
        for operation in operations
        if operation.weights and isinstance(operation.operator, Gemm) and operation.name not in routed
    )


def _routed(operations: Sequence[Operation]) -> tuple[str, ...]:
    """Return the names of the matrices of routed experts in a list, forward or backward."""
    return _ROUTED if any(_ROUTER in operation.name for operation in operations) else ()


def refusals(adapters: AdaptersSpec, layers: Sequence[Layer], shard: Shard) -> Iterator[tuple[str, str]]:
    """Yield the keys of a training section that its adapters do not go with, and why."""
    routed = any(half.parameters.experts for layer in layers for half in layer.halves)
    known = {name: None for layer in layers for name in matrices(layer.forward(shard))}
    for name in adapters.matrices:
        if name not in known:
            problem = f"{name!r} is no matrix of these layers" + " (routed experts have no adapters)" * routed
            yield "adapters.matrices", f"{problem}; allowed: {', '.join(known)}"
    if not adapters.matrices or len(set(adapters.matrices)) < len(adapters.matrices):
        yield "adapters.matrices", f"{list(adapters.matrices)} must name one matrix or more, each once"
    if adapters.weights is not None and DTYPE_BITS[adapters.weights] != _NARROW_BITS:
        yield "adapters.weights", f"{adapters.weights} has no kernel that widens it; allowed: fp4, int4"


def adapted(
    operations: Sequence[Operation], spec: AdaptersSpec, shard: Shard, rows: frozenset[str]
) -> tuple[Operation, ...]:
    """Return a list, forward or backward, of the model whose matrices are frozen and have adapters.

    `rows` are the row-parallel matrices, whose partial results tp sums.
    """
    weights: Counter[str] = Counter()
    for operation in operations:
        if operation.name.endswith(_NEEDED_FOR_WEIGHTS):
            weights[_without(operation.name, _NEEDED_FOR_WEIGHTS)] += operation.parameters
    return _Rewriting(spec, shard, rows, weights, _routed(operations)).rewritten(operations)


class _Rewriting(Struct, frozen=True):
    spec: AdaptersSpec
    shard: Shard
    rows: frozenset[str]
    weights: Mapping[str, int]
    """Number of parameters of each matrix; only known in a backward."""
    routed: tuple[str, ...]
    """Names of the matrices of routed experts."""

    def rewritten(self, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        """Return the list with each operation replaced; references go to the last of its replacements."""
        listed: list[Operation] = []
        ends: list[int] = []
        for operation in operations:
            after = tuple(dict.fromkeys(ends[other] if other >= 0 else other for other in operation.after))
            start = len(listed)
            listed += self._instead(replace(operation, after=after), start)
            ends.append(len(listed) - 1 if len(listed) > start else _instead_of(operation, after, listed))
        return tuple(listed)

    def _instead(self, operation: Operation, start: int) -> Iterator[Operation]:
        """Yield the replacements of an operation, at positions from `start` on."""
        again, _, name = operation.name.rpartition(_AGAIN)
        prefix = _AGAIN if again or operation.name.startswith(_AGAIN) else ""
        base = _without(name, (INPUT_GRADIENT, *_NEEDED_FOR_WEIGHTS))
        has_adapter = base in self.spec.matrices and base not in self.routed
        if name.endswith(_NEEDED_FOR_WEIGHTS) and isinstance(operation.operator, Gemm) and has_adapter:
            yield from self._factor_gradients(operation, base)
        elif name.endswith(_NEEDED_FOR_WEIGHTS) and not (has_adapter and name.endswith(".regather")):
            return
        elif isinstance(operation.operator, GroupedGemm) or base in self.routed:
            yield from self._experts(operation, base, start)
        elif operation.weights and isinstance(operation.operator, Gemm):
            yield from self._forward(operation, operation.operator, prefix, start, adapts=has_adapter)
        elif name.endswith(INPUT_GRADIENT) and isinstance(operation.operator, Gemm):
            yield from self._input_gradient(operation, operation.operator, base, start, adapts=has_adapter)
        else:
            yield replace(operation, frozen=operation.parameters > 0)

    def _widened(self, operation: Operation, elements: int, name: str) -> Iterator[Operation]:
        """Yield the kernel that widens a matrix that is stored narrow, before its product."""
        if self.spec.weights is not None and _ROUTER not in name:
            kernel = Vector("dequantize", 1, elements, self.shard.precision.activations)
            output = self.shard.activation_bytes(elements)
            yield Operation(f"{name}.dequantize", operation.after, kernel, output=output)

    def _experts(self, operation: Operation, base: str, start: int) -> Iterator[Operation]:
        """Yield a product with frozen matrices of routed experts, forward or of their input's gradient."""
        gemm = operation.operator
        assert isinstance(gemm, Gemm | GroupedGemm)
        number = gemm.batch if isinstance(gemm, Gemm) else len(gemm.rows)
        widened = list(self._widened(operation, number * gemm.n * gemm.k, operation.name))
        yield from widened
        after = (start,) if widened else operation.after
        if operation.name.endswith(INPUT_GRADIENT):
            frozen = self.weights[base]
            yield replace(operation, after=after, parameters=frozen, frozen=True, expert=True)
        else:
            yield replace(operation, after=after, saved=0)

    def _forward(
        self, operation: Operation, gemm: Gemm, prefix: str, start: int, *, adapts: bool
    ) -> Iterator[Operation]:
        """Yield the product with a frozen matrix, and those with its factors, the second added to it."""
        rank, dtype = self.spec.rank, self.shard.precision.activations
        widened = list(self._widened(operation, gemm.n * gemm.k, operation.name))
        yield from widened
        here = start + len(widened)
        after = (here - 1,) if widened else operation.after
        if not adapts:
            yield replace(operation, after=after, saved=0)
            return
        yield replace(operation, after=after)
        down = self.shard.activation_bytes(gemm.m * rank)
        name = f"{operation.name}.{A}"
        yield Operation(name, operation.after, Gemm(gemm.m, rank, gemm.k, dtype=dtype), output=down)
        last = here + 1
        if self.shard.tp > 1 and operation.name.removeprefix(prefix) in self.rows:
            size = self.shard.message("tp.reduce", gemm.m * rank)
            yield Operation(f"{name}.reduce", (last,), role="tp.reduce", size=size, output=down)
            last += 1
        up = Gemm(gemm.m, gemm.n, rank, dtype=dtype, accumulate=True)
        held, saved = (down, 0) if prefix else (0, down)
        yield Operation(
            f"{operation.name}.{B}", (here, last), up, output=operation.output, held=held, saved=saved
        )

    def _input_gradient(
        self, operation: Operation, gemm: Gemm, base: str, start: int, *, adapts: bool
    ) -> Iterator[Operation]:
        """Yield the gradient through a frozen matrix, and through its factors."""
        rank, dtype = self.spec.rank, self.shard.precision.activations
        widened = list(self._widened(operation, gemm.n * gemm.k, base))
        yield from widened
        here = start + len(widened)
        after = (here - 1,) if widened else operation.after
        yield replace(operation, after=after, parameters=self.weights[base], frozen=True)
        if not adapts:
            return
        down = self.shard.activation_bytes(gemm.m * rank)
        name = f"{base}.{B}{INPUT_GRADIENT}"
        yield Operation(name, operation.after, Gemm(gemm.m, rank, gemm.k, dtype=dtype), output=down)
        last = here + 1
        if self.shard.tp > 1 and base not in self.rows:
            size = self.shard.message("tp.reduce_gradient", gemm.m * rank)
            yield Operation(f"{name}.reduce", (last,), role="tp.reduce_gradient", size=size, output=down)
            last += 1
        through = Gemm(gemm.m, gemm.n, rank, dtype=dtype, accumulate=True)
        yield Operation(f"{base}.{A}{INPUT_GRADIENT}", (here, last), through, output=operation.output)

    def _factor_gradients(self, operation: Operation, base: str) -> Iterator[Operation]:
        """Yield the gradients of both factors in the place of the matrix's own."""
        gemm, rank = operation.operator, self.spec.rank
        assert isinstance(gemm, Gemm)
        for factor, (m, n) in {B: (gemm.m, rank), A: (rank, gemm.n)}.items():
            kernel = replace(gemm, m=m, n=n, dtype=self.shard.precision.activations)
            name = f"{base}.{factor}{WEIGHT_GRADIENT}"
            yield replace(operation, name=name, operator=kernel, parameters=m * n)


def _instead_of(operation: Operation, after: tuple[int, ...], listed: Sequence[Operation]) -> int:
    """Return the place that stands for one left out: of a kernel the last kernel before it, on one stream."""
    kernels = (place for place in reversed(range(len(listed))) if listed[place].operator is not None)
    before = -1 if operation.operator is None else next(kernels, -1)
    return max(before, *after)


def _without(name: str, ends: Sequence[str]) -> str:
    for end in ends:
        name = name.removesuffix(end)
    return name


def row_parallel(operations: Sequence[Operation]) -> frozenset[str]:
    """Return the matrices of a forward's list whose partial results are summed over tp."""
    names = matrices(operations)
    sums = {
        operation.name.rpartition(".")[0]
        for operation in operations
        if operation.role in {"tp.reduce", "sp.scatter"}
    }
    return frozenset(name for name in names if name in sums)
