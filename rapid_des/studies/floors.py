"""Bounds from below for ways to split a training job: no simulation of one is faster, none needs less memory.

    passes   on every stage: the forwards before its first + all its passes + the backwards after its last
    step     and: all passes but the last backward + its gradients' reduction; the optimizer; the gathers
    walked   the same, its passes in the order of the schedule with messages and gathers between them

Each is tighter than the one before, and costs more. Kernels are priced by the operator models; messages (of
which `passes` has none) alone in an idle fabric; what candidates have in common (a layer of one split, the
optimizer's part) is worked out once. Waiting and queueing are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from rapid_des.device.pricing import operator_model
from rapid_des.frontend import Job
from rapid_des.frontend.groups import message_size
from rapid_des.frontend.optimizers import gathered_as, step_kernels
from rapid_des.frontend.parts import (
    EMBEDDING,
    Section,
)
from rapid_des.frontend.routing import libraries_json
from rapid_des.frontend.template import Column, Domain, Piece
from rapid_des.frontend.trace import ProgramWriter
from rapid_des.modes.pricing import as_used
from rapid_des.program.communication import TimeAlone
from rapid_des.studies.alone import Message, collective_alone, program_alone
from rapid_des.studies.earliest import (
    USUAL,
    Alone,
    End,
    Times,
    can_be_walked,
    ends,
    passes_alone,
    walked,
    walked_micro_batches,
)
from rapid_des.studies.likeness import (
    kernels_key,
    layer_key,
    layout_key,
    model_key,
    pass_key,
    state_key,
)
from rapid_des.studies.memory_floors import made_of
from rapid_des.studies.pair_walk import (
    Stretches,
    drained_in_pairs,
    streams_of,
    times_beside,
    walked_in_pairs,
)
from rapid_des.studies.piece_floors import PieceFloors, computes
from rapid_des.studies.slowed import Busy, busy_of, least_delay, messages_beside
from rapid_des.studies.stand_ins import on_machine, with_micro_batches, without_recomputation
from rapid_des.studies.stream_paths import longest

_MANY = ("block", "prediction")
"""Sections whose messages count."""


@dataclass
class Floors(PieceFloors):
    """Bounds for the time of these candidates, beside those of memory."""

    def passes(self, job: Job, *, again: bool) -> int:
        """Return picoseconds that no step goes below, by kernels alone; `again`: with what is recomputed."""
        wanted = job if again else without_recomputation(job)
        times, key = self._kernel_times(wanted)
        return max(end.drained for end in self._ends(wanted, times, key))

    def exchanged(self, job: Job) -> int:
        """Return the same with the messages inside of layers."""
        if not passes_alone(job):
            return max(end.drained for end in self._done(job))
        key = ("unslowed", *layer_key(job))
        times = self.once(("times", *key), lambda: self._times(job, self._unslowed))
        return max(end.drained for end in self._ends(job, times, key))

    def step(self, job: Job) -> int:
        """Return picoseconds that no simulation of a training step goes below, by closed forms."""
        done = self._done(job)
        after = self.once(("after", *state_key(job)), lambda: self._after(job))[0]
        return max(self._step(job, done), self._slowed(job, done) + after)

    def _slowed(self, job: Job, done: Sequence[End]) -> int:
        """Return when a stage is done at the earliest whose kernels its messages slow; 0 where none do."""
        passes = job.sharding.each and passes_alone(job) and len(job.copies[0]) == 1
        if not passes or not self.machine.collectives.contention:
            return 0
        stage = max(range(job.stages), key=lambda stage: done[stage].drained)
        busy, messages = Busy(), Counter[TimeAlone]()
        for part in job.placement[stage]:
            sections = made_of(job, part, self.kinds(job))[::-1]
            for section, count in Counter(sections).items():
                busy += self._busy(job)[section].times(count * job.micro_batches)
            units = [(section,) for section in sections] if job.sharding.policy.by_unit else [tuple(sections)]
            for unit, count in Counter(units).items():
                for message, times in self._beside(job, unit).items():
                    messages[message] += times * count * job.micro_batches
        drained = done[stage].drained
        return drained + least_delay(busy, drained, messages, self.machine.device) if messages else 0

    def _busy(self, job: Job) -> Mapping[Section, Busy]:
        """Return how long the kernels of both passes of a section compute."""

        def make() -> Mapping[Section, Busy]:
            total = defaultdict[Section, Busy](Busy)
            for (section, _), piece in self.pieces(job).items():
                total[section] += busy_of(piece, self.machine.device)
            return total

        return self.once(("busy", *kernels_key(job)), make)

    def _beside(self, job: Job, unit: tuple[Section, ...]) -> Counter[TimeAlone]:
        """Return what travels for a micro-batch of sections whose gradients are reduced together."""

        def make() -> Counter[TimeAlone]:
            pieces, times = self.pieces(job), Counter[TimeAlone]()
            marks = [mark for section in unit for mark in pieces[section, True].marks]
            for message in messages_beside(job, marks):
                time = self._alone(job, message)
                if time is not None:
                    times[time] += 1
            return times

        key = (*model_key(job), *layout_key(job), job.training.zero_stage, unit)
        return self.once(("beside", *key), make)

    def walked(self, job: Job) -> int:
        """Return the same by a walk through the schedule; 0 where it is not walked."""
        short = with_micro_batches(job, walked_micro_batches(job))
        if not can_be_walked(short):
            return 0 if passes_alone(job) else self._walked_in_pairs(job)
        gathers: dict[tuple[Section, bool], int] = {}
        reduces: dict[Section, int] = {}
        for section, size in self.sizes(job).items() if job.sharding.policy.by_unit else ():
            gathered = self._travels(job, size, gathers=True)
            cheap = any(sharding.reshard_ranks for sharding in job.shardings.values())
            cheap |= job.training.adapters is not None  # whose tables are gathered for forwards alone
            gathers |= {(section, False): gathered, (section, True): 0 if cheap else gathered}
            if job.sharding.each:
                reduces[section] = self._travels(job, size, gathers=False)
        alone = Alone(self._pass_times(job)[0], self.messages(job), gathers, reduces)
        return self._step(job, walked(short, alone, left_out=job.micro_batches - short.micro_batches))

    def _walked_in_pairs(self, job: Job) -> int:
        """Return the same of a schedule of pairs, or of backwards in halves."""
        count = walked_in_pairs(job)
        if count is None:
            return 0
        short, kinds = with_micro_batches(job, count), self.kinds(job)
        parts = [tuple(made_of(job, part, kinds)) for part in range(job.parts)]
        done = drained_in_pairs(
            short, parts, self._stretches(job), self.messages(job), job.micro_batches - count
        )
        return self._step(job, done)

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
        return self.once(
            ("ends", *key, pass_key(job)), lambda: ends(job, times, [part.counts for part in self.parts(job)])
        )

    def _step(self, job: Job, done: Sequence[End]) -> int:
        """Return what a step takes at the least whose stages have run their passes so."""
        after, travels = self.once(("after", *state_key(job)), lambda: self._after(job))
        each = job.micro_batches // len(job.copies[0])
        reduced = [
            max(end.drained, end.last_backward + travel.once, each * travel.each)
            for end, travel in zip(done, travels, strict=True)
        ]
        return max(*reduced, done[0].drained + self._travels_last(job)) + after

    def _travels_last(self, job: Job) -> int:
        """Return how long what the first stage's last pass completes is reduced: gradients of the table."""
        if job.training.schedule not in USUAL:
            return 0
        piece = self.pieces(job)[EMBEDDING, True]
        final = [mark for mark in piece.marks if mark.position == len(piece) - 1]
        return self._travels(job, Counter({mark.domain: mark.parameters for mark in final}), gathers=False)

    def _times(self, job: Job, takes: Callable[[Job, Piece], int]) -> Times:
        """Return what sections take on a rank of the first stage, those that are many as `takes` says."""
        times = Counter[tuple[Section, bool]]()
        for (section, backward), piece in self.pieces(job).items():
            several = section.name in _MANY  # the ends' are one of many layers'
            times[section, backward] = takes(job, piece) if several else computes(piece)
        return times

    def _unslowed(self, job: Job, piece: Piece) -> int:
        """Return what a piece takes whose messages slow none of its kernels."""
        return longest(piece, self.durations(job, piece))

    def _slowed_by_itself(self, job: Job, piece: Piece) -> int:
        """Return what a piece takes; where nothing of it runs beside another, that is known."""
        durations = self.durations(job, piece)
        together = durations.sum() > longest(piece, durations) or (piece.rows[:, Column.PEER] >= 0).any()
        return self.alone(on_machine(job, self.machine), piece) if together else int(durations.sum())

    def _after(self, job: Job) -> tuple[int, tuple[_Travel, ...]]:
        """Return what follows all passes at the least, and how long each stage's gradients travel.

        All stages wait for the norm of the gradients; then each updates its own parameters.
        """
        stages = [self.parameters_of(job, stage) for stage in range(job.stages)]
        least, most = (pick(range(job.stages), key=lambda s: stages[s].total()) for pick in (min, max))
        last = most if job.training.gradient_norm else least
        after = self._optimizer(job, least, stages[least], until_norm=True)
        after += self._optimizer(job, last, stages[last], until_norm=False)
        once = not job.sharding.policy.by_unit and not job.sharding.ahead
        if not job.training.offload_optimizer and once:
            after += self._travels(job, stages[last], gathers=True)
        return after, tuple(self._moves(job, parameters) for parameters in stages)

    def _optimizer(self, job: Job, stage: int, parameters: Counter[Domain], *, until_norm: bool) -> int:
        """Return what a stage's kernels once a step take up to the norm of the gradients, or after it."""
        operators = operator_model(as_used(job, self.machine, self.machine.device), self.cache)
        kernels = step_kernels(job, stage, parameters)
        after = {name: kernel for name, kernel in kernels.items() if name.startswith("optimizer")}
        chosen = [kernel for name, kernel in kernels.items() if (name not in after) == until_norm]
        return sum(operators.estimate(kernel).duration for kernel in chosen)

    def _moves(self, job: Job, parameters: Counter[Domain]) -> _Travel:
        """Return how long a stage's gradients and parameters are on their way, at the least."""
        reduced, sharding = self._travels(job, parameters, gathers=False), job.sharding
        if not sharding.policy.by_unit:
            return _Travel(0, reduced) if sharding.each else _Travel(reduced, 0)
        times = 2 if job.training.reshard is True and job.training.adapters is None else 1
        each = times * self._travels(job, parameters, gathers=True) + (reduced if sharding.each else 0)
        return _Travel(0 if sharding.each else reduced, each)

    def _travels(self, job: Job, parameters: Counter[Domain], *, gathers: bool) -> int:
        """Return how long a stage's gradients are reduced, or its parameters gathered, in one message."""
        total = 0
        for domain, sharding in job.shardings.items():
            role = sharding.unit_gathers if gathers else sharding.policy.reduce
            if role is not None and role and sharding.replicas > 1 and parameters[domain]:
                dtype = (
                    gathered_as(job, domain, layer=True) if gathers else job.spec.precision.gradient_reduce
                )
                size = message_size(role, parameters[domain], dtype, sharding.replicas)
                total += self._takes(job, Message(role, size, sharding.group))
        return total

    def _takes(self, job: Job, message: Message) -> int:
        """Return how long a collective of a rank takes; those of one stream follow one another."""
        known = self._alone(job, message)
        if known is not None:
            return known[0]
        program = ProgramWriter()
        program.message(message.role, message.role, message.size, after=(), group=message.group)
        key = ("takes", *_members_key(job), message)
        return self.once(key, lambda: program_alone(job, program.finish(), self.machine, self.cache))

    def _alone(self, job: Job, message: Message) -> TimeAlone | None:
        """Return what a collective takes of time and GPU if a library does it."""
        key = ("alone", self.members(job, message.group), message, libraries_json(job))
        return self.once(key, lambda: collective_alone(job, message, self.machine))


def _members_key(job: Job) -> tuple[Hashable, ...]:
    """Return what the process groups of a job's ranks follow from."""
    return *model_key(job), *layout_key(job), job.training.zero_stage, len(job.copies[0])


@dataclass(frozen=True)
class _Travel:
    """How long a stage's gradients and parameters travel between replicas, in picoseconds."""

    once: int
    """After its last backward has begun."""
    each: int
    """For every micro-batch."""
