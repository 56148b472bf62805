"""What a failure of each class leads to, and the plan of a run as its clock needs it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import inf

from msgspec import Struct

from rapid_des.runs.policies import ReplicaPlaces
from rapid_des.runs.spares import Tier
from rapid_des.runs.steps import ConstantStep, StepTimes
from rapid_des.runs.stretch import TrainingStretch
from rapid_des.runs.times import Time, parse_time
from rapid_des.units import ceil_divide


class Treatment(Struct, frozen=True):
    """What a failure of one class leads to."""

    name: str
    detection: Time
    diagnosis: Time
    repair: Time
    nodes: int
    """The number of nodes that are replaced."""
    effect: str = "stops"
    """The name of the effect (`rapid_des.runs.effects`)."""
    lasts: Time | None = None
    """The time for which a part is slow, or a pause takes; None: until the part is replaced."""
    misdiagnosis: float = 0.0
    """The probability that wrong nodes are replaced, so that the failure returns."""
    parts_per_node: float = 1.0
    """The number of parts that a node has; below 1 where a part spans several nodes."""

    def places(self, part: int) -> range:
        """Return the places of the nodes that are replaced after a failure of a part."""
        if not self.nodes:
            return range(0)
        first = int(part / self.parts_per_node) // self.nodes * self.nodes
        return range(first, first + self.nodes)

    def place(self, part: int) -> int:
        """Return the place of the first node of a part."""
        return int(part / self.parts_per_node)


class RunPlan(Struct, frozen=True, dict=True):
    """A run as its clock needs it; times are picoseconds."""

    course: TrainingStretch
    horizon: int | None
    """The time at which the run is stopped; None: it ends after its last step."""
    treatments: tuple[Treatment, ...]
    """The treatment of a failure of each class, in the order of the classes."""
    restart: Mapping[str, Time]
    """The phases of a restart by name; without `load` it is the loaded checkpoint's."""
    tiers: tuple[Tier, ...] = ()
    """The spares in the order in which they are taken: hot, warm, cold; none: one is always at hand."""
    spares_unit: int | None = None
    """The number of nodes of a unit that has such spares for itself; None: the whole job has them."""
    retire_after: int | None = None
    """The number of repairs after which a node does not come back; None: it always does."""
    crews: int | None = None
    """The number of repairs at the same time; None: any number."""
    nodes: int = 1
    """The number of nodes of the job."""
    steps: StepTimes = ConstantStep()
    """The durations of steps while parts are slow."""
    policy: str = "restart"
    """The name of what is done after a failure (`rapid_des.runs.policies`)."""
    replicas: ReplicaPlaces = ReplicaPlaces()
    batch: str = "keep"
    """The batch of steps with fewer replicas: keep or smaller."""
    shares: int | None = None
    """The number of shares of the batch, one for each replica, after which the run ends; None: it ends after
    its last step or at its horizon.
    """
    tolerated: float = inf
    """The share by which a step may be slower before slow parts are replaced."""

    @property
    def spares(self) -> int:
        """The number of spare nodes of all units."""
        units = 1 if self.spares_unit is None else ceil_divide(self.nodes, self.spares_unit)
        return units * sum(tier.count for tier in self.tiers)

    @cached_property
    def phases(self) -> tuple[str, ...]:
        """The names of a restart's phases in their order."""
        loads = any(level.load is not None for level in self.course.levels)
        names = [*self.restart]
        if loads and "load" not in names:
            names.insert(len(names) - ("warm_up" in names), "load")
        return tuple(names)

    @property
    def causes(self) -> tuple[str, ...]:
        """The names of all causes of a run's wall time."""
        effects = {treatment.effect for treatment in self.treatments}
        own = [cause for effect, cause in _CAUSES.items() if effect in effects]
        own += ["fewer_replicas"] if self.policy in ("shrink", "redundant") else []
        phases = (f"restart_{phase}" for phase in self.phases)
        return ("steps", "checkpoints", "rework", "detection", "diagnosis", "spare_wait", *own, *phases)


_CAUSES = {"slows": "slow_steps", "hangs": "hang", "pauses": "maintenance"}
"""The causes of time that only some effects have."""
NOTHING = parse_time("0 s")
