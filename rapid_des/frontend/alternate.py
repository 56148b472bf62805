"""Checkpoints by operator: small kernels and every second product of a layer run again in its backward.

torchtitan's selective checkpoints by operator (torchtitan/distributed/activation_checkpoint.py) keep what
attention, sums over ranks and every second product make, in the order query, key, value, output, gate, up,
down. Fused products make a part of their columns again: the keys, and up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from rapid_des.device.operators import Attention, Gemm, Vector
from rapid_des.frontend.matrices import COPY
from rapid_des.frontend.operations import Operation
from rapid_des.frontend.template import INPUT
from rapid_des.values import replace

QKV = "attention.qkv"


class Share(NamedTuple):
    """How much of an operator is run again."""

    made: float
    """The share of its result that is made again."""
    lost: float
    """The share of its result that its readers do not keep."""


WHOLE = Share(1.0, 1.0)
Again: TypeAlias = Mapping[int, Share]
"""Operators that are run again, by their positions in the forward."""


def alternate(operations: Sequence[Operation]) -> Iterator[tuple[int, Share]]:
    """Yield what `alternate` runs again: vectors, but for scales of casts, and parts of products."""
    shares: dict[int, Share] = {}
    for place, operation in enumerate(operations):
        if isinstance(operation.operator, Gemm):
            part = _part(operations, place, operation.operator)
            shares[place] = Share(part, part)
        elif isinstance(operation.operator, Vector) and not operation.name.endswith((".amax", COPY)):
            before = shares.get(producer_of(operations, place), WHOLE)
            widens = operation.operator.kind == "cast" and operation.operator.dtype == "fp32"
            shares[place] = Share(1.0, 1.0 if operation.saved or widens else before.lost)
    yield from ((place, share) for place, share in shares.items() if share.made)


def _part(operations: Sequence[Operation], place: int, product: Gemm) -> float:
    """Return which share of a product is run again: of queries, keys, values the keys; of gate and up, up."""
    name, later = operations[place].name, operations[place + 1 :]
    if name == "attention.output":
        return float(not any(each.operator is None and each.name.startswith(name) for each in later))
    for each in later:
        if name == QKV and isinstance(each.operator, Attention):
            return each.operator.kv_heads * each.operator.head_dim / product.n
        if name == "ffn.in" and isinstance(each.operator, Vector):
            return 1 - each.operator.columns / product.n
    return 0.0


def producer_of(operations: Sequence[Operation], place: int) -> int:
    """Return the place of the kernel whose result an operator reads and keeps, or the layer's input."""
    casts = f"{operations[place].name}."
    place = max(operations[place].after, default=INPUT)
    while place >= 0 and (operations[place].operator is None or operations[place].name.startswith(casts)):
        place = max(operations[place].after, default=INPUT)
    return place


def cut(operation: Operation, made: float) -> Operation:
    """Return an operation that makes a share of a product's columns."""
    if made == 1.0 or not isinstance(operation.operator, Gemm):
        return operation
    return replace(operation, operator=replace(operation.operator, n=round(operation.operator.n * made)))
