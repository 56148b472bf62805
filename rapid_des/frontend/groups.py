"""Process groups of a job: where ranks stand, what the members of a group exchange, what replicas share.

Ranks are laid out along axes; a group is those that differ only along some. `TRAFFIC` is the table of
messages with their byte formulas. The replicas of a part of the model form a group too: a sharding policy
says which of their states are split over it, with which collective gradients are reduced, and with which, and
when, parameters are gathered. Checks, memory and the written step ask the policy, never for its name. There
may be several copies of a split state (HSDP; Megatron-LM's optimizer instances): replicas split it within a
copy, and those that hold the same part of each copy sum its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from math import prod
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.device.operators import DTYPE_BITS
from rapid_des.units import ceil_divide
from rapid_des.values import replace


class RankLayout(Struct, frozen=True, dict=True):
    """Axes and their sizes, innermost first: rank = a0 + n0·(a1 + n1·(a2 + …)).

    >>> layout = RankLayout(("tp", "dp", "pp"), (2, 2, 2))
    >>> layout.groups(("tp",))[1], layout.groups(("dp",))[1], layout.groups(("tp", "pp"))[1]
    ((2, 3), (1, 3), (2, 3, 6, 7))
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    numbering: tuple[int, ...] | None = None
    """The rank at each position of the mixed-radix count; None: positions are ranks."""

    @cached_property
    def _ranks(self) -> Int64s:
        return np.arange(self.ranks) if self.numbering is None else np.array(self.numbering, np.int64)

    @property
    def ranks(self) -> int:
        """The number of ranks of the job."""
        return prod(self.sizes)

    def size(self, axis: str) -> int:
        """Return the number of parts along one axis."""
        return self.sizes[self.axes.index(axis)]

    def stride(self, axis: str) -> int:
        """Return how many positions neighbours along one axis are apart."""
        return prod(self.sizes[: self.axes.index(axis)])

    def coordinates(self, axis: str) -> Int64s:
        """Return each rank's coordinate along one axis, indexed by rank."""
        coordinates = np.empty(self.ranks, np.int64)
        # Mixed radix: the position divided by the product of the inner sizes, modulo the size of the axis.
        coordinates[self._ranks] = np.arange(self.ranks) // self.stride(axis) % self.size(axis)
        return coordinates

    def groups(self, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the groups of ranks that differ only along `axes`; members ascend, groups too."""
        return tuple(map(tuple, self.rows(axes).tolist()))

    def group_numbers(self, axes: tuple[str, ...]) -> Int64s:
        """Return for each rank the number of its group in `groups(axes)`."""
        return numbers_of(self.rows(axes))

    def rows(self, axes: tuple[str, ...]) -> Int64s:
        """Return the groups as rows of one table."""
        inner = [axis for axis in reversed(self.axes) if axis in axes]
        outer = [axis for axis in reversed(self.axes) if axis not in axes]
        # Reshape to one array axis a layout axis (outermost first), then move the axes of a group innermost.
        grid = self._ranks.reshape(self.sizes[::-1])
        order = [self.axes[::-1].index(axis) for axis in outer + inner]
        members = prod(self.size(axis) for axis in inner)
        return grid.transpose(order).reshape(-1, members)


def numbers_of(groups: Int64s) -> Int64s:
    """Return for each rank the number of its group, the groups being rows that hold every rank once."""
    numbers = np.empty(groups.size, np.int64)
    numbers[groups] = np.arange(len(groups))[:, None]
    return numbers


def byte_count(elements: int, dtype: str) -> int:
    """Return the bytes of this many elements, rounded up."""
    return ceil_divide(elements * DTYPE_BITS[dtype], 8)


class Volume(Struct, frozen=True):
    """The arguments of the byte formulas: elements of the exchanged tensor, its format, the members."""

    elements: int
    """Elements of the whole tensor, as if one rank of the group held all of it."""
    dtype: str
    members: int


class Role(Struct, frozen=True):
    """One kind of message, and how its bytes and group are found."""

    collective: CollectiveType | None
    """The collective; None: a send."""
    axis: str
    """The stream of the message; also names the axes of its group."""
    group: str
    """A key of `GROUPS`; for a send the group round which it goes, empty between stages."""
    size: Callable[[Volume], int]
    tensor: str
    """Description of the tensor, for `--explain`."""


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
    "reshard": ("cp", "dp"),
    "model": ("tp", "pp"),
    "stages": ("pp",),
    "embedding": ("pp",),
    "ep": ("ep",),
    "etp": ("etp",),
    "expert_gradient": ("edp",),
    "expert_shard": ("edp",),
    "expert_instances": ("edp",),
    "expert_reshard": ("edp",),
    "experts": ("etp", "ep"),
}
"""Process groups by the axes along which their members differ; `embedding` keeps the first and last stage."""
PARTS: Mapping[str, tuple[str, bool]] = {
    "cp_heads": ("cp", True),
    "cp_ring": ("cp", False),
    "shard": ("gradient", True),
    "instances": ("gradient", False),
    "reshard": ("gradient", True),
    "expert_shard": ("expert_gradient", True),
    "expert_instances": ("expert_gradient", False),
    "expert_reshard": ("expert_gradient", True),
}
"""Groups that are parts of another: runs of consecutive members, or the members at equal places in runs."""
EXPERT_AXES = frozenset(("etp", "ep", "edp"))
"""The axes of the second layout of a stage's ranks, that of its experts."""
GROUP_SLOTS: tuple[str, ...] = tuple(GROUPS)
PEERS: tuple[tuple[str, int], ...] = (("cp_ring", -1), ("cp_ring", 1), ("tp", -1), ("tp", 1))
"""To whom a rank sends: this many places on among the members of a group in order, in a circle.
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
    "cp.states": Role(_EXCHANGE, "cp", "cp", _whole, "positions for heads of a state space layer, and back"),
    "cp.heads": Role(
        _EXCHANGE, "cp", "cp_heads", _whole, "queries, keys and values to those of their heads, results back"
    ),
    "cp.statistics": Role(_GATHER, "cp", "cp", _shard, "softmax statistics of all parts of the KV cache"),
    "cp.sum": Role(_REDUCE, "cp", "cp", _whole, "results of attention to parts of the KV cache"),
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
    "dp.matrices": Role(
        _EXCHANGE, "dp", "gradient", _whole, "parts of matrices to whom orthogonalises each whole, and back"
    ),
    "edp.matrices": Role(
        _EXCHANGE, "dp", "expert_gradient", _whole, "the same of experts' matrices, among their replicas"
    ),
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


State: TypeAlias = Literal["parameters", "gradients", "optimizer"]


class ShardingPolicy(Struct, frozen=True):
    """How the replicas of a model hold its state."""

    split: frozenset[State]
    """The states of which each replica holds only its part between steps."""
    reduce: str
    """The role (in `TRAFFIC`) by which a bucket of gradients is summed."""
    gather: str | None = None
    """The role by which updated parameters come back; None: every replica updates all of them."""
    exchange: str | None = None
    """The role by which an optimizer of whole matrices collects their parts; None: it has them whole."""

    @property
    def by_unit(self) -> bool:
        """Whether parameters are gathered for each unit (a layer) and released after its computation."""
        return "parameters" in self.split

    def for_experts(self) -> ShardingPolicy:
        """Return the policy with the messages of routed experts' replicas."""
        gather = None if self.gather is None else f"e{self.gather}"
        exchange = None if self.exchange is None else f"e{self.exchange}"
        return replace(self, reduce=self.reduce and f"e{self.reduce}", gather=gather, exchange=exchange)

    def for_frozen(self) -> ShardingPolicy:
        """Return the policy of weights that are not trained: split by unit, or whole on every replica."""
        return replace(self, reduce="") if self.by_unit else FROZEN


REPLICATED = ShardingPolicy(split=frozenset(), reduce="dp.reduce")
DISTRIBUTED_OPTIMIZER = ShardingPolicy(
    split=frozenset({"optimizer"}), reduce="dp.scatter", gather="dp.gather"
)


FROZEN = ShardingPolicy(split=frozenset(), reduce="")
"""The policy of weights that are not trained: neither gradients nor optimizer states."""


ZERO_STAGES: Mapping[int, ShardingPolicy] = {
    0: REPLICATED,
    1: DISTRIBUTED_OPTIMIZER,
    2: replace(DISTRIBUTED_OPTIMIZER, split=frozenset({"optimizer", "gradients"})),
    3: replace(
        DISTRIBUTED_OPTIMIZER,
        split=frozenset({"optimizer", "gradients", "parameters"}),
        exchange="dp.matrices",
    ),
}
"""The policies by `training.zero_stage` (Rajbhandari et al. 2020); 3 is FSDP's full sharding (Zhao et al.
2023)."""


class Sharding(Struct, frozen=True):
    """A sharding policy with the groups of one job."""

    policy: ShardingPolicy
    group: str
    """The process group of replicas that share a model's state: a key of `GROUPS`."""
    replicas: int
    """Number of ranks in the group."""
    ahead: bool
    """Whether gathers run before the next forward, beside compute; otherwise after the optimizer."""

    each: bool = False
    """Whether gradients are reduced after every micro-batch's backward, not only after the last one's."""
    instances: int = 1
    """Number of such groups, each with a whole copy of the state."""
    across: str = ""
    """The role by which ranks that hold the same part of each copy sum its gradients."""
    reshard_ranks: int = 0
    """Number of ranks that follow one another over which a unit's parameters stay split from its forward to
    its backward; 0: as at all times, or whole."""
    reshard_group: str = ""
    """The process group of the ranks that a unit stays split over between its passes."""

    @property
    def gathers(self) -> str | None:
        """The role by which parameters are gathered once a step; None where nothing has to travel then."""
        return None if self.policy.by_unit else self.unit_gathers

    @property
    def unit_gathers(self) -> str | None:
        """The role by which parameters are gathered, per unit or per step; None: none are."""
        return self.policy.gather if self.replicas > 1 else None

    @property
    def norm_groups(self) -> tuple[str, ...]:
        """The groups over which the gradient norm is summed: replicas too, if each knows only its part."""
        return (self.group, "model") if "optimizer" in self.policy.split else ("model",)

    def held(self, state: State, elements: int) -> int:
        """Return how many of a rank's `elements` it holds of one state."""
        if not self.policy.reduce and state != "parameters":
            return 0
        whole = state not in self.policy.split or (state == "gradients" and not self.each)
        return elements if whole else ceil_divide(elements, self.replicas)
