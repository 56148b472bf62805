"""What a layer kind says of itself, a layer as its two halves in the residual stream, the core of attention.

The core is scores, softmax and values, as FlashAttention or as kernels of their own. A window hides all but
the latest positions, a chunk all positions before the query's own chunk. Soft-capping of the scores happens
inside the fused kernel and is not charged; unfused it is a kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Protocol, Unpack, runtime_checkable

from msgspec import Struct

from rapid_des.device.operators import Attention
from rapid_des.device.vector import Policy
from rapid_des.frontend.matrices import (
    dropout_backward,
    reduce_output,
    residual_backward,
    residual_forward,
    scale_backward,
    scale_forward,
)
from rapid_des.frontend.model_spec import Block, Norms
from rapid_des.frontend.operations import Counts, Operation, OperatorList, Shard, norm_backward, norm_forward
from rapid_des.frontend.spec import ParallelismSpec
from rapid_des.units import ceil_divide
from rapid_des.values import replace

ONE_SUM: frozenset[Policy] = frozenset({"trtllm"})
"""Policies that serve a parallel block with one sum over tp: the halves' partial results are added before it
(TensorRT-LLM's Falcon)."""


class Parameters(Struct, frozen=True):
    """Numbers of parameters of one half of a layer, without its norm, over all tp ranks."""

    matrices: int
    """Weights of matrices, which tp splits."""
    split_vectors: int = 0
    """Biases of column-parallel matrices, which tp splits."""
    whole_vectors: int = 0
    """Parameters that every tp rank has whole: biases of row-parallel matrices, routers."""
    experts: int = 0
    """Weights of routed experts, which ep and etp split."""

    @property
    def total(self) -> int:
        """Sum of all parameters."""
        return self.matrices + self.split_vectors + self.whole_vectors + self.experts


@runtime_checkable
class Sublayer(Protocol):
    """One half of a layer, between a norm and the residual addition; a value that is hashed by content.

    The operator lists are the source for time, memory and traffic; the counts below are the whole model's.
    """

    @property
    def name(self) -> str:
        """The first part of its operators' names."""
        ...

    @property
    def output_bias(self) -> bool:
        """Whether its last matrix has a bias, which a fused residual addition can add."""
        ...

    @property
    def parameters(self) -> Parameters:
        """Numbers of its parameters."""
        ...

    def flops(self, sequence: int) -> int:
        """Return the model FLOPs of one token's forward that attends to `sequence` positions.

        The convention of Narayanan et al. 2021 (eq. 3): matrices and full (not causal) attention, no
        recomputation, no small kernels.
        """
        ...

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why a job's axes cannot split it; None if they can."""
        ...

    def forward(self, operations: OperatorList, shard: Shard) -> None:
        """Append the forward from the norm's output to what is added to the residual stream."""
        ...

    def backward(self, operations: OperatorList, shard: Shard) -> int:
        """Append the backward; return the position that holds the gradient of the norm's output.

        With `shard.core_again` it runs the core of attention again before that's backward.
        """
        ...


@runtime_checkable
class Mixer(Sublayer, Protocol):
    """The half of a layer in which positions see one another, and which serving keeps a cache for."""

    def context_refusal(self, split: ParallelismSpec) -> str | None:
        """Return why a job's cp, of 2 or more, cannot split its sequences; None if it can."""
        ...

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Return what a rank keeps of one request of this many positions while it is served."""
        ...


class Absent(Struct, frozen=True):
    """A half that the layer does not have."""

    name = "none"
    output_bias = False
    parameters = Parameters(0)

    def flops(self, sequence: int) -> int:
        """Return 0: an absent half computes nothing."""
        del sequence
        return 0

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return None: every split is allowed."""
        del split
        return None

    def context_refusal(self, split: ParallelismSpec) -> str | None:
        """Return None: every split is allowed."""
        del split
        return None

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Return 0: an absent half caches nothing."""
        del shard, positions
        return 0

    def forward(self, operations: OperatorList, shard: Shard) -> None:
        """Append no operations."""

    def backward(self, operations: OperatorList, shard: Shard) -> int:
        """Append no operations; the gradient is the incoming one."""
        del shard
        return operations.last


def absent(*_: object) -> Absent:
    """Return the half of a layer that has only the other one."""
    return Absent()


class Layer(Struct, frozen=True):
    """One layer: mixer and feed-forward, each with its norms, and their additions to the residual stream.

    One of them may be absent (Mamba, Nemotron-H).

    In a parallel block both read the same stream, by a norm each or by one, and each has its own sum over tp,
    or while serving one for both (`ONE_SUM`). What one norm makes for both is counted as kept by each.
    """

    mixer: Mixer
    feed_forward: Sublayer
    norms: Norms = "before"
    block: Block = "sequential"
    cross: Mixer = Absent()
    """What attends to an encoder, between the two, with a norm of its own."""

    @property
    def halves(self) -> tuple[Sublayer, ...]:
        """Mixer, attention to an encoder and feed-forward, as far as they are there, in forward order."""
        every = (self.mixer, self.cross, self.feed_forward)
        return tuple(half for half in every if not isinstance(half, Absent))

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Return what a rank keeps of one request of this many positions while it is served."""
        return self.mixer.cache_bytes(shard, positions) + self.cross.cache_bytes(shard, positions)

    @property
    def norm_count(self) -> int:
        """Number of its norms."""
        halves = len(self.halves)
        before = 0 if self.norms == "after" else 1 if self.block == "parallel_one_norm" else halves
        return before + halves * (self.norms != "before")

    def forward(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the forward as one rank's operator list."""
        operations = OperatorList()
        together = self.block != "sequential" and shard.serving and shard.fusion in ONE_SUM
        inner = replace(shard, partial=together)
        for half in self.halves:
            if self._has_own_norm(half):
                norm_forward(operations, shard, f"{half.name}.norm", shard.norm_tokens)
            half.forward(operations, inner)
            if self.norms != "before":
                norm_forward(operations, shard, f"{half.name}.post_norm", shard.norm_tokens, adds=False)
            _scaled(operations, shard, half.name, scale_forward)
            if self.block == "sequential":
                residual_forward(operations, shard, half.name, bias=half.output_bias)
        if self.block != "sequential":
            for half in self.halves:
                residual_forward(operations, shard, half.name, bias=half.output_bias)
                if together and half is self.mixer:
                    reduce_output(operations, shard, "block", shard.tokens * shard.hidden)
        return operations.finish()

    def on_cache(self, shard: Shard) -> tuple[Operation, ...]:
        """Return what of the forward sees the KV cache; only a mixer does."""
        operations = OperatorList()
        self.mixer.forward(operations, shard)
        return tuple(operation for operation in operations.entries if operation.sees_cache)

    def backward(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the backward as one rank's operator list."""
        operations = OperatorList()
        ready = []
        for half in reversed(self.halves):
            dropout_backward(operations, shard, half.name, bias=half.output_bias)
            _scaled(operations, shard, half.name, scale_backward)
            if self.norms != "before":
                norm_backward(operations, shard, f"{half.name}.post_norm", operations.last)
            ready.append(half.backward(operations, shard))
            if self._has_own_norm(half) and self.block != "parallel_one_norm":
                ready[-1] = norm_backward(operations, shard, f"{half.name}.norm", ready[-1])
            if self.block != "parallel_one_norm":
                residual_backward(operations, shard, half.name, after=ready[-1])
        if self.block == "parallel_one_norm":
            both = residual_backward(operations, shard, f"{self.mixer.name}.norm", after=tuple(ready))
            both = norm_backward(operations, shard, f"{self.mixer.name}.norm", both)
            residual_backward(operations, shard, self.mixer.name, after=both)
        return operations.finish()

    def _has_own_norm(self, half: Sublayer) -> bool:
        """Return whether a norm stands before this half for it, or for both."""
        if self.norms == "after":
            return False
        return half is self.mixer or self.block != "parallel_one_norm"


def _scaled(
    operations: OperatorList, shard: Shard, name: str, append: Callable[[OperatorList, Shard, str], None]
) -> None:
    """Append the gains of what a half adds, where the model has them."""
    if shard.model.layer_scale:
        append(operations, shard, name)


class LayerKind(Struct, frozen=True):
    """A layer as a job runs it, hashed by content. This kind keeps what its operators keep."""

    layer: Layer
    before: tuple[Layer, ...] = ()
    """The layers, in forward order, that are recomputed at the start of its backward, itself the last."""

    @property
    def waits(self) -> bool:
        """Whether a later layer recomputes it."""
        return False

    def forward(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the forward as one rank's operator list, with what is kept of it."""
        operations = self.layer.forward(shard)
        return tuple(
            replace(operation, saved=operation.saved + operation.core, core=0) for operation in operations
        )

    def made_again(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the recomputed forward, with what its operators keep from then on."""
        return LayerKind.forward(self, shard)

    def backward(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the backward, after the layers that are run again, or with the operators that are."""
        return self.layer.backward(shard)


CORE = "attention.core"
"""Name of the kernel whose cost depends on the KV length."""


class AttentionCore(Struct, frozen=True):
    """`heads` query heads over `kv_heads` key and value heads, on all tp ranks together."""

    heads: int
    kv_heads: int
    head_dim: int
    """Width of query and key heads."""
    value_dim: int
    window: int | None = None
    """Number of positions that a query sees, itself the last; None: all before it."""
    chunk: int | None = None
    """Chunk length in positions: queries see nothing before their chunk; None: one chunk."""
    softcap: bool = False
    causal: bool = True
    """Whether a query sees the positions up to its own; false: all."""

    @property
    def reach(self) -> int | None:
        """The most positions that a query sees; None: unlimited."""
        bounds = [bound for bound in (self.window, self.chunk) if bound is not None]
        return min(bounds, default=None)

    def seen(self, positions: int) -> int:
        """Return how many of this many positions a query sees at most."""
        return positions if self.reach is None else min(positions, self.reach)

    def latest(self, position: int) -> int:
        """Return how many positions the query at a position sees, counted from 1.

        >>> AttentionCore(1, 1, 64, 64, chunk=8).latest(11), AttentionCore(1, 1, 64, 64, window=4).latest(11)
        (3, 4)
        """
        return self.seen(position if self.chunk is None else (position - 1) % self.chunk + 1)

    def flops(self, sequence: int) -> int:
        """Return two a position, query head and channel for the scores, and two for the values."""
        return 2 * self.seen(sequence) * self.heads * (self.head_dim + self.value_dim)

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why a job's axes cannot split it."""
        tp = split.tp
        if self.heads % tp:
            return f"{self.heads} attention heads are not divisible by tp {tp}"
        if self.kv_heads % tp and tp % self.kv_heads:
            return f"kv_heads {self.kv_heads} and tp {tp}: one must divide by the other"
        return None

    def local_heads(self, shard: Shard) -> int:
        """Return the query heads of a rank."""
        return self.heads // shard.tp

    def local_kv_heads(self, shard: Shard) -> int:
        """Return the key and value heads of a rank, which are copied where there are fewer than tp."""
        return max(1, self.kv_heads // shard.tp)

    def query_width(self, shard: Shard) -> int:
        """Return the columns of a rank's queries."""
        return self.local_heads(shard) * self.head_dim

    def key_width(self, shard: Shard) -> int:
        """Return the columns of a rank's keys."""
        return self.local_kv_heads(shard) * self.head_dim

    def value_width(self, shard: Shard) -> int:
        """Return the columns of a rank's values."""
        return self.local_kv_heads(shard) * self.value_dim

    def result_width(self, shard: Shard) -> int:
        """Return the columns of the core's result on a rank."""
        return self.local_heads(shard) * self.value_dim

    def saved_bytes(self, shard: Shard) -> int:
        """Return what the core keeps for its backward besides Q, K and V.

        Flash: one fp32 a query and head. Unfused: probabilities, and with dropout its mask and result:
        5·a·s²·b bytes in 16 bit (Korthikanti et al. 2022, section 4.1).
        """
        rows = shard.tokens * self.local_heads(shard)
        if shard.flash:
            return 4 * rows
        scores = rows * shard.key_length
        if shard.documents:
            squares = sum(length**2 for length in shard.documents)
            scores = shard.sequences * self.local_heads(shard) * squares
        return shard.activation_bytes(scores) * (1 + shard.dropout) + scores * shard.dropout

    def append(
        self, operations: OperatorList, shard: Shard, name: str, *, backward: bool = False,
        **counts: Unpack[Counts],
    ) -> None:  # fmt: skip
        """Append the kernels of the core; the counts go to the last.

        Unlike sequences have one for all prompts, and one for what decodes. Dropout of the probabilities, and
        the cap of the scores, are kernels where attention is not fused.
        """
        *prompts, shard = shard.of_kernels(self.latest)
        for number, some in enumerate(prompts):
            self.append(operations, some, f"{name}.prompts" + f".{number}" * (number > 0), sees_cache=True)
        *early, late = self._kernels(shard, backward=backward)
        for extra, there in (("tanh", self.softcap), ("dropout", shard.dropout)):
            if there and not shard.flash:
                rows = shard.tokens * self.local_heads(shard)
                kernel = shard.vector(extra, rows, shard.key_length, backward=backward)
                operations.kernel(f"{name}.{extra}", kernel)
        for part in early:
            operations.kernel(f"{name}.early", part, sees_cache=counts.get("sees_cache", False))
        operations.kernel(name, late, **counts)

    def append_backward(self, operations: OperatorList, shard: Shard, **counts: Unpack[Counts]) -> None:
        """Append the backward of the core, after the core again where that is recomputed."""
        if shard.core_again:
            self.append(operations, shard, f"{CORE}.recompute", held=self.saved_bytes(shard))
        self.append(operations, shard, CORE, backward=True, **counts)

    def _kernels(self, shard: Shard, *, backward: bool) -> tuple[Attention, ...]:
        """Return the kernels of the core.

        Where keys and values are gathered (cp) a rank holds one early and one late piece of 2·cp (so that
        causal work is alike on all ranks): two kernels. Those of rank 0 stand for all, since the visible
        pairs of piece i and piece 2·cp - 1 - i always sum to the same; with a window those of the last rank,
        which sees most. While decoding a rank holds as many of the positions that are seen as all others.
        """
        queries, keys = shard.query_length, shard.key_length
        if shard.cache_parts > 1:
            part = ceil_divide(self.seen(keys), shard.cache_parts)
            return (self._kernel(shard, queries, part, backward=backward),)
        if shard.documents and queries > 1:
            each = (self._kernels(some, backward=backward) for some in of_documents(shard))
            return tuple(chain.from_iterable(each))
        if self.chunk and keys > self.chunk:
            cut = self._in_chunks if shard.cp == 1 else self._pieces_in_chunks
            return cut(shard, self.chunk, backward=backward)
        if shard.cp == 1:
            return (self._kernel(shard, queries, keys, backward=backward),)
        piece = queries // 2
        ends = (piece, keys) if self.window is None else (shard.cp * piece, (shard.cp + 1) * piece)
        return tuple(self._kernel(shard, piece, end, backward=backward) for end in ends)

    def block(self, shard: Shard, queries: int, keys: int, *, backward: bool) -> Attention:
        """Return the kernel of this many queries of each sequence that all see this many keys."""
        return replace(self._kernel(shard, queries, keys, backward=backward), causal=False)

    def diagonal(self, shard: Shard, *, backward: bool) -> Attention:
        """Return the kernel of a rank's own queries and keys."""
        return self._kernel(shard, shard.query_length, shard.query_length, backward=backward)

    def _in_chunks(self, shard: Shard, chunk: int, *, backward: bool) -> tuple[Attention, ...]:
        """Return a kernel over all whole chunks, and one over the rest."""
        whole, rest = divmod(shard.query_length, chunk)
        if shard.query_length < shard.key_length:
            keys = (shard.key_length - 1) % chunk + 1
            return (self._kernel(shard, min(shard.query_length, keys), keys, backward=backward),)
        full = self._kernel(shard, chunk, chunk, backward=backward, copies=whole)
        left = (self._kernel(shard, rest, rest, backward=backward),) if rest else ()
        return (full, *left)

    def _pieces_in_chunks(self, shard: Shard, chunk: int, *, backward: bool) -> tuple[Attention, ...]:
        """Return kernels over both pieces of the sequence (cp), cut where chunks end, of the busiest rank."""
        piece, pieces = shard.query_length // 2, 2 * shard.cp
        ranks = (
            [cut for place in (rank, pieces - 1 - rank) for cut in _cuts(place * piece, piece, chunk)]
            for rank in range(shard.cp)
        )
        busiest = max(
            ranks, key=lambda cuts: sum(queries * (2 * keys - queries + 1) for queries, keys in cuts)
        )
        return tuple(
            self._kernel(shard, queries, keys, backward=backward, copies=count)
            for (queries, keys), count in sorted(Counter(busiest).items())
        )

    def _kernel(
        self, shard: Shard, query_length: int, key_length: int, *, backward: bool, copies: int = 1
    ) -> Attention:
        return Attention(
            shard.sequences * copies, query_length, key_length,
            self.local_heads(shard), self.local_kv_heads(shard), self.head_dim,
            value_dim=None if self.value_dim == self.head_dim else self.value_dim,
            phase="backward" if backward else "forward",
            window=None if self.window is None or self.window >= key_length else self.window,
            dtype=shard.precision.activations,
            kv_dtype=shard.precision.kv_cache,
            fused=shard.flash,
            causal=self.causal,
        )  # fmt: skip


def of_documents(shard: Shard) -> tuple[Shard, ...]:
    """Return a shard for each length of a sequence's documents: all of that length, of each a rank's part.

    cp cuts every document by itself, so that causal work is alike on all ranks (Transformer Engine's thd
    format; PyTorch's per-document head-tail balance).
    """
    alike = {length: shard.documents.count(length) for length in sorted(shard.documents)}
    parts = tuple(
        replace(shard, documents=(), sequences=shard.sequences * count,
                query_length=length // shard.cp, key_length=length)
        for length, count in alike.items()
    )  # fmt: skip
    return parts or (shard,)


def _cuts(start: int, length: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield queries and keys of each chunk's part of this many positions.

    >>> list(_cuts(6, 4, 8))
    [(2, 8), (2, 2)]
    """
    stop = start + length
    while start < stop:
        end = min(stop, start - start % chunk + chunk)
        yield end - start, end - start + start % chunk
        start = end


def numbered(pattern: Sequence[LayerKind]) -> tuple[tuple[LayerKind, ...], tuple[int, ...]]:
    """Return the distinct layers in order of first use, and for each layer its place among them."""
    kinds: list[LayerKind] = []  # few: to look through them is quicker than to hash every layer
    places: list[int] = []
    for layer in pattern:
        if places and layer == kinds[places[-1]]:
            places.append(places[-1])
            continue
        if layer not in kinds:
            kinds.append(layer)
        places.append(kinds.index(layer))
    return tuple(kinds), tuple(places)
