"""The file kind `reliability`: what fails how often, what is done then, and how the run is saved."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from rapid_des.config import Spec
from rapid_des.frontend.layer_spec import Count
from rapid_des.runs.laws import Exponential, Law
from rapid_des.units import Bandwidth, FailureRate, LongDuration, Size


class ObservedFailures(Spec, frozen=True):
    """Failures that were counted over a fleet."""

    failures: Annotated[int, Meta(ge=0)]
    """The number of failures."""
    parts: Count
    """The number of parts that were observed."""
    period: LongDuration
    """The time over which all of them were observed."""


class BurstSpec(Spec, frozen=True):
    """Failures that others of the same class follow, of parts that are drawn."""

    share: Annotated[float, Meta(gt=0, le=0.9)]
    """The probability that another failure follows one, that one included."""
    within: str
    """The time until it follows, or a distribution of such times."""
    unit: str | None = None
    """The unit from which the other part is drawn, that of the failed one: node, or a name in `domains`.
    Unset: the whole job.
    """


class PartClass(Spec, frozen=True):
    """A class of parts that fail independently of one another, and what a failure does.

    One of `mtbf`, `rate` and `observed` states how often; a law `empirical` or `log` states it by itself.
    """

    name: Annotated[str, Meta(min_length=1)]
    """The name of the class, as reports print it."""
    per: str = "gpu"
    """The unit that holds the parts: gpu, node, job, or a name in `domains`."""
    count: Count = 1
    """The number of parts in each unit."""
    mtbf: LongDuration | None = None
    """The mean time between failures of one part."""
    rate: FailureRate | None = None
    """The failure rate of one part."""
    observed: ObservedFailures | None = None
    """The failures counted over a fleet, from which the rate of one part follows."""
    law: Law = Exponential()
    """The law of the times between failures of one part."""
    age: LongDuration | None = None
    """The age of all parts at the start of the run; unset: new. A part that has failed is replaced by a new
    one.
    """
    effect: Literal["stops", "hangs", "corrupts", "slows", "pauses"] = "stops"
    """The effect of a failure. stops: the job stands still until a restart. hangs: likewise, but only
    `time_out` notices it. corrupts: training goes on until the detection, and a checkpoint from before the
    failure is loaded. slows: steps take longer under `fault`. pauses: a planned stop of `lasts`, with a
    checkpoint before it.
    """
    fault: str | None = None
    """With `slows`: the fault in the words of `--fault`. {gpu}, {node}, {unit} and {part} stand for the
    numbers of the unit's first GPU, of its node, of the unit and of the part.
    """
    lasts: str | None = None
    """With `slows`: the time until the part recovers by itself; unset: never. With `pauses`: the time of the
    pause.
    """
    misdiagnosis: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """The probability that wrong nodes are replaced: the failure returns as soon as the job trains again."""
    burst: BurstSpec | None = None
    """The failures that follow one; the stated rate is that of the failures which follow none."""
    takes: str = "node"
    """The unit that is replaced after a failure: node, nothing (the same nodes go on), or a name in
    `domains`, whose nodes are all replaced.
    """
    detection: str | None = None
    """The time from a failure to its detection; unset: as for the whole file."""
    diagnosis: str | None = None
    """The time from the detection until the broken part is known; unset: as for the whole file."""
    repair: str | None = None
    """The time until a replaced node is back among the spares; unset: as for the whole file."""


class NearCheckpointSpec(Spec, frozen=True):
    """Checkpoints in memory, which are quicker than those in storage and survive less."""

    place: Literal["host", "peer"]
    """The memory. host: of the GPU's own node, which survives failures that replace no node. peer: of the
    next node, which survives failures that replace one; the copies go over the fabric while training goes on.
    """
    interval: str
    """The training time between two of them, as for those in storage."""
    host_link: Bandwidth | None = None
    """With `host`: the bandwidth between a GPU and its host's memory, for which training waits. Unset: the
    device's.
    """
    share: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """With `peer`: the share of the links' rate that the copies take. What that costs steps is simulated."""


class CheckpointSpec(Spec, frozen=True):
    """How the state of the run is saved; bytes follow from the memory that the job's state needs."""

    interval: str
    """The training time between two checkpoints, rounded up to whole steps, or auto: the interval with the
    least expected time under the stated failures.
    """
    scheme: Literal["synchronous", "asynchronous"] = "synchronous"
    """Whether training waits until a checkpoint is stored, or only until the host has a copy."""
    stall: LongDuration | None = None
    """The time that training waits for a checkpoint. Unset: the bytes over `storage`, or with the scheme
    asynchronous the largest GPU's bytes over `host_link`.
    """
    write: LongDuration | None = None
    """The time that an asynchronous checkpoint takes from the host's copy until it is stored. Unset: the
    bytes over `storage`.
    """
    storage: Bandwidth | None = None
    """The bandwidth of the storage, for all GPUs together. Unset: that of the machine's storage."""
    storage_per_node: Bandwidth | None = None
    """The rate at which one node reaches the storage. Unset: the machine's, or as fast as all together."""
    capacity: Size | None = None
    """The size of the storage. Unset: the machine's, or not checked."""
    host_link: Bandwidth | None = None
    """The bandwidth between a GPU and its host's memory, with the scheme asynchronous. Unset: the
    device's.
    """
    nearer: tuple[NearCheckpointSpec, ...] = ()
    """Checkpoints in memory besides; a restart loads the last one that survived."""


class RestartSpec(Spec, frozen=True):
    """The phases of a restart in their order; each is a time or a distribution of times."""

    allocate: str = "0 s"
    """The time to allocate the nodes."""
    image: str = "0 s"
    """The time to fetch and start the software image."""
    start: str = "0 s"
    """The time to start the processes."""
    communicators: str = "0 s"
    """The time to set up the communicators, whatever the number of GPUs."""
    communicators_per_gpu: LongDuration | None = None
    """The additional time to set up the communicators for each GPU of the job; unset: none."""
    load: str | None = None
    """The time to load the checkpoint; unset: the bytes over the checkpoint's storage, if that is stated."""
    warm_up: str = "0 s"
    """The time to compile and to reach full speed."""


class SparesSpec(Spec, frozen=True):
    """Nodes of the machine that wait to replace others; hot ones are taken first, then warm, then cold."""

    hot: Annotated[int, Meta(ge=0)] = 0
    """The number of nodes that are ready at once."""
    warm: Annotated[int, Meta(ge=0)] = 0
    """The number of nodes that are ready after `warm_start`."""
    cold: Annotated[int, Meta(ge=0)] = 0
    """The number of nodes that are ready after `cold_start`."""
    warm_start: str = "0 s"
    """The time until a warm node is ready."""
    cold_start: str = "0 s"
    """The time until a cold node is ready."""
    per: str | None = None
    """The unit that has these numbers of nodes for itself: node, or a name in `domains`. A failed node is
    replaced by one of its own unit. Unset: the whole job.
    """
    retire_after: Count | None = None
    """The number of failures of a node after which it does not come back from repair; unset: it always does.
    """


class ReliabilitySpec(Spec, frozen=True):
    """A reliability file."""

    classes: tuple[PartClass, ...]
    """The classes of parts that fail."""
    detection: str
    """The time from a failure to its detection, or a distribution of such times."""
    diagnosis: str
    """The time from the detection until the broken part is known."""
    repair: str
    """The time until a replaced node is back among the spares."""
    repair_crews: Count | None = None
    """The number of failures whose nodes are repaired at the same time; others wait, the first one first.
    Unset: any number.
    """
    time_out: str | None = None
    """The time after which a job that hangs is noticed."""
    tolerate: str | None = None
    """The condition under which slow parts stay, as in: step_slower < 3%. Others are replaced after their
    detection. Unset: all stay.
    """
    together: Count = 2
    """The number of slow parts whose joint effect on a step is simulated. Of more, those count that alone
    make the step slowest: it takes at least as long as reported, and the report says for how much time.
    """
    policy: Literal["restart", "in_place", "replica", "shrink", "redundant"] = "restart"
    """The treatment of a failure. restart: all processes start again. in_place: likewise, without allocation
    and image where no node is replaced. replica: the replicas that failed get the state from the others,
    which lose the step that was going on. shrink: where no spare is ready the job goes on with fewer
    replicas, with the batch that `batch` says, and grows again after a repair. redundant: the job goes on
    without the replicas that failed, whose data others can compute, and grows again once their nodes are
    replaced.
    """
    redundancy: Annotated[int, Meta(ge=2, le=64)] | None = None
    """With `redundant`: the number of replicas that can compute the data of one. Once all of them are out the
    job restarts from a checkpoint.
    """
    batch: Literal["keep", "smaller"] = "keep"
    """With `shrink`: the batch while there are fewer replicas. keep: the others have more micro-batches.
    smaller: they have as many as before, so that a step trains fewer tokens.
    """
    domains: dict[str, Count] = {}
    """The number of GPUs in each named unit, such as a rack or a pod; their ids are consecutive."""
    checkpoint: CheckpointSpec | None = None
    """How the state is saved; unset: a failure loses the whole run."""
    restart: RestartSpec = RestartSpec()
    """The phases of a restart."""
    spares: SparesSpec | None = None
    """The nodes of the machine that wait to replace others; unset: one is always at hand, as where other
    jobs leave it. With none of them ready the run waits for a repair.
    """
    source: str = ""
    """The document that the figures come from."""
