"""The parts of a machine that a fault study degrades one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rapid_des.errors import InputError
from rapid_des.machine import Machine
from rapid_des.network.faults import Fault, hits

Kind = Literal["link", "gpu", "node"]
KINDS: tuple[Kind, ...] = ("link", "gpu", "node")


@dataclass(frozen=True)
class Part:
    """A cable (or a link without a way back), a GPU or a node, and what of the machine it is."""

    kind: Kind
    name: str
    links: frozenset[int]
    gpus: frozenset[int]
    """Those whose own speed goes down with it."""

    def fault(self, derate: float) -> Fault:
        """Return the fault that leaves a share `derate` of the part's speed."""
        if self.kind == "link":
            return Fault(link=self.name, bandwidth=derate)
        if self.kind == "gpu":
            return Fault(gpu=int(self.name.removeprefix("gpu")), compute=derate, hbm=derate)
        return Fault(node=int(self.name.removeprefix("node")), bandwidth=derate, compute=derate, hbm=derate)


def parts_of(machine: Machine, kinds: Sequence[Kind], *, gpus: Collection[int]) -> tuple[Part, ...]:
    """Return the living parts of some kinds, links first, each by ascending id; of GPUs those that work.

    `gpus` are those that run something: nodes without any are left out. A machine that states no
    `gpus_per_node` has no nodes, which is an `InputError` only if nothing else was asked for.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise InputError(f"kind {unknown[0]!r} is not one of {', '.join(KINDS)}")
    if tuple(kinds) == ("node",) and machine.spec.gpus_per_node is None:
        raise InputError(f"{machine.path}: the machine states no gpus_per_node, so it has no nodes")
    makers = {"link": _links(machine), "gpu": _gpus(gpus), "node": _nodes(machine, gpus)}
    return tuple(part for kind in KINDS if kind in kinds for part in makers[kind])


def _links(machine: Machine) -> Iterator[Part]:
    fabric = machine.fabric
    ends = dict[tuple[int, int], int]()
    for link, pair in enumerate(zip(fabric.source.tolist(), fabric.destination.tolist(), strict=True)):
        if link not in machine.dead:
            ends[pair] = link
    for (source, destination), link in ends.items():
        back = ends.get((destination, source))
        if back is None:
            yield Part("link", fabric.link_name(link), frozenset({link}), frozenset())
        elif source < destination:
            name = f"{fabric.node_name(source)}-{fabric.node_name(destination)}"
            yield Part("link", name, frozenset({link, back}), frozenset())


def _gpus(gpus: Collection[int]) -> Iterator[Part]:
    for gpu in sorted(gpus):
        yield Part("gpu", f"gpu{gpu}", frozenset(), frozenset({gpu}))


def _nodes(machine: Machine, gpus: Collection[int]) -> Iterator[Part]:
    size = machine.spec.gpus_per_node
    for node in range(machine.fabric.gpus // size if size else 0):
        fault = Fault(node=node, bandwidth=0.5)
        ((_, hit),) = hits(machine.healthy, [fault], size)
        own = frozenset(hit.gpus.tolist())
        if not own.isdisjoint(gpus):
            links = frozenset(np.setdiff1d(hit.links, sorted(machine.dead)).tolist())
            yield Part("node", f"node{node}", links, own)
