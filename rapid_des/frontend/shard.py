"""What one rank sees of a pass (dimensions, formats), and the table of messages with their byte formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rapid_des.device.operators import DTYPE_BITS, Dtype, Gemm, Vector
from rapid_des.device.vector import Policy
from rapid_des.frontend.groups import TRAFFIC, byte_count, message_size
from rapid_des.frontend.spec import ContextKind, ModelSpec, PrecisionSpec, Recipe, TensorOverlap
from rapid_des.units import ceil_divide

FEW_TOKENS = 16
"""The most tokens that a request decodes in one pass: rows of the narrowest tensor product."""


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of a pass that are alike."""

    count: int
    """How many."""
    query_length: int
    """Tokens of each that pass the model: a prompt, a chunk of one, or in decode the newest token."""
    cached: int = 0
    """Tokens of each that stand in the KV cache already."""
    samples: int = 1
    """After how many of its positions a token is chosen; 0 of a chunk that leaves some prompt over."""

    @property
    def key_length(self) -> int:
        """Positions that its last token attends to."""
        return self.cached + self.query_length

    @property
    def decodes(self) -> bool:
        """Whether it goes on from cached tokens by so few that a decode kernel takes them in one tile."""
        return self.query_length == 1 or (self.cached > 0 and self.query_length <= FEW_TOKENS)


@dataclass(frozen=True)
class Shard:
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
    """Positions that the last of them attends to."""
    vocabulary: int
    """Padded, whole."""
    cp: int = 1
    cp_kind: ContextKind = "all_gather"
    cp_heads: int = 1
    """Of cp the ways that attention is split by heads, not by blocks of keys."""
    overlap_tp: TensorOverlap = "none"
    ep: int = 1
    etp: int = 1
    expert_place: int = 0
    """Which of the ep ranks it is, where experts' loads differ."""
    flash: bool = True
    dropout: bool = False
    fused_accumulation: bool = True
    logged_losses: int = 0
    """Cross-entropies that a log takes besides the loss."""
    core_again: bool = False
    """Whether a backward runs the core of attention again."""
    documents: tuple[int, ...] = ()
    """Lengths of the documents of a sequence, which see nothing of each other; none: it is one."""
    serving: bool = False
    """Whether the pass keeps what later tokens need in a cache."""
    partial: bool = False
    """Whether outputs stay partial sums of their tp rank, for a later sum."""
    absorbs: bool = True
    """Whether latent attention decodes over the latent itself."""
    padding: int = 0
    """Tokens besides that a captured graph computes and nobody reads."""
    groups: tuple[Group, ...] = ()
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
        """Sequences for which a token is chosen."""
        if self.groups:
            return sum(group.count * group.samples for group in self.groups)
        return self.sequences

    @property
    def decodes(self) -> bool:
        """Whether all sequences go on from a cache by few tokens."""
        if self.groups:
            return all(group.decodes for group in self.groups)
        return self.serving and Group(1, self.query_length, self.key_length - self.query_length).decodes

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
        together: dict[tuple[bool, int, int], list[Group]] = {}
        for group in sorted(self.groups, key=lambda each: each.decodes):
            together.setdefault(_kernel_of(group, seen), []).append(group)
        return tuple(self._of_equal(_equal(alike, seen)) for alike in together.values())

    def _of_equal(self, group: Group) -> Shard:
        return replace(
            self,
            groups=(),
            sequences=group.count,
            query_length=group.query_length,
            key_length=group.key_length,
        )

    @property
    def norm_tokens(self) -> int:
        """Positions in a tensor between blocks: a tp-th with sequence parallel."""
        return ceil_divide(self.tokens, self.tp) if self.sequence_parallel else self.tokens

    @property
    def cp_ring(self) -> int:
        """Of cp the ways that attention is split by blocks of keys."""
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
        """How training in narrow GEMMs finds its scales; None: they are as wide as activations."""
        precision = self.precision
        if self.serving or DTYPE_BITS[self.gemm_dtype] >= DTYPE_BITS[precision.activations]:
            return None
        return precision.recipe or "delayed"

    def activation_bytes(self, elements: int) -> int:
        """Return the bytes of so many activations."""
        return byte_count(elements, self.precision.activations)

    def vector(self, kind: str, rows: int, columns: int, *, backward: bool = False) -> Vector:
        """Return a small kernel on activations."""
        return Vector(kind, rows, columns, self.precision.activations, "backward" if backward else "forward")

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


def _kernel_of(group: Group, seen: Callable[[int], int]) -> tuple[bool, int, int]:
    """Return by what requests share a kernel: tokens of what decodes; prompts all, but those that are cut."""
    if group.decodes:
        return True, group.query_length, 0
    cut = seen(group.key_length) < group.key_length
    return (False, group.query_length, group.key_length) if cut else (False, 0, 0)


def _equal(groups: Sequence[Group], seen: Callable[[int], int]) -> Group:
    """Return as many equal requests with the tokens and the visible pairs of all these, rounded up.

    >>> _equal([Group(3, 1, 9), Group(1, 1, 29)], lambda position: position)
    Group(count=4, query_length=1, cached=14, samples=1)
    >>> _equal([Group(1, 4), Group(1, 2)], lambda position: position)  # 10 + 3 pairs, as 2 · 3 · (1/6 + 2)
    Group(count=2, query_length=3, cached=1, samples=1)
    """
    if len(groups) > 1 and groups[0].decodes:
        groups = [replace(group, cached=_cut(group, seen)) for group in groups]
    count = sum(group.count for group in groups)
    tokens = ceil_divide(sum(group.count * group.query_length for group in groups), count)
    pairs = sum(
        group.count * group.query_length * (2 * group.cached + group.query_length + 1) for group in groups
    )
    spare = max(0, pairs - count * tokens * (tokens + 1))
    return Group(count, tokens, ceil_divide(spare, 2 * count * tokens))


def _cut(group: Group, seen: Callable[[int], int]) -> int:
    """Return how many cached tokens the queries of what decodes see."""
    return min(group.cached, seen(group.key_length) - 1)
