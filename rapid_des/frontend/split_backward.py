"""A backward cut in two: the gradients of inputs, which the stage before waits for, and those of weights.

Also the reverse: a list behind another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rapid_des.device.operators import Gemm, Vector
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.operations import Operation
from rapid_des.frontend.template import INPUT
from rapid_des.values import replace


class BackwardHalves(NamedTuple):
    """Two operator lists; the second starts when the first is done."""

    inputs: tuple[Operation, ...]
    weights: tuple[Operation, ...]


def backward_halves(operations: Sequence[Operation]) -> BackwardHalves:
    """Return a backward's list in two halves: all but weight gradients, then weight gradients.

    A list is written in the order of one stream, so an operation may stand behind a weight gradient that it
    does not need: it waits for what stands before that instead.
    """
    waits = _without_deferrable(operations)
    deferred = {place for place, operation in enumerate(operations) if operation.deferrable}
    for place in reversed(range(len(operations))):
        consumers = [other for other, after in enumerate(waits) if place in after]
        if consumers and deferred.issuperset(consumers):
            deferred.add(place)
    immediate = [place for place in range(len(operations)) if place not in deferred]
    return BackwardHalves(
        _selected(operations, waits, immediate), _selected(operations, waits, sorted(deferred))
    )


def _without_deferrable(operations: Sequence[Operation]) -> list[tuple[int, ...]]:
    """Return what each operation waits for; what is not deferrable waits for nothing that is."""
    standing: list[int] = []
    """For each place: itself, or the last before it that is not deferrable."""
    for place, operation in enumerate(operations):
        before = standing[-1] if standing else INPUT
        standing.append(before if operation.deferrable else place)
    return [
        operation.after
        if operation.deferrable
        else tuple(dict.fromkeys(standing[other] if other >= 0 else other for other in operation.after))
        for operation in operations
    ]


def _selected(
    operations: Sequence[Operation], waits: Sequence[tuple[int, ...]], places: Sequence[int]
) -> tuple[Operation, ...]:
    """Return some of the operations; what they need of others has been made before."""
    number = {place: index for index, place in enumerate(places)}
    return tuple(
        replace(
            operations[place], after=tuple(dict.fromkeys(number.get(other, INPUT) for other in waits[place]))
        )
        for place in places
    )


def gradient_bytes(operation: Operation) -> int:
    """Return the bytes of the gradient that a weight gradient multiplies or scatters; a bias shares it."""
    operator = operation.operator
    if isinstance(operator, Gemm):
        return byte_count(operator.batch * operator.m * operator.k, operator.dtype)
    if isinstance(operator, Vector) and operator.kind == "embedding_gradient":
        return byte_count(operator.rows * operator.columns, operator.dtype)
    return 0


def following(first: Sequence[Operation], operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return a list with another appended, whose input is the end of the first."""
    count = len(first)
    moved = (
        replace(each, after=tuple(other + count if other >= INPUT else other for other in each.after))
        for each in operations
    )
    return (*first, *moved)
