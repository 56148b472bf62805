"""The critical path of a simulated step: which work, messages and waits decide when it ends.

off_path     the slack of what is not on it, what would be next, and who waits on links for whom
slack        the latest times of all visits
walk         the chain of visits from the end back to time 0, and which visits met in a collective
here         what each step of the chain is called, and the part of the step that a run left out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

from rapid_des.chakra.trace import NodeKind
from rapid_des.errors import UnsupportedByEngine
from rapid_des.modes.execution import Run
from rapid_des.program.lowering import Lowered
from rapid_des.program.program import NONE
from rapid_des.report.attribution import unnumbered
from rapid_des.report.colours import COMPUTE, HOST, KIND_ORDER
from rapid_des.report.critical_path.walk import Chain, Step, StepKind
from rapid_des.report.result import Result
from rapid_des.units import Duration, seconds
from rapid_des.values import replace

LATENCY, QUEUEING = "latency", "queueing"
"""Causes besides computing, the kinds of communication and the host."""
_COMMUNICATES = frozenset(map(int, (NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV)))


class PathPart(Struct, frozen=True):
    """A stretch of the critical path."""

    cause: str
    """What the step waits for: `compute`, a kind of communication, `host`, `queueing` or `latency`."""
    operator: str
    """The operator, collective or message, without the numbers of its layer and micro-batch."""
    rank: int
    start: int
    """The start of the stretch in picoseconds."""
    length: int
    """The length of the stretch in picoseconds."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "cause": self.cause,
            "operator": self.operator,
            "rank": self.rank,
            "start_s": seconds(self.start),
            "length_s": seconds(self.length),
            "length_ps": self.length,
        }


class CriticalPath(Struct, frozen=True):
    """The parts of a step's critical path in the order of time; their lengths add up to the step time."""

    step_time: Duration
    parts: tuple[PathPart, ...]
    has_blocks: bool = False
    """Whether compute contains blocks of a model with the messages inside them."""

    @property
    def by_cause(self) -> Mapping[str, int]:
        """The picoseconds of each cause, the largest first."""
        return _largest((part.cause, part.length) for part in self.parts)

    @property
    def by_operator(self) -> Mapping[tuple[str, str], int]:
        """The picoseconds of each cause and operator, the largest first."""
        return _largest(((part.cause, part.operator), part.length) for part in self.parts)

    @property
    def crossings(self) -> int:
        """The number of times that the path goes on at another rank, because it waits for that one's work."""
        return sum(before.rank != after.rank for before, after in pairwise(self.parts))

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "step_time_s": seconds(self.step_time),
            "step_time_ps": int(self.step_time),
            "by_cause_s": {cause: seconds(time) for cause, time in self.by_cause.items()},
            "crossings": self.crossings,
            "path": [part.as_json() for part in self.parts],
        }


def _largest(amounts: Iterable[tuple[Any, int]]) -> dict[Any, int]:
    sums: Counter[Any] = Counter()
    for key, amount in amounts:
        sums[key] += amount
    return dict(sorted(sums.items(), key=lambda entry: (-entry[1], entry[0])))


def critical_path(result: Result) -> CriticalPath:
    """Return the critical path of a result; `UnsupportedByEngine` if the result has lost its run.

    >>> from rapid_des.machine import load_machine
    >>> from rapid_des.simulation import load_trace, replay
    >>> result = replay(load_trace("workloads/traces/two_stages"), load_machine("dgx_a100"))
    >>> path = critical_path(result)
    >>> sum(part.length for part in path.parts) == result.step_time, path.crossings
    (True, 2)
    """
    run = result.run if result.blocks is None else result.blocks.run
    if run is None:
        raise UnsupportedByEngine("this result has no run to read a critical path from; simulate it again")
    parts = run_parts(run, result.stream_kinds)
    repeated = None if result.blocks is None else result.blocks.repeated
    if repeated is not None:
        period = _within(parts, repeated.begin, repeated.end)
        longer = [replace(part, length=part.length * repeated.times) for part in _merged(period)]
        parts = [*_within(parts, 0, repeated.end), *longer, *_within(parts, repeated.end, result.step_time)]
    requests = result.figures.requests if result.figures else None
    if requests is not None:
        parts = [*parts, *_stretched(_within(parts, requests.first_token, result.step_time), requests.total)]
    whole = tuple(_one_after_another(parts, int(result.step_time)))
    return CriticalPath(result.step_time, whole, has_blocks=result.blocks is not None)


def run_parts(run: Run, kinds: Mapping[str, str] | None = None) -> list[PathPart]:
    """Return the critical path of a run; `kinds` maps streams to kinds, by default a stream is its own."""
    chain = Chain(run.lowered.program, run.execution.records)
    namer = Namer(run.lowered, kinds or {})
    return [namer.part(step, *chain.place(step.visit)) for step in chain.steps()]


class Namer:
    """Names the steps of a chain."""

    def __init__(self, lowered: Lowered, kinds: Mapping[str, str]) -> None:
        self._lowered, self._kinds = lowered, kinds

    def part(self, step: Step, position: int, number: int) -> PathPart:
        """Return the part for a step about a visit of the rank at a position of the bindings."""
        program = self._lowered.program
        table = program.programs[program.bindings[position].program]
        holder = number if table.node[number] != NONE else int(table.parent[number])
        node = int(table.node[holder]) if holder != NONE else NONE
        nodes = self._lowered.traces.ranks[position].nodes
        name = "" if node == NONE else unnumbered(nodes.names)[nodes.name[node]]
        cause = {StepKind.ISSUE: HOST, StepKind.LAG: LATENCY, StepKind.QUEUE: QUEUEING}.get(step.kind)
        if cause is None:
            cause = LATENCY if node == NONE else self._cause(position, node)
        rank = program.bindings[position].rank
        return PathPart(cause, name, rank, step.begin, step.end - step.begin)

    def named(self, position: int, node: int) -> tuple[str, str]:
        """Return what a node of a rank's trace counts for, and its name without numbers."""
        nodes = self._lowered.traces.ranks[position].nodes
        return self._cause(position, node), unnumbered(nodes.names)[nodes.name[node]]

    def _cause(self, position: int, node: int) -> str:
        nodes = self._lowered.traces.ranks[position].nodes
        if nodes.on_cpu[node]:
            return HOST
        stream = int(nodes.stream[node])
        name = nodes.streams[stream] if 0 <= stream < len(nodes.streams) else "messages"
        kind = self._kinds.get(name, name)
        talks = int(nodes.kind[node]) in _COMMUNICATES or (self._kinds and kind in KIND_ORDER)
        return kind if talks else COMPUTE


def _within(parts: Sequence[PathPart], begin: int, end: int) -> list[PathPart]:
    """Return what of the parts falls into a window."""
    clipped = []
    for part in parts:
        start, finish = max(part.start, begin), min(part.start + part.length, end)
        if finish > start:
            clipped.append(replace(part, start=start, length=finish - start))
    return clipped


def _merged(parts: Sequence[PathPart]) -> list[PathPart]:
    """Return one part for all of one cause, operator and rank, in the order of the first ones."""
    lengths: Counter[tuple[str, str, int]] = Counter()
    for part in parts:
        lengths[part.cause, part.operator, part.rank] += part.length
    return [PathPart(*key, 0, length) for key, length in lengths.items()]


def _stretched(decoding: Sequence[PathPart], total: int) -> list[PathPart]:
    """Return parts for the decode steps that were not simulated: shares as in those that were."""
    known = _merged(decoding)
    if not decoding or total <= (end := decoding[-1].start + decoding[-1].length):
        return []
    simulated = sum(part.length for part in known)
    longer = [part.length * (total - end) // simulated for part in known]
    longer[0] += total - end - sum(longer)
    return [replace(part, length=length) for part, length in zip(known, longer, strict=True)]


def _one_after_another(parts: Sequence[PathPart], end: int) -> Iterator[PathPart]:
    """Yield parts that begin where the one before ended, up to an end."""
    moment = 0
    for part in parts:
        length = min(part.length, end - moment)
        if length > 0:
            yield replace(part, start=moment, length=length)
        moment += length
    assert moment == end, "the parts of a critical path do not add up to the step"
