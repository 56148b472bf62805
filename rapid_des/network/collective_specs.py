"""What a machine file says about collectives: algorithms, chunks, and communication libraries."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

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

    constants: str
    """The file of its constants on this kind of node and network: a path, or a name of topologies/fabrics."""


class CustomAllReduce(Library, frozen=True, kw_only=True, tag="custom_all_reduce"):
    """A serving engine's own all-reduce, one-shot or two-shot in a node; NCCL does all else."""

    kernels: str
    """The file of its constants: a path, or a name of topologies/fabrics/serving."""
    engine: Literal["vllm", "sglang", "trtllm"]
    """Whose kernel."""


class DeepEp(Library, frozen=True, kw_only=True, tag="deepep"):
    """DeepEP's exchange of tokens among experts, for all-to-all; NCCL does all else."""

    kernels: str
    """The file of its constants: a path, or a name of topologies/fabrics/serving."""
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


AnyLibrary: TypeAlias = Native | Nccl | CustomAllReduce | DeepEp


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
        """Return the libraries that a kind of group asks, in turn; `native` asks no other after it."""
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


class Collectives(Spec, frozen=True, kw_only=True):
    """What serves which collective: an algorithm where one is stated, else a library, else `auto`.

    `nvls`, `sharp` and `switch_tree` work inside switches. As a default they serve the groups that have such.
    """

    libraries: LibraryChoice = LibraryChoice()
    """Communication libraries, by kind of group."""
    serving: LibraryChoice = LibraryChoice()
    """What serves inference jobs instead, by kind of group."""

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

    def libraries_for(self, *, serving: bool) -> LibraryChoice:
        """Return the libraries of training jobs, or of inference."""
        return self.libraries.with_others(self.serving) if serving else self.libraries

    @property
    def operations(self) -> tuple[str, ...]:
        """The keys that name algorithms: `default`, then the operations."""
        return tuple(name for name in self.__struct_fields__ if name not in ("libraries", "serving"))

    def choice(self, operation: str) -> Choice | None:
        """Return what serves an operation of the schema, or None where the file leaves it open."""
        stated: Algorithm | None = getattr(self, operation)
        stated = self.default if stated is None else stated
        if stated is None or isinstance(stated, Choice):
            return stated
        return Choice(algorithm=stated)
