"""What travels between replicas alone, and beside which kernels: parts of bounds of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate

from rapid_des.frontend import Job
from rapid_des.frontend.groups import message_size
from rapid_des.frontend.optimizers import gathered_as
from rapid_des.frontend.parts import ModelSection, PieceKey
from rapid_des.frontend.routing import libraries_json
from rapid_des.frontend.template import Domain, GradientMark
from rapid_des.frontend.trace import ProgramWriter
from rapid_des.program.collectives.lower import TimeAlone
from rapid_des.studies.alone import Message, collective_alone, program_alone
from rapid_des.studies.earliest import Times
from rapid_des.studies.likeness import kernels_key, layer_key, layout_key, model_key, parts_key, stages_key
from rapid_des.studies.pass_walk import Alone, Bucket, Unit
from rapid_des.studies.piece_floors import PieceFloors
from rapid_des.studies.slowed import Busy, Weights, busy_of, messages_beside, reduced
from rapid_des.studies.stream_paths import moments


class TravelFloors(PieceFloors):
    """Messages between replicas of these candidates, and the kernels beside which they travel."""

    def busy(self, job: Job) -> Mapping[tuple[ModelSection, bool], Busy]:
        """Return how long the kernels of each pass of a section compute."""
        pieces, device = self.pieces(job), self.machine.device
        key = ("busy", *kernels_key(job))
        return self.once(key, lambda: {each: busy_of(piece, device) for each, piece in pieces.items()})

    def busy_stage(self, job: Job, stage: int) -> Busy:
        """Return how long the kernels of a micro-batch's passes of a stage compute."""

        def make() -> Busy:
            busy, total = self.busy(job), Busy()
            for section, count in self.sections_of(job, stage).items():
                total += (busy[section, False] + busy[section, True]).times(count)
            return total

        return self.once(("busy stage", *kernels_key(job), *stages_key(job), stage), make)

    def units(self, job: Job, part: int) -> list[Unit]:
        """Return the sections of a part whose gradients travel together, in the order of their backwards."""
        sections = self.parts(job)[part].sections[::-1]
        return [(section,) for section in sections] if job.sharding.policy.by_unit else [sections]

    def beside(self, job: Job, unit: Unit) -> Counter[TimeAlone]:
        """Return what travels for a micro-batch because of a unit."""

        def make() -> Counter[TimeAlone]:
            marks = [mark for section in unit for mark in self.pieces(job)[section, True].marks]
            times = [self.by_library(job, message) for message in messages_beside(job, marks)]
            return Counter(time for time in times if time is not None)

        key = (*model_key(job), *layout_key(job), job.training.zero_stage, unit)
        return self.once(("beside", *key), make)

    def beside_stage(self, job: Job, stage: int) -> Counter[TimeAlone]:
        """Return what travels for a micro-batch between a stage's replicas."""

        def make() -> Counter[TimeAlone]:
            messages = Counter[TimeAlone]()
            for part in job.placement[stage]:
                for unit, count in Counter(self.units(job, part)).items():
                    for message, times in self.beside(job, unit).items():
                        messages[message] += times * count
            return messages

        key = (*model_key(job), *layout_key(job), job.training.zero_stage, *parts_key(job), stage)
        return self.once(("beside stage", *key), make)

    def alone_of(self, job: Job, times: Times, weights: Weights) -> Alone:
        """Return what the passes of a stage take alone, and what travels for them, as far as it counts."""

        def make() -> Alone:
            busy = self.busy(job)
            mine = {key: weights.of_pass(time, busy[key]) for key, time in times.items()}
            units = {unit for part in range(job.parts) for unit in self.units(job, part)}
            reduces = {unit: self._reduced(job, unit, mine, weights) for unit in units if job.sharding.each}
            return Alone(mine, {}, self._gathered(job, weights), reduces)

        key = (*layer_key(job), *layout_key(job), job.training.zero_stage, job.placement, job.layers)
        return self.once(("weighed", *key, weights), make)

    def _gathered(self, job: Job, weights: Weights) -> Mapping[tuple[ModelSection, bool], int]:
        """Return how long the parameters of each section travel before its passes; empty where none do."""
        gathers: dict[tuple[ModelSection, bool], int] = {}
        cheap = any(sharding.reshard_ranks for sharding in job.shardings.values())
        cheap |= job.training.adapters is not None  # whose tables are gathered for forwards alone
        for section, size in self.sizes(job).items() if job.sharding.policy.by_unit else ():
            messages = self.messages_of(job, size, gathers=True)
            time = sum(self._counted(job, message, weights) for message in messages)
            gathers |= {(section, False): time, (section, True): 0 if cheap else time}
        return gathers

    def _reduced(self, job: Job, unit: Unit, times: Times, weights: Weights) -> Sequence[Bucket]:
        """Return the messages of a unit's gradients, in the order in which these become final."""
        begins = [0, *accumulate(times[section, True] for section in unit)]
        marks, ready = list[GradientMark](), list[int]()
        for section, begin in zip(unit, begins, strict=False):
            finals = self._finals(job, section, weights)
            marks += self.pieces(job)[section, True].marks
            ready += [begin + final for final in finals]
        if not (job.training.overlap_gradients or job.sharding.policy.by_unit):
            ready = [begins[-1]] * len(ready)
        return [
            Bucket(ready[number], self._counted(job, message, weights))
            for number, message in reduced(job, marks)
        ]

    def _finals(self, job: Job, section: ModelSection, weights: Weights) -> Sequence[int]:
        """Return when the gradients of each mark of a section become final, from its backward's start on."""

        def make() -> list[int]:
            pieces = [place[PieceKey(section, "backward")] for place in self.timed(job)]
            moments_of = [moments(each.piece, weights.of_rows(*each, self.machine.device)) for each in pieces]
            marks = [each.piece.marks for each in pieces]
            return [
                min(of[mark.position] for of, mark in zip(moments_of, same, strict=True))
                for same in zip(*marks, strict=True)
            ]

        return self.once(("finals", *layer_key(job), section, weights), make)

    def _counted(self, job: Job, message: Message, weights: Weights) -> int:
        known = self.by_library(job, message)
        return self.takes(job, message) if known is None else weights.of_message(known)

    def travels(self, job: Job, parameters: Counter[Domain], *, gathers: bool) -> int:
        """Return how long a stage's gradients are reduced, or its parameters gathered, in one message."""
        return sum(self.takes(job, message) for message in self.messages_of(job, parameters, gathers=gathers))

    def messages_of(self, job: Job, parameters: Counter[Domain], *, gathers: bool) -> list[Message]:
        """Return what so many parameters, or their gradients, travel in, if together."""
        messages = []
        for domain, sharding in job.shardings.items():
            role = sharding.unit_gathers if gathers else sharding.policy.reduce
            if role is not None and role and sharding.replicas > 1 and parameters[domain]:
                dtype = (
                    gathered_as(job, domain, layer=True) if gathers else job.spec.precision.gradient_reduce
                )
                size = message_size(role, parameters[domain], dtype, sharding.replicas)
                messages.append(Message(role, size, sharding.group))
        return messages

    def takes(self, job: Job, message: Message) -> int:
        """Return how long a collective of a rank takes; those of one stream follow one another."""
        known = self.by_library(job, message)
        if known is not None:
            return known[0]
        program = ProgramWriter()
        program.message(message.role, message.role, message.size, after=(), group=message.group)
        key = ("takes", *_members_key(job), message)
        return self.once(key, lambda: program_alone(job, program.finish(), self.machine, self.cache))

    def by_library(self, job: Job, message: Message) -> TimeAlone | None:
        """Return what a collective takes of time and GPU if a library does it."""
        key = ("alone", self.members(job, message.group), message, libraries_json(job))
        return self.once(key, lambda: collective_alone(job, message, self.machine))


def _members_key(job: Job) -> tuple[Hashable, ...]:
    """Return what the process groups of a job's ranks follow from."""
    return *model_key(job), *layout_key(job), job.training.zero_stage, len(job.copies[0])
