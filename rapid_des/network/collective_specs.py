"""What a machine file says about collectives: algorithms, chunks, and communication libraries."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, structs

from rapid_des.config import Spec

AUTO = "auto"
"""The best algorithm on a group's links; what a file leaves open."""
MOST_CHUNKS = 4096
"""Into how many parts one collective is cut."""
Chunks: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_CHUNKS)]


class Choice(Spec, frozen=True, kw_only=True):
    """The algorithm of one collective, or one for each dimension, and into how many chunks it is cut."""

    algorithm: str | Annotated[tuple[str, ...], Meta(min_length=1)]
    """A name (`auto`: the best on a group's links), or a list of one for each dimension."""
    chunks: Chunks = 1
    """Into how many chunks the data is cut, which pipeline through the algorithm."""


Algorithm: TypeAlias = str | Annotated[tuple[str, ...], Meta(min_length=1)] | Choice


class Library(Spec, frozen=True, kw_only=True, tag_field="library"):
    """A communication library: it chooses algorithm, protocol and channels of what is left open to it."""


class Native(Library, frozen=True, kw_only=True, tag="native"):
    """No library: transfers at the links' own rates."""


class Nccl(Library, frozen=True, kw_only=True, tag="nccl"):
    """NCCL: rings, trees, in-switch reductions and sends as its tuner chooses them."""

    constants: str | None = None
    """The file of its constants on this kind of node and network: a path, or a name of topologies/fabrics.
    Unset: the machine's `collectives.measured.nccl`."""
    multiprocessors: Annotated[int, Meta(ge=0, le=2**24)] | None = None
    """SMs that a collective or message takes; unset: one a channel. 0: copy engines move the data."""


class CustomAllReduce(Library, frozen=True, kw_only=True, tag="custom_all_reduce"):
    """A serving engine's own all-reduce, one-shot or two-shot in a node; NCCL does all else."""

    kernels: str | None = None
    """The file of its constants: a path, or a name of topologies/fabrics/serving. Unset: the machine's
    `collectives.measured.kernels`."""
    engine: Literal["vllm", "sglang", "trtllm"]
    """Whose kernel."""


class DeepEp(Library, frozen=True, kw_only=True, tag="deepep"):
    """DeepEP's exchange of tokens among experts, for all-to-all; NCCL does all else."""

    kernels: str | None = None
    """The file of its constants: a path, or a name of topologies/fabrics/serving. Unset: the machine's
    `collectives.measured.kernels`."""
    kernel: Literal["low_latency", "normal"]
    """Decoding takes the first, prefill and training the second."""
    experts: Annotated[int, Meta(ge=1, le=2**24)]
    """Routed experts of the layer, over all ranks."""
    topk: Annotated[int, Meta(ge=1, le=2**24)]
    """Experts that each token goes to."""
    multiprocessors: Annotated[int, Meta(ge=1, le=2**24)] = 20
    """SMs that the normal kernel takes (DeepEP's own default: 20)."""
    direction: Literal["dispatch", "combine"] | None = None
    """Which of both an all-to-all is; unset: the mean of both."""


class Sampled(Library, frozen=True, kw_only=True, tag="samples"):
    """Times measured on groups of the same shape, between the sizes sampled; it serves no others."""

    file: str
    """CSV with the columns op, nodes, gpus_per_node, bytes, time_us; a path."""


AnyLibrary: TypeAlias = Native | Nccl | CustomAllReduce | DeepEp | Sampled


class LibraryChoice(Spec, frozen=True, kw_only=True):
    """Whose collectives serve which kind of group: that of the stream that they run on."""

    default: AnyLibrary | None = None
    """Serves all kinds that are not named, and what the named one's library has no kernel for."""
    tp: AnyLibrary | None = None
    """Serves tensor-parallel groups."""
    cp: AnyLibrary | None = None
    """Serves context-parallel groups."""
    ep: AnyLibrary | None = None
    """Serves expert-parallel groups."""
    dp: AnyLibrary | None = None
    """Serves data-parallel groups."""
    pp: AnyLibrary | None = None
    """Serves messages between pipeline stages."""

    def of(self, kind: str) -> tuple[AnyLibrary, ...]:
        """Return the libraries that a kind of group asks, in turn; `native` asks no other after it.

        What follows a hyphen tells streams of one kind apart.
        """
        kind = kind.partition("-")[0]
        own = getattr(self, kind) if kind in self.__struct_fields__ and kind != "default" else None
        asked = (own,) if isinstance(own, Native) else (own, self.default)
        return tuple(library for library in asked if library is not None)

    def stated(self) -> dict[str, AnyLibrary]:
        """Return the libraries by the key that names each."""
        libraries = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: library for name, library in libraries.items() if library is not None}

    def with_others(self, others: LibraryChoice) -> LibraryChoice:
        """Return the choice with what `others` states instead."""
        return LibraryChoice(**(self.stated() | others.stated()))


class Measured(Spec, frozen=True, kw_only=True):
    """What was measured of libraries on such a fabric: their files of constants."""

    nccl: str | None = None
    """NCCL's: a path, or a name of topologies/fabrics. Unset: it is not used here."""
    kernels: str | None = None
    """Of serving engines' kernels: a path, or a name of topologies/fabrics/serving. Unset: as above."""

    def of(self, library: AnyLibrary) -> AnyLibrary | None:
        """Return a library with its file of constants; None where there is none for this fabric."""
        if isinstance(library, (Native, Sampled)):
            return library
        key, known = ("constants", self.nccl) if isinstance(library, Nccl) else ("kernels", self.kernels)
        file = getattr(library, key) or known
        return None if file is None else structs.replace(library, **{key: file})


class Collectives(Spec, frozen=True, kw_only=True):
    """What serves which collective: an algorithm where one is stated, else a library, else `auto`.

    The libraries are the software's (of a job, or as a trace says): those of which something was measured.

    `nvls`, `sharp` and `switch_tree` work inside switches. As a default they serve the groups that have such.
    """

    measured: Measured = Measured()
    """Files of constants of communication libraries on such a fabric."""
    libraries: LibraryChoice = LibraryChoice()
    """Communication libraries, by kind of group, whatever the software asks for."""
    contention: bool = True
    """Whether libraries take SMs and memory bandwidth from the kernels beside them."""

    default: Algorithm | None = None
    """Serves all that are not named here."""
    all_reduce: Algorithm | None = None
    """Sum of every member's data, for all."""
    reduce: Algorithm | None = None
    """Sum of every member's data, for one."""
    all_gather: Algorithm | None = None
    """Every member's data, for all."""
    gather: Algorithm | None = None
    """Every member's data, for one."""
    scatter: Algorithm | None = None
    """One member's data, a part for each."""
    broadcast: Algorithm | None = None
    """One member's data, for all."""
    all_to_all: Algorithm | None = None
    """A part of every member's data for each."""
    reduce_scatter: Algorithm | None = None
    """Sum of every member's data, a part for each."""
    reduce_scatter_block: Algorithm | None = None
    """As reduce_scatter, in equal blocks."""
    barrier: Algorithm | None = None
    """No data: everybody has arrived."""

    def libraries_for(self, asked: LibraryChoice) -> LibraryChoice:
        """Return the libraries of software that asks for some, each with its file of constants."""
        chosen = asked.with_others(self.libraries).stated()
        found = {kind: self.measured.of(library) for kind, library in chosen.items()}
        return LibraryChoice(**{kind: library for kind, library in found.items() if library is not None})

    @property
    def operations(self) -> tuple[str, ...]:
        """The keys that name algorithms: `default`, then the operations."""
        others = ("libraries", "measured", "contention")
        return tuple(name for name in self.__struct_fields__ if name not in others)

    def choice(self, operation: str) -> Choice | None:
        """Return what serves an operation of the schema, or None where the file leaves it open."""
        stated: Algorithm | None = getattr(self, operation)
        stated = self.default if stated is None else stated
        if stated is None or isinstance(stated, Choice):
            return stated
        return Choice(algorithm=stated)
