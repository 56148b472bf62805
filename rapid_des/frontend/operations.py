"""Ordered operator lists, kernels and messages with what they wait for and keep, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from rapid_des.chakra.trace import NodeKind
from rapid_des.device.operators import Operator, OperatorModel
from rapid_des.errors import InputError
from rapid_des.frontend.shard import GROUP_SLOTS, TRAFFIC
from rapid_des.frontend.template import INPUT, PORTS, Mark, Node, Piece, make_piece

_INT64_MAX = 2**63 - 1


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


@dataclass
class OperationList:
    """Collects a list in order; each operation waits for the one before unless told otherwise."""

    entries: list[Operation] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The position of the last operation, or the input."""
        return len(self.entries) - 1 if self.entries else INPUT

    def finish(self) -> tuple[Operation, ...]:
        """Return the list."""
        return tuple(self.entries)

    def kernel(
        self, name: str, operator: Operator, *, after: int | None = None, **counts: Unpack[Counts]
    ) -> int:
        """Append a kernel and return its position; `counts` are fields of `Operation`."""
        return self._append(Operation(name, self._after(after), operator=operator, **counts))

    def message(self, name: str, role: str, size: int, *, after: int | None = None, output: int = 0) -> int:
        """Append a message of this rank's group and return its position."""
        return self._append(Operation(name, self._after(after), role=role, size=size, output=output))

    def _after(self, after: int | None) -> tuple[int, ...]:
        return (self.last if after is None else after,)

    def _append(self, operation: Operation) -> int:
        self.entries.append(operation)
        return self.last


@dataclass(frozen=True)
class PricedOperator:
    """One kernel of a job as it was priced, the same in all layers of a kind and all micro-batches."""

    name: str
    """As in traces, without the layer: `forward.attention.core`."""
    section: str
    """The section of the model, or `optimizer`."""
    kind: int
    """Of a block: which of the model's kinds of layers."""
    stage: int
    """The pipeline stage where stages differ in it; -1: the same in all."""
    step: int
    """Serving: 0 is the prefill, else the (first) decode step."""
    duration: int
    """Picoseconds."""
    flops: int
    hbm_bytes: int
    bound: str
    model: str
    """Which operator model priced it."""


def kernel_node(name: str, operator: Operator, operators: OperatorModel, after: tuple[int, ...]) -> Node:
    """Return one kernel with its estimated duration, FLOPs and HBM bytes."""
    estimate = operators.estimate(operator)
    if max(estimate.duration, estimate.flops) > _INT64_MAX:
        raise InputError(f"{name}: {operator} is too large to time in 64-bit picoseconds and FLOPs")
    return Node(
        name,
        NodeKind.COMPUTE,
        "compute",
        after,
        duration=estimate.duration,
        flops=estimate.flops,
        bytes=estimate.bytes.get("hbm", 0),
    )


def message_node(name: str, role: str, size: int, after: tuple[int, ...]) -> Node:
    """Return one collective of the traffic table."""
    kind = TRAFFIC[role]
    assert kind.collective is not None
    return Node(
        name,
        NodeKind.COLLECTIVE,
        kind.axis,
        after,
        size=size,
        collective=kind.collective,
        group=GROUP_SLOTS.index(kind.group),
    )


def price(operations: Sequence[Operation], operators: OperatorModel) -> Piece:
    """Return an operator list as a piece; its first node waits for every port."""
    nodes = []
    for position, operation in enumerate(operations):
        after = operation.after if position else PORTS
        if operation.operator is None:
            nodes.append(message_node(operation.name, operation.role, operation.size, after))
        else:
            nodes.append(kernel_node(operation.name, operation.operator, operators, after))
    marks = [Mark(row, entry.parameters) for row, entry in enumerate(operations) if entry.parameters]
    cache_rows = [row for row, entry in enumerate(operations) if entry.sees_cache]
    return make_piece(nodes, marks=marks, cache_rows=cache_rows)
