"""Bounds from below for layouts of a training job: no simulation of one is faster, none needs less memory.

    passes   on every stage: the forwards before its first + all its passes + the backwards after its last
    step     and: all passes but the last backward + its gradients' reduction; the optimizer; the gathers;
             passes in pairs or halves in the order of the schedule; messages that slow kernels beside them

Each is tighter than the one before, and costs more. Kernels are priced by the operator models; messages (of
which `passes` has none) alone in an idle fabric; what candidates have in common (a layer of one split, the
optimizer's part) is worked out once, for their stand-in. Waiting and queueing are left out. Where clocks of
GPUs are drawn (jitter) all are taken for as fast as the fastest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from typing import Any

from msgspec import Struct, field

from rapid_des.device.pricing import operator_model
from rapid_des.frontend import Job
from rapid_des.frontend.optimizers import step_kernels
from rapid_des.frontend.parts import EMBEDDING
from rapid_des.frontend.schedules import PipelineSchedule
from rapid_des.frontend.schedules.schedule import PipelineShape
from rapid_des.frontend.template import Domain, PieceColumn, PricedPiece
from rapid_des.modes.pricing import as_used
from rapid_des.studies.closed_form_bounds import USUAL, End, Times, ends, passes_alone, passes_whole
from rapid_des.studies.made_of import Parts
from rapid_des.studies.overlap_bound import OverlapBound
from rapid_des.studies.shared_work import SharedWork, computes, once
from rapid_des.studies.stage_paths import Runs, StagePaths, times_beside
from rapid_des.studies.stand_ins import (
    Layers,
    Placed,
    State,
    in_place,
    of_layers,
    of_state,
    without_recomputation,
    without_unit_copies,
)
from rapid_des.studies.stream_paths import longest

_ROUNDED = Fraction(1, 10**6)
"""What times of kernels may be rounded by, as a share."""
_MANY = ("block", "prediction")
"""Sections whose messages count."""
_MOST = 1 << 17
"""The number of passes of a step up to which stages are followed through their orders."""


class LowerBounds(Struct, dict=True):
    """Bounds of time for the candidates of one job."""

    work: SharedWork
    known: dict[Hashable, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.overlap = OverlapBound(self.work)
        self.machine = self.work.machine

    def passes(self, job: Job, *, again: bool) -> int:
        """Return picoseconds that no step goes below, by kernels alone; `again`: with what is recomputed.

        Under any ZeRO stage.
        """
        job = without_unit_copies(job if again else without_recomputation(job))
        return self._drained(job, self._kernel_times(of_layers(job)))

    def exchanged(self, job: Job) -> int:
        """Return the same with the messages inside of layers."""
        job = without_unit_copies(job)
        placed = in_place(job)
        times = [self._unslowed(placed)] if passes_alone(job) else self._times_beside(placed)
        return max(self._drained(job, each) for each in times)

    def _drained(self, job: Job, times: Times) -> int:
        """Return when the last stage's passes are done at the earliest."""
        return self._at_most_clock(max(end.drained for end in ends(job, times, self.work.parts(job))))

    def step(self, job: Job) -> int:
        """Return a lower bound of a simulated training step, in picoseconds, by closed forms."""
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
        stage = max(range(len(done)), key=lambda stage: done[stage].drained)
        return done[stage].drained + self.overlap.delay(job, stage, done[stage].drained)

    def _slows(self, job: Job) -> bool:
        """Return whether messages between replicas slow kernels beside them, as far as bounds know."""
        passes = job.sharding.each and passes_alone(job) and self.work.parts(job).copies == 1
        return passes and self.machine.collectives.contention

    @once
    def _kernel_times(self, layers: Layers) -> Times:
        return self._times(layers, computes)

    @once
    def _unslowed(self, placed: Placed) -> Times:
        """Return what passes take whose messages slow none of their kernels."""
        return self._times(
            of_layers(placed), lambda piece: longest(piece, self.work.durations(placed, piece))
        )

    @once
    def _pass_times(self, placed: Placed) -> Times:
        """Return what passes take with messages, beside which nothing else of their stage computes."""
        return self._times(of_layers(placed), lambda piece: self._slowed_by_itself(placed, piece))

    def _times(self, layers: Layers, takes: Callable[[PricedPiece], int]) -> Times:
        """Return what sections take on a rank of the first stage, those that are many as `takes` says."""
        return {
            key: takes(piece) if key[0].name in _MANY else computes(piece)  # the ends' is one of many
            for key, piece in self.work.pieces(layers).items()
        }

    def _slowed_by_itself(self, placed: Placed, piece: PricedPiece) -> int:
        """Return what a piece takes; where nothing of it runs beside another, that is known."""
        durations = self.work.durations(placed, piece)
        together = durations.sum() > longest(piece, durations) or (piece.rows[:, PieceColumn.PEER] >= 0).any()
        return self.work.alone(placed, piece) if together else int(durations.sum())

    @once
    def _times_beside(self, placed: Placed) -> Sequence[Times]:
        return times_beside(self.work.timed(placed))

    def _done(self, job: Job) -> Sequence[End]:
        """Return when stages are done at the earliest."""
        parts, placed = self.work.parts(job), in_place(job)
        if passes_alone(job):
            return ends(job, self._pass_times(placed), parts)
        if 2 * job.micro_batches * job.parts * parts.copies > _MOST:
            return ends(job, self._kernel_times(of_layers(job)), parts)
        paths = self._stage_paths(placed, by_unit=job.sharding.policy.by_unit)
        runs = self._runs(job.schedule, job.shape, parts)
        return paths.ends(runs, parts, whole=passes_whole(job))

    @once
    def _runs(self, schedule: PipelineSchedule, shape: PipelineShape, parts: Parts) -> Runs:
        return Runs.of(schedule.stage_orders(shape), parts)

    @once
    def _stage_paths(self, placed: Placed, *, by_unit: bool) -> StagePaths:
        return StagePaths(self.work.timed(placed), by_unit)

    def _step(self, job: Job, done: Sequence[End]) -> int:
        """Return what a step takes at the least whose stages have run their passes so."""
        around = self._around(of_state(job))
        each = job.micro_batches // self.work.parts(job).copies
        reduced = [
            max(end.drained, end.last_backward + travel.once, each * travel.each)
            for end, travel in zip(done, around.travels, strict=True)
        ]
        return max(*reduced, done[0].drained + self._travels_last(job)) + around.after

    def _travels_last(self, job: Job) -> int:
        """Return how long what the first stage's last pass completes is reduced: gradients of the table."""
        if job.training.schedule not in USUAL:
            return 0
        piece = self.work.pieces(of_layers(job))[EMBEDDING, True]
        final = [mark for mark in piece.marks if mark.position == len(piece) - 1]
        parameters = Counter({mark.domain: mark.parameters for mark in final})
        return self.work.travels(of_state(job), parameters, gathers=False)

    @once
    def _around(self, state: State) -> _Around:
        """Return what is around all passes at the least.

        All stages wait for the norm of the gradients; then each updates its own parameters.
        """
        stages = [self.work.parameters_of(state, stage) for stage in range(state.stages)]
        least, most = (pick(range(state.stages), key=lambda s: stages[s].total()) for pick in (min, max))
        last = most if state.training.gradient_norm else least
        before, until_norm = self._optimizer(state, least, stages[least])[:2]
        after = until_norm + self._optimizer(state, last, stages[last])[2]
        once_a_step = not state.sharding.policy.by_unit and not state.sharding.ahead
        if not state.training.offload_optimizer and once_a_step:
            after += self.work.travels(state, stages[last], gathers=True)
        return _Around(before, after, tuple(self._moves(state, parameters) for parameters in stages))

    def _optimizer(self, state: State, stage: int, parameters: Counter[Domain]) -> tuple[int, int, int]:
        """Return what a stage's kernels once a step take: clearing, up to the gradients' norm, after it."""
        operators = operator_model(as_used(state, self.machine, self.machine.device), self.work.cache)
        clearing, *others = step_kernels(state, stage, parameters).items()
        times = {name: operators.estimate(kernel).duration for name, kernel in (clearing, *others)}
        last = sum(times[name] for name, _ in others if name.startswith("optimizer"))
        return times[clearing[0]], sum(times.values()) - times[clearing[0]] - last, last

    def _moves(self, state: State, parameters: Counter[Domain]) -> _Travel:
        """Return how long a stage's gradients and parameters travel at the least."""
        reduced, sharding = self.work.travels(state, parameters, gathers=False), state.sharding
        if not sharding.policy.by_unit:
            return _Travel(0, reduced) if sharding.each else _Travel(reduced, 0)
        times = 2 if state.training.reshard is True and state.training.adapters is None else 1
        each = times * self.work.travels(state, parameters, gathers=True) + (reduced if sharding.each else 0)
        return _Travel(0 if sharding.each else reduced, each)


class _Travel(Struct, frozen=True):
    """How long a stage's gradients and parameters travel between replicas, in picoseconds."""

    once: int
    """After its last backward has begun."""
    each: int
    """Picoseconds for every micro-batch."""


class _Around(Struct, frozen=True):
    """What a step takes beside the passes, in picoseconds."""

    before: int
    """On the stream of kernels, before the first pass: clearing of gradients."""
    after: int
    """After the last pass and the last gradients."""
    travels: tuple[_Travel, ...]
    """The messages of each stage."""

    def shifted(self, done: Sequence[End]) -> list[End]:
        """Return when stages are done whose first kernels follow on those before all passes."""
        return [End(self.before + end.drained, self.before + end.last_backward) for end in done]
