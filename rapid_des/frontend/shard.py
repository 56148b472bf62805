"""What one rank sees of a pass (dimensions, formats), and the table of messages with their byte formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rapid_des.chakra.trace import CollectiveType
from rapid_des.device.operators import DTYPE_BITS, Dtype, Gemm, Vector
from rapid_des.device.vector import Policy
from rapid_des.frontend.spec import ContextKind, ModelSpec, PrecisionSpec, Recipe, TensorOverlap
from rapid_des.units import ceil_divide


def byte_count(elements: int, dtype: str) -> int:
    """Return the bytes of so many elements, rounded up."""
    return ceil_divide(elements * DTYPE_BITS[dtype], 8)


@dataclass(frozen=True)
class Volume:
    """What the formulas see: elements of the tensor that is exchanged, its format, the members."""

    elements: int
    """Of the whole tensor, as if it stood on one rank of the group."""
    dtype: str
    members: int


@dataclass(frozen=True)
class Role:
    """One kind of message."""

    collective: CollectiveType | None
    """None: a send."""
    axis: str
    """The stream, and the axes of the group."""
    group: str
    """A key of `GROUPS`; of a send those along which it goes round, empty between stages."""
    size: Callable[[Volume], int]
    tensor: str
    """Which tensor, for people (`--explain`)."""


def _whole(volume: Volume) -> int:
    return byte_count(volume.elements, volume.dtype)


def _shard(volume: Volume) -> int:
    return byte_count(ceil_divide(volume.elements, volume.members), volume.dtype)


GROUPS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "cp_heads": ("cp",),
    "cp_ring": ("cp",),
    "gradient": ("cp", "dp"),
    "shard": ("cp", "dp"),
    "instances": ("cp", "dp"),
    "kept": ("cp", "dp"),
    "model": ("tp", "pp"),
    "stages": ("pp",),
    "embedding": ("pp",),
    "ep": ("ep",),
    "etp": ("etp",),
    "expert_gradient": ("edp",),
    "expert_shard": ("edp",),
    "expert_instances": ("edp",),
    "expert_kept": ("edp",),
    "experts": ("etp", "ep"),
}
"""Process groups by the axes along which their members differ; `embedding` keeps the first and last stage."""
PARTS: Mapping[str, tuple[str, bool]] = {
    "cp_heads": ("cp", True),
    "cp_ring": ("cp", False),
    "shard": ("gradient", True),
    "instances": ("gradient", False),
    "kept": ("gradient", True),
    "expert_shard": ("expert_gradient", True),
    "expert_instances": ("expert_gradient", False),
    "expert_kept": ("expert_gradient", True),
}
"""Groups that are parts of another's: of its members in order those that follow one another, or those that
stand at the same place of each such run."""
EXPERT_AXES = frozenset(("etp", "ep", "edp"))
"""The axes of the second layout of a stage's ranks, that of its experts."""
GROUP_SLOTS: tuple[str, ...] = tuple(GROUPS)
PEERS: tuple[tuple[str, int], ...] = (("cp_ring", -1), ("cp_ring", 1), ("tp", -1), ("tp", 1))
"""To whom a rank sends: so many places on among the members of a group in order, in a circle.
Slots after these are pipeline stages."""

_REDUCE, _GATHER = CollectiveType.ALL_REDUCE, CollectiveType.ALL_GATHER
_SCATTER, _EXCHANGE = CollectiveType.REDUCE_SCATTER, CollectiveType.ALL_TO_ALL

TRAFFIC: Mapping[str, Role] = {
    "tp.reduce": Role(_REDUCE, "tp", "tp", _whole, "partial sums of a row-parallel output, tokens x hidden"),
    "tp.reduce_gradient": Role(_REDUCE, "tp", "tp", _whole, "input gradient of a column-parallel matrix"),
    "sp.gather": Role(_GATHER, "tp", "tp", _shard, "sequence shards before a column-parallel matrix"),
    "sp.scatter": Role(_SCATTER, "tp", "tp", _whole, "partial sums to sequence shards"),
    "sp.ring": Role(None, "tp", "tp", _whole, "a sequence shard, or its partial sums, passed on"),
    "tp.loss": Role(_REDUCE, "tp", "tp", _whole, "one fp32 a token: maximum, target, sum"),
    "tp.logits": Role(_GATHER, "tp", "tp", _shard, "vocabulary shards of the logits before sampling"),
    "tp.norm_gradients": Role(_REDUCE, "tp", "tp", _whole, "norm and bias gradients of sequence shards"),
    "cp.gather": Role(_GATHER, "cp", "cp", _shard, "keys and values of the other sequence parts"),
    "cp.scatter": Role(_SCATTER, "cp", "cp", _whole, "key and value gradients of the other sequence parts"),
    "cp.ring": Role(None, "cp", "cp_ring", _whole, "keys, values or gradients of a sequence part, passed on"),
    "cp.heads": Role(
        _EXCHANGE, "cp", "cp_heads", _whole, "queries, keys and values to those of their heads, results back"
    ),
    "dp.reduce": Role(_REDUCE, "dp", "gradient", _whole, "a bucket of gradients"),
    "dp.scatter": Role(_SCATTER, "dp", "gradient", _whole, "a bucket of gradients, each rank keeps its part"),
    "dp.gather": Role(_GATHER, "dp", "gradient", _shard, "updated parameters"),
    "ep.dispatch": Role(_EXCHANGE, "ep", "ep", _whole, "copies of tokens to the ranks of their experts"),
    "ep.combine": Role(_EXCHANGE, "ep", "ep", _whole, "results of experts to their tokens"),
    "etp.gather": Role(_GATHER, "ep", "etp", _shard, "tokens of experts that several ranks share"),
    "etp.scatter": Role(_SCATTER, "ep", "etp", _whole, "partial sums of shared experts' results"),
    "experts.gather": Role(_GATHER, "ep", "experts", _shard, "tokens of all ranks of a layer's experts"),
    "experts.scatter": Role(_SCATTER, "ep", "experts", _whole, "partial sums of experts' results, by token"),
    "edp.reduce": Role(_REDUCE, "dp", "expert_gradient", _whole, "a bucket of the experts' gradients"),
    "edp.scatter": Role(
        _SCATTER, "dp", "expert_gradient", _whole, "a bucket of the experts' gradients, each keeps its part"
    ),
    "edp.gather": Role(_GATHER, "dp", "expert_gradient", _shard, "updated parameters of experts"),
    "instances.reduce": Role(
        _REDUCE, "dp-across", "instances", _whole, "a rank's part of a bucket, over copies of the state"
    ),
    "einstances.reduce": Role(
        _REDUCE, "dp-across", "expert_instances", _whole, "the same of a bucket of the experts' gradients"
    ),
    "embedding.reduce": Role(_REDUCE, "dp", "embedding", _whole, "gradient of a table that two stages hold"),
    "model.gradient_norm": Role(_REDUCE, "dp", "model", _whole, "sum of squares, one fp32"),
    "gradient.gradient_norm": Role(
        _REDUCE, "dp", "gradient", _whole, "sum of squares of gradient parts, one fp32"
    ),
    "shard.gradient_norm": Role(_REDUCE, "dp", "shard", _whole, "the same within a copy of the state"),
    "pp.activation": Role(None, "pp", "", _whole, "output of a stage, tokens x hidden"),
    "pp.gradient": Role(None, "pp", "", _whole, "gradient of a stage's input"),
    "pp.token": Role(None, "pp", "", _whole, "sampled token ids, four bytes each"),
}  # fmt: skip


def message_size(role: str, elements: int, dtype: str, members: int) -> int:
    """Return comm_size in bytes of one message.

    >>> message_size("sp.gather", 4096 * 8192, "bf16", 8), message_size("sp.scatter", 4096 * 8192, "bf16", 8)
    (8388608, 67108864)
    """
    return TRAFFIC[role].size(Volume(elements, dtype, members))


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
    samples: bool = True
    """Whether a token is chosen after its last position; not after a chunk that leaves some prompt over."""

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
    core_again: bool = False
    """Whether a backward runs the core of attention again."""
    documents: tuple[int, ...] = ()
    """Lengths of the documents of a sequence, which see nothing of each other; none: it is one."""
    serving: bool = False
    """Whether the pass keeps what later tokens need in a cache."""
    partial: bool = False
    """Whether outputs stay partial sums of their tp rank, for a later sum."""
    groups: tuple[Group, ...] = ()
    """While serving: sequences that are unlike, `sequences` together; `query_length` and `key_length` are
    then those of the longest."""

    @property
    def tokens(self) -> int:
        """Positions in a tensor that is whole along the sequence."""
        if self.groups:
            return sum(group.count * group.query_length for group in self.groups)
        return self.sequences * self.query_length

    @property
    def sampled(self) -> int:
        """Sequences for which a token is chosen."""
        if self.groups:
            return sum(group.count for group in self.groups if group.samples)
        return self.sequences

    @property
    def decodes(self) -> bool:
        """Whether sequences go on from a cache by few tokens."""
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
        activations, weights = self.precision.activations, self.precision.weights
        if not narrow:
            return Gemm(rows, columns, inner, dtype=activations)
        return Gemm(
            rows, columns, inner, dtype=self.gemm_dtype, out_dtype=activations,
            weight_dtype=weights if weights != self.gemm_dtype else None,
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
    Group(count=4, query_length=1, cached=14, samples=True)
    >>> _equal([Group(1, 4), Group(1, 2)], lambda position: position)  # 10 + 3 pairs, as 2 · 3 · (1/6 + 2)
    Group(count=2, query_length=3, cached=1, samples=True)
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
