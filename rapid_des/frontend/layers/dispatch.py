"""How tokens reach their experts and results come back: who gets how many, what runs and what travels.

Where every rank has tokens of its own (tp 1, or sequence parallelism), by one of three dispatchers:

- `all_to_all`, Megatron Core's: copies in the order of their experts travel to the ranks of these; ranks that
  share experts (etp) gather what came in and reduce what goes out; what a rank then has it sorts by expert;
- `all_gather`, Megatron Core's: all ranks of a layer's experts gather all tokens, and which experts those
  chose; each copies what its own experts need, and partial sums are reduced to the tokens' ranks;
- `deepep` and `hybridep`: tokens travel as `Exchange.once` says and are copied where they have come.

Where the ranks of a tp group hold the same tokens, as in serving, each computes what its experts add.

Loads of experts are weights: of all copies that a layer's tokens send, an expert gets its weight's share,
whichever rank the tokens stand on. Every layer with experts has weights of its own. Placement `eplb` is what
DeepSeek's expert-parallel load balancer aims at (DeepSeek-AI 2024, section 3.4), its global policy: further
copies go, one after the other, to the expert whose copies carry most; then experts are dealt out from the
heaviest on, each to the rank that carries least of those with room.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import Exchange
from rapid_des.device.operators import DTYPE_BITS
from rapid_des.errors import ConfigError
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.operations import OperatorList, Shard
from rapid_des.frontend.spec import (
    BalancedLoad,
    DirichletLoad,
    ExpertLoad,
    HistogramLoad,
    Placement,
    RoutingSpec,
    ZipfLoad,
)
from rapid_des.units import ceil_divide

_UNIT = 10**9
"""Denominator of drawn shares: weights are integers, so that runs agree to the bit."""


class PhysicalExperts(Struct, frozen=True):
    """The physical experts of a layer in the order of the ranks that hold them."""

    weights: tuple[int, ...]
    """The relative share of copies that each physical expert gets; copies of one expert divide its share."""
    ranks: int
    """Number of ranks; each holds equally many experts."""

    @property
    def local(self) -> int:
        """Number of physical experts on a rank."""
        return len(self.weights) // self.ranks

    def of_ranks(self, capacity: float | None) -> tuple[int, ...]:
        """Return the weight of each rank, of experts that drop what is beyond their capacity.

        >>> PhysicalExperts((1, 2, 4, 1), 2).of_ranks(1.0)
        (3, 3)
        """
        most = (
            sum(self.weights) if capacity is None else int(capacity * sum(self.weights) / len(self.weights))
        )
        capped = [min(weight, most) for weight in self.weights]
        return tuple(sum(capped[first : first + self.local]) for first in range(0, len(capped), self.local))

    def copies(self, total: int) -> Int64s:
        """Return how many of this many copies each physical expert gets.

        >>> PhysicalExperts((1, 2, 4, 1), 2).copies(80).tolist()
        [10, 20, 40, 10]
        """
        reached = [0]
        for weight in self.weights:
            reached.append(reached[-1] + weight)
        # Cut the total at the prefix sums of the weights, rounded down: the shares add up exactly.
        bounds = np.array([part * total // reached[-1] for part in reached], np.int64)
        return bounds[1:] - bounds[:-1]


def weights_of(load: ExpertLoad, experts: int, layers: int, key: str) -> tuple[tuple[int, ...], ...]:
    """Return the weights of each layer with experts; empty where all experts are alike.

    A `ConfigError` (of `key`) names a histogram that does not fit. Zipf: the r-th expert of a layer in a
    drawn order has weight r^-exponent. Dirichlet: shares with equal concentrations; the smaller, the more
    uneven.
    """
    if isinstance(load, BalancedLoad):
        return ()
    if isinstance(load, HistogramLoad):
        return _histogram(load, experts, layers, key)
    drawn = load.layers or layers
    rows = [_drawn(load, experts, layer) for layer in range(drawn)]
    return tuple(rows[layer % drawn] for layer in range(layers))


def _histogram(load: HistogramLoad, experts: int, layers: int, key: str) -> tuple[tuple[int, ...], ...]:
    rows = load.counts
    if len(rows) not in (1, layers):
        raise ConfigError(f"{len(rows)} rows; allowed: 1, or one for each of the {layers} layers", key=key)
    for number, row in enumerate(rows):
        if len(row) != experts or min(row) < 0 or not sum(row):
            problem = f"row {number} has {len(row)} numbers; allowed: {experts} of 0 or more, not all 0"
            raise ConfigError(problem, key=key)
    return rows * (layers if len(rows) == 1 else 1)


def _drawn(load: ZipfLoad | DirichletLoad, experts: int, layer: int) -> tuple[int, ...]:
    generator = np.random.default_rng([load.seed, layer])
    if isinstance(load, ZipfLoad):
        shares = (1.0 + generator.permutation(experts)) ** -load.exponent
    else:
        shares = generator.dirichlet(np.full(experts, load.concentration))
    # Integers instead of fractions: sums then do not depend on the order of addition.
    whole = np.maximum(1, np.round(shares / shares.sum() * _UNIT))
    return tuple(int(share) for share in whole)


def placed(weights: Sequence[int], ranks: int, placement: Placement, redundant: int) -> PhysicalExperts:
    """Return experts of such weights, and `redundant` further copies of some, on this many ranks."""
    copies = _copies(weights, redundant)
    each = [weight * _UNIT // count for weight, count in zip(weights, copies, strict=True)]
    physical = [expert for expert, count in enumerate(copies) for _ in range(count)]
    if placement == "eplb":
        physical = _packed(physical, each, ranks)
    return PhysicalExperts(tuple(each[expert] for expert in physical), ranks)


def _copies(weights: Sequence[int], redundant: int) -> list[int]:
    """Return how often each expert stands: a further copy goes to the one whose copies carry most."""
    copies = [1] * len(weights)
    for _ in range(redundant):
        heaviest = max(range(len(weights)), key=lambda expert: (weights[expert] / copies[expert], -expert))
        copies[heaviest] += 1
    return copies


def _packed(physical: Sequence[int], each: Sequence[int], ranks: int) -> list[int]:
    """Return the experts in the order of ranks: the heaviest first, to the lightest rank with room."""
    # Longest processing time first: a greedy bin packing with equally many experts a rank.
    room, held, carried = len(physical) // ranks, [list[int]() for _ in range(ranks)], [0] * ranks
    for expert in sorted(physical, key=lambda expert: (-each[expert], expert)):
        rank = min((rank for rank in range(ranks) if len(held[rank]) < room), key=lambda r: (carried[r], r))
        held[rank].append(expert)
        carried[rank] += each[expert]
    return [expert for experts in held for expert in experts]


_SCALED = 128
"""Elements of narrow tokens that share a scale of four bytes (DeepSeek-AI 2024, section 3.3.2)."""
_CHOICE_BYTES = 5
"""Bytes for each token and expert: whether it was chosen, and an fp32 weight."""


class Overlapped(Struct, frozen=True):
    """Operations that run while tokens travel."""

    start: int
    """The position after which they may begin."""
    append: Callable[[], None]


Beside: TypeAlias = Overlapped | None


class _TokenMove(Protocol):
    def __call__(self, operations: OperatorList, shard: Shard, role: str, *, backward: bool) -> None: ...


class Dispatch(Struct, frozen=True):
    """How tokens travel to `topk` of `experts` experts, and results back."""

    hidden: int
    experts: int
    topk: int
    capacity: float | None
    routing: RoutingSpec = RoutingSpec()
    placed: PhysicalExperts | None = None
    """The placement of experts with uneven loads; None: experts stand in order, all loaded alike."""

    @property
    def physical(self) -> int:
        """Number of experts including redundant copies."""
        return self.experts + self.routing.redundant

    @staticmethod
    def travels(shard: Shard) -> bool:
        """Return whether ranks have different tokens, which then travel to the ranks of their experts."""
        return shard.tp == 1 or shard.sequence_parallel

    def spread(self, shard: Shard) -> bool:
        """Return whether tokens are sent to experts on other ranks."""
        return shard.ep * shard.etp > 1 and self.travels(shard)

    def tokens(self, shard: Shard) -> int:
        """Return the tokens that this rank routes."""
        return shard.norm_tokens if self.travels(shard) else shard.tokens

    @property
    def _pads(self) -> bool:
        return self.capacity is not None and self.routing.pads

    @property
    def uneven(self) -> PhysicalExperts | None:
        """The placement of experts if their loads differ; else None."""
        return None if self._pads else self.placed

    def _most(self, shard: Shard) -> int | None:
        """Return the most copies that one expert takes from one rank's tokens."""
        copies = self.tokens(shard) * self.topk
        return None if self.capacity is None else math.ceil(self.capacity * copies / self.experts)

    def copies(self, shard: Shard) -> int:
        """Return the copies that a rank sends, of ranks that send unlike many the mean."""
        most = self._most(shard)
        if self.uneven is not None:
            senders = shard.ep if self.travels(shard) else 1
            return ceil_divide(sum(self._of_experts(shard, self.uneven)), senders)
        return self.tokens(shard) * self.topk if most is None else self.experts * most

    def _of_experts(self, shard: Shard, placed: PhysicalExperts) -> list[int]:
        """Return the copies of each physical expert from all ranks of an ep group."""
        senders, most = shard.ep if self.travels(shard) else 1, self._most(shard)
        whole: list[int] = placed.copies(senders * self.tokens(shard) * self.topk).tolist()
        return whole if most is None else [min(copies, senders * most) for copies in whole]

    def rows(self, shard: Shard) -> tuple[int, ...]:
        """Return the rows of each local expert; of few copies some experts get none.

        A rank that nobody chooses runs its kernels on one row, which nobody sends.
        """
        shared = shard.etp if self.travels(shard) else 1
        if self.uneven is not None:
            local = self.uneven.local
            first = shard.expert_place * local
            every = self._of_experts(shard, self.uneven)
            routed = tuple(copies * shared for copies in every[first : first + local])
            return routed if any(routed) else (shared, *routed[1:])
        copies = self.copies(shard) * shared
        copies = copies if self.travels(shard) else ceil_divide(copies, shard.ep)
        local, reached = self.physical // shard.ep, self._reached(shard)
        even, over = divmod(copies, reached)
        return (even + 1,) * over + (even,) * (reached - over) + (0,) * (local - reached)

    def _reached(self, shard: Shard) -> int:
        """Return over how many of a rank's experts copies are spread: all, or those that few tokens reach.

        The tokens of a pass that serves choose at random: each leaves an expert out with probability
        1 - topk / experts, and what is expected to be reached is.
        """
        local = self.physical // shard.ep
        if not shard.serving or self.capacity is not None:
            return local
        tokens = self.tokens(shard) * (shard.ep if self.travels(shard) else 1)
        return max(1, round(local * (1 - (1 - self.topk / self.physical) ** tokens)))

    def exchange(self, *, returns: bool, packed: bool = True) -> Exchange | None:
        """Return how an all-to-all spreads; None: every copy by itself, and evenly.

        DeepEP sends what is not `packed` by its low-latency kernels.
        """
        sends_once, copies = self.routing.sends_once, tuple[int, ...]()
        once = sends_once and packed
        if self.uneven is not None:
            copies = self.uneven.of_ranks(self.capacity)
        if not sends_once and not copies:
            return None
        return Exchange(copies, self.topk, returns, once, self.routing.nodes or 0)

    def refusal(self, ep: int, etp: int) -> str | None:
        """Return why ep cannot spread the experts, or tokens cannot travel so."""
        if self.physical % ep:
            more = f" with {self.routing.redundant} redundant ones" if self.routing.redundant else ""
            return f"{self.experts} experts{more} are not divisible by ep {ep}"
        if self.routing.sends_once and etp > 1:
            dispatcher = f"dispatcher {self.routing.dispatcher}"
            return f"{dispatcher} sends tokens to ranks with whole experts: etp {etp} must be 1"
        return None

    def forth(
        self, operations: OperatorList, shard: Shard, beside: Beside, *, backward: bool = False
    ) -> None:
        """Append what brings copies of tokens to their experts, or the gradients of these back.

        `beside` appends what computes while they travel, and says after which position that may begin.
        """
        self._travel(operations, shard, "dispatch", beside, backward=backward)

    def back(
        self, operations: OperatorList, shard: Shard, beside: Beside = None, *, backward: bool = False
    ) -> None:
        """Append what brings experts' results to their tokens, or the gradients of these to the experts."""
        self._travel(operations, shard, "combine", beside, backward=backward)

    def _travel(
        self, operations: OperatorList, shard: Shard, role: str, beside: Beside, *, backward: bool
    ) -> None:
        """Append the steps, and what runs beside the one that travels; what follows waits for both."""
        away = (role == "dispatch") != backward
        for move in self._moves(shard)[:: 1 if away else -1]:
            move(operations, shard, role, backward=backward)
            if beside is not None and move in (self._exchange, self._all_tokens):
                sent = operations.last
                operations.go_on_after(beside.start)
                beside.append()
                operations.go_on_after(sent, operations.last)

    def _moves(self, shard: Shard) -> list[_TokenMove]:
        """Return the moves from the tokens to their experts."""
        spread = self.spread(shard)
        if self.routing.dispatcher == "all_gather" and spread:
            return [self._all_tokens, self._permute]
        if self._low_latency(shard):
            return [self._exchange]
        if self.routing.sends_once and spread:
            return [self._exchange, self._permute]
        return [self._permute, self._exchange, self._gather, self._sort]

    def _low_latency(self, shard: Shard) -> bool:
        """Return whether DeepEP's low-latency kernels carry tokens; they quantise, sort and add up too."""
        return self.spread(shard) and self.routing.dispatcher == "deepep" and shard.decodes

    def _received(self, shard: Shard) -> int:
        """Return the copies that come for this rank's experts from its peers along ep."""
        return sum(self.rows(shard)) // shard.etp

    def _permute(self, operations: OperatorList, shard: Shard, role: str, *, backward: bool) -> None:
        """Append the copies in the order of their experts, or their weighted sum in the order of tokens."""
        kind = "moe_permute" if role == "dispatch" else "moe_unpermute"
        tokens, copies = self.tokens(shard), sum(self.rows(shard))
        if self.travels(shard) and self.routing.dispatcher == "all_to_all":
            copies = self.copies(shard)
        elif self.travels(shard) and self.routing.dispatcher == "all_gather":
            tokens *= shard.ep * shard.etp
        size = shard.activation_bytes(copies * self.hidden)
        saved = size if role == "combine" and not backward else 0
        output = size if (role == "dispatch") != backward else shard.activation_bytes(tokens * self.hidden)
        kernel = shard.vector(kind, copies, self.hidden, backward=backward)
        operations.kernel(f"ffn.{kind.removeprefix('moe_')}", kernel, saved=saved, output=output)

    def _exchange(self, operations: OperatorList, shard: Shard, role: str, *, backward: bool) -> None:
        """Append the all-to-all of copies, narrow towards experts if the job says so."""
        if shard.ep == 1 or not self.travels(shard):
            return
        returns = (role == "combine") != backward
        elements = self.copies(shard) * self.hidden
        size = shard.message(f"ep.{role}", elements)
        if not returns and self.routing.dispatch is not None:
            name = "" if self._low_latency(shard) else f"ffn.{role}.quantize"
            size = self._narrow(operations, shard, name, elements)
        comes = self.copies(shard) if returns else self._received(shard)
        operations.message(
            f"ffn.{role}" + "_gradient" * backward,
            f"ep.{role}",
            size,
            output=shard.activation_bytes(comes * self.hidden),
            exchange=self.exchange(returns=returns, packed=not self._low_latency(shard)),
        )

    def _narrow(self, operations: OperatorList, shard: Shard, name: str, elements: int) -> int:
        """Append what makes elements narrow before they travel (no name: nothing); return the bytes."""
        dtype = self.routing.dispatch
        assert dtype is not None
        once = self.routing.dispatcher != "all_to_all"
        rows = self.tokens(shard) if once else self.copies(shard)
        scales = 4 * ceil_divide(elements, _SCALED) if DTYPE_BITS[dtype] < 16 else 0
        if name:
            operations.kernel(name, shard.vector("quantize", rows, self.hidden))
        return byte_count(elements, dtype) + scales

    def _sort(self, operations: OperatorList, shard: Shard, role: str, *, backward: bool) -> None:
        """Append what orders a rank's copies, those of etp's other ranks too, by local expert, or back."""
        if self.spread(shard) and self.physical > shard.ep:
            copies = sum(self.rows(shard))
            kernel = shard.vector("moe_permute", copies, self.hidden, backward=backward)
            output = shard.activation_bytes(copies * self.hidden)
            operations.kernel(f"ffn.{role}.sort", kernel, output=output)

    def _gather(self, operations: OperatorList, shard: Shard, role: str, *, backward: bool) -> None:
        """Append what ranks that share experts exchange: all copies, and the sum of their results."""
        if shard.etp > 1 and self.travels(shard):
            gathers = (role == "dispatch") != backward
            what = "etp.gather" if gathers else "etp.scatter"
            elements = self._received(shard) * shard.etp * self.hidden
            name = f"ffn.{role}.{'gather' if gathers else 'scatter'}"
            operations.message(
                name, what, shard.message(what, elements), output=shard.activation_bytes(elements)
            )

    def _all_tokens(self, operations: OperatorList, shard: Shard, role: str, *, backward: bool) -> None:
        """Append the gather of the tokens of all ranks of a layer's experts, or the return of their sums."""
        gathers = (role == "dispatch") != backward
        local, ranks = self.tokens(shard) * self.hidden, shard.ep * shard.etp
        what = "experts.gather" if gathers else "experts.scatter"
        size = shard.message(what, local * ranks)
        if gathers and self.routing.dispatch is not None:
            size = self._narrow(operations, shard, f"ffn.{role}.quantize", local)
        if role == "dispatch" and not backward:
            size += self.tokens(shard) * self.experts * _CHOICE_BYTES
        name = f"ffn.{role}.{'gather' if gathers else 'scatter'}"
        output = shard.activation_bytes(local * ranks if gathers else local)
        operations.message(name, what, size, output=output)
