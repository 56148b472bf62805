"""What is done after a failure: one small class for each policy that a reliability file names.

restart   all processes start again, from the last checkpoint that survived, on spare nodes
in_place  likewise, but without allocation and image where no node is replaced
replica   the replicas that failed get the state from the others, which wait for them
redundant likewise, but the job goes on without them: others compute their data too
shrink    where no spare is ready the job goes on with fewer replicas, and grows again after a repair
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from rapid_des.runs.progress import Progress
from rapid_des.runs.stretch import CheckpointLevel


class Kept(NamedTuple):
    """What a failure leaves."""

    step: int
    """The last step whose results are left."""
    level: CheckpointLevel | None
    """The level of the checkpoint that holds it, if any."""
    loads: bool = True
    """Whether a restart loads a checkpoint."""


class Restart:
    """All processes start again from the last checkpoint that survived."""

    without: frozenset[str] = frozenset()
    """The phases that a restart skips where no node was replaced."""
    shrinks = False
    """Whether the job goes on with fewer replicas where no spare is ready."""
    with_spares = False
    """Whether it does so where one is ready too."""

    def kept(self, progress: Progress, since: int, needed: int) -> Kept:
        """Return what is left of the results from before a time; checkpoints must survive `needed`."""
        return Kept(*progress.saved(since, needed))


class InPlace(Restart):
    """Nodes and images stay where no node is replaced."""

    without = frozenset({"allocate", "image"})


class OneReplica(Restart):
    """Only the step that was going on is lost: the other replicas hold the state."""

    def kept(self, progress: Progress, since: int, needed: int) -> Kept:
        """Return the last whole step, unless results are void."""
        if since < progress.until:
            return super().kept(progress, since, needed)
        return Kept(progress.done, None, loads=False)


class Shrink(Restart):
    """The job goes on with fewer replicas where no spare is ready."""

    shrinks = True


class Redundant(OneReplica):
    """The job goes on without replicas whose data others can compute, until their nodes are replaced."""

    shrinks = True
    with_spares = True


POLICIES: Mapping[str, type[Restart]] = {
    "restart": Restart,
    "in_place": InPlace,
    "replica": OneReplica,
    "shrink": Shrink,
    "redundant": Redundant,
}


class ReplicaPlaces(Struct, frozen=True):
    """The replicas of a job and the nodes that they stand on."""

    count: int = 1
    of_place: tuple[frozenset[int], ...] = ()
    """The replicas that have a part on the node at each place."""
    redundancy: int = 1
    """The number of replicas that can compute the data of one: itself and those behind it."""

    def hit(self, places: frozenset[int]) -> int:
        """Return the number of replicas that lack a node while these places have none."""
        return len(self._out(places))

    def compute_all(self, places: frozenset[int]) -> bool:
        """Return whether the data of every replica can be computed while these places have no node."""
        out, others = self._out(places), range(self.redundancy)
        return self.redundancy == 1 or not any(
            all((replica + other) % self.count in out for other in others) for replica in out
        )

    def _out(self, places: frozenset[int]) -> frozenset[int]:
        return frozenset().union(*(self.of_place[place] for place in places if place < len(self.of_place)))
