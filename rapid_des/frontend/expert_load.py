"""How many copies of tokens each routed expert gets, and which rank holds which expert.

Loads are weights: of all copies that a layer's tokens send, an expert gets its weight's share, whichever rank
the tokens stand on. Every layer with experts has weights of its own.

Placement `eplb` is what DeepSeek's expert-parallel load balancer aims at (DeepSeek-AI 2024, section 3.4), its
global policy: further copies go, one after the other, to the expert whose copies carry most; then experts
are dealt out from the heaviest on, each to the rank that carries least of those with room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.errors import ConfigError
from rapid_des.frontend.spec import (
    BalancedLoad,
    DirichletLoad,
    ExpertLoad,
    HistogramLoad,
    Placement,
    ZipfLoad,
)

_UNIT = 10**9
"""What drawn shares are multiples of: weights are integers, so that runs agree to the bit."""


@dataclass(frozen=True)
class Placed:
    """The physical experts of a layer in the order of the ranks that hold them."""

    weights: tuple[int, ...]
    """Which part of all copies each gets, in any unit; of an expert that stands twice, its half."""
    ranks: int
    """As many stand on each."""

    @property
    def local(self) -> int:
        """Physical experts of a rank."""
        return len(self.weights) // self.ranks

    def of_ranks(self, capacity: float | None) -> tuple[int, ...]:
        """Return the weight of each rank, of experts that drop what is beyond their capacity.

        >>> Placed((1, 2, 4, 1), 2).of_ranks(1.0)
        (3, 3)
        """
        most = (
            sum(self.weights) if capacity is None else int(capacity * sum(self.weights) / len(self.weights))
        )
        kept = [min(weight, most) for weight in self.weights]
        return tuple(sum(kept[first : first + self.local]) for first in range(0, len(kept), self.local))

    def copies(self, total: int) -> Int64s:
        """Return how many of so many copies each physical expert gets.

        >>> Placed((1, 2, 4, 1), 2).copies(80).tolist()
        [10, 20, 40, 10]
        """
        reached = [0]
        for weight in self.weights:
            reached.append(reached[-1] + weight)
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
    whole = np.maximum(1, np.round(shares / shares.sum() * _UNIT))
    return tuple(int(share) for share in whole)


def placed(weights: Sequence[int], ranks: int, placement: Placement, redundant: int) -> Placed:
    """Return experts of such weights, and `redundant` further copies of some, on so many ranks."""
    copies = _copies(weights, redundant)
    each = [weight * _UNIT // count for weight, count in zip(weights, copies, strict=True)]
    physical = [expert for expert, count in enumerate(copies) for _ in range(count)]
    if placement == "eplb":
        physical = _packed(physical, each, ranks)
    return Placed(tuple(each[expert] for expert in physical), ranks)


def _copies(weights: Sequence[int], redundant: int) -> list[int]:
    """Return how often each expert stands: a further copy goes to the one whose copies carry most."""
    copies = [1] * len(weights)
    for _ in range(redundant):
        heaviest = max(range(len(weights)), key=lambda expert: (weights[expert] / copies[expert], -expert))
        copies[heaviest] += 1
    return copies


def _packed(physical: Sequence[int], each: Sequence[int], ranks: int) -> list[int]:
    """Return the experts in the order of ranks: the heaviest first, to the lightest rank with room."""
    room, held, carried = len(physical) // ranks, [list[int]() for _ in range(ranks)], [0] * ranks
    for expert in sorted(physical, key=lambda expert: (-each[expert], expert)):
        rank = min((rank for rank in range(ranks) if len(held[rank]) < room), key=lambda r: (carried[r], r))
        held[rank].append(expert)
        carried[rank] += each[expert]
    return [expert for own in held for expert in own]
