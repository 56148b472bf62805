"""When every stage of a pipeline is done at the earliest, by a walk through its schedule of whole passes.

Each pass starts when the one before it on its stage is done, its input is there and, where units are
gathered, its first unit is whole. Passes, messages and gathers take what they take alone; what else a stage
waits for is left out, so no simulation is faster. Closed forms (`earliest`) are cheaper, and less.

Of a long step a short one is walked in whose middle each stage pauses for as long as it needs for what is
left out. A chain of waiting leads from the short step's first half to its second on one stage, and in the
long step goes through all that this stage does in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import NamedTuple

import msgspec
from msgspec import Struct

from rapid_des.frontend import Job
from rapid_des.frontend.parts import ModelSection
from rapid_des.frontend.schedules.schedule import StageOrders
from rapid_des.studies.earliest import End, Times, passes_alone
from rapid_des.studies.made_of import Parts
from rapid_des.values import replace

_REPEATING = ("1f1b", "interleaved_1f1b")
"""Schedules whose middle repeats itself, group of micro-batches by group."""
_MOST = 1 << 16
"""Passes of units up to which a schedule is walked."""
_NEVER = -(1 << 60)
"""Picoseconds: what ends then ends before anything begins."""

Unit = tuple[ModelSection, ...]
"""Sections whose gradients travel together, in the order of their backwards: one, or all of a chunk."""


class Bucket(NamedTuple):
    """A message of gradients: from when on after its unit's backward begins, and how long it travels."""

    ready: int
    takes: int


@dataclass(frozen=True)
class Alone:
    """What a job's passes and messages take alone, in picoseconds."""

    times: Times
    message: Mapping[tuple[int, int], int] = field(default_factory=dict, hash=False)
    """From one stage to another."""
    gathers: Mapping[tuple[ModelSection, bool], int] = field(default_factory=dict, hash=False)
    """Of a unit's parameters before each of its passes, as `times` has them; empty where none are."""
    reduces: Mapping[Unit, Sequence[Bucket]] = field(default_factory=dict, hash=False)
    """Of a unit's gradients after each of its backwards; empty where none are."""

    before: int = 0
    """Before the first pass, on the stream of kernels."""

    def lessened(self, share: float) -> Alone:
        """Return the same with this share of all times, rounded down."""
        return Alone(
            {key: floor(share * time) for key, time in self.times.items()},
            {key: floor(share * time) for key, time in self.message.items()},
            {key: floor(share * time) for key, time in self.gathers.items()},
            {
                unit: [Bucket(floor(share * ready), floor(share * takes)) for ready, takes in buckets]
                for unit, buckets in self.reduces.items()
            },
            floor(share * self.before),
        )


def can_be_walked(job: Job) -> bool:
    """Tell whether a schedule is one of whole passes, one after the other, and not too long."""
    return (
        _units(job) <= _MOST
        and passes_alone(job)
        and sum(map(len, job.placement)) == job.parts
        and not job.training.offload_activations
    )


def walked_micro_batches(job: Job) -> int:
    """Return of how many of its micro-batches a step is walked: of a long one that repeats itself, of few.

    What is left out are whole groups; every stage has settled where they would stand, in the middle.
    """
    training, group, count = job.training, job.shape.in_group, job.micro_batches
    if _units(job) <= _MOST or training.schedule not in _REPEATING or training.overlap_batches:
        return count
    return min(count, 2 * _half(job) * group + count % group)


def _half(job: Job) -> int:
    """Return after how many groups of micro-batches every stage has settled."""
    return 1 if job.shape.chunks == 1 else 2


def _units(job: Job) -> int:
    return 2 * (sum(job.layers) + 2) * job.micro_batches


class Turn(NamedTuple):
    """A pass of a stage. A micro-batch's first step is its forward through part 0, its last the backward."""

    stage: int
    step: int
    micro_batch: int


class Course(Struct, frozen=True):
    """What a walk goes through, however long passes take."""

    job: Job
    parts: Parts
    turns: Sequence[Turn]


def turns_of(orders: StageOrders) -> list[Turn]:
    """Return all passes in one order in which they can run, each stage as far as it gets.

    Of whole passes, each part of the model on one stage.
    """
    last = 2 * sum(map(len, orders.placement)) - 1
    turns, done, places = list[Turn](), set[tuple[int, int]](), [0] * len(orders.orders)
    before = -1
    while before < len(turns):
        before = len(turns)
        for stage, order in enumerate(orders.orders):
            placed = orders.placement[stage]
            for item in order[places[stage] :]:
                part = placed[item.chunk]
                step = last - part if item.phase == "backward" else part
                if step and (step - 1, item.micro_batch) not in done:
                    break
                done.add((step, item.micro_batch))
                turns.append(Turn(stage, step, item.micro_batch))
                places[stage] += 1
    return turns


class Slowed(Struct, frozen=True):
    """A stage beside whose kernels messages travel: of its passes something else counts (see `slowed`)."""

    stage: int
    alone: Alone
    """What counts of its own."""
    early: Times | None = None
    """What counts of all that have to be over before its first backward begins; None: what counts later."""


def walked(
    course: Course, alone: Alone, slowed: Slowed | None = None, *, left_out: int = 0
) -> tuple[End, ...]:
    """Return when each stage is done at the earliest, given what passes take alone.

    With micro-batches `left_out` (whole groups of them) in the middle, for a step of so many more.
    """
    walk, last = _Walk(course, alone, slowed), 2 * course.job.parts - 1
    walk.run(left_out)
    return tuple(
        End(max(stage.free, stage.stream), min(stage.begun[last - part] for part in parts))
        for stage, parts in zip(walk.stages, course.job.placement, strict=True)
    )


class _Stage(Struct):
    free: int
    """When its newest pass is done."""
    gate: int = 0
    """When its newest message has left, if it waits for that."""
    sends: int = 0
    """When its line of messages is free."""
    stream: int = 0
    """When its line of gathers and reductions is free."""
    begun: dict[int, int] = msgspec.field(default_factory=dict)
    """By step: when its newest pass begins."""
    whole: set[int] = msgspec.field(default_factory=set)
    """Parts of the model whose parameters are whole."""


class _Travel(NamedTuple):
    """How long a line is taken by messages that follow one another."""

    total: int
    """By all of them."""
    last: int
    """Until when after their unit's backward begins, if the line is idle."""

    @classmethod
    def of(cls, buckets: Sequence[Bucket]) -> _Travel:
        """Return that of the messages of a unit; of none it is never."""
        total, last = 0, _NEVER
        for ready, takes in reversed(buckets):
            total += takes
            last = max(last, ready + total)
        return cls(total, last)


class _Pass(NamedTuple):
    """What a pass takes alone, by unit in the order in which it passes them: one where none is gathered."""

    times: Sequence[int]
    gathers: Sequence[Sequence[int]]
    """Those that are asked for as each unit's turn comes; empty where none are."""
    travels: Sequence[_Travel]
    """What each unit's gradients do; empty where none travel, and units are one."""
    all: int
    """Of all units."""

    @classmethod
    def of(cls, sections: Sequence[ModelSection], alone: Alone, ahead: int, *, backward: bool) -> _Pass:
        """Return that of a part of these sections, whose units are asked for so far ahead."""
        order = tuple(sections[::-1] if backward else sections)
        times = [alone.times[section, backward] for section in order]
        units: list[Unit] = [(section,) for section in order] if alone.gathers else [order]
        reduces = backward and bool(alone.reduces)
        travels = [_Travel.of(alone.reduces[unit] if reduces else ()) for unit in units]
        if not alone.gathers:
            return cls([sum(times)], (), travels if reduces else (), sum(times))
        takes = [alone.gathers[section, backward] for section in order]
        asked = [takes[:ahead], *([each] for each in takes[ahead:])]
        return cls(times, asked + [()] * (len(units) - len(asked)), travels, sum(times))


class _Walk:
    """The state of a walk: of its stages."""

    def __init__(self, course: Course, alone: Alone, slowed: Slowed | None) -> None:
        job = self.job = course.job
        self.steps = 2 * job.parts
        self.stages = [_Stage(alone.before) for _ in range(job.stages)]
        self.waits, self.keeps = not job.overlaps_pipeline, not job.training.reshard
        self.in_line = job.asks_by_need or job.stages <= 2
        stage_of = {part: stage for stage, parts in enumerate(job.placement) for part in parts}
        on = [stage_of[self._part(step)] for step in range(self.steps)]
        self.messages = [
            None if source == target else alone.message.get((source, target), 0)
            for source, target in zip(on, [*on[1:], on[-1]], strict=True)
        ]
        """By step: how long that takes which it sends; None where it sends nothing."""
        self.passes = _of_kinds(course, alone)
        self.phases = [(course.turns, self.passes)]
        if slowed is not None:
            mine = _of_kinds(course, slowed.alone)
            self.passes = [
                mine[step] if on[step] == slowed.stage else self.passes[step] for step in range(self.steps)
            ]
            early, late = _parted(course, slowed)
            before = _of_kinds(course, replace(alone, times=slowed.early or alone.times))
            self.phases = [(early, before), (late, self.passes)]

    def _part(self, step: int) -> int:
        """Return the part of the model that a step passes."""
        return min(step, self.steps - 1 - step)

    def run(self, left_out: int) -> None:
        """Run all passes; each stage pauses in the middle for as long as it needs for what is left out."""
        middle = _half(self.job) * self.job.shape.in_group if left_out else -1
        pauses = {parts[0]: left_out * self._micro_batch(parts) for parts in self.job.placement}
        ends = [[0] * self.job.micro_batches for _ in self.passes]
        for turns, passes in self.phases:
            self.passes = passes
            self._run(turns, ends, middle, pauses)

    def _run(
        self, turns: Sequence[Turn], ends: list[list[int]], middle: int, pauses: Mapping[int, int]
    ) -> None:
        """Run passes, noting when what each makes is there; some stages pause before one in the middle."""
        in_line, waits = self.in_line, self.waits
        for number, step, micro_batch in turns:
            stage, one, message = self.stages[number], self.passes[step], self.messages[step]
            if micro_batch == middle:
                stage.free += pauses.get(step, 0)
            newest = ends[step - 1][micro_batch] if step else stage.gate
            begun = newest if newest > stage.gate else stage.gate
            begun = stage.free if stage.free > begun else begun
            stage.begun[step] = begun
            end = stage.free = self._pass(stage, step, newest, begun) if one.gathers else begun + one.all
            for total, last in () if one.gathers else one.travels:
                stream, idle = stage.stream + total, begun + last
                stage.stream = stream if stream > idle else idle
            if message is not None:
                end = message + (stage.sends if in_line and stage.sends > end else end)
                stage.sends = end
                stage.gate = end if waits else 0
            ends[step][micro_batch] = end

    def _micro_batch(self, parts: Sequence[int]) -> int:
        """Return what a micro-batch takes on a stage of these parts, with the messages that it waits for."""
        steps = [step for part in parts for step in (part, self.steps - 1 - part)]
        messages = sum(self.messages[step] or 0 for step in steps) if self.waits else 0
        return sum(self.passes[step].all for step in steps) + messages

    def _pass(self, stage: _Stage, step: int, newest: int, done: int) -> int:
        """Return when a pass is done for which parameters are gathered; its input is there since `newest`.

        Each of its units begins after its parameters are whole. Those are asked for as `newest` comes, for
        the first ones, and as the unit before is `done`.
        """
        one, part, stream = self.passes[step], self._part(step), stage.stream
        gathers, whole = one.gathers, list[int]()
        if part in stage.whole:
            gathers, whole = [()] * len(one.times), [0] * len(one.times)
        for place, (time, asked, (total, last)) in enumerate(
            zip(one.times, gathers, one.travels, strict=True)
        ):
            for takes in asked:
                stream = (newest if newest > stream else stream) + takes
                whole.append(stream)
            begun = whole[place] if whole[place] > done else done
            newest = done = begun + time
            idle, stream = begun + last, stream + total
            stream = stream if stream > idle else idle
        stage.stream = stream
        if self.keeps and step == part:
            stage.whole.add(part)
        else:
            stage.whole.discard(part)
        return done


def _parted(course: Course, slowed: Slowed) -> tuple[Sequence[Turn], Sequence[Turn]]:
    """Return the passes that have to be over before a stage's first backward begins, and all others.

    Whatever a stage runs before one that has to be over has to be over too.
    """
    turns, early, late = course.turns, list[Turn](), list[Turn]()
    if slowed.early is None:
        return (), turns
    backward = (turn for turn in turns if turn.stage == slowed.stage and turn.step >= course.job.parts)
    first = turns.index(next(backward))
    stages, needed = {slowed.stage}, {(turns[first].step - 1, turns[first].micro_batch)}
    for turn in reversed(turns[:first]):
        if turn.stage in stages or turn[1:] in needed:
            stages.add(turn.stage)
            needed.add((turn.step - 1, turn.micro_batch))
            early.append(turn)
        else:
            late.append(turn)
    return early[::-1], [*late[::-1], *turns[first:]]


def _of_kinds(course: Course, alone: Alone) -> list[_Pass]:
    """Return by step what a pass takes alone; what is of a kind takes the same."""
    ahead = course.job.training.prefetch + 1
    both = [
        [_Pass.of(kind.sections, alone, ahead, backward=backward) for kind in course.parts.kinds]
        for backward in (False, True)
    ]
    kind_of = list(course.parts.kind_of)
    return [both[0][kind] for kind in kind_of] + [both[1][kind] for kind in kind_of[::-1]]
