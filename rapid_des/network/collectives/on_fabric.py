"""Algorithms that know the shape of the group's part of the fabric, by name.

Each takes the extents of the group (innermost first) beside collective and size. Where more than one
dimension takes part, chunks start in different dimensions, so that all links in both directions are busy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TypeAlias

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives.grids import grid_tree
from rapid_des.network.collectives.hierarchical import HIERARCHICAL, Hierarchy, flatten
from rapid_des.network.collectives.in_switch import IN_SWITCH, below_switches, nvls, two_levels
from rapid_des.network.collectives.registry import ALGORITHMS
from rapid_des.network.collectives.schedule import Demand, Schedule, demand, together

C = CollectiveType
_TREES = frozenset({C.ALL_REDUCE, C.BROADCAST, C.REDUCE})


@dataclass(frozen=True)
class ShapedCollective:
    """A collective over a group of a known shape."""

    collective: CollectiveType
    extents: tuple[int, ...]
    size: int
    root: int = 0
    chunks: int = 1
    parents: tuple[int, ...] = ()
    """The tree of switches over the group, of members, then of switches; empty: `extents[0]` at each leaf."""

    @property
    def demand(self) -> Demand:
        """What it has to move."""
        return demand(self.collective, prod(self.extents), self.size, root=self.root)


ShapedBuild: TypeAlias = Callable[[ShapedCollective], Schedule]


def _each(shaped: ShapedCollective, build: Callable[[Demand], Schedule]) -> Schedule:
    """Build every chunk of a collective that needs no hierarchy."""
    return together([build(part) for part in shaped.demand.chunks(shaped.chunks)])


def _rotated(shaped: ShapedCollective, name: str) -> Schedule:
    """Do one dimension after the other, every chunk in another order of the dimensions."""
    exchange = {C.ALL_TO_ALL: "ring" if name == "bucket" else name, C.BARRIER: "dissemination"}
    names = tuple(exchange.get(shaped.collective, name) for _ in shaped.extents)
    over = Hierarchy(shaped.extents, names)
    return flatten(
        shaped.collective, over, shaped.size, chunks=shaped.chunks * len(shaped.extents), rotate=True
    )


def _hypercube(shaped: ShapedCollective) -> Schedule:
    """Exchange with the neighbour in each dimension of two, the chunks in rotated orders."""
    members = prod(shaped.extents)
    if members & (members - 1):
        raise InputError(f"a hypercube has a power of two of members, not {members}")
    dimensions = max(members.bit_length() - 1, 1)
    extents = (2,) * dimensions if members > 1 else (1,)
    over = ShapedCollective(shaped.collective, extents, shaped.size, shaped.root, shaped.chunks)
    return _rotated(over, "direct")


def _rail(shaped: ShapedCollective) -> Schedule:
    """Go directly within the node (the first dimension) and in rings along the rails."""
    outer = {C.ALL_TO_ALL: "direct", C.BARRIER: "dissemination"}.get(shaped.collective, "ring")
    names = ("direct", *(outer for _ in shaped.extents[1:]))
    return flatten(shaped.collective, Hierarchy(shaped.extents, names), shaped.size, chunks=shaped.chunks)


def _grid_tree(shaped: ShapedCollective, *, diagonal: bool) -> Schedule:
    return _each(shaped, lambda part: grid_tree(part, shaped.extents, diagonal=diagonal))


def _nvls(shaped: ShapedCollective) -> Schedule:
    return nvls(shaped.demand, shaped.chunks)


def _switch_tree(shaped: ShapedCollective) -> Schedule:
    parents = shaped.parents or two_levels(prod(shaped.extents), shaped.extents[0])
    return _each(shaped, lambda part: below_switches(part, parents))


ON_FABRIC: dict[str, tuple[ShapedBuild, frozenset[CollectiveType]]] = {
    "torus": (partial(_rotated, name="bidirectional_ring"), HIERARCHICAL),
    "mesh_bucket": (partial(_rotated, name="bucket"), HIERARCHICAL - {C.ALL_TO_ALL}),
    "hypercube": (_hypercube, HIERARCHICAL),
    "rail": (_rail, HIERARCHICAL),
    "mesh_tree": (partial(_grid_tree, diagonal=False), _TREES),
    "king_mesh_tree": (partial(_grid_tree, diagonal=True), _TREES),
    **{name: (_nvls if name == "nvls" else _switch_tree, does) for name, does in IN_SWITCH.items()},
}
"""By name: the function, and what it does. Those of `IN_SWITCH` have switches among their members."""


def on_fabric(name: str, shaped: ShapedCollective) -> Schedule:
    """Return the transfers by an algorithm of `ON_FABRIC`; `InputError` says what it lacks."""
    if name not in ON_FABRIC:
        raise InputError(f"{name!r} is no algorithm for a shaped group; allowed: {', '.join(ON_FABRIC)}")
    build, does = ON_FABRIC[name]
    if shaped.collective not in does:
        allowed = ", ".join(kind.name.lower() for kind in C if kind in does)
        raise InputError(f"{name} does not do {shaped.collective.name.lower()}; it does {allowed}")
    return build(shaped)


def collectives_of(name: str) -> frozenset[CollectiveType]:
    """Return what an algorithm of either registry does; `InputError` names all of them if there is none."""
    if name in ON_FABRIC:
        return ON_FABRIC[name][1]
    if name in ALGORITHMS:
        return frozenset(ALGORITHMS[name].does)
    known = ", ".join((*ALGORITHMS, *ON_FABRIC))
    raise InputError(f"{name!r} is not a collective algorithm; allowed: {known}")


def build_schedule(name: str, shaped: ShapedCollective) -> Schedule:
    """Return the transfers of a shaped group by an algorithm of either registry.

    >>> len(build_schedule("ring", ShapedCollective(CollectiveType.ALL_GATHER, (2, 2), 100)))
    12
    """
    if name not in ALGORITHMS and collectives_of(name):
        return on_fabric(name, shaped)
    members = prod(shaped.extents)
    return ALGORITHMS[name](shaped.collective, members, shaped.size, root=shaped.root, chunks=shaped.chunks)
