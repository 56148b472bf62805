"""One rank's pass: its share (dimensions, formats), and ordered operator lists.

Operators are kernels and messages with what they wait for and keep.

Layers are written with the functions that append: matrices split over tp, norms and residual additions, and
what is fused around them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

from msgspec import Struct, field

from rapid_des.chakra.trace import Exchange
from rapid_des.device.operators import DTYPE_BITS, Dtype, Gemm, Operator, Vector
from rapid_des.device.vector import EAGER, Policy, fused, rms_norm_steps
from rapid_des.frontend.groups import TRAFFIC, byte_count, message_size
from rapid_des.frontend.model_spec import EncoderInput, ModelSpec
from rapid_des.frontend.spec import ContextKind, PrecisionSpec, Recipe, TensorOverlap
from rapid_des.frontend.template import DOMAINS, INPUT, Domain
from rapid_des.units import ceil_divide
from rapid_des.values import replace

FEW_TOKENS = 16
"""The most tokens that a request decodes in one pass: the rows of the narrowest tensor product."""


class RequestGroup(Struct, frozen=True):
    """Equal requests of a pass."""

    count: int
    """The number of requests in the pass."""
    query_length: int
    """New tokens of each request: a prompt, a chunk of one, or in decode the newest token."""
    cached: int = 0
    """Tokens of each request that are in the KV cache already."""
    samples: int = 1
    """Number of tokens sampled for each request; 0 for a chunk that does not end its prompt."""

    @property
    def key_length(self) -> int:
        """Number of positions that the last token of a request attends to."""
        return self.cached + self.query_length

    @property
    def decodes(self) -> bool:
        """Whether it continues from cached tokens by so few that one tile of a decode kernel holds them."""
        return self.query_length == 1 or (self.cached > 0 and self.query_length <= FEW_TOKENS)


class Shard(Struct, frozen=True):
    """One rank's share of one pass of `sequences` sequences; layer kinds add dimensions of their own.

    Sequences that are unlike stand in `groups`; `of_kernels` says what attention then works on.
    """

    model: ModelSpec
    precision: PrecisionSpec
    fusion: Policy
    tp: int
    sequence_parallel: bool
    sequences: int
    query_length: int
    """Positions of a sequence on this rank."""
    key_length: int
    """Number of positions that the last of them attends to."""
    vocabulary: int
    """Size of the padded vocabulary over all ranks."""
    cp: int = 1
    cp_kind: ContextKind = "all_gather"
    cp_heads: int = 1
    """The degree of cp by which attention is split by heads, not by blocks of keys."""
    cache_parts: int = 1
    """While decoding: number of ranks (cp) of which each holds a part of the cached positions."""
    overlap_tp: TensorOverlap = "none"
    overlap_tp_gradients: bool = True
    sequence_copies: bool = False
    gathers_again: bool = False
    """Whether a checkpointed layer's gathers, which its backward runs again, are the only ones there."""
    cross_entropy: str = "one_pass"
    ep: int = 1
    etp: int = 1
    expert_place: int = 0
    """The rank's place along ep, where experts' loads differ."""
    flash: bool = True
    dropout: bool = False
    fused_accumulation: bool = True
    logged_losses: int = 0
    """Number of cross-entropies that are computed for logs besides the loss."""
    core_again: bool = False
    """Whether a backward recomputes the core of attention."""
    documents: tuple[int, ...] = ()
    """Lengths of the documents of a sequence, which do not attend to each other; empty: one document."""
    serving: bool = False
    """Whether the pass writes a KV cache."""
    norm_in_sum: int = 0
    """Tensor-parallel sums of up to this many bytes include the norm after them in their kernel."""
    partial: bool = False
    """Whether outputs stay partial sums of their tp rank, to be summed later."""
    absorbs: bool = True
    """Whether latent attention decodes directly over the latent."""
    shared_aside: bool = False
    """Whether shared experts run on the second stream of kernels."""
    source: EncoderInput | None = None
    """What an encoder reads for each sequence."""
    padding: int = 0
    """Padding tokens that a captured graph computes without use."""
    groups: tuple[RequestGroup, ...] = ()
    """While serving: sequences that are unlike, `sequences` together; `query_length` and `key_length` are
    then those of the longest."""

    @property
    def tokens(self) -> int:
        """Positions in a tensor that is whole along the sequence."""
        if self.groups:
            return self.padding + sum(group.count * group.query_length for group in self.groups)
        return self.padding + self.sequences * self.query_length

    @property
    def sampled(self) -> int:
        """Number of sequences for which a token is sampled."""
        if self.groups:
            return sum(group.count * group.samples for group in self.groups)
        return self.sequences

    @property
    def decodes(self) -> bool:
        """Whether all sequences continue from a cache by few tokens."""
        if self.groups:
            return all(group.decodes for group in self.groups)
        return (
            self.serving and RequestGroup(1, self.query_length, self.key_length - self.query_length).decodes
        )

    def of_kernels(self, seen: Callable[[int], int] = lambda position: position) -> tuple[Shard, ...]:
        """Return the shards on which attention runs a kernel each: prompts, then what decodes.

        `seen` says how many positions the query at a position sees. Engines have one kernel for all prompts
        and one for all that decodes by as many tokens, whatever their lengths (variable-length kernels). Each
        stands here as one over as many equal sequences, with as many tokens and visible pairs in all: bytes
        and FLOPs of decoding stay as they are, and the FLOPs of prompts; these read a little more. Prompts
        that a window cuts have kernels of their own.
        """
        if not self.groups:
            return (self,)
        together: dict[tuple[bool, int, int], list[RequestGroup]] = {}
        for group in sorted(self.groups, key=lambda each: each.decodes):
            together.setdefault(_kernel_of(group, seen), []).append(group)
        return tuple(self._of_equal(_equal(alike, seen)) for alike in together.values())

    def _of_equal(self, group: RequestGroup) -> Shard:
        lengths = {"query_length": group.query_length, "key_length": group.key_length}
        return replace(self, groups=(), sequences=group.count, **lengths)

    @property
    def norm_tokens(self) -> int:
        """Positions in a tensor between blocks: 1/tp of them with sequence parallelism."""
        return ceil_divide(self.tokens, self.tp) if self.sequence_parallel else self.tokens

    @property
    def cp_ring(self) -> int:
        """The degree of cp by which attention is split by blocks of keys."""
        return self.cp // self.cp_heads

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.model.hidden

    @property
    def boundary_bytes(self) -> int:
        """Bytes of the tensor between two layers."""
        return self.activation_bytes(self.norm_tokens * self.hidden)

    @property
    def vocabulary_part(self) -> int:
        """Rows of the token table on this rank."""
        return self.vocabulary // self.tp

    @property
    def gemm_dtype(self) -> Dtype:
        """Format in which matrices multiply."""
        return self.precision.gemm or self.precision.activations

    @property
    def stored_dtype(self) -> Dtype | None:
        """Format in which matrices are stored, where they multiply in another."""
        return self.precision.weights if self.precision.weights != self.gemm_dtype else None

    @property
    def recipe(self) -> Recipe | None:
        """How training in narrow GEMMs finds its scales; None: GEMMs use the format of activations."""
        precision = self.precision
        if self.serving or DTYPE_BITS[self.gemm_dtype] >= DTYPE_BITS[precision.activations]:
            return None
        return precision.recipe or "delayed"

    def activation_bytes(self, elements: int) -> int:
        """Return the bytes of this many activations."""
        return byte_count(elements, self.precision.activations)

    def vector(self, kind: str, rows: int, columns: int, *, backward: bool = False) -> Vector:
        """Return a small kernel on activations."""
        return Vector(kind, rows, columns, self.precision.activations, "backward" if backward else "forward")

    def is_narrow(self, name: str, narrow: bool) -> bool:
        """Return whether a matrix that may be narrow is."""
        return narrow and not (self.precision.wide == "attention" and name.startswith("attention."))

    def gemm(self, rows: int, columns: int, inner: int, *, narrow: bool) -> Gemm:
        """Return a GEMM with a weight as its second operand, in the job's GEMM format if `narrow`."""
        activations = self.precision.activations
        if not narrow:
            return Gemm(rows, columns, inner, dtype=activations)
        return Gemm(
            rows, columns, inner, dtype=self.gemm_dtype, out_dtype=activations,
            weight_dtype=self.stored_dtype,
            quantised=self.recipe is not None or self.precision.quantisation == "fused",
        )  # fmt: skip

    def message(self, role: str, elements: int, dtype: str | None = None) -> int:
        """Return the comm_size of a message inside the tp, cp, ep or etp group."""
        group = TRAFFIC[role].group
        members: int = self.ep * self.etp if group == "experts" else getattr(self, group)
        return message_size(role, elements, dtype or self.precision.activations, members)


def _kernel_of(group: RequestGroup, seen: Callable[[int], int]) -> tuple[bool, int, int]:
    """Return the key by which requests share a kernel: decoded tokens; one for all prompts not cut."""
    if group.decodes:
        return True, group.query_length, 0
    cut = seen(group.key_length) < group.key_length
    return (False, group.query_length, group.key_length) if cut else (False, 0, 0)


def _equal(groups: Sequence[RequestGroup], seen: Callable[[int], int]) -> RequestGroup:
    """Return as many equal requests with the tokens and the visible pairs of all these, rounded up.

    >>> _equal([RequestGroup(3, 1, 9), RequestGroup(1, 1, 29)], lambda position: position)
    RequestGroup(count=4, query_length=1, cached=14, samples=1)
    >>> # 10 + 3 pairs, as 2 · 3 · (1/6 + 2)
    >>> _equal([RequestGroup(1, 4), RequestGroup(1, 2)], lambda position: position)
    RequestGroup(count=2, query_length=3, cached=1, samples=1)
    """
    if len(groups) > 1 and groups[0].decodes:
        groups = [replace(group, cached=_cut(group, seen)) for group in groups]
    count = sum(group.count for group in groups)
    tokens = ceil_divide(sum(group.count * group.query_length for group in groups), count)
    pairs = sum(g.count * g.query_length * (2 * g.cached + g.query_length + 1) for g in groups)
    spare = max(0, pairs - count * tokens * (tokens + 1))
    return RequestGroup(count, tokens, ceil_divide(spare, 2 * count * tokens))


def _cut(group: RequestGroup, seen: Callable[[int], int]) -> int:
    """Return how many cached tokens the queries of what decodes see."""
    return min(group.cached, seen(group.key_length) - 1)


class Counts(TypedDict, total=False):
    """Keyword arguments of an `Operation`: what it keeps, makes and depends on."""

    saved: int
    core: int
    logits: int
    held: int
    output: int
    parameters: int
    weights: int
    sees_cache: bool
    expert: bool
    exchange: Exchange | None
    deferrable: bool


class Operation(Struct, frozen=True):
    """One kernel or one message of a rank."""

    name: str
    after: tuple[int, ...]
    """Positions in the list, or ports, that it waits for besides the order of its stream."""
    operator: Operator | None = None
    """The kernel; None: a message."""
    role: str = ""
    """The message's key of `TRAFFIC`; empty: a kernel."""
    size: int = 0
    """Bytes of the message (comm_size)."""
    sends: bool = False
    """Whether a message between two ranks is sent; otherwise it is received."""
    step: int = 0
    """The distance in the group to the other rank of a message; 0: a collective."""
    saved: int = 0
    """Bytes kept from this forward operation to the backward."""
    core: int = 0
    """Bytes kept in addition unless the attention core is recomputed."""
    logits: int = 0
    """Bytes of logits kept in addition."""
    held: int = 0
    """Bytes recomputed here and kept until the end of this list."""
    output: int = 0
    """Bytes of the result, alive while its consumer runs."""
    parameters: int = 0
    """Parameters of this rank whose gradients are final after this (backward) operation."""
    weights: int = 0
    """Elements of this rank's weight matrix that a serving job stores in its format of weights."""
    sees_cache: bool = False
    """Serving: whether its cost depends on how many positions the KV cache holds."""
    expert: bool = False
    """Whether its parameters are a routed expert's."""
    frozen: bool = False
    """Whether its parameters are not trained."""
    exchange: Exchange | None = None
    """How an all-to-all distributes its copies; None: each copy by itself, evenly."""
    deferrable: bool = False
    """Whether it makes gradients of weights, for which nothing in a backward waits."""
    aside: bool = False
    """Whether the kernel runs on the second stream of kernels."""

    @property
    def domain(self) -> Domain:
        """The domain of its parameters, which decides their replicas."""
        return DOMAINS[self.frozen][self.expert]


class OperatorList(Struct):
    """Collects operations in order; each waits for the one before unless stated otherwise."""

    entries: list[Operation] = field(default_factory=list)
    aside: bool = False
    """Whether kernels that are appended run on the second stream."""
    _awaited: tuple[int, ...] = ()
    """Positions that the next operation waits for instead of the last one; empty: the last one."""

    def go_on_after(self, *positions: int) -> None:
        """Make the next operation wait for these positions unless it states others."""
        self._awaited = tuple(dict.fromkeys(positions))

    @property
    def last(self) -> int:
        """The position that the next operation waits for: the last one's, or the input."""
        if self._awaited:
            return self._awaited[0]
        return len(self.entries) - 1 if self.entries else INPUT

    @property
    def waits(self) -> tuple[int, ...]:
        """All positions that the next operation waits for unless it states others."""
        return self._awaited or (self.last,)

    def finish(self) -> tuple[Operation, ...]:
        """Return the list."""
        return tuple(self.entries)

    def kernel(
        self,
        name: str,
        operator: Operator,
        *,
        after: int | tuple[int, ...] | None = None,
        **counts: Unpack[Counts],
    ) -> int:
        """Append a kernel and return its position; `counts` are fields of `Operation`."""
        after = self._after(after)
        return self._append(Operation(name, after, operator=operator, aside=self.aside, **counts))

    def message(
        self,
        name: str,
        role: str,
        size: int,
        *,
        after: int | tuple[int, ...] | None = None,
        **counts: Unpack[Counts],
    ) -> int:
        """Append a message of this rank's group and return its position; `counts` as for kernels."""
        return self._append(Operation(name, self._after(after), role=role, size=size, **counts))

    def pass_on(
        self, name: str, role: str, size: int, *, step: int, after: tuple[int, ...]
    ) -> tuple[int, int]:
        """Append a message to the rank `step` places on in the role's group, and one from as far back.

        Returns the positions of what is sent and of what is received; both stand while they travel.
        """
        leaves = Operation(f"{name}.send", after, role=role, size=size, sends=True, step=step, output=size)
        comes = Operation(f"{name}.receive", after, role=role, size=size, step=-step, output=size)
        return self._append(leaves), self._append(comes)

    def _after(self, after: int | tuple[int, ...] | None) -> tuple[int, ...]:
        if isinstance(after, tuple):
            return after
        return self.waits if after is None else (after,)

    def _append(self, operation: Operation) -> int:
        self._awaited = ()
        self.entries.append(operation)
        return self.last


DEFERRED_BIAS: frozenset[Policy] = frozenset({"megatron"})
"""Policies whose matrices leave the bias to the kernel that follows; elsewhere it rides in the GEMM."""


def defers_bias(shard: Shard) -> bool:
    """Return whether biases are added after the GEMM, not in it."""
    return shard.fusion in DEFERRED_BIAS


def launch(
    operations: OperatorList, shard: Shard, name: str, kinds: tuple[str, ...], shape: tuple[int, int],
    **counts: Unpack[Counts],
) -> None:  # fmt: skip
    """Append the kernels that the policy launches for operators in a row on one tensor.

    `kinds` names the operators, `shape` is (rows, columns) of the tensor; the counts go to the last kernel.
    """
    dtype = shard.precision.activations
    norm = rms_norm_steps(shard.fusion, dtype, backward=False) if kinds == ("rms_norm",) else ()
    keeps = byte_count(shape[0] * shape[1], "fp32") if norm and counts.get("saved") else 0
    kernels = _kernels(norm or [(kind, dtype) for kind in fused(kinds, shard.fusion)], shape)
    _append_all(operations, name, kernels, keeps=keeps, **counts)  # the square keeps the input in fp32


def _kernels(steps: Sequence[tuple[str, Dtype]], shape: tuple[int, int]) -> list[Vector]:
    rows, columns = shape
    return [Vector(kind, rows, 1 if kind == "row_scalar" else columns, dtype) for kind, dtype in steps]


def _append_all(
    operations: OperatorList, name: str, kernels: Sequence[Vector],
    after: int | None = None, keeps: int = 0, **counts: Unpack[Counts],
) -> int:  # fmt: skip
    """Append kernels on one tensor, and return where the last one stands.

    The second keeps `keeps` bytes; the counts are those of the last one.
    """
    *early, last = kernels
    for index, kernel in enumerate(early):
        wide = byte_count(kernels[0].rows * kernels[0].columns, kernel.dtype)
        size = max(counts["output"], wide) if counts.get("output") else 0
        saved = keeps * (index == 1)
        operations.kernel(f"{name}.{index}.{kernel.kind}", kernel, after=after, output=size, saved=saved)
        after = None
    return operations.kernel(name, last, after=after, **counts)


def rms_norm_backward(
    operations: OperatorList, shard: Shard, name: str, shape: tuple[int, int],
    after: int | None = None, **counts: Unpack[Counts],
) -> int:  # fmt: skip
    """Append an RMS norm's backward, one kernel or autograd's, and return where it ends."""
    steps = rms_norm_steps(shard.fusion, shard.precision.activations, backward=True)
    if steps:
        return _append_all(operations, name, _kernels(steps, shape), after, **counts)
    return operations.kernel(name, shard.vector("rms_norm", *shape, backward=True), after=after, **counts)


def before_residual(shard: Shard, *, bias: bool) -> tuple[str, ...]:
    """Return what runs between a row-parallel matrix and the residual addition.

    A deferred bias without dropout is added by the residual's kernel at no cost in traffic.
    """
    if not shard.dropout:
        return ()
    return ("bias_add", "dropout") if bias and defers_bias(shard) else ("dropout",)


def residual_in_norm(shard: Shard) -> bool:
    """Return whether the norm that follows adds the residual; only one that reads the stream can."""
    norm = shard.model.norm
    if shard.model.norms == "after" or shard.model.block != "sequential":
        return False
    kinds = (*before_residual(shard, bias=False), "residual_add", norm)
    return fused(kinds, shard.fusion)[-1] == f"add_{norm}"


def norm_forward(operations: OperatorList, shard: Shard, name: str, rows: int, *, adds: bool = True) -> None:
    """Append a norm, with the residual addition in it where the policy fuses them and it `adds`."""
    kind = f"add_{shard.model.norm}" if adds and residual_in_norm(shard) else shard.model.norm
    size = shard.activation_bytes(rows * shard.hidden)
    kind = "norm_in_sum" if kind == "add_rms_norm" and shard.tp > 1 and size <= shard.norm_in_sum else kind
    launch(operations, shard, name, (kind,), (rows, shard.hidden), saved=size, output=size)


def norm_backward(operations: OperatorList, shard: Shard, name: str, after: int) -> int:
    """Append a norm's backward, which waits for the input gradient of what follows it."""
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    counts: Counts = {"output": size, "parameters": shard.model.norm_parameters}
    if shard.model.norm == "rms_norm":
        return rms_norm_backward(operations, shard, name, (rows, columns), after, **counts)
    kernel = shard.vector(shard.model.norm, rows, columns, backward=True)
    if shard.fusion not in EAGER:
        return operations.kernel(name, kernel, after=after, **counts)
    # PyTorch's layer_norm_kernel.cu: the input's gradient and the parameters' are kernels of their own.
    operations.kernel(f"{name}.parameters", shard.vector("norm_gradient", rows, columns), after=after)
    return operations.kernel(name, kernel, **counts)
