"""Bounds from below for ways to split a training job: no simulation of one is faster, none needs less memory.

    passes   on every stage: the forwards before its first + all its passes + the backwards after its last
    step     and: all passes but the last backward + its gradients' reduction; the optimizer; the gathers
    walked   the same, its passes in the order of the schedule with messages and gathers between them

Each is tighter than the one before, and costs more. Kernels are priced by the operator models; messages (of
which `passes` has none) alone in an idle fabric; what candidates have in common (a layer of one split, the
optimizer's part) is worked out once. Waiting and queueing are left out. Where GPUs' clocks are drawn (jitter)
all are taken for as fast as the fastest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction

from msgspec import Struct

from rapid_des.device.pricing import operator_model
from rapid_des.frontend import Job
from rapid_des.frontend.optimizers import step_kernels
from rapid_des.frontend.parts import (
    EMBEDDING,
    ModelSection,
)
from rapid_des.frontend.template import Domain, PieceColumn, PricedPiece
from rapid_des.modes.pricing import as_used
from rapid_des.program.collectives.lower import TimeAlone
from rapid_des.studies.earliest import (
    USUAL,
    End,
    Times,
    ends,
    passes_alone,
)
from rapid_des.studies.likeness import (
    kernels_key,
    layer_key,
    pass_key,
    state_key,
)
from rapid_des.studies.pair_walk import (
    Stretches,
    drained_in_pairs,
    streams_of,
    times_beside,
    walked_in_pairs,
)
from rapid_des.studies.pass_walk import (
    Alone,
    Course,
    Slowed,
    can_be_walked,
    turns_of,
    walked,
    walked_micro_batches,
)
from rapid_des.studies.piece_floors import computes
from rapid_des.studies.slowed import Weights, least_delay, weights_of
from rapid_des.studies.stand_ins import (
    on_machine,
    with_micro_batches,
    without_recomputation,
    without_unit_copies,
)
from rapid_des.studies.stream_paths import longest
from rapid_des.studies.travel_floors import TravelFloors
from rapid_des.values import replace

_MANY = ("block", "prediction")
"""Sections whose messages count."""
_ROUNDED = Fraction(1, 10**6)
"""What times of kernels may be rounded by, as a share."""


class Floors(TravelFloors, Struct):
    """Bounds for the time of these candidates, beside those of memory."""

    def passes(self, job: Job, *, again: bool) -> int:
        """Return picoseconds that no step goes below, by kernels alone; `again`: with what is recomputed.

        Under any ZeRO stage.
        """
        wanted = without_unit_copies(job if again else without_recomputation(job))
        times, key = self._kernel_times(wanted)
        return self._at_most_clock(max(end.drained for end in self._ends(wanted, times, key)))

    def exchanged(self, job: Job) -> int:
        """Return the same with the messages inside of layers."""
        job = without_unit_copies(job)
        if not passes_alone(job):
            return self._at_most_clock(max(end.drained for end in self._done(job)))
        key = ("unslowed", *layer_key(job))
        times = self.once(("times", *key), lambda: self._times(job, self._unslowed))
        return self._at_most_clock(max(end.drained for end in self._ends(job, times, key)))

    def step(self, job: Job) -> int:
        """Return picoseconds that no simulation of a training step goes below, by closed forms."""
        around, done = self._around(job), self._done(job)
        slowed = around.before + self._slowed(job, done) + around.after
        return self._at_most_clock(max(self._step(job, around.shifted(done)), slowed))

    def _at_most_clock(self, time: int) -> int:
        """Return a time as short as on the fastest GPU, if clocks are drawn; some ps are what is rounded."""
        fastest = max((factors.compute for factors in self.machine.slowed.values()), default=1)
        return time if fastest <= 1 else int(time / (fastest + _ROUNDED))

    def _slowed(self, job: Job, done: Sequence[End]) -> int:
        """Return when a stage is done at the earliest whose kernels its messages slow; 0 where none do."""
        if not self._slows(job):
            return 0
        stage = self._slowest(done)
        messages, drained = self._beside(job, stage), done[stage].drained
        busy = self.busy_stage(job, stage).times(job.micro_batches)
        return drained + least_delay(busy, drained, messages, self.machine.device) if messages else 0

    def _slowest(self, done: Sequence[End]) -> int:
        """Return the stage that is done last."""
        return max(range(len(done)), key=lambda stage: done[stage].drained)

    def _slows(self, job: Job) -> bool:
        """Tell whether messages between replicas slow kernels beside them, as far as bounds know."""
        passes = job.sharding.each and passes_alone(job) and self.parts(job).copies == 1
        return passes and self.machine.collectives.contention

    def _beside(self, job: Job, stage: int) -> Mapping[TimeAlone, int]:
        """Return what travels between a stage's replicas beside its passes, all of a step."""
        messages = self.beside_stage(job, stage)
        return {message: count * job.micro_batches for message, count in messages.items()}

    def walked(self, job: Job) -> int:
        """Return the same by a walk through the schedule; 0 where it is not walked."""
        short = with_micro_batches(job, walked_micro_batches(job))
        if not can_be_walked(short):
            return 0 if passes_alone(job) else self._at_most_clock(self._walked_in_pairs(job))
        plain = self.alone_of(job, self._pass_times(job)[0], Weights())
        plain = replace(plain, message=self.messages(job), before=self._around(job).before)
        turns = self.once(("turns", pass_key(short)), lambda: turns_of(short.stage_orders))
        course = Course(short, self.parts(job), turns)
        done = walked(course, plain, left_out=job.micro_batches - short.micro_batches)
        least = self._step(job, done, travelled=bool(plain.reduces))
        beside = self._walked_beside(job, course, plain) if self._slows(job) else 0
        return self._at_most_clock(max(least, beside))

    def _walked_beside(self, job: Job, course: Course, plain: Alone) -> int:
        """Return the same where messages between replicas slow kernels of the stage that is done last."""
        least, stage, times = 0, self._slowest(self._done(job)), self._pass_times(job)[0]
        left_out, after = job.micro_batches - course.job.micro_batches, self._around(job).after
        messages = self._beside(job, stage)
        for weights, added in weights_of(messages, self.machine.device) if messages else ():
            mine = self.alone_of(job, times, weights)
            early = None if job.sharding.policy.by_unit else times  # gathers travel from the first pass on
            slowed = Slowed(stage, mine, early)
            done = walked(course, plain.lessened(weights.rest), slowed, left_out=left_out)
            least = max(least, max(end.drained for end in done) + added + after)
        return least

    def _walked_in_pairs(self, job: Job) -> int:
        """Return the same of a schedule of pairs, or of backwards in halves."""
        count = walked_in_pairs(job)
        if count is None:
            return 0
        short, made_of = with_micro_batches(job, count), self.parts(job)
        parts = [made_of[part].sections for part in range(job.parts)]
        done = drained_in_pairs(
            short, parts, self._stretches(job), self.messages(job), job.micro_batches - count
        )
        return self._step(job, self._around(job).shifted(done))

    def _stretches(self, job: Job) -> Stretches:
        pieces, key = self.timed(job), layer_key(job)
        streams = self.once(("streams", *key), lambda: streams_of(pieces))
        by_unit = job.sharding.policy.by_unit
        return Stretches(
            pieces, streams, by_unit, lambda passes, make: self.once(("stretch", *key, passes), make)
        )

    def _kernel_times(self, job: Job) -> tuple[Times, tuple[Hashable, ...]]:
        key = ("kernels", *kernels_key(job))
        return self.once(("times", *key), lambda: self._times(job, lambda _, piece: computes(piece))), key

    def _pass_times(self, job: Job) -> tuple[Times, tuple[Hashable, ...]]:
        """Return what passes take with messages, beside which nothing else of their stage computes."""
        key = layer_key(job)
        return self.once(("times", *key), lambda: self._times(job, self._slowed_by_itself)), key

    def _done(self, job: Job) -> Sequence[End]:
        """Return when stages are done at the earliest by closed forms."""
        if passes_alone(job):
            return self._ends(job, *self._pass_times(job))
        key = layer_key(job)
        beside, exchanged = self.once(("beside", *key), lambda: times_beside(self.timed(job)))
        done = self._ends(job, beside, ("beside", *key))
        travelled = self._ends(job, exchanged, ("exchanged", *key))
        return [
            End(max(one.drained, other.drained), one.last_backward)
            for one, other in zip(done, travelled, strict=True)
        ]

    def _ends(self, job: Job, times: Times, key: tuple[Hashable, ...]) -> tuple[End, ...]:
        return self.once(("ends", *key, pass_key(job)), lambda: ends(job, times, self.parts(job)))

    def _step(self, job: Job, done: Sequence[End], *, travelled: bool = False) -> int:
        """Return what a step takes at the least whose stages have run their passes so.

        `travelled`: and have reduced all gradients.
        """
        around = self._around(job)
        each = job.micro_batches // self.parts(job).copies
        reduced = [
            max(end.drained, end.last_backward + travel.once, each * travel.each)
            for end, travel in zip(done, around.travels, strict=True)
        ]
        last = 0 if travelled else self._travels_last(job)
        return max(*reduced, done[0].drained + last) + around.after

    def _travels_last(self, job: Job) -> int:
        """Return how long what the first stage's last pass completes is reduced: gradients of the table."""
        if job.training.schedule not in USUAL:
            return 0
        piece = self.pieces(job)[EMBEDDING, True]
        final = [mark for mark in piece.marks if mark.position == len(piece) - 1]
        return self.travels(job, Counter({mark.domain: mark.parameters for mark in final}), gathers=False)

    def _times(self, job: Job, takes: Callable[[Job, PricedPiece], int]) -> Times:
        """Return what sections take on a rank of the first stage, those that are many as `takes` says."""
        times = Counter[tuple[ModelSection, bool]]()
        for (section, backward), piece in self.pieces(job).items():
            several = section.name in _MANY  # the ends' are one of many layers'
            times[section, backward] = takes(job, piece) if several else computes(piece)
        return times

    def _unslowed(self, job: Job, piece: PricedPiece) -> int:
        """Return what a piece takes whose messages slow none of its kernels."""
        return longest(piece, self.durations(job, piece))

    def _slowed_by_itself(self, job: Job, piece: PricedPiece) -> int:
        """Return what a piece takes; where nothing of it runs beside another, that is known."""
        durations = self.durations(job, piece)
        together = durations.sum() > longest(piece, durations) or (piece.rows[:, PieceColumn.PEER] >= 0).any()
        return self.alone(on_machine(job, self.machine), piece) if together else int(durations.sum())

    def _around(self, job: Job) -> _Around:
        """Return what is around all passes at the least.

        All stages wait for the norm of the gradients; then each updates its own parameters.
        """
        return self.once(("around", *state_key(job)), lambda: self._made_around(job))

    def _made_around(self, job: Job) -> _Around:
        stages = [self.parameters_of(job, stage) for stage in range(job.stages)]
        least, most = (pick(range(job.stages), key=lambda s: stages[s].total()) for pick in (min, max))
        last = most if job.training.gradient_norm else least
        before, until_norm = self._optimizer(job, least, stages[least])[:2]
        after = until_norm + self._optimizer(job, last, stages[last])[2]
        once = not job.sharding.policy.by_unit and not job.sharding.ahead
        if not job.training.offload_optimizer and once:
            after += self.travels(job, stages[last], gathers=True)
        return _Around(before, after, tuple(self._moves(job, parameters) for parameters in stages))

    def _optimizer(self, job: Job, stage: int, parameters: Counter[Domain]) -> tuple[int, int, int]:
        """Return what a stage's kernels once a step take: clearing, up to the gradients' norm, after it."""
        operators = operator_model(as_used(job, self.machine, self.machine.device), self.cache)
        clearing, *others = step_kernels(job, stage, parameters).items()
        times = {name: operators.estimate(kernel).duration for name, kernel in (clearing, *others)}
        last = sum(times[name] for name, _ in others if name.startswith("optimizer"))
        return times[clearing[0]], sum(times.values()) - times[clearing[0]] - last, last

    def _moves(self, job: Job, parameters: Counter[Domain]) -> _Travel:
        """Return how long a stage's gradients and parameters are on their way, at the least."""
        reduced, sharding = self.travels(job, parameters, gathers=False), job.sharding
        if not sharding.policy.by_unit:
            return _Travel(0, reduced) if sharding.each else _Travel(reduced, 0)
        times = 2 if job.training.reshard is True and job.training.adapters is None else 1
        each = times * self.travels(job, parameters, gathers=True) + (reduced if sharding.each else 0)
        return _Travel(0 if sharding.each else reduced, each)


class _Travel(Struct, frozen=True):
    """How long a stage's gradients and parameters travel between replicas, in picoseconds."""

    once: int
    """After its last backward has begun."""
    each: int
    """For every micro-batch."""


class _Around(Struct, frozen=True):
    """What a step takes beside the passes, in picoseconds."""

    before: int
    """On the stream of kernels, before the first pass: clearing of gradients."""
    after: int
    """After the last pass and the last gradients."""
    travels: tuple[_Travel, ...]
    """By stage."""

    def shifted(self, done: Sequence[End]) -> list[End]:
        """Return when stages are done whose first kernels follow on those before all passes."""
        return [End(self.before + end.drained, self.before + end.last_backward) for end in done]
