"""How critical each part of a machine is: the cost to the step if this part alone is slower.

Three facts of the healthy run save simulations without changing the answer. A part without traffic costs
nothing. Parts with the same busy links cost the same, and so do parts that a proven rotation of the program
maps onto each other, except for the order in which a link serves transfers that become ready at one instant
(tens of picoseconds). The program of the healthy run is played again with other times and rates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import TraceSet
from rapid_des.errors import InputError
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.modes.blocks.reach import keeps_routes, lower_again, slowed
from rapid_des.modes.execution import execute
from rapid_des.modes.pricing import price
from rapid_des.modes.symmetry import rotations
from rapid_des.network.build import find_node, node_range
from rapid_des.network.faults import Fault, hits
from rapid_des.program.faults.slow_gpus import on_slow_gpus, stretched
from rapid_des.program.lowering import lower
from rapid_des.report.pictures.fabric import Picture, picture
from rapid_des.studies.faults import How, step_of
from rapid_des.units import Duration, seconds
from rapid_des.values import replace

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


class MachinePart(Struct, frozen=True):
    """A part of a machine, with its links and GPUs.

    link: a cable, or a link without one back. gpu: a GPU's own speed. nic, switch, endpoint: all links of
    a NIC, of a switch, of a GPU as a node of the fabric. node: a server with its GPUs, NICs and links.
    """

    kind: Kind
    name: str
    links: frozenset[int]
    gpus: frozenset[int]
    """The GPUs that are slower if the part is slower."""

    def fault(self, derate: float) -> Fault:
        """Return the fault that reduces the part to a share `derate` of its speed."""
        if self.kind == "link":
            return Fault(link=self.name, bandwidth=derate)
        if self.kind == "gpu":
            return Fault(gpu=self.name, compute=derate, hbm=derate)
        if self.kind == "node":
            number = int(self.name.removeprefix("node"))
            return Fault(node=number, bandwidth=derate, compute=derate, hbm=derate)
        return _at_links(self.kind, self.name, derate)


_Signature = tuple[str, frozenset[int], frozenset[int]]
"""The kind of speed that a part loses, its links with traffic, and the positions of its ranks."""


class RankedPart(Struct, frozen=True):
    """The cost of a part's degradation."""

    part: MachinePart
    step_time: Duration
    cost: int
    """Picoseconds over the healthy step."""
    source: str
    """The source of the cost: simulated; carries nothing; or the part with equal links or a mirror image."""


class Criticality(Struct, frozen=True):
    """All parts by their cost, the costliest first, equals in the order of KINDS and ids.

    >>> from rapid_des.units import Duration
    >>> Criticality(Duration(10**12), 0.5, (), simulations=1).as_json()["healthy_s"]
    1.0
    """

    healthy: Duration
    """The step without a slower part."""
    derate: float
    rows: tuple[RankedPart, ...]
    simulations: int
    left: int = 0
    """Parts that were not reached before the study was interrupted."""

    def as_json(self, top: int | None = None) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "healthy_s": seconds(self.healthy),
            "derate": self.derate,
            "simulations": self.simulations,
            "left": self.left,
            "rows": [
                {
                    "kind": row.part.kind,
                    "name": row.part.name,
                    "step_time_s": seconds(row.step_time),
                    "cost_s": seconds(row.cost),
                    "slowdown": row.step_time / max(self.healthy, 1),
                    "source": row.source,
                }
                for row in self.rows[:top]
            ],
        }

    def heat_map(self, machine: Machine) -> Picture:
        """Return a picture in which colours show the cost of links and nodes: 1 is the costliest of its kind.

        A GPU is filled by the cost of its own speed and outlined by that of its links.
        """
        links = {link: share for part, share in self._shares("link") for link in part.links}
        gpus = {gpu: share for part, share in self._shares("gpu") for gpu in part.gpus}
        nodes = {
            find_node(machine.fabric, part.name): share
            for kind in ("nic", "switch", "endpoint")
            for part, share in self._shares(kind)
        }
        return replace(
            picture(machine, links),
            title=f"{machine.name}: what each part costs at {self.derate:g} of its speed",
            load_label="cost, as a share of the costliest of its kind",
            gpu_load=gpus or None,
            node_load=nodes or None,
        )

    def _shares(self, kind: str) -> Iterator[tuple[MachinePart, float]]:
        rows = [row for row in self.rows if row.part.kind == kind]
        most = max((row.cost for row in rows), default=0)
        for row in rows:
            yield row.part, max(row.cost, 0) / max(most, 1)


def criticality(
    subject: Job | TraceSet,
    machine: Machine,
    *,
    derate: float = 0.5,
    kinds: Sequence[Kind] = KINDS,
    how: How = How(),  # noqa: B008 - frozen
) -> Criticality:
    """Rank parts of a machine by the cost to the step if one alone has a share `derate` of its speed.

    A link loses bandwidth in both directions, a GPU arithmetic and memory bandwidth; a NIC, a switch and a
    GPU as an endpoint of the fabric the bandwidth of all their links; a server both of its GPUs and links.
    A keyboard interrupt ends the study with what is finished. `InputError` for a derate outside 0 to 1, and
    for kinds that the machine has nothing of.

    >>> from rapid_des.machine import load_machine
    >>> from rapid_des.simulation import load_trace
    >>> two_stages = load_trace("workloads/traces/two_stages")
    >>> ranked = criticality(two_stages, load_machine("dgx_a100"), kinds=["gpu"])
    >>> len(ranked.rows), ranked.rows[0].cost > 0
    (2, True)
    """
    if not 0 < derate < 1:
        raise InputError(f"derate {derate}: allowed: above 0 and below 1")
    study = _CriticalityStudy(subject, machine, derate, how)
    return study.ranked(parts_of(machine, kinds, gpus=study.gpus))


def alike_places(
    subject: Job | TraceSet, machine: Machine, kind: Kind, names: Sequence[str], how: How
) -> list[list[int]]:
    """Return the numbers of parts of one kind, given by name, that cost the same: class by class.

    A healthy step is simulated in mode flattened to find out.
    """
    study = _CriticalityStudy(subject, machine, 0.5, replace(how, mode="flattened"))
    places = {part.name: part for part in parts_of(machine, [kind], gpus=range(machine.fabric.gpus))}
    prefix = "" if kind == "link" else kind
    parts = [places.get(name if name in places else f"{prefix}{name}") for name in names]
    number = {part: place for place, part in enumerate(parts) if part is not None}
    classes = study.classes([part for part in parts if part is not None])
    alone = [[place] for place, part in enumerate(parts) if part is None]
    return [*([number[part] for part in alike] for alike in classes), *alone]


class _CriticalityStudy:
    """The healthy run, and all that follows from the runs so far."""

    def __init__(self, subject: Job | TraceSet, machine: Machine, derate: float, how: How) -> None:
        self.subject, self.machine, self.derate, self.how = subject, machine, derate, how
        self.cache = BoundedCache(1 << 28)
        how.report("healthy run")
        flat = replace(how, mode="flattened")
        self.flat = step_of(subject, machine, flat, self.cache)
        step = self.flat if how.mode == "flattened" else step_of(subject, machine, how, self.cache)
        self.healthy = step.step_time
        assert self.flat.run is not None
        self.run = self.flat.run
        ranks = [binding.rank for binding in self.run.lowered.program.bindings]
        self.gpus = frozenset(ranks)
        self.position = {rank: position for position, rank in enumerate(ranks)}
        self.used = frozenset(np.unique(self.run.lowered.program.route_links).tolist())
        self.load = self.run.execution.records.link_busy.sum(axis=1)
        self.simulations = 0

    @cached_property
    def _again(self) -> bool:
        """Whether a machine with a slower part has the healthy program, with other times and rates."""
        plain = keeps_routes(self.machine) and not self.machine.faults and not self.machine.slowed
        steps = not isinstance(self.subject, Job) or self.subject.spec.phase == "training"
        ordered = not self.run.lowered.traces.unordered_streams
        return self.how.mode == "flattened" and plain and steps and ordered

    @cached_property
    def _slow(self) -> TraceSet:
        """The traces of the machine all of whose GPUs are slower."""
        slower = [Fault(gpu=gpu, compute=self.derate, hbm=self.derate) for gpu in sorted(self.gpus)]
        machine = self.machine.with_faults(slower)
        if isinstance(self.subject, Job):
            return price(self.subject, machine, cache=self.cache).traces
        return stretched(self.subject, machine)

    def ranked(self, parts: Sequence[MachinePart]) -> Criticality:
        rows: dict[MachinePart, RankedPart] = {}
        classes = self.classes(parts) if self.how.symmetry else [[part] for part in parts]
        try:
            for number, alike in enumerate(classes, start=1):
                self.how.report(
                    f"{number}/{len(classes)}: {alike[0].kind} {alike[0].name}, {len(alike)} alike"
                )
                rows |= {row.part: row for row in self._rows_of(alike)}
        except KeyboardInterrupt:
            if not rows:
                raise
            self.how.report("interrupted: what is finished follows")
        order = {part: number for number, part in enumerate(parts)}
        ranked = sorted(rows.values(), key=lambda row: (-row.cost, order[row.part]))
        return Criticality(
            self.healthy, self.derate, tuple(ranked), self.simulations, left=len(parts) - len(rows)
        )

    def classes(self, parts: Sequence[MachinePart]) -> list[list[MachinePart]]:
        """Return parts that cost the same, the most loaded class first."""
        idle = [part for part in parts if not any(self._signature(part)[1:])]
        by_signature: dict[_Signature, MachinePart] = {}
        alike = {part: by_signature.setdefault(self._signature(part), part) for part in parts}
        alike |= {part: idle[0] for part in idle}

        def head(part: MachinePart) -> MachinePart:
            while alike[part] is not part:
                part = alike[part]
            return part

        order = {part: number for number, part in enumerate(parts)}
        for rotation in rotations(self.run.lowered.program):
            for part in parts:
                loss, links, positions = self._signature(part)
                other = by_signature.get(
                    (loss, _moved(rotation.link, links), _moved(rotation.position, positions))
                )
                if other is not None and (links or positions):
                    low, high = sorted((head(part), head(other)), key=order.__getitem__)
                    alike[high] = low
        classes: dict[MachinePart, list[MachinePart]] = {}
        for part in parts:
            classes.setdefault(head(part), []).append(part)
        return sorted(classes.values(), key=lambda alike: -int(self.load[sorted(alike[0].links)].sum()))

    def _signature(self, part: MachinePart) -> _Signature:
        """Return what of a part affects the program: parts with equal signatures cost the same."""
        positions = frozenset(self.position[gpu] for gpu in part.gpus if gpu in self.position)
        loss = part.kind if part.gpus else "bandwidth"
        return loss, part.links & self.used, positions

    def _rows_of(self, alike: Sequence[MachinePart]) -> Iterator[RankedPart]:
        """Yield the rows of parts that cost the same, by one simulation at most."""
        first = alike[0]
        if self.how.symmetry and not any(self._signature(first)[1:]):
            for part in alike:
                yield RankedPart(part, self.healthy, 0, "carries nothing")
            return
        step = self._degraded(first)
        yield self._row(first, step, "simulated")
        for part in alike[1:]:
            same = self._signature(part) == self._signature(first)
            yield self._row(part, step, f"{'the links of' if same else 'mirrors'} {first.name}")

    def _row(self, part: MachinePart, step: Duration, source: str) -> RankedPart:
        return RankedPart(part, step, step - self.healthy, source)

    def _degraded(self, part: MachinePart) -> Duration:
        """Return the step time if a part is slower."""
        self.simulations += 1
        machine = self.machine.with_faults([part.fault(self.derate)])
        if not self._again:
            return step_of(self.subject, machine, self.how, self.cache).step_time
        healthy = self.run.lowered
        traces = healthy.traces
        if part.gpus:
            traces = on_slow_gpus(traces, dict.fromkeys(part.gpus, self._slow))
        lowered = lower_again(healthy, traces, machine) if part.gpus else healthy
        lowered = slowed(lowered, machine, lambda on: lower(traces, on, cache=self.cache))
        records = execute(lowered.program, self.how.engine, name=lowered.name).records
        return Duration(records.makespan)


def _moved(permutation: Int64s, ids: frozenset[int]) -> frozenset[int]:
    return frozenset(permutation[sorted(ids)].tolist())


def parts_of(machine: Machine, kinds: Sequence[Kind], *, gpus: Collection[int]) -> tuple[MachinePart, ...]:
    """Return the working parts of some kinds, in the order of KINDS, each by ascending id.

    `gpus` are those that run a program: other GPUs count with their links only, and servers without one of
    these GPUs are left out. `InputError` if the machine has no part of any of the kinds (servers need
    `gpus_per_node`).
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
    made = tuple(part for kind in KINDS if kind in kinds for part in makers[kind])
    if not made:
        why = ", as it states no gpus_per_node" if "node" in kinds and not machine.spec.gpus_per_node else ""
        wanted = " or ".join(plural for plural, kind in PLURALS.items() if kind in kinds)
        raise InputError(f"{machine.path}: the machine has no {wanted}{why}")
    return made


def _links(machine: Machine) -> Iterator[MachinePart]:
    fabric = machine.fabric
    ends = dict[tuple[int, int], int]()
    for link, pair in enumerate(zip(fabric.source.tolist(), fabric.destination.tolist(), strict=True)):
        if link not in machine.dead:
            ends[pair] = link
    for (source, destination), link in ends.items():
        back = ends.get((destination, source))
        if back is None:
            yield MachinePart("link", fabric.link_name(link), frozenset({link}), frozenset())
        elif source < destination:
            name = f"{fabric.node_name(source)}-{fabric.node_name(destination)}"
            yield MachinePart("link", name, frozenset({link, back}), frozenset())


def _gpus(gpus: Collection[int]) -> Iterator[MachinePart]:
    for gpu in sorted(gpus):
        yield MachinePart("gpu", f"gpu{gpu}", frozenset(), frozenset({gpu}))


def _of_fabric(machine: Machine, kind: Literal["nic", "switch", "endpoint"]) -> Iterator[MachinePart]:
    """Yield a part for each of the fabric's nodes of a kind that has a working link."""
    first, count = node_range(machine.fabric, "gpu" if kind == "endpoint" else kind)
    names = [machine.fabric.node_name(node) for node in range(first, first + count)]
    faults = [_at_links(kind, name, 0.5) for name in names]
    for name, (_, hit) in zip(names, hits(machine.healthy, faults), strict=True):
        links = frozenset(hit.links.tolist()) - machine.dead
        if links:
            yield MachinePart(kind, name, links, frozenset())


def _at_links(kind: Kind, name: str, derate: float) -> Fault:
    """Return the fault that leaves a share of the rate of all links of a fabric's node."""
    if kind == "nic":
        return Fault(nic=name, bandwidth=derate)
    return Fault(switch=name, bandwidth=derate) if kind == "switch" else Fault(gpu=name, bandwidth=derate)


def _servers(machine: Machine, gpus: Collection[int]) -> Iterator[MachinePart]:
    size = machine.spec.gpus_per_node
    for node in range(machine.fabric.gpus // size if size else 0):
        fault = Fault(node=node, bandwidth=0.5)
        ((_, hit),) = hits(machine.healthy, [fault], size)
        members = frozenset(hit.gpus.tolist())
        if not members.isdisjoint(gpus):
            links = frozenset(np.setdiff1d(hit.links, sorted(machine.dead)).tolist())
            yield MachinePart("node", f"node{node}", links, members)
