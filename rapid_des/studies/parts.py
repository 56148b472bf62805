"""The parts of a machine that a fault study degrades one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rapid_des.errors import InputError
from rapid_des.machine import Machine
from rapid_des.network.faults import Fault, hits
from rapid_des.network.nodes import node_range

Kind = Literal["link", "gpu", "nic", "switch", "endpoint", "node"]
KINDS: tuple[Kind, ...] = ("link", "gpu", "nic", "switch", "endpoint", "node")
PLURALS: dict[str, Kind] = {
    "links": "link",
    "gpus": "gpu",
    "nics": "nic",
    "switches": "switch",
    "endpoints": "endpoint",
    "nodes": "node",
}


@dataclass(frozen=True)
class Part:
    """A piece of the machine and what belongs to it.

    link: a cable, or a link without a way back. gpu: a GPU's own speed. nic, switch, endpoint: all links of
    a NIC, of a switch, of a GPU as a node of the fabric. node: a server with its GPUs, NICs and links.
    """

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
            return Fault(gpu=self.name, compute=derate, hbm=derate)
        if self.kind == "node":
            number = int(self.name.removeprefix("node"))
            return Fault(node=number, bandwidth=derate, compute=derate, hbm=derate)
        return _at_links(self.kind, self.name, derate)


def parts_of(machine: Machine, kinds: Sequence[Kind], *, gpus: Collection[int]) -> tuple[Part, ...]:
    """Return the living parts of some kinds, in the order of KINDS, each by ascending id.

    `gpus` are those that run something: of the other GPUs only their links are parts, and servers without
    any are left out. That a machine has nothing of a kind (servers need its `gpus_per_node`) is an
    `InputError` only if nothing else was asked for.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise InputError(f"kind {unknown[0]!r} is not one of {', '.join(KINDS)}")
    makers = {
        "link": _links(machine),
        "gpu": _gpus(gpus),
        "nic": _of_fabric(machine, "nic"),
        "switch": _of_fabric(machine, "switch"),
        "endpoint": _of_fabric(machine, "endpoint"),
        "node": _servers(machine, gpus),
    }
    found = tuple(part for kind in KINDS if kind in kinds for part in makers[kind])
    if not found:
        why = ", as it states no gpus_per_node" if "node" in kinds and not machine.spec.gpus_per_node else ""
        wanted = " or ".join(plural for plural, kind in PLURALS.items() if kind in kinds)
        raise InputError(f"{machine.path}: the machine has no {wanted}{why}")
    return found


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


def _of_fabric(machine: Machine, kind: Literal["nic", "switch", "endpoint"]) -> Iterator[Part]:
    """Yield those of a kind of the fabric's nodes that have a living link."""
    first, count = node_range(machine.fabric, "gpu" if kind == "endpoint" else kind)
    names = [machine.fabric.node_name(node) for node in range(first, first + count)]
    faults = [_at_links(kind, name, 0.5) for name in names]
    for name, (_, hit) in zip(names, hits(machine.healthy, faults), strict=True):
        links = frozenset(hit.links.tolist()) - machine.dead
        if links:
            yield Part(kind, name, links, frozenset())


def _at_links(kind: Kind, name: str, derate: float) -> Fault:
    """Return the fault that leaves a share of the rate of all links of a fabric's node."""
    if kind == "nic":
        return Fault(nic=name, bandwidth=derate)
    return Fault(switch=name, bandwidth=derate) if kind == "switch" else Fault(gpu=name, bandwidth=derate)


def _servers(machine: Machine, gpus: Collection[int]) -> Iterator[Part]:
    size = machine.spec.gpus_per_node
    for node in range(machine.fabric.gpus // size if size else 0):
        fault = Fault(node=node, bandwidth=0.5)
        ((_, hit),) = hits(machine.healthy, [fault], size)
        own = frozenset(hit.gpus.tolist())
        if not own.isdisjoint(gpus):
            links = frozenset(np.setdiff1d(hit.links, sorted(machine.dead)).tolist())
            yield Part("node", f"node{node}", links, own)
