"""The duration of a step while parts are slow: one simulation for all states that symmetry makes equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from rapid_des.errors import DeadlockError, FabricCutError
from rapid_des.frontend import Job, load_job
from rapid_des.machine import Machine
from rapid_des.network.faults import parse_fault
from rapid_des.network.faults.specs import GPU_EFFECTS, LINK_EFFECTS
from rapid_des.units import ceil_divide

State: TypeAlias = frozenset[tuple[int, int]]
"""The slow parts: the place of each one's class, and its number."""
StateKey: TypeAlias = tuple[int, tuple[str, ...]]
"""The number of missing replicas, and the faults, of all states that are equal."""
MISSING = -1
"""In place of a class: as many replicas as the number says are missing."""
CUT = -1
"""The duration of a step that cannot run, as its fabric is cut."""


class StepTimes(Protocol):
    """What a step takes."""

    def of(self, state: State) -> int:
        """Return the picoseconds of a step while these parts are slow, or `CUT`."""

    def simulated(self, state: State) -> frozenset[StateKey]:
        """Return the states whose steps stand for that of a state; of several, it takes at least as long."""


class ConstantStep:
    """Steps that no part slows: 0 stands for the healthy step."""

    def simulated(self, state: State) -> frozenset[StateKey]:  # noqa: ARG002 - no class slows
        """Return the healthy state."""
        return frozenset({(0, ())})

    def of(self, state: State) -> int:  # noqa: ARG002 - no class slows
        """Return 0."""
        return 0


class SlowClass:
    """A class of parts that slow a step: its fault's words, with the numbers of parts left open."""

    def __init__(self, words: str, gpus: int, count: int, gpus_per_node: int) -> None:
        self._words, self._gpus, self._count, self._gpus_per_node = words, gpus, count, gpus_per_node
        fault = parse_fault(self.at(0))
        links = any(getattr(fault, name) not in (None, False) for name in LINK_EFFECTS)
        self.computes_only = not links and any(getattr(fault, name) is not None for name in GPU_EFFECTS)

    def first_gpu(self, part: int) -> int:
        """Return the first GPU of a part's unit."""
        return part // self._count * self._gpus

    def at(self, gpu: int, number: int = 0) -> str:
        """Return the words of the fault of a part `number` of the unit that begins at a GPU."""
        unit = gpu // self._gpus
        named = {"{gpu}": gpu, "{node}": gpu // self._gpus_per_node, "{unit}": unit}
        named["{part}"] = unit * self._count + number
        words = self._words
        for name, value in named.items():
            words = words.replace(name, str(value))
        return words

    def number(self, part: int) -> int:
        """Return the number of a part in its unit."""
        return part % self._count


class SimulatedSteps:
    """Steps that the step simulator runs, each state once.

    States are equal if they differ in which replicas of the model their parts stand, by whole nodes, or for
    GPUs that only compute more slowly in which ranks of a tensor-parallel group. Of more than `together` slow
    parts those count that alone make the step slowest: the number of states grows no further.
    """

    def __init__(  # noqa: PLR0913 - the last by name
        self,
        job: Job,
        machine: Machine,
        classes: Mapping[int, SlowClass],
        step_on: Callable[[Machine, Job], int],
        *,
        together: int = 2,
        smaller: bool = False,
    ) -> None:
        self._job, self._machine, self._classes, self._step_on = job, machine, classes, step_on
        self._together, self._smaller = together, smaller
        self._known = dict[StateKey, int]()
        self._keys = dict[State, StateKey]()
        per_node = machine.spec.gpus_per_node or machine.fabric.gpus
        self._axes = {axis: (job.layout.stride(axis), job.layout.size(axis)) for axis in ("tp", "dp")}
        width = self._axes["dp"][0]
        self._block = max(1, -(-per_node // width)) if per_node % width == 0 or width % per_node == 0 else 0

    def of(self, state: State) -> int:
        """Return the picoseconds of a step while these parts are slow, or `CUT`."""
        key = self.key(self._slowest(state))
        if key not in self._known:
            self._known[key] = self._step(*key)
        return self._known[key]

    def simulated(self, state: State) -> frozenset[StateKey]:
        """Return the states whose steps stand for that of a state; of several, it takes at least as long."""
        slowest = self._slowest(state)
        alone = () if slowest == state else _slow(state)
        return frozenset({self.key(slowest), *(self.key(frozenset({part})) for part in alone)})

    def _slowest(self, state: State) -> State:
        """Return a state without the slow parts that do not count, as too many others are slower alone."""
        slow = _slow(state)
        if len(slow) <= self._together:
            return state

        def order(part: tuple[int, int]) -> tuple[bool, int, tuple[int, int]]:
            alone = self.of(frozenset({part}))
            return alone != CUT, -alone, part

        return state - frozenset(sorted(slow, key=order)[self._together :])

    def key(self, state: State) -> StateKey:
        """Return what equal states have in common: the number of missing replicas, and faults."""
        if state not in self._keys:
            missing = sum(number for place, number in state if place == MISSING)
            self._keys[state] = missing, self.words(state)
        return self._keys[state]

    def _step(self, missing: int, words: tuple[str, ...]) -> int:
        machine = self._machine.with_faults([parse_fault(text) for text in words])
        try:
            return self._step_on(machine, with_fewer_replicas(self._job, missing, smaller=self._smaller))
        except (FabricCutError, DeadlockError):
            return CUT

    def words(self, state: State) -> tuple[str, ...]:
        """Return the faults of the state that stands for all states that are equal to one."""
        replicas, ranks = dict[int, int](), dict[int, int]()
        found = []
        for place, part in sorted(_slow(state)):
            slow = self._classes[place]
            gpu = self._moved(slow.first_gpu(part), "dp", replicas, self._block)
            if slow.computes_only:
                gpu = self._moved(gpu, "tp", ranks, 1)
            found.append(slow.at(gpu, slow.number(part)))
        return tuple(sorted(found))

    def _moved(self, gpu: int, axis: str, seen: dict[int, int], block: int) -> int:
        """Return the GPU in the first block along an axis that no other part has."""
        if not block:
            return gpu
        width, size = self._axes[axis]
        here = gpu // width % size // block
        there = seen.setdefault(here, len(seen))
        return gpu + (there - here) * block * width


def _slow(state: State) -> list[tuple[int, int]]:
    return [part for part in state if part[0] != MISSING]


def with_fewer_replicas(job: Job, missing: int, *, smaller: bool = False) -> Job:
    """Return a job without some of its replicas; the others have more micro-batches, or a smaller batch.

    A batch that is kept is at least that of the job: where it cannot be split evenly the last micro-batches
    are empty.
    """
    if not missing:
        return job
    left = job.spec.parallelism.dp - missing
    each = job.training.micro_batch * left
    batch = ceil_divide(job.training.global_batch, each) * each
    if smaller:
        batch = job.training.global_batch // job.spec.parallelism.dp * left
    return load_job(job, settings={"parallelism.dp": left, "training.global_batch": batch})
