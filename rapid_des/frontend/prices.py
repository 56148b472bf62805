"""Operator lists with prices: what each kernel costs, and the nodes of a trace that lists become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rapid_des.chakra.trace import BOUNDS, Exchange, NodeKind
from rapid_des.device.operators import Dtype, Operator, OperatorModel
from rapid_des.errors import InputError
from rapid_des.frontend.operations import Operation
from rapid_des.frontend.shard import GROUP_SLOTS, PEERS, TRAFFIC
from rapid_des.frontend.software import HostSpec
from rapid_des.frontend.template import PORTS, Mark, Node, Piece, SectionName, make_piece

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class PricedOperator:
    """One kernel of a job as it was priced, the same in all layers of a kind and all micro-batches."""

    name: str
    """As in traces, without the layer: `forward.attention.core`."""
    section: SectionName
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
    arithmetic: Dtype
    """In what it calculates."""
    bytes: Mapping[str, int] = field(hash=False)
    """Moved at each level: hbm, l2, shared."""
    bound: str
    model: str
    """Which operator model priced it."""


def kernel_node(
    name: str,
    operator: Operator,
    operators: OperatorModel,
    after: tuple[int, ...],
    host: HostSpec | None = None,
) -> Node:
    """Return one kernel with its estimated duration, FLOPs and HBM bytes, and what `host` needs for it."""
    estimate = operators.estimate(operator)
    if max(estimate.duration, estimate.flops) > _INT64_MAX:
        raise InputError(f"{name}: {operator} is too large to time in 64-bit picoseconds and FLOPs")
    issue, lead = (0, 0) if host is None else host.of_kernel(operator, estimate.duration)
    return Node(
        name,
        NodeKind.COMPUTE,
        "compute",
        after,
        duration=estimate.duration,
        flops=estimate.flops,
        bytes=estimate.bytes.get("hbm", 0),
        issue=issue,
        lead=lead,
        bound=BOUNDS.index(estimate.bound),
    )


def message_node(  # noqa: PLR0913 - a node, who issues it, and where
    name: str,
    role: str,
    size: int,
    after: tuple[int, ...],
    host: HostSpec | None = None,
    *,
    group: str | None = None,
) -> Node:
    """Return one collective of the traffic table, in another group than usual if one is named."""
    kind = TRAFFIC[role]
    assert kind.collective is not None
    return Node(
        name,
        NodeKind.COLLECTIVE,
        kind.axis,
        after,
        size=size,
        collective=kind.collective,
        group=GROUP_SLOTS.index(group or kind.group),
        issue=0 if host is None else int(host.collective),
    )


def peer_node(name: str, operation: Operation, after: tuple[int, ...], host: HostSpec | None = None) -> Node:
    """Return one message of an operator list to, or from, one other rank."""
    kind = TRAFFIC[operation.role]
    return Node(
        name,
        NodeKind.SEND if operation.sends else NodeKind.RECV,
        f"{kind.axis}-{'send' if operation.sends else 'recv'}",
        after,
        size=operation.size,
        peer=PEERS.index((kind.group, operation.step)),
        issue=0 if host is None else int(host.collective),
    )


def price(
    operations: Sequence[Operation],
    operators: OperatorModel,
    host: HostSpec | None = None,
    exchanges: Sequence[Exchange] = (),
) -> Piece:
    """Return an operator list as a piece; its first node waits for every port.

    `host` issues its nodes one by one; None: nobody does, or all at once. `exchanges` are the ways in which
    the job's all-to-alls spread.
    """
    nodes = []
    for position, operation in enumerate(operations):
        after = operation.after if position else PORTS
        if operation.step:
            nodes.append(peer_node(operation.name, operation, after, host))
        elif operation.operator is None:
            node = message_node(operation.name, operation.role, operation.size, after, host)
            way = 0 if operation.exchange is None else 1 + exchanges.index(operation.exchange)
            nodes.append(replace(node, tag=way))
        else:
            nodes.append(kernel_node(operation.name, operation.operator, operators, after, host))
    marks = [
        Mark(row, entry.parameters, entry.domain, entry.deferrable)
        for row, entry in enumerate(operations)
        if entry.parameters
    ]
    cache_rows = [row for row, entry in enumerate(operations) if entry.sees_cache]
    return make_piece(nodes, marks=marks, cache_rows=cache_rows)
