"""Operator lists to priced pieces of program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rapid_des.chakra.trace import NodeKind
from rapid_des.device.operators import Operator, OperatorModel
from rapid_des.errors import InputError
from rapid_des.frontend.operations import Operation
from rapid_des.frontend.template import PORTS, Mark, Node, Piece, make_piece
from rapid_des.frontend.traffic import GROUP_SLOTS, TRAFFIC

_INT64_MAX = 2**63 - 1


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
