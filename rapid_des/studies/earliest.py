"""When every stage of a pipeline is done at the earliest, given what passes, messages and gathers take alone.

    closed form    the forwards before its first + all its passes + the backwards after its last
    walk           its items in their order: each starts when the one before it is done, its input is there
                   and, where units are gathered, its first unit is whole

Of a long step a short one is walked in whose middle each stage pauses for as long as it needs for what is
left out. A chain of waiting leads from the short step's first half to its second on one stage, and in the
long step goes through all that this stage does in between.

Both leave out what else a stage waits for, so neither is above what is simulated. The walk is the longer.
`held` says how many micro-batches a stage has begun as its first backward begins: then it is about fullest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import floor
from typing import NamedTuple

from rapid_des.frontend import Job
from rapid_des.frontend.parts import Section, sections
from rapid_des.frontend.schedules.schedule import Item, Turn

Times = Mapping[tuple[Section, bool], int]
"""Picoseconds of one pass of a section: forward, or (true) all of its backward."""
Counts = Sequence[tuple[Section, int]]
"""How often each section is there."""
_WHOLE = ("gpipe", "1f1b", "interleaved_1f1b", "breadth_first")
"""Schedules that never take a backward apart."""
_REPEATING = ("1f1b", "interleaved_1f1b")
"""Those whose middle repeats itself, group of micro-batches by group."""
_MOST = 1 << 16
"""Passes of units up to which a schedule is walked."""


@dataclass(frozen=True)
class End:
    """When a stage is done at the earliest, in picoseconds."""

    drained: int
    """Its passes, and those of other stages that follow its last one."""
    last_backward: int
    """When the last backward begins of the chunk that is done first: its gradients travel then."""


def ends(job: Job, times: Times, made_of: Sequence[Counts]) -> tuple[End, ...]:
    """Return when each stage is done at the earliest by closed forms, given what parts are made of."""
    forward, backward = (_by_part(times, made_of, backward=back) for back in (False, True))
    to, back = [0, *accumulate(forward)], [0, *accumulate(backward)]
    defers = not passes_whole(job)
    share, count, in_turns = len(job.copies[0]), job.micro_batches, job.training.schedule == USUAL[1]
    stage_passes = []
    for parts in job.placement:
        passes = count * sum(forward[part] + backward[part] for part in parts) // share
        first, last = min(to[part] for part in parts), min(back[part] for part in parts)
        drained = first + passes + (0 if defers else last)
        if in_turns:
            last_group = job.shape.in_group * sum(backward[part] for part in parts)
            last_backward = first + max(passes - last_group, 0)
        else:
            own = [count * (forward[part] + backward[part]) // share for part in parts]
            last_backward = min(
                to[part] + time - backward[part] for part, time in zip(parts, own, strict=True)
            )
        stage_passes.append(End(drained, last_backward))
    return tuple(stage_passes)


def _by_part(times: Times, made_of: Sequence[Counts], *, backward: bool) -> list[int]:
    """Return how long each part of the model takes in one direction."""
    return [sum(count * times.get((section, backward), 0) for section, count in part) for part in made_of]


Unit = tuple[Section, ...]
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
    gathers: Mapping[tuple[Section, bool], int] = field(default_factory=dict, hash=False)
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


def passes_whole(job: Job) -> bool:
    """Tell whether a schedule never takes a backward apart; named ones tell without their stage orders."""
    schedule = job.training.schedule
    if isinstance(schedule, str):
        return schedule in _WHOLE
    return job.stage_orders.phases <= {"forward", "backward"}


def passes_alone(job: Job) -> bool:
    """Tell whether nothing of a stage computes while a pass waits for its own messages."""
    return passes_whole(job) and not job.training.overlap_batches


def can_be_walked(job: Job) -> bool:
    """Tell whether a schedule is one of whole passes, one after the other, and not too long."""
    return (
        _units(job) <= _MOST
        and passes_alone(job)
        and len(job.copies[0]) == 1
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


def walked(job: Job, alone: Sequence[Alone], *, left_out: int = 0) -> tuple[End, ...]:
    """Return when each stage is done at the earliest, by its items in the order of its schedule.

    With micro-batches `left_out` (whole groups of them) in the middle, for a step of so many more.
    """
    walk = _Walk(job, alone)
    walk.run(walk.pauses(left_out) if left_out else {})
    return tuple(
        End(max(walked.free, walked.stream), min(walked.last_backward.values())) for walked in walk.stages
    )


@dataclass
class _Stage:
    free: int = 0
    """When its newest item is done."""
    gate: int = 0
    """When its newest message has left, if it waits for that."""
    sends: int = 0
    """When its line of messages is free."""
    stream: int = 0
    """When its line of gathers and reductions is free."""
    last_backward: dict[int, int] = field(default_factory=dict)
    """By chunk: when its newest backward begins."""
    whole: dict[tuple[int, int], int] = field(default_factory=dict)
    """By chunk and unit: since when its parameters are whole."""


class _Pass(NamedTuple):
    """What one pass of a chunk takes alone, by unit in the order in which it passes them."""

    units: range
    times: Sequence[int]
    gathers: Sequence[int]
    reduces: Sequence[Sequence[Bucket]]
    all: int
    """Of all units."""

    @classmethod
    def of(cls, units: Sequence[Section], alone: Alone, *, backward: bool) -> _Pass:
        """Return that of a chunk of these units."""
        order = range(len(units))[:: -1 if backward else 1]
        times = [alone.times[units[unit], backward] for unit in order]
        gathers = [alone.gathers[units[unit], backward] for unit in order] if alone.gathers else []
        reduced: list[Unit] = []
        if backward and alone.reduces:
            chunk = tuple(units[unit] for unit in order)
            reduced = [(section,) for section in chunk] if alone.gathers else [chunk]
        reduces = [alone.reduces[unit] for unit in reduced]
        return cls(order, times, gathers, reduces, sum(times))


@dataclass
class _Walk:
    """The state of a walk: of its stages."""

    job: Job
    alone: Sequence[Alone]
    """By stage."""

    def __post_init__(self) -> None:
        self.stages = [_Stage(alone.before) for alone in self.alone]
        self.ahead = self.job.training.prefetch + 1
        units = [
            [[section for section, _ in sections(self.job, part)] for part in parts]
            for parts in self.job.placement
        ]
        self.passes = [
            [[_Pass.of(chunk, alone, backward=backward) for backward in (False, True)] for chunk in chunks]
            for chunks, alone in zip(units, self.alone, strict=True)
        ]
        self.waits = not self.job.overlaps_pipeline
        self.keeps = not self.job.training.reshard
        self.in_line = self.job.asks_by_need or self.job.stages <= 2

    def pauses(self, left_out: int) -> dict[Item, list[int]]:
        """Return the item before which each stage pauses in the middle, and by stage for how long."""
        middle = _half(self.job) * self.job.shape.in_group
        each = [self._micro_batch(stage, middle) for stage in range(len(self.stages))]
        return {Item("forward", middle, 0): [left_out * time for time in each]}

    def _micro_batch(self, stage: int, number: int) -> int:
        """Return what a stage's passes of one micro-batch take, with the messages that it waits for."""
        total = 0
        for chunk, passes in enumerate(self.passes[stage]):
            for item in (Item("forward", number, chunk), Item("backward", number, chunk)):
                total += passes[item.phase == "backward"].all
                target = self.job.stage_orders.consumer(stage, item)
                total += (
                    self.alone[0].message.get((stage, target), 0) if self.waits and target is not None else 0
                )
        return total

    def run(self, pauses: Mapping[Item, Sequence[int]]) -> None:
        """Run all items; each stage pauses before some."""
        made: list[int] = []
        for turn in self.job.stage_orders.turns:
            if turn.item in pauses:
                self.stages[turn.stage].free += pauses[turn.item][turn.stage]
            made.append(self._pass(turn, None if turn.needs is None else made[turn.needs]))

    def _pass(self, turn: Turn, there: int | None) -> int:
        """Run an item whose input is there at a moment; return when its result is where it is needed."""
        stage, item, target = self.stages[turn.stage], turn.item, turn.consumer
        newest = stage.gate if there is None else there
        begun = max(newest, stage.gate, stage.free)
        backward = item.phase == "backward"
        if backward:
            stage.last_backward[item.chunk] = begun
        alone = self.passes[turn.stage][item.chunk][backward]
        if alone.gathers:
            end = self._units(stage, item.chunk, alone, newest, begun)
        else:
            end = begun + alone.all
            for buckets in alone.reduces:
                _travel(stage, begun, buckets)
        stage.free = end
        if target is not None and target != turn.stage:
            leaves = max(end, stage.sends) if self.in_line else end
            end = leaves + self.alone[0].message.get((turn.stage, target), 0)
            stage.sends = end
            if self.waits:
                stage.gate = end
        return end

    def _units(self, stage: _Stage, chunk: int, alone: _Pass, newest: int, done: int) -> int:
        """Return when the units of a pass are done, each after its parameters are whole.

        Those are asked for as `newest` comes, for the first ones, and as the unit before is `done`.
        """
        backward = alone.units.step < 0
        for place, (unit, time) in enumerate(zip(alone.units, alone.times, strict=True)):
            for other in range(place, min(place + self.ahead, len(alone.units))):
                if (chunk, alone.units[other]) not in stage.whole:
                    stage.stream = max(stage.stream, newest) + alone.gathers[other]
                    stage.whole[chunk, alone.units[other]] = stage.stream
            begun = max(done, stage.whole[chunk, unit])
            newest = done = begun + time
            if backward or not self.keeps:
                del stage.whole[chunk, unit]
            if alone.reduces:
                _travel(stage, begun, alone.reduces[place])
        return done


def _travel(stage: _Stage, begun: int, buckets: Sequence[Bucket]) -> None:
    """Have the gradients of a unit travel whose backward has begun."""
    for ready, takes in buckets:
        stage.stream = max(stage.stream, begun + ready) + takes


USUAL = ("1f1b", "interleaved_1f1b")
"""Schedules whose warm-up has a closed form here."""


def is_usual(job: Job) -> bool:
    """Tell whether what stages hold has a closed form."""
    return job.training.schedule in USUAL and not job.training.overlap_batches


def fullest_stages(job: Job) -> tuple[int, ...]:
    """Return the stages that may be the fullest: the first, and the second where that has more layers.

    Where a schedule holds what it likes: of both ends, and one in the middle.
    """
    if not is_usual(job) or job.stages == 1:
        return tuple(sorted({0, min(1, job.stages - 1), (job.stages - 1) // 2, job.stages - 1}))
    first, second = (sum(job.layers[part] for part in job.placement[stage]) for stage in (0, 1))
    return (0, 1) if second > first else (0,)


def held(job: Job, stage: int) -> tuple[int, ...]:
    """Return by chunk how many micro-batches a stage has begun before its first backward, at the least.

    >>> from rapid_des.frontend import load_job
    >>> split = {"parallelism": "{pp: 4, dp: 2}", "training.schedule": "1f1b", "training.micro_batch": "1"}
    >>> held(load_job("llama2_7b_train", settings=split), 1)
    (3,)
    """
    shape = job.shape
    if job.training.schedule == "1f1b":
        return (min(shape.micro_batches, shape.stages - stage),)
    group, chunks = min(shape.in_group, shape.micro_batches), shape.chunks
    whole = shape.micro_batches // group * group * chunks  # the last group may be smaller: left out
    warm_up = 2 * (shape.stages - stage - 1) + (chunks - 1) * group + 1
    begun = whole if shape.micro_batches == shape.stages else min(whole, warm_up)
    rounds, rest = divmod(begun, group * chunks)
    return tuple(rounds * group + min(group, max(0, rest - chunk * group)) for chunk in range(chunks))
