"""The fabric part of a machine file besides its dimensions: routing, switching, collectives, links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, structs

from rapid_des.config import Spec
from rapid_des.network.congestion import Congestion, Unheld, Window
from rapid_des.network.dimensions import Count
from rapid_des.network.protocol import Protocol
from rapid_des.units import Bandwidth, Duration, Size


class NonMinimal(Spec, frozen=True, kw_only=True):
    """Some pairs of endpoints talk over a third place, which spreads what minimal routes would pile up.

    The place is a hash of seed, source and destination: Valiant's routing (SIAM J. Comput. 11(2), 1982) where
    all pairs do so, and a fixed mixture in the place of an adaptive choice where some do. Routes that would
    come by a router twice leave out what lies between.
    """

    through: Literal["router", "group"]
    """The place of a detour: a router (a leaf of dragonfly_plus), or in dragonfly_plus a group that is
    neither's.
    """
    share: Annotated[float, Meta(ge=0, le=1)]
    """The share of the pairs of endpoints at different routers (groups) that take a detour; the others'
    routes are minimal.
    """
    seed: Annotated[int, Meta(ge=0, le=2**32)]
    """The seed that decides which pairs take a detour, and through which places."""


class Waypoint(Spec, frozen=True, kw_only=True):
    """A switch or NIC that the messages from one GPU to another come by."""

    source: int | str
    """The GPU that sends: its id, or its coordinates."""
    destination: int | str
    """The GPU that receives."""
    through: str
    """The name of the node, such as switch0."""


class Routing(Spec, frozen=True, kw_only=True):
    """How a message is routed, and what decides where two routes are equal."""

    order: Literal["innermost_first", "outermost_first"]
    """The dimension that a message crosses first, and inside a dimension the axis.

    Axes are those of a size that is a list, and the bits of a hypercube, the lowest of which is innermost.
    """
    tie: Literal["positive", "lowest_id", "hash", "balanced"]
    """The direction of a message where both are equally long: the positive one, that of the lower next id,
    either by a hash of source and destination, or alternately from one source to the next (balanced:
    all-to-alls then load both directions equally). A large direct all-to-all takes 1.50 times its lower bound
    on a 4 x 4 torus and 1.30 times on an 8 x 8 one with `positive`, 1.13 and 1.22 times with `balanced`. An
    odd axis has no such messages. A balanced king mesh makes diagonal moves along the whole
    route, where the others make them first.
    """
    ecmp: Literal["hash", "lowest_id", "destination"] = "hash"
    """The choice between equal routes over switches: a hash of source and destination, the lowest id, or the
    destination's number modulo the routes, as InfiniBand's routing of fat trees does (Zahavi, Concurrency and
    Computation 24(3), 2012): messages to different destinations then share no link upwards.
    """
    non_minimal: NonMinimal | None = None
    """The longer routes that balance load in hyperx, slim_fly and dragonfly_plus; unset: all routes are
    minimal.
    """
    waypoints: tuple[Waypoint, ...] = ()
    """The pairs of GPUs whose route passes a stated node: as planned to the node, and as planned on from
    there.
    """


class Spray(Spec, frozen=True, kw_only=True):
    """Messages of a pair of GPUs spread over equal routes: shortest paths over switches, NICs and planes.

    The planned route is one of them; routes around dead links are as short as that one. Links from GPU to GPU
    have no equal routes.
    """

    ways: Annotated[int, Meta(ge=1, le=256)]
    """The number of routes to use, where the pair has as many; more than the choices that differ are not
    used.
    """
    per: Literal["part", "message"]
    """The unit that takes a route: the parts of a message in turn, or each whole message by a hash of sender
    and time.
    """
    weights: Literal["equal", "bandwidth"] = "equal"
    """The frequency of each route: equal, or in proportion to the bandwidth of its slowest link."""
    choose: Literal["oblivious", "least_loaded"] = "oblivious"
    """The choice of the route: oblivious, by `per` and `weights` alone, or at the source the route with the
    least queued on it at that instant (R12).
    """
    detours: Annotated[int, Meta(ge=0, le=256)] = 0
    """The number of longer routes over a third switch that are candidates too, with least_loaded (Valiant,
    SIAM J. Comput. 11(2), 1982; UGAL with all queues known: Kim, Dally, Scott and Abts, ISCA 2008).
    """
    bias: Duration | None = None
    """The time by which a detour must be faster to be taken; needed where there are detours."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong with it and what is allowed)."""
        adaptive = self.choose == "least_loaded"
        if self.ways + self.detours < 2:
            yield "ways", f"{self.ways}; allowed: from 2, or 1 with detours"
        if self.detours and not adaptive:
            yield "detours", f"{self.detours} with choose oblivious; allowed: 0, or choose least_loaded"
        if adaptive and self.weights != "equal":
            yield (
                "weights",
                "bandwidth with choose least_loaded, which knows how fast links are; allowed: equal",
            )
        if (self.bias is None) != (self.detours == 0):
            problem = (
                "missing: how much sooner a detour must be" if self.detours else "stated without detours"
            )
            yield "bias", f"{problem}; allowed: a time where there are detours"


class Switching(Spec, frozen=True, kw_only=True):
    """The model of links under messages: see the engine's rules for each mode's meaning."""

    mode: Literal["store_and_forward", "cut_through", "fluid"]
    """The model of a link: it takes whole segments (store_and_forward), packets pipeline over hops
    (cut_through), or flows share links max-min fairly (fluid).
    """
    segment: Size | None = None
    """The unit that is forwarded; unset: packets in cut_through, the whole message in store_and_forward.

    In store_and_forward all segments of a message are queued at its first link at once, so that segments of
    another message come after them: they take no turns, as the parts of cut_through do.
    """
    protocol: Protocol | None = None
    """The packets, headers and acknowledgements; unset: payload bytes only."""
    parts: Count = 1
    """The largest number of parts of whole packets into which cut_through cuts a message: parts take turns on
    links.

    Messages of a collective that is cut into chunks stay whole, as chunks follow one another. Messages to one
    peer take turns like all others, as if each had a queue pair; in one part they leave in order, as on one.
    """
    spray: Spray | None = None
    """The distribution of messages over equal routes, with cut_through only; unset: all messages of a pair
    take one.
    """
    congestion: Unheld | Window | None = None
    """The limit on senders, which adds acknowledgements to links; with cut_through only.

    Unset: parts are handed to their first link at the rate of the slowest link of their route, whatever else
    uses that, and acknowledgements are free.
    """

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong with it and what is allowed)."""
        segment, mode = self.segment, self.mode
        if mode == "cut_through" and segment is None and self.protocol is None:
            yield "segment", "missing: cut_through forwards segments, or the packets of a protocol"
        if mode == "fluid" and segment is not None:
            yield "segment", "the fluid mode has no segments; leave it out"
        if segment is not None and segment <= 0:
            yield "segment", f"{segment}; allowed: above 0"
        if self.parts > 1 and mode != "cut_through":
            yield "parts", f"{self.parts}; allowed: 1, or more with mode cut_through"
        if self.protocol is not None and self.protocol.payload <= 0:
            yield "protocol.payload", f"{self.protocol.payload}; allowed: above 0"
        if self.spray is not None:
            yield from self._spraying(self.spray)
        if self.congestion is not None:
            yield from self._held_back(self.congestion)

    def check(self, dimensions: tuple[str, ...], *, file: str) -> None:
        """Refuse names of dimensions that a machine has not: `ConfigError` names the allowed ones."""
        if self.congestion is not None and self.congestion.dcqcn is not None:
            self.congestion.dcqcn.check(dimensions, file=file)

    def _held_back(self, congestion: Congestion) -> Iterator[tuple[str, str]]:
        if self.mode != "cut_through":
            yield "congestion", f"stated with mode {self.mode}; allowed: mode cut_through"
        pause = congestion.pause
        if pause is not None and not 0 <= pause.go_at < pause.stop_above:
            yield "congestion.pause.go_at", f"{pause.go_at}; allowed: from 0 to below {pause.stop_above}"
        if congestion.dcqcn is not None:
            if self.parts == 1:
                yield "congestion.dcqcn", "stated with parts 1; allowed: more parts, between which rates act"
            yield from ((f"congestion.dcqcn.{key}", said) for key, said in congestion.dcqcn.problems())

    def _spraying(self, spray: Spray) -> Iterator[tuple[str, str]]:
        if self.mode != "cut_through":
            yield "spray", f"stated with mode {self.mode}; allowed: mode cut_through"
        elif spray.per == "part" and self.parts == 1:
            yield "spray.per", "part, but switching.parts is 1; allowed: message, or more parts"
        yield from ((f"spray.{key}", problem) for key, problem in spray.problems())


class LinkOverride(Spec, frozen=True, kw_only=True):
    """A rate of its own for one link, or for both directions between two neighbours."""

    source: int | str
    """The node that the link leaves: a GPU's id, or a node's name such as switch0."""
    destination: int | str
    """The node that the link enters."""
    both_directions: bool
    """Whether the opposite link gets the same rate."""
    bandwidth: Bandwidth | None = None
    """The bandwidth that replaces the dimension's."""
    latency: Duration | None = None
    """The latency that replaces the dimension's."""


AUTO = "auto"
"""The name for the best algorithm on a group's links, which is used where a file states none."""
MOST_CHUNKS = 4096
"""The largest number of parts into which one collective is cut."""
Chunks: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_CHUNKS)]


class Choice(Spec, frozen=True, kw_only=True):
    """The algorithm of one collective, or one for each dimension, and into how many chunks it is cut."""

    algorithm: str | Annotated[tuple[str, ...], Meta(min_length=1)]
    """The algorithm's name (`auto`: the best on a group's links), or a list with one name for each dimension.
    """
    chunks: Chunks = 1
    """The number of chunks into which the data is cut; they pipeline through the algorithm."""


Algorithm: TypeAlias = str | Annotated[tuple[str, ...], Meta(min_length=1)] | Choice


class Library(Spec, frozen=True, kw_only=True, tag_field="library"):
    """A communication library: it chooses algorithm, protocol and channels of what is left open to it."""


class Native(Library, frozen=True, kw_only=True, tag="native"):
    """No library: transfers at the links' own rates."""


class Nccl(Library, frozen=True, kw_only=True, tag="nccl"):
    """NCCL: rings, trees, in-switch reductions and sends as its tuner chooses them."""

    constants: str | None = None
    """The file of its constants on this kind of node and network: a path, or a name of topologies/fabrics.
    Unset: the machine's `collectives.measured.nccl`.
    """
    multiprocessors: Annotated[int, Meta(ge=0, le=2**24)] | None = None
    """The number of SMs that a collective or message uses; unset: one a channel. 0: copy engines move the
    data.
    """
    registered: bool = False
    """Whether the buffers are registered with NCCL, as in captured CUDA graphs or by NCCL's user buffers:
    switches then reduce them where they are, without copies."""


class CustomAllReduce(Library, frozen=True, kw_only=True, tag="custom_all_reduce"):
    """A serving engine's all-reduce in a node: one-shot, two-shot, symmetric memory; NCCL does all else."""

    kernels: str | None = None
    """The file of its constants: a path, or a name of topologies/fabrics/serving. Unset: the machine's
    `collectives.measured.kernels`."""
    engine: Literal["vllm", "sglang", "trtllm", "trtllm-0.9"]
    """The engine that provides the kernel; trtllm-0.9: the kernel of TensorRT-LLM up to 0.10."""


class DeepEp(Library, frozen=True, kw_only=True, tag="deepep"):
    """DeepEP's exchange of tokens among experts, for all-to-all; NCCL does all else."""

    kernels: str | None = None
    """The file of its constants: a path, or a name of topologies/fabrics/serving. Unset: the machine's
    `collectives.measured.kernels`."""
    kernel: Literal["low_latency", "normal", "by_exchange"]
    """The kernel: low_latency for decoding, normal for prefill and training; by_exchange uses `normal` where
    copies of a token are sent once and `low_latency` where every copy is sent separately.
    """
    experts: Annotated[int, Meta(ge=1, le=2**24)]
    """The number of routed experts of the layer, over all ranks."""
    topk: Annotated[int, Meta(ge=1, le=2**24)]
    """The number of experts to which each token is sent."""
    multiprocessors: Annotated[int, Meta(ge=1, le=2**24)] = 20
    """The number of SMs that the normal kernel uses (DeepEP's own default: 20)."""
    direction: Literal["dispatch", "combine"] | None = None
    """The direction of an all-to-all; unset: the mean of both."""


class HybridEp(Library, frozen=True, kw_only=True, tag="hybridep"):
    """Hybrid-EP's exchange (DeepEP's branch of that name) where copies travel once; NCCL does all else."""

    kernels: str | None = None
    """The file of its constants: a path, or a name of topologies/fabrics/serving. Unset: the machine's
    `collectives.measured.kernels`."""
    multiprocessors: Annotated[int, Meta(ge=1, le=2**24)] = 32
    """The number of SMs that its kernels use (Megatron-Bridge's performance recipes: 32; its own default:
    16).
    """


class Sampled(Library, frozen=True, kw_only=True, tag="samples"):
    """Times measured on groups of the same shape, between the sizes sampled; it serves no others."""

    file: str
    """The path of a CSV file with the columns op, nodes, gpus_per_node, bytes, time_us."""


AnyLibrary: TypeAlias = Native | Nccl | CustomAllReduce | DeepEp | HybridEp | Sampled


class LibraryChoice(Spec, frozen=True, kw_only=True):
    """Whose collectives serve which kind of group: that of the stream that they run on."""

    default: AnyLibrary | None = None
    """The library for all kinds that are not named, and for what the named library has no kernel for."""
    tp: AnyLibrary | None = None
    """The library for tensor-parallel groups."""
    cp: AnyLibrary | None = None
    """The library for context-parallel groups."""
    ep: AnyLibrary | None = None
    """The library for expert-parallel groups."""
    dp: AnyLibrary | None = None
    """The library for data-parallel groups."""
    pp: AnyLibrary | None = None
    """The library for messages between pipeline stages."""

    def of(self, kind: str) -> tuple[AnyLibrary, ...]:
        """Return the libraries that a kind of group asks, in turn; `native` asks no other after it.

        The text after a hyphen distinguishes streams of one kind.
        """
        kind = kind.partition("-")[0]
        choice = getattr(self, kind) if kind in self.__struct_fields__ and kind != "default" else None
        asked = (choice,) if isinstance(choice, Native) else (choice, self.default)
        return tuple(library for library in asked if library is not None)

    def stated(self) -> dict[str, AnyLibrary]:
        """Return the libraries by the key that names each."""
        libraries = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: library for name, library in libraries.items() if library is not None}

    def with_others(self, others: LibraryChoice) -> LibraryChoice:
        """Return the choice with what `others` states instead."""
        return LibraryChoice(**(self.stated() | others.stated()))


class Measured(Spec, frozen=True, kw_only=True):
    """The files of constants of communication libraries that were measured on such a fabric."""

    nccl: str | None = None
    """The file of NCCL's constants: a path, or a name of topologies/fabrics. Unset: NCCL is not used here."""
    kernels: str | None = None
    """The file of constants of serving engines' kernels: a path, or a name of topologies/fabrics/serving.
    Unset: these kernels are not used here.
    """

    def of(self, library: AnyLibrary) -> AnyLibrary | None:
        """Return a library with its file of constants; None where there is none for this fabric."""
        if isinstance(library, (Native, Sampled)):
            return library
        key, known = ("constants", self.nccl) if isinstance(library, Nccl) else ("kernels", self.kernels)
        file = getattr(library, key) or known
        return None if file is None else structs.replace(library, **{key: file})


class Collectives(Spec, frozen=True, kw_only=True):
    """What serves each collective: an algorithm where one is stated, else a library, else `auto`.

    The libraries are the software's (of a job, or as a trace says): those of which something was measured.

    `nvls`, `sharp` and `switch_tree` work inside switches. As a default they serve the groups that have such.
    """

    measured: Measured = Measured()
    """The files of constants of communication libraries, measured on such a fabric."""
    libraries: LibraryChoice = LibraryChoice()
    """The communication libraries by kind of group; they replace what the software asks for."""
    contention: bool = True
    """Whether libraries take SMs and memory bandwidth from concurrent kernels."""

    default: Algorithm | None = None
    """The algorithm for all collectives that are not named here."""
    all_reduce: Algorithm | None = None
    """The algorithm for the sum of every member's data, for all members."""
    reduce: Algorithm | None = None
    """The algorithm for the sum of every member's data, for one member."""
    all_gather: Algorithm | None = None
    """The algorithm for every member's data, for all members."""
    gather: Algorithm | None = None
    """The algorithm for every member's data, for one member."""
    scatter: Algorithm | None = None
    """The algorithm for one member's data, a part for each member."""
    broadcast: Algorithm | None = None
    """The algorithm for one member's data, for all members."""
    all_to_all: Algorithm | None = None
    """The algorithm for a part of every member's data for each member."""
    reduce_scatter: Algorithm | None = None
    """The algorithm for the sum of every member's data, a part for each member."""
    reduce_scatter_block: Algorithm | None = None
    """The algorithm for reduce_scatter in equal blocks."""
    barrier: Algorithm | None = None
    """The algorithm for a barrier, which moves no data: all members have arrived."""

    def libraries_for(self, asked: LibraryChoice) -> LibraryChoice:
        """Return the libraries of software that asks for some, each with its file of constants."""
        chosen = asked.with_others(self.libraries).stated()
        measured = {kind: self.measured.of(library) for kind, library in chosen.items()}
        return LibraryChoice(**{kind: library for kind, library in measured.items() if library is not None})

    @property
    def operations(self) -> tuple[str, ...]:
        """The keys that name algorithms: `default`, then the operations."""
        others = ("libraries", "measured", "contention")
        return tuple(name for name in self.__struct_fields__ if name not in others)

    def choice(self, operation: str) -> Choice | None:
        """Return the choice for an operation of the schema, or None where the file leaves it open."""
        stated: Algorithm | None = getattr(self, operation)
        stated = self.default if stated is None else stated
        if stated is None or isinstance(stated, Choice):
            return stated
        return Choice(algorithm=stated)
