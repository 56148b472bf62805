"""Bounds from below for ways to split a training job: no simulation of one is faster, none needs less memory.

    passes   on every stage: the forwards before its first + all its passes + the backwards after its last
    step     and: all passes but the last backward + its gradients' reduction; the optimizer; the gathers
    walked   the same, its passes in the order of the schedule with messages and gathers between them

Each is tighter than the one before, and costs more. Kernels are priced by the operator models; messages (of
which `passes` has none) alone in an idle fabric; what candidates have in common (a layer of one split, the
optimizer's part) is worked out once, for their stand-in. Waiting and queueing are left out. Where clocks of
GPUs are drawn (jitter) all are taken for as fast as the fastest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

from msgspec import Struct

from rapid_des.device.pricing import operator_model
from rapid_des.frontend import Job
from rapid_des.frontend.optimizers import step_kernels
from rapid_des.frontend.parts import EMBEDDING
from rapid_des.frontend.schedules import PipelineSchedule
from rapid_des.frontend.schedules.schedule import PipelineShape
from rapid_des.frontend.template import Domain
from rapid_des.modes.pricing import as_used
from rapid_des.program.collectives.lower import TimeAlone
from rapid_des.studies.earliest import USUAL, End, Times, ends, passes_alone
from rapid_des.studies.memory_floors import once
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
    Turn,
    can_be_walked,
    turns_of,
    walked,
    walked_micro_batches,
)
from rapid_des.studies.piece_floors import computes
from rapid_des.studies.slowed import Weights, least_delay, weights_of
from rapid_des.studies.stand_ins import (
    Layers,
    Placed,
    State,
    in_place,
    of_layers,
    of_state,
    with_micro_batches,
    without_recomputation,
    without_unit_copies,
)
from rapid_des.studies.stream_paths import longest
from rapid_des.studies.travel_floors import TravelFloors
from rapid_des.values import replace

_ROUNDED = Fraction(1, 10**6)
"""What times of kernels may be rounded by, as a share."""


class Floors(TravelFloors, Struct):
    """Bounds for the time of these candidates, beside those of memory."""

    def passes(self, job: Job, *, again: bool) -> int:
        """Return picoseconds that no step goes below, by kernels alone; `again`: with what is recomputed.

        Under any ZeRO stage.
        """
        job = without_unit_copies(job if again else without_recomputation(job))
        return self._drained(job, self._kernel_times(of_layers(job)))

    def exchanged(self, job: Job) -> int:
        """Return the same with the messages inside of layers."""
        job = without_unit_copies(job)
        if passes_alone(job):
            return self._drained(job, self._unslowed(in_place(job)))
        return self._at_most_clock(max(end.drained for end in self._done(job)))

    def _drained(self, job: Job, times: Times) -> int:
        """Return when the last stage's passes are done at the earliest."""
        return self._at_most_clock(max(end.drained for end in ends(job, times, self.parts(job))))

    def step(self, job: Job) -> int:
        """Return picoseconds that no simulation of a training step goes below, by closed forms."""
        around, done = self._around(of_state(job)), self._done(job)
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
        messages, drained = self._beside_passes(job, stage), done[stage].drained
        busy = self.busy_stage(job, stage).times(job.micro_batches)
        return drained + least_delay(busy, drained, messages, self.machine.device) if messages else 0

    def _slowest(self, done: Sequence[End]) -> int:
        """Return the stage that is done last."""
        return max(range(len(done)), key=lambda stage: done[stage].drained)

    def _slows(self, job: Job) -> bool:
        """Tell whether messages between replicas slow kernels beside them, as far as bounds know."""
        passes = job.sharding.each and passes_alone(job) and self.parts(job).copies == 1
        return passes and self.machine.collectives.contention

    def _beside_passes(self, job: Job, stage: int) -> Mapping[TimeAlone, int]:
        """Return what travels between a stage's replicas beside its passes, all of a step."""
        messages = self.beside_stage(job, stage)
        return {message: count * job.micro_batches for message, count in messages.items()}

    def walked(self, job: Job) -> int:
        """Return the same by a walk through the schedule; 0 where it is not walked."""
        short = with_micro_batches(job, walked_micro_batches(job))
        if not can_be_walked(short):
            return 0 if passes_alone(job) else self._at_most_clock(self._walked_in_pairs(job))
        before = self._around(of_state(job)).before
        plain = replace(self.alone_of(job, Weights()), message=self.messages(job), before=before)
        course = Course(short, self.parts(job), self._turns(short.schedule, short.shape))
        done = walked(course, plain, left_out=job.micro_batches - short.micro_batches)
        least = self._step(job, done, travelled=bool(plain.reduces))
        beside = self._walked_beside(job, course, plain) if self._slows(job) else 0
        return self._at_most_clock(max(least, beside))

    @once
    def _turns(self, schedule: PipelineSchedule, shape: PipelineShape) -> Sequence[Turn]:
        return turns_of(schedule.stage_orders(shape))

    def _walked_beside(self, job: Job, course: Course, plain: Alone) -> int:
        """Return the same where messages between replicas slow kernels of the stage that is done last."""
        least, stage, times = 0, self._slowest(self._done(job)), self.pass_times(in_place(job))
        left_out, after = job.micro_batches - course.job.micro_batches, self._around(of_state(job)).after
        messages = self._beside_passes(job, stage)
        for weights, added in weights_of(messages, self.machine.device) if messages else ():
            mine = self.alone_of(job, weights)
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
        left_out, by_unit = job.micro_batches - count, job.sharding.policy.by_unit
        stretches = self._stretches(in_place(job), by_unit=by_unit)
        done = drained_in_pairs(short, parts, stretches, self.messages(job), left_out)
        return self._step(job, self._around(of_state(job)).shifted(done))

    @once
    def _stretches(self, placed: Placed, *, by_unit: bool) -> Stretches:
        pieces = self.timed(placed)
        return Stretches(pieces, streams_of(pieces), by_unit)

    @once
    def _kernel_times(self, layers: Layers) -> Times:
        return self.times(layers, computes)

    @once
    def _unslowed(self, placed: Placed) -> Times:
        """Return what passes take whose messages slow none of their kernels."""
        return self.times(of_layers(placed), lambda piece: longest(piece, self.durations(placed, piece)))

    @once
    def _times_beside(self, placed: Placed) -> tuple[Times, Times]:
        return times_beside(self.timed(placed))

    def _done(self, job: Job) -> Sequence[End]:
        """Return when stages are done at the earliest by closed forms."""
        parts, placed = self.parts(job), in_place(job)
        if passes_alone(job):
            return ends(job, self.pass_times(placed), parts)
        done, travelled = (ends(job, times, parts) for times in self._times_beside(placed))
        return [
            End(max(one.drained, other.drained), one.last_backward)
            for one, other in zip(done, travelled, strict=True)
        ]

    def _step(self, job: Job, done: Sequence[End], *, travelled: bool = False) -> int:
        """Return what a step takes at the least whose stages have run their passes so.

        `travelled`: and have reduced all gradients.
        """
        around = self._around(of_state(job))
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
        piece = self.pieces(of_layers(job))[EMBEDDING, True]
        final = [mark for mark in piece.marks if mark.position == len(piece) - 1]
        parameters = Counter({mark.domain: mark.parameters for mark in final})
        return self.travels(of_state(job), parameters, gathers=False)

    @once
    def _around(self, state: State) -> _Around:
        """Return what is around all passes at the least.

        All stages wait for the norm of the gradients; then each updates its own parameters.
        """
        stages = [self.parameters_of(state, stage) for stage in range(state.stages)]
        least, most = (pick(range(state.stages), key=lambda s: stages[s].total()) for pick in (min, max))
        last = most if state.training.gradient_norm else least
        before, until_norm = self._optimizer(state, least, stages[least])[:2]
        after = until_norm + self._optimizer(state, last, stages[last])[2]
        once_a_step = not state.sharding.policy.by_unit and not state.sharding.ahead
        if not state.training.offload_optimizer and once_a_step:
            after += self.travels(state, stages[last], gathers=True)
        return _Around(before, after, tuple(self._moves(state, parameters) for parameters in stages))

    def _optimizer(self, state: State, stage: int, parameters: Counter[Domain]) -> tuple[int, int, int]:
        """Return what a stage's kernels once a step take: clearing, up to the gradients' norm, after it."""
        operators = operator_model(as_used(state, self.machine, self.machine.device), self.cache)
        clearing, *others = step_kernels(state, stage, parameters).items()
        times = {name: operators.estimate(kernel).duration for name, kernel in (clearing, *others)}
        last = sum(times[name] for name, _ in others if name.startswith("optimizer"))
        return times[clearing[0]], sum(times.values()) - times[clearing[0]] - last, last

    def _moves(self, state: State, parameters: Counter[Domain]) -> _Travel:
        """Return how long a stage's gradients and parameters are on their way, at the least."""
        reduced, sharding = self.travels(state, parameters, gathers=False), state.sharding
        if not sharding.policy.by_unit:
            return _Travel(0, reduced) if sharding.each else _Travel(reduced, 0)
        times = 2 if state.training.reshard is True and state.training.adapters is None else 1
        each = times * self.travels(state, parameters, gathers=True) + (reduced if sharding.each else 0)
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
