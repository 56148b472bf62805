"""Fault studies: one scenario against the healthy run, and how critical every part of a machine is.

Criticality asks for each part of the machine what it costs the step if that part alone is slower. Three facts
of the healthy run spare simulations without changing the answer: a part that carries nothing costs nothing;
parts of the same busy links, and those that a proven rotation of the program maps onto each other, cost the
same, up to the order in which a link serves transfers that become ready at one instant (tens of
picoseconds); and traces that a fault does not reprice are lowered again, not built again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import TraceSet
from rapid_des.errors import InputError
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.modes.pricing import price
from rapid_des.modes.symmetry import rotations
from rapid_des.network.faults import Fault
from rapid_des.network.nodes import find_node
from rapid_des.report.fabric_picture import Picture, picture
from rapid_des.report.result import Result
from rapid_des.simulation import replay, simulate
from rapid_des.studies.parts import KINDS, Kind, Part, parts_of
from rapid_des.studies.scenario import Scenario, compared
from rapid_des.units import Duration, seconds

Report = Callable[[str], None]
_Mark = tuple[str, frozenset[int], frozenset[int]]
"""What of its speed a part loses, its links that carry something, and the positions of its ranks."""


@dataclass(frozen=True)
class How:
    """How a study runs its simulations, and whom it tells about each."""

    mode: str = "flattened"
    engine: EngineChoice = EngineChoice()
    report: Report = lambda _: None
    symmetry: bool = True
    """Spare what symmetry and idle links make superfluous; without it every part is simulated."""


@dataclass(frozen=True)
class Ranked:
    """What a part's degradation costs."""

    part: Part
    step_time: Duration
    cost: int
    """Picoseconds over the healthy step."""
    source: str
    """simulated; carries nothing; or the part that it is a mirror image of, or has all busy links of."""


@dataclass(frozen=True)
class Criticality:
    """Every part by what it costs, the costliest first, equals in the order of KINDS and ids."""

    healthy: Result
    derate: float
    rows: tuple[Ranked, ...]
    simulations: int
    left: int = 0
    """Parts that were not reached before the study was interrupted."""

    def as_json(self, top: int | None = None) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "healthy_s": seconds(self.healthy.step_time),
            "derate": self.derate,
            "simulations": self.simulations,
            "left": self.left,
            "rows": [
                {
                    "kind": row.part.kind,
                    "name": row.part.name,
                    "step_time_s": seconds(row.step_time),
                    "cost_s": seconds(row.cost),
                    "slowdown": row.step_time / max(self.healthy.step_time, 1),
                    "source": row.source,
                }
                for row in self.rows[:top]
            ],
        }

    def heat_map(self, machine: Machine) -> Picture:
        """Return a drawing whose links and nodes have their cost as colour, 1 the costliest of its kind.

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

    def _shares(self, kind: str) -> Iterator[tuple[Part, float]]:
        rows = [row for row in self.rows if row.part.kind == kind]
        most = max((row.cost for row in rows), default=0)
        for row in rows:
            yield row.part, max(row.cost, 0) / max(most, 1)


def scenario(subject: Job | TraceSet, machine: Machine, faults: Sequence[Fault], how: How) -> Scenario:
    """Return a step with faults on top of the machine's own, beside the step without them."""
    cache = BoundedCache()
    how.report("healthy run")
    healthy = _measured(subject, machine, how, cache)
    how.report("run with faults")
    return compared(healthy, _measured(subject, machine.with_faults(faults), how, cache))


def criticality(
    subject: Job | TraceSet,
    machine: Machine,
    *,
    derate: float,
    kinds: Sequence[Kind] = KINDS,
    how: How = How(),  # noqa: B008 - frozen
) -> Criticality:
    """Rank parts of a machine by what it costs the step if one alone is at a share `derate` of its speed.

    A link loses bandwidth in both directions, a GPU arithmetic and memory bandwidth; a NIC, a switch and a
    GPU as an endpoint of the fabric the bandwidth of all their links; a server both of its GPUs and links.
    A keyboard interrupt ends the study with what is finished.
    """
    if not 0 < derate < 1:
        raise InputError(f"derate {derate}: allowed: above 0 and below 1")
    study = _Study(subject, machine, derate, how)
    return study.ranked(parts_of(machine, kinds, gpus=study.gpus))


def _measured(subject: Job | TraceSet, machine: Machine, how: How, cache: BoundedCache) -> Result:
    if isinstance(subject, Job):
        return simulate(subject, machine, mode=how.mode, engine=how.engine, cache=cache)
    if how.mode != "flattened":
        raise InputError(f"mode {how.mode}: traces have no blocks; use mode flattened")
    return replay(subject, machine, engine=how.engine, cache=cache)


class _Study:
    """The healthy run, and what is already known from the runs so far."""

    def __init__(self, subject: Job | TraceSet, machine: Machine, derate: float, how: How) -> None:
        self.subject, self.machine, self.derate, self.how = subject, machine, derate, how
        self.cache = BoundedCache()
        how.report("healthy run")
        flat = replace(how, mode="flattened")
        self.flat = _measured(subject, machine, flat, self.cache)
        other = how.mode != "flattened"
        self.healthy = _measured(subject, machine, how, self.cache) if other else self.flat
        assert self.flat.run is not None
        self.run = self.flat.run
        ranks = [binding.rank for binding in self.run.lowered.program.bindings]
        self.gpus = frozenset(ranks)
        self.position = {rank: position for position, rank in enumerate(ranks)}
        self.used = frozenset(np.unique(self.run.lowered.program.route_links).tolist())
        self.load = self.run.execution.records.link_busy.sum(axis=1)
        self.priced = self._priced()
        self.simulations = 0

    def _priced(self) -> TraceSet | None:
        """Return the traces that link faults do not reprice, where a replay of them is the whole answer."""
        if self.how.mode != "flattened" or not isinstance(self.subject, Job):
            return None
        trained = self.subject.spec.phase == "training"
        if not trained or self.machine.faults:
            return None
        return price(self.subject, self.machine, cache=self.cache).traces

    def ranked(self, parts: Sequence[Part]) -> Criticality:
        rows: dict[Part, Ranked] = {}
        classes = self._classes(parts) if self.how.symmetry else [[part] for part in parts]
        try:
            for number, alike in enumerate(classes, start=1):
                self.how.report(
                    f"{number}/{len(classes)}: {alike[0].kind} {alike[0].name}, {len(alike)} alike"
                )
                rows |= {row.part: row for row in self._class(alike)}
        except KeyboardInterrupt:
            self.how.report("interrupted: what is finished follows")
        order = {part: place for place, part in enumerate(parts)}
        ranked = sorted(rows.values(), key=lambda row: (-row.cost, order[row.part]))
        return Criticality(
            self.healthy, self.derate, tuple(ranked), self.simulations, left=len(parts) - len(rows)
        )

    def _classes(self, parts: Sequence[Part]) -> list[list[Part]]:
        """Return parts that cost the same, the most loaded class first."""
        idle = [part for part in parts if not any(self._mark(part)[1:])]
        by_mark: dict[_Mark, Part] = {}
        alike = {part: by_mark.setdefault(self._mark(part), part) for part in parts}
        alike |= {part: idle[0] for part in idle}

        def head(part: Part) -> Part:
            while alike[part] is not part:
                part = alike[part]
            return part

        order = {part: place for place, part in enumerate(parts)}
        for rotation in rotations(self.run.lowered.program):
            for part in parts:
                loss, links, positions = self._mark(part)
                other = by_mark.get(
                    (loss, _moved(rotation.link, links), _moved(rotation.position, positions))
                )
                if other is not None and (links or positions):
                    low, high = sorted((head(part), head(other)), key=order.__getitem__)
                    alike[high] = low
        classes: dict[Part, list[Part]] = {}
        for part in parts:
            classes.setdefault(head(part), []).append(part)
        return sorted(classes.values(), key=lambda mine: -int(self.load[sorted(mine[0].links)].sum()))

    def _mark(self, part: Part) -> _Mark:
        """Return what of a part the program notices: parts of equal marks cost the same."""
        positions = frozenset(self.position[gpu] for gpu in part.gpus if gpu in self.position)
        loss = part.kind if part.gpus else "bandwidth"
        return loss, part.links & self.used, positions

    def _class(self, alike: Sequence[Part]) -> Iterator[Ranked]:
        first = alike[0]
        if self.how.symmetry and not any(self._mark(first)[1:]):
            for part in alike:
                yield Ranked(part, self.healthy.step_time, 0, "carries nothing")
            return
        result = self._degraded(first)
        yield self._row(first, result, "simulated")
        for part in alike[1:]:
            same = self._mark(part) == self._mark(first)
            yield self._row(part, result, f"{'the links of' if same else 'mirrors'} {first.name}")

    def _row(self, part: Part, result: Result, source: str) -> Ranked:
        return Ranked(part, result.step_time, result.step_time - self.healthy.step_time, source)

    def _degraded(self, part: Part) -> Result:
        self.simulations += 1
        machine = self.machine.with_faults([part.fault(self.derate)])
        if self.priced is not None and not part.gpus:
            return replay(self.priced, machine, engine=self.how.engine)
        return _measured(self.subject, machine, self.how, self.cache)


def _moved(image: NDArray[np.int64], parts: frozenset[int]) -> frozenset[int]:
    return frozenset(image[sorted(parts)].tolist())
