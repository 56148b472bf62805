"""What an engine runs, and what that means: visits to servers, joined by dependencies.

    Program ── one RankBinding a rank ──► RankProgram (shared by ranks that run the same list)
       │                                     visits: COMPUTE, HOLD, MEMBER, JOIN
       ├─ groups: who meets in a collective; a send/receive channel is a group of two
       ├─ templates: the transfers of one collective among members 0..n-1
       └─ routes and hop tables: which links a transfer visits, and for how long

Lowering decided everything that does not depend on simulated time: durations, algorithms, routes, service
times. What is left is one idea, the *visit* to a *server*: a GPU stream, a slot (where only this many things
may be in progress at once) or a directed link. All times are integer picoseconds, ticks. The rules:

R1  Ready. A visit is ready once, for each predecessor, the anchor (that one's finish, or where the edge
    says so its start) plus the edge's lag has passed; at 0 if it has none. An edge from a start to a visit
    on a stream has a lag of at least one tick. A *counting* predecessor is met when n of the visits that it
    names have finished; those beyond the n change nothing.
R2  Service. A server serves up to its capacity (1 unless stated) at a time, never preempts, and never idles
    while a visit waits. The visits of a stream are chained in program order by lowering, so that two ranks
    cannot start two collectives in opposite order; links, and streams that a trace or a front door
    declares unordered, take what comes.
R3  Choice. Of those that wait a server takes the smallest (priority, ready time, visit). On links the
    visits of equal priority and ready time are ordered by (part number, rank's position, moment at which
    that rank injected the transfer, its visit, phase of the collective, the transfer's number in it, hop):
    the first parts of all messages go before the second ones, and one rank's transfers in the order in
    which it handed them over. The priority on links is the node's, then the number of the chunk where a
    collective goes along dimensions in chunks: first chunks, and what has no chunks, go before second ones,
    so that a chunk is through all phases before the next takes links from it. All of these are facts of the
    model, never the order in which something was created.
    Messages take turns part by part only. The segments of store_and_forward are no parts: each is a transfer
    of its own, and all those of a message are injected together. So a link takes all segments of the message
    that goes first before one of the next; only at later links, where segments come one after the other, do
    those of messages from different links alternate.
R4  Instants. Within an instant everything becomes ready or free first. Then servers choose, level by level:
    streams, then slots, then links. What a choice makes ready without a lag is on a later level, so every
    level chooses once and the instant ends. A visit that takes no time on a server takes one tick, as does
    a message to itself, and no hop hands on in less.
R5  Duration. A COMPUTE visit lasts its work, at least one tick on a server; a JOIN needs no server. A HOLD
    keeps its server until another visit of the rank finishes. A MEMBER arrives, at its start, at a
    collective instance and lasts until its part in that is done. An instance is (group, k, phase): k is
    counted per rank in program order, or on unordered streams when the visit starts; a HOLD binds k for all
    its members. Members that disagree about the collective are an error naming group, k and both.
R6  Rates. A server's rate may follow steps (time, rate in 1/1,048,576, extra lag), known before the run,
    that of a stream other ones for each COMPUTE visit: what slows arithmetic need not slow memory.
    Work is the service time at rate 1; a visit finishes at the least tick by which the rate has done its
    work; at rate 0 it waits. The extra lag is that of the moment at which service starts. The last byte of a
    message crosses a hop no earlier than it crossed the hop before and then takes by itself: a link that is
    free of a message in time does not wait for what a slow or closed one before it still holds back.
    A message goes in parts as fast as the slowest link of its route takes them: a part is handed over when
    every one of those links, at its rates since the part before was handed over, had the time for that one.
    A link that closes and that traffic leaves (R8) holds no sender back for as long.
    What a rank serves at the same time may slow each other: a COMPUTE visit of some kind works at
    `shares[kind, sum]` / 4,096 of its rate, where the sum is of the weights of the rank's other visits in
    service; that changes only when one of them starts or stops (`Contention`).
R7  Fluid links. In that mode a flow is served by all links of its route at once. It joins them after the
    first half (rounded down) of what its message takes besides draining (headers' transit, latencies) and
    arrives the second half, at least a tick, after its last byte left, and later by what the timetables of
    its links add when it joins. Links share max-min fairly among the flows on them, filled in link order by
    one function that both engines call; rates change only when flows join or leave or a timetable steps, once
    an instant, on the links' level. Priority does not count. What one member of a collective instance sends
    to another goes in order, as work requests on a queue pair do (InfiniBand Architecture Specification,
    vol. 1; NCCL has one a connection, `NCCL_IB_QPS_PER_CONNECTION`): a flow that comes to join while one
    before it flows, or waits, joins in its turn, a tick after that one left its links or was stopped (R8). Of
    those that come at one instant the first is the one injected first, then that of the lower number.
R8  Closing links. At a step of a fault timetable that closes a link, the visit in service ends with the
    whole segments that were served (none where the fabric has no segments); these go on. The rest, who
    waits for the link, and who comes to it while it is closed, stops, and is given a new route when the
    closure is noticed (at once where it already is), from the last GPU that holds it where links store and
    forward, else from its source. A fluid flow ends likewise, with the whole packets (bytes where there are
    none) that were out, when a link of its route, or of its acknowledgements', closes; acknowledgements of no
    bytes have no route. New routes come from a pure function of (what remains, surviving fabric), for all
    together that stopped until the end of the instant at which they start, which is before links choose:
    first for what is rerouted, each on its own, then, under policy `replan`, together; both in the order of
    (rank's position, injection, visit, phase, transfer, part, how often it started again, size). What has no
    route then asks again when the first of the links that are down comes back; it is an error only where
    links that never come back cut it off. Transfers that begin avoid links that are closed and noticed, and
    begin as planned where no route is left. If one of those links has policy `replan`, collectives that begin
    are planned for the fabric without all of them, every member by the plan made when the first one arrived;
    a group that they cut apart for a while keeps the plan that it has.
R9  Queue pairs. Where the machine states how senders are held back, each message has a queue pair of its own.
    It hands its next part over when its first link is done with the part before and, under a window, when
    the byte that is a window before that part's first one is acknowledged. Of what waits for a link, parts
    at their first hop go in the order of their start tags: a part's tag is the larger of that of the last
    such part which the link took, and of its message's part before plus that one's service (start-time fair
    queueing). What comes from other links goes as R3 says. Of equal priority the one of these two classes
    goes first that the link has served less, where an idle one keeps no claim; transit on ties. A part's
    acknowledgements go on the links of its route back as it arrives, before data, at those links' rates: who
    is served next there waits for what is left of them. Windows, and when an acknowledgement is back, are
    those of the links outside of their timetables. The last byte of a message is followed over all hops, as
    in R6.
R10 Spraying. Where messages are spread over equal routes, part k of a message takes the k-th of the row that
    its pair has, from the row's begin again at its end; or all its parts take one, by a hash of the position
    of its rank, the time of its injection and its number in the collective.

R11 Delays. Where the machine states how late messages come, a message that crosses a link arrives later
    than its last byte did by the value of the first limit of a row above 32 bits of (seed, rank, its visit of
    the rank's program, number in the collective, row's kind). There is a row for noise, by the pair's route,
    and one for retries after losses, by that and the size. Its links, and what waits for its injection, know
    nothing of that.

R12 Load. Where routes are chosen by load, a message at its injection, or each part as it starts, takes the
    route of its row that costs least: its own time over that one when idle (a message: that of its first
    part); of each link of it what is left of the visit in service and the services, at rate 1, of those that
    asked at earlier instants and wait; and on a detour the bias. So messages and parts that start at one
    instant do not see each other. Of equal ones the first is taken, where those that are no detours come
    first, both kinds counted from the hash of R10 plus the part's number. Acknowledgements are no load.

R13 Pause. Where nodes stop links, a part that came over a link lies in that link's buffer with all its
    bytes from when it asks for its next link until that serves it. When after the links' choices of an
    instant more than the upper threshold lies there, the link is stopped its latency (at least a tick) later,
    and let go as long after no more than the lower one does. A stopped link finishes what it serves and takes
    nothing, wherever it goes; acknowledgements cross it.

R14 Rates. Where marks slow senders, a part that came over a link is marked when its next link takes it, by a
    draw of 24 bits of (seed, position of its rank, visit, number in the collective, part, hop) below the
    probability (`rates.chance`) that what waits gives: the services, at rate 1, of the others that came over
    links. When a marked part arrives, and no notice went out on its message's route for the interval, one
    goes, and is `echo` later at the sender, where `rates.cut` cuts the rate of that route, which all messages
    share that have it. A message hands its next part over no earlier than its newest one, from its start at
    the first link on, takes at that rate as it is then. Rates rise by timers and by bytes that started at
    earlier instants (`rates.advance`): before a cut of the same instant, and before the pace of a part.

So a result is a function of the program: it does not depend on the order of events in a heap, of lines in a
file or of hashes, nor on the engine. `engines.simpy` is the definition, `engines.compiled` the same rules
as one loop; `tests/semantics` holds both to each rule by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from rapid_des.arrays import Bools, Int8s, Int32s, Int64s, starts_by
from rapid_des.compiling.kinds import Int32Matrix, Int64Matrix

Rows = NDArray[np.integer[Any]]
NONE = -1

Progress = Callable[[int], None]
"""Called now and then during a run with the number of finished hops, of about `expected_hops`."""
Namer = Callable[[int, int], str]
"""Maps (position in bindings, visit) to a name for messages."""


class VisitKind(IntEnum):
    """What a visit does with its time."""

    COMPUTE = 0
    """Serves for `work` picoseconds (at least one on a server)."""
    HOLD = 1
    """Holds its server from its start until visit `release` finishes; its start counts an instance (R5)."""
    MEMBER = 2
    """Arrives, at its start, at a collective instance and lasts until this member is done (R5)."""
    JOIN = 3
    """Visits no server; finishes `work` picoseconds after it is ready."""


class WorkLevel(IntEnum):
    """When a server chooses within an instant.

    Everything that becomes ready or free does so first (R4); then streams choose, then slots, then what
    closed links stopped starts again (R8), then links choose, then nodes stop links (R13). What a choice
    makes ready without a lag is always on a later level, so an instant ends.
    """

    STREAM = 0
    SLOT = 1
    STOPPED = 2
    LINK = 3
    BUFFER = 4


class TaskEdges(Struct, frozen=True):
    """Dependencies in any order, one row each."""

    origin: Rows
    target: Rows
    lag: Int64s | int = 0
    """Picoseconds from the anchor; a single number applies to all edges."""
    at_start: Bools | bool = False
    """Whether the edge is anchored at the origin's start (a task's injection); one value applies to all."""

    def by_origin(self, origins: int) -> tuple[Int64s, Int32s, Int64s, Bools]:
        """Return where the rows of each origin start, and targets, lags and anchors, ascending by target.

        What is alike for all takes no memory.
        """
        lag, at_start = np.asarray(self.lag, np.int64), np.asarray(self.at_start, np.bool_)
        key = self.origin.astype(np.int64)
        key *= int(self.target.max(initial=0)) + 1
        key += self.target
        key *= 2
        key += at_start
        starts, target = starts_by(self.origin, origins), self.target.astype(np.int32, copy=False)
        if not (key[1:] >= key[:-1]).all():
            order = np.argsort(key, kind="stable")  # of one key: rows that nearly stand in order cost little
            target = target[order]
            lag = lag[order] if lag.ndim else lag
            at_start = at_start[order] if at_start.ndim else at_start
        return starts, target, np.broadcast_to(lag, target.shape), np.broadcast_to(at_start, target.shape)


def edges(origin: ArrayLike, target: ArrayLike, lag: ArrayLike = 0, *, at_start: bool = False) -> TaskEdges:
    """Return edges of columns of any shapes, which are broadcast against each other."""
    columns = np.broadcast_arrays(np.asarray(origin), np.asarray(target))
    rows = [column.ravel() for column in columns]
    lags = np.asarray(lag, np.int64)
    if not lags.ndim:
        return TaskEdges(rows[0], rows[1], int(lags), at_start)
    return TaskEdges(rows[0], rows[1], np.broadcast_to(lags, columns[0].shape).ravel(), at_start)


def joined(parts: Sequence[TaskEdges]) -> TaskEdges:
    """Return the edges of all parts."""
    counts = [len(part.origin) for part in parts]
    return TaskEdges(
        np.concatenate([part.origin for part in parts]),
        np.concatenate([part.target for part in parts]),
        _one_after_another([part.lag for part in parts], counts, np.int64),
        _one_after_another([part.at_start for part in parts], counts, np.bool_),
    )


def _one_after_another(columns: Sequence[Any], counts: Sequence[int], dtype: type[np.generic]) -> Any:
    """Return the columns concatenated; one value if every column is that value."""
    if all(np.ndim(column) == 0 and column == columns[0] for column in columns):
        return columns[0]
    rows = (np.broadcast_to(column, count) for column, count in zip(columns, counts, strict=True))
    return np.concatenate(list(rows), dtype=dtype)


class Contention(Struct, frozen=True):
    """R6: how what a rank serves at the same time slows its COMPUTE visits.

    A table from the set of visits in service to shares of the rate: each adds its weight while its server
    serves it, so a digit a stream makes the sum say what all streams serve.
    """

    weight: Int32s
    """[visit] its weight in the sum; 0 for one that slows nothing, and for one without a server."""
    kind: Int32s
    """[visit] its row of `shares`, or NONE: never slowed. Only visits on servers of capacity 1 have a row."""
    shares: Int32s
    """[kind, sum] remaining share of the rate in 1 / `timetable.ALONE`, above 0."""


class RankProgram(Struct, frozen=True):
    """The visits of one rank in program order; n columns.

    Successor edges of visit v are rows edge_starts[v]..edge_starts[v+1]: the target is ready no earlier than
    the anchor (v's finish, or its start where `edge_at_start`) plus `edge_lag`. Start-anchored edges to a
    visit on a stream have a lag of at least one tick.
    """

    kind: Int8s
    server: Int32s
    """Local server, or NONE: the visit starts when it is ready."""
    work: Int64s
    priority: Int64s
    """Rank among the visits that wait: a server takes the smallest (priority, ready time, visit)."""
    link_priority: Int64s
    """Priority of its transfers on links: the node's priority, then the collective's chunk (R3)."""
    release: Int32s
    slot: Int32s
    """HOLD and MEMBER: which of the rank's groups; else NONE."""
    parent: Int32s
    """MEMBER: the HOLD whose instance number it shares, or NONE for its own."""
    occurrence: Int32s
    """The instance number k, or NONE: counted per slot when the visit starts."""
    sub: Int32s
    """Chunk and phase of the collective, by which members of one instance number differ."""
    template: Int32s
    need: Int32s
    """How many incoming edges must have passed."""
    edge_starts: Int64s
    edge_target: Int32s
    edge_lag: Int64s
    edge_at_start: Bools
    server_capacity: Int32s
    server_level: Int8s
    node: Int32s
    """Position in the trace's NodeTable that this visit stands for, or NONE for a helper visit."""
    contention: Contention | None = None
    """How visits that run together slow each other; None: not at all."""

    def __len__(self) -> int:
        return len(self.kind)


class Template(Struct, frozen=True, eq=False):
    """The transfers ("tasks") of one collective instance among members 0..members-1.

    Task t is ready when `need[t]` of its incoming edges have passed: from member arrivals and from other
    tasks. Edge targets below T are tasks; target T + m counts towards member m being done (`member_need[m]`).
    An edge is anchored at a task's arrival at its destination, or where `edge_at_injection` at the moment it
    became ready. A task with pair NONE crosses nothing and arrives when it is ready.
    """

    members: int
    pair: Int32s
    """Index into the pairs of distinct (source, destination) members, or NONE."""
    pair_source: Int32s
    """A member, or from `members` on a switch of the trees over the group; likewise the destination."""
    pair_destination: Int32s
    source: Int32s
    """The member whose visit injects the task (orders ties on links); for a switch one that it heard from."""
    size: Int32s
    """Row of the hop tables."""
    need: Int32s
    edge_starts: Int64s
    edge_target: Int32s
    edge_lag: Int64s
    edge_at_injection: Bools
    arrival_starts: Int64s
    arrival_target: Int32s
    arrival_lag: Int64s
    member_need: Int32s
    name: str = ""
    """The collective, its algorithm and size, for messages to users."""
    below: tuple[tuple[int, ...], ...] = ()
    """The members below each tree of switches; empty: one tree is over them all."""
    shape: Hashable = None
    """Templates with equal shape differ in sizes and names only; None: the template shares nothing."""
    ahead: bool = False
    """Whether parts of messages are handed over at the rate of their first link (`PartTable`)."""

    def __len__(self) -> int:
        return len(self.source)

    def expanded(self) -> Template:
        """Return the template with all its columns, as engines want it."""
        return self


def shapes(templates: Sequence[Template]) -> list[Hashable]:
    """Return a key per template, equal for those that share all columns but sizes."""
    return [number if template.shape is None else template.shape for number, template in enumerate(templates)]


class RankBinding(Struct, frozen=True):
    """The program that a rank runs, and the meaning of its slots."""

    rank: int
    program: int
    groups: Int32s
    """[slot] the group that a rank means by it."""
    members: Int32s
    """Slot to this rank's member number in that group."""


class Group(Struct, frozen=True):
    """Who meets: positions in `Program.bindings` in member order, and the routes between them by template."""

    name: str
    bindings: Int32s
    label: int = 0
    """Index into `Program.labels`: the parallelism kind that link statistics are split by."""
    routes: dict[int, Int32s] = msgspec.field(default_factory=dict)
    """Template to the route of each of its pairs."""
    tagged: bool = False
    """Whether visits' `sub` is the tag of a message."""

    def named(self, sub: int) -> str:
        """Return the name, with the tag of a message if visits have it."""
        return f"{self.name} tag {sub}" if self.tagged else self.name


class PartTable(Struct, frozen=True):
    """By size row: the parts that a message of that size is sent in (1: whole), which have rows themselves.

    A part stands at the first link the longest `occupancy` of a part on its route after the part before
    does: senders, whom acknowledgements clock, hand a message over at the rate of its slowest link, whoever
    else uses that. Where links follow timetables it is the rate of each as it is from then on (R6). In a
    template that is `ahead` it is the first link's `occupancy`: what a library keeps in order on one queue
    pair, and whose rate its lags hold. All but the last part have the same row. The message has arrived when
    all its parts have.
    """

    count: Int32s
    first: Int32s
    last: Int32s


class TailTable(Struct, frozen=True):
    """Where the last byte of a message is, by [size row, service class], in picoseconds (R6).

    It has crossed a hop `across` after the link was done with it, and not within `along` of the hop before.
    Without timetables `across` rules.
    """

    across: Int64s
    along: Int64s


class HopTable(Struct, frozen=True):
    """Service of a hop by [size row, service class], picoseconds at rate 1.

    The link is busy for `occupancy`; the next hop is ready `head` (≤ occupancy) plus `lag` after this one
    started; after the last hop the message has arrived `occupancy` plus `lag` after its start.
    """

    occupancy: Int64s
    head: Int64s
    lag: Int64s
    bytes: Int64s
    """Payload of each size row."""
    parts: PartTable | None = None
    """How messages are split; None: every message is one part."""
    tails: TailTable | None = None
    """Where last bytes are; None: untracked, no link has a timetable and no message a queue pair."""


class FluidTable(Struct, frozen=True):
    """R7: the capacity of links and the load of messages in the fluid mode; replaces hop services."""

    capacity: Int64s
    """[link] bytes per second that it transmits in full packets."""
    wire: Int64s
    """[size row] bytes on the wire."""
    ratio: Int64s
    """[size row, profile] acknowledgement load on the route back, as `protocol.FluidService` has it."""
    before: Int64s
    after: Int64s
    profile: Int32s
    """[route] the number of its profile."""
    back: Int32s
    """[route] the route of its acknowledgements."""


class LoadTable(NamedTuple):
    """R12: how a route is chosen by load."""

    minimal: Int32s
    """[route of a pair] how many columns of its row are no detours."""
    bias: int
    """Picoseconds that a detour must save."""


NO_LOAD = LoadTable(np.zeros(0, np.int32), 0)


class SprayTable(Struct, frozen=True):
    """By route of a pair, as rows: the routes that messages or their parts take instead.

    Part k takes column k of the row, from its begin again at its end. With `per_message` all parts take one
    column, that of `spraying.message_hash`.
    """

    per_message: bool
    starts: Int64s
    routes: Int32s
    load: LoadTable | None = None
    """How a column is chosen by load (R12); None: by the rule above."""


class DelayTable(NamedTuple):
    """R11: how much later messages arrive than their last bytes; rows of limits that ascend to 2**32."""

    seed: Int64s
    """The seed of all draws, an array of one entry."""
    rank: Int32s
    """[position in bindings] the rank's number, for draws."""
    starts: Int64s
    limits: Int64s
    values: Int64s
    """Delays in picoseconds."""
    noise: Int32s
    """[route of a pair] the row of its messages, or NONE."""
    losses: Int32s
    """[route of a pair] the column of `retries`, or NONE."""
    retries: Int32Matrix
    """[size row, column] the row of such messages."""
    loss_seed: Int64s
    """[column] the seed of its draws."""


class PauseTable(NamedTuple):
    """R13: when nodes stop links and let them go."""

    stop_above: int
    """Upper threshold: bytes in a link's buffer above which the link is stopped."""
    go_at: int
    latency: Int64s
    """[link] picoseconds, at least one, from the node behind it to the one that stops sending."""


class RateTable(NamedTuple):
    """R14: when parts are marked, and the rates of routes (`rates` names the columns)."""

    first: Int64s
    """[link] queue in picoseconds above which marking begins; NONE: the link marks nothing."""
    full: Int64s
    """[link] queue in picoseconds from which all parts are marked."""
    packets: Int64s
    """[size row] packets of a part."""
    echo: Int64s
    """[route] picoseconds, at least one, until a notice is back at the sender."""
    control: Int64s
    """Constants of the controller, by the columns of `rates`."""
    rows: Int64Matrix
    """[route, column] the initial state of each rate."""


class QueuePairTable(Struct, frozen=True):
    """R9: how far the queue pairs of messages run ahead, and what their acknowledgements cost.

    Links then serve hops whose `lag` is the latency alone, and `tails` holds what trails behind.
    """

    allowance: Int64s
    """[size row of a part, service class of its first hop] parts that go without an acknowledgement."""
    answer: Int64s
    """[size row of a part, service class of its last hop] picoseconds from its arrival until its sender may
    hand over one more; negative where that needs a byte before its last one."""
    acknowledgements: Int64s
    """[size row] number of acknowledgements of a part."""
    acknowledgement_time: Int64s
    """[link] picoseconds that an acknowledgement occupies it."""
    back: Int32s
    """[route] the route of its acknowledgements."""
    pause: PauseTable | None = None
    """Thresholds of priority flow control; None: no link is stopped."""
    rates: RateTable | None = None
    """How parts are marked; None: no part is marked."""


_ROW, _TABLE, _ROUTES = np.zeros(0, np.int64), np.zeros((0, 0), np.int64), np.zeros(0, np.int32)
NO_FLUID = FluidTable(_ROW, _ROW, _TABLE, _TABLE, _TABLE, _ROUTES, _ROUTES)
"""The table of a program whose links serve hops."""
NO_TAILS = TailTable(_TABLE, _TABLE)
NO_SPRAY = SprayTable(per_message=False, starts=_ROW, routes=_ROUTES)
NO_DELAYS = DelayTable(_ROW, _ROUTES, _ROW, _ROW, _ROW, _ROUTES, _ROUTES, _TABLE.astype(np.int32), _ROW)
NO_QUEUE_PAIRS = QueuePairTable(_TABLE, _TABLE, _ROW, _ROW, _ROUTES)
NO_PAUSE = PauseTable(0, 0, _ROW)
NO_RATES = RateTable(_ROW, _ROW, _ROW, _ROW, _ROW, _TABLE)


class Timetable(Struct, frozen=True, eq=False):
    """R6: from each time on a server works at `rate` / `FULL_RATE` and adds `lag`; before at 1, without.

    Visits that slow alike share one object; a timetable is equal to itself alone.
    """

    time: Int64s
    rate: Int64s
    lag: Int64s


STEADY = Timetable(_ROW, _ROW, _ROW)


class Program(Struct, frozen=True, dict=True):
    """Everything an engine needs; immutable."""

    bindings: tuple[RankBinding, ...]
    programs: tuple[RankProgram, ...]
    groups: tuple[Group, ...]
    templates: tuple[Template, ...]
    hops: HopTable
    route_starts: Int64s
    route_links: Int32s
    route_class: Int32s
    links: int
    labels: tuple[str, ...] = ("",)
    fluid: FluidTable | None = None
    queue_pairs: QueuePairTable | None = None
    spray: SprayTable | None = None
    delays: DelayTable | None = None
    link_timetables: dict[int, Timetable] = msgspec.field(default_factory=dict)
    stated_pace: dict[int, Timetable] | None = None
    """The timetables by which senders hand parts over; None: those of the links."""
    visit_timetables: dict[tuple[int, int], Timetable] = msgspec.field(default_factory=dict)
    """Maps (position in bindings, COMPUTE visit on a server) to the rate of its server during that visit."""

    @property
    def pace_timetables(self) -> dict[int, Timetable]:
        """The timetables by link that senders go by as they hand parts over (R6)."""
        return self.link_timetables if self.stated_pace is None else self.stated_pace

    @cached_property
    def template_tasks(self) -> Int64s:
        """The number of tasks of each template."""
        return np.array([len(template) for template in self.templates], np.int64)

    def visits(self) -> Int64s:
        """Return the offsets of each binding's visits in the flat records; the last is the total."""
        lengths = [len(self.programs[binding.program]) for binding in self.bindings]
        return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


class Records(Struct, frozen=True):
    """What an engine recorded, by flat visit (see `Program.visits`) and by link."""

    start: Int64s
    """[visit] picoseconds; NONE if the visit never started."""
    finish: Int64s
    met: Int64s
    """[visit] MEMBER: when the last member of its instance arrived, in picoseconds; else NONE."""
    link_bytes: Int64s
    """[link, label]: payload bytes."""
    link_busy: Int64s
    """[link, label]: picoseconds of service."""
    link_wait: Int64s
    """[link, label]: picoseconds that transfers waited for the link."""
    hops: int
    events: int
    sent: int
    """Payload bytes of all transfers that were injected, and below of those that arrived."""
    received: int
    link_stopped: Int64s | None = None
    """[link] picoseconds that it was stopped (R13), NONE if it still is; None where no link can be."""
    rates: RateRecords | None = None
    """The results of marking (R14); None where nothing is marked."""
    ties: int = 0
    """How often a link chose by rank among transfers that became ready at one instant (R3)."""
    trail: LinkTrail | None = None
    beyond: bool = False
    """Whether an event lies beyond 2**62 ps, the latest time of a simulation."""

    @property
    def finished(self) -> bool:
        """Whether every visit finished."""
        return bool((self.finish != NONE).all())

    @property
    def makespan(self) -> int:
        """The finish of the last visit, in picoseconds."""
        return int(self.finish.max(initial=0))


class RateRecords(NamedTuple):
    """R14: marked parts and the resulting rates."""

    marks: Int64s
    """[link] number of parts that it marked."""
    cuts: Int64s
    """[route] number of cuts of its rate."""
    held: Int64s
    """[route] picoseconds by which parts were handed over later than their first link would have let them."""
    slowest: Int64s
    """[route] the least rate, in 1 / `timetable.FULL_RATE` of the first link's."""


class LinkTrail(Struct, frozen=True):
    """Every hop, if recorded: columns with one row a hop in start order."""

    link: Int32s
    start: Int64s
    finish: Int64s
    arrival: Int64s
    visit: Int64s
    """Flat index of the source member's visit."""
    task: Int32s
    position: Int32s
    """Position of the hop in its route, from 0."""
