"""Sharding policies: what of the model's state the replicas hold in parts, and what travels when.

The replicas of a model part form the process group `group` of the traffic table. A policy says which of their
states are split over that group, with which collective gradients are reduced, and with which, and when,
parameters are gathered. Checks, memory and the written step ask the policy, never for its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rapid_des.units import ceil_divide

State: TypeAlias = Literal["parameters", "gradients", "optimizer"]


@dataclass(frozen=True)
class Policy:
    """One way to hold a model's state on its replicas."""

    split: frozenset[State]
    """Of which states a replica holds only its part from step to step."""
    reduce: str
    """The role (in `TRAFFIC`) by which a bucket of gradients is summed."""
    gather: str | None = None
    """The role by which updated parameters come back; None: every replica updates all of them."""


REPLICATED = Policy(split=frozenset(), reduce="dp.reduce")
DISTRIBUTED_OPTIMIZER = Policy(split=frozenset({"optimizer"}), reduce="dp.scatter", gather="dp.gather")

ZERO_STAGES: Mapping[int, Policy] = {
    0: REPLICATED,
    1: DISTRIBUTED_OPTIMIZER,
}
"""By `training.zero_stage` (Rajbhandari et al. 2020)."""


@dataclass(frozen=True)
class Sharding:
    """A policy as one job uses it."""

    policy: Policy
    group: str
    """The process group that holds the replicas: a key of `GROUPS`."""
    replicas: int
    ahead: bool
    """Gathers stand before the next forward, beside compute; otherwise after the optimizer."""

    @property
    def gathers(self) -> str | None:
        """The role by which parameters are gathered; None where nothing has to travel."""
        return self.policy.gather if self.replicas > 1 else None

    @property
    def norm_groups(self) -> tuple[str, ...]:
        """The groups that the gradient norm is summed over: replicas where each knows only its part."""
        return (self.group, "model") if "optimizer" in self.policy.split else ("model",)

    def held(self, state: State, elements: int) -> int:
        """Return how many of a rank's `elements` it holds of one state."""
        return ceil_divide(elements, self.replicas) if state in self.policy.split else elements
