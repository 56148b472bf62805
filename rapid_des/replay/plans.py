"""Which algorithm serves a collective of a trace on a machine: one template, or phases over dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import ConfigError
from rapid_des.machine import Machine
from rapid_des.network.collectives import (
    HIERARCHICAL,
    Hierarchy,
    Schedule,
    Shaped,
    build_schedule,
    collectives_of,
)
from rapid_des.network.collectives import plan as hierarchical_plan
from rapid_des.network.fabric import Fabric

PLAIN: Mapping[CollectiveType, str] = {kind: "ring" for kind in CollectiveType} | {
    CollectiveType.BARRIER: "dissemination"
}
"""What serves a collective that the machine file leaves open, or that its `default` algorithm does not do."""
SCALAR = "one_shot"
"""What serves an all-reduce of fewer bytes than members, which can not be cut into pieces."""


@dataclass(frozen=True)
class Call:
    """A collective as a trace issues it: `size` is the input buffer of each member in bytes."""

    collective: CollectiveType
    size: int
    extents: tuple[int, ...]
    """The group's geometry: the sizes of the whole dimensions that it is the product of, else (members,)."""
    dimensions: tuple[int, ...]
    """Which flat axes of the fabric those are; empty for a group that is no such product."""

    @property
    def members(self) -> int:
        """How many ranks take part."""
        return prod(self.extents)


@dataclass(frozen=True)
class Step:
    """One step of a chunk: a collective among those ranks that differ only along one axis of the group."""

    axis: int | None
    """Position in `Call.extents`; None: all members on one logical ring."""
    collective: CollectiveType
    algorithm: str
    size: int
    chunks: int = 1
    extents: tuple[int, ...] = ()
    """The shape of the whole group, for algorithms that use it; empty: a plain group."""

    def schedule(self, members: int) -> Schedule:
        """Return the step's transfers among so many members."""
        return build_schedule(
            self.algorithm,
            Shaped(self.collective, self.extents or (members,), self.size, chunks=self.chunks),
        )


Plan = tuple[tuple[Step, ...], ...]
"""The steps of each chunk, in order; chunks pipeline through them."""


def plan(call: Call, machine: Machine) -> Plan:
    """Return how a machine does a collective; a `ConfigError` names a choice that does not fit.

    One algorithm serves all members as one logical ring; one for each dimension serves a group that is a
    product of whole dimensions along each of them in turn, its chunks pipelining; a group along one
    dimension is served by that one's, whole.
    """
    if call.collective is CollectiveType.ALL_REDUCE and call.size < call.members:
        return ((Step(None, call.collective, SCALAR, call.size),),)
    operation = call.collective.name.lower()
    choice = machine.collectives.choice(operation)
    stated = None if choice is None else choice.algorithm
    chunks = 1 if choice is None else int(choice.chunks)
    if isinstance(stated, tuple) and len(call.extents) > 1 and call.collective in HIERARCHICAL:
        names = tuple(_doing(name, call.collective) for name in _per_axis(stated, call, machine))
        phases = hierarchical_plan(call.collective, Hierarchy(call.extents, names), call.size, chunks=chunks)
        return tuple(
            tuple(Step(phase.dimension, phase.collective, phase.algorithm, phase.size) for phase in chunk)
            for chunk in phases
        )
    if isinstance(stated, tuple):
        stated, chunks = (stated[call.dimensions[0]] if len(call.dimensions) == 1 else None), 1
    elif stated is not None and call.collective not in collectives_of(stated) and _named(machine, operation):
        does = ", ".join(kind.name.lower() for kind in CollectiveType if kind in collectives_of(stated))
        problem = f"{stated!r} does not do {operation}; it does {does}"
        raise ConfigError(problem, file=str(machine.path), key=f"collectives.{operation}")
    name = PLAIN[call.collective] if stated is None else _doing(stated, call.collective)
    return ((Step(None, call.collective, name, call.size, chunks, call.extents),),)


def _named(machine: Machine, operation: str) -> bool:
    return getattr(machine.collectives, operation) is not None


def _doing(name: str, collective: CollectiveType) -> str:
    return name if collective in collectives_of(name) else PLAIN[collective]


def geometry(fabric: Fabric, gpus: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (extents, axes) of a group: whole axes of the fabric if it is their product, in id order.

    Any other group, and one listed in another order, is one logical ring: ((members,), ()).
    """
    one_ring = (len(gpus),), ()
    axes = fabric.axes
    if prod(axes) != fabric.gpus or len(gpus) < 2:
        return one_ring
    spans, stride, expected = [], 1, [0]
    for axis, extent in enumerate(axes):
        if extent > 1 and gpus[0] // stride % extent == 0 and gpus[0] + stride in gpus:
            spans.append(axis)
            expected = [stride * step + offset for step in range(extent) for offset in expected]
            if len(expected) > len(gpus):
                return one_ring
        stride *= extent
    if [gpus[0] + offset for offset in expected] != list(gpus):
        return one_ring
    return tuple(axes[axis] for axis in spans), tuple(spans)


def _per_axis(stated: tuple[str, ...], call: Call, machine: Machine) -> tuple[str, ...]:
    axes = len(machine.fabric.axes)
    if len(stated) == len(machine.fabric.extents) != axes:
        stated = tuple(
            name for name, extent in zip(stated, machine.fabric.extents, strict=True) for _ in extent
        )
    if len(stated) != axes:
        key = f"collectives.{call.collective.name.lower()}"
        problem = f"{len(stated)} algorithms for {axes} axes; state one, or one for each dimension"
        raise ConfigError(problem, file=str(machine.path), key=key)
    return tuple(stated[axis] for axis in call.dimensions)
