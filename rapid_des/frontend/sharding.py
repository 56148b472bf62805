"""How the replicas of a part of the model hold its state: sharding policies.

The replicas of a part form the process group `group` of the traffic table. A sharding policy says which of
their states are split over that group, with which collective gradients are reduced, and with which, and when,
parameters are gathered. Checks, memory and the written step ask the policy, never for its name. There may be
several copies of a split state (HSDP; Megatron-LM's optimizer instances): replicas split it within a copy,
and those that hold the same part of each copy sum its gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from rapid_des.units import ceil_divide

State: TypeAlias = Literal["parameters", "gradients", "optimizer"]


@dataclass(frozen=True)
class ShardingPolicy:
    """One way to hold a model's state on its replicas."""

    split: frozenset[State]
    """Of which states a replica holds only its part from step to step."""
    reduce: str
    """The role (in `TRAFFIC`) by which a bucket of gradients is summed."""
    gather: str | None = None
    """The role by which updated parameters come back; None: every replica updates all of them."""

    @property
    def by_unit(self) -> bool:
        """Whether parameters are whole only while their unit (a layer) computes, and gathered for that."""
        return "parameters" in self.split


REPLICATED = ShardingPolicy(split=frozenset(), reduce="dp.reduce")
DISTRIBUTED_OPTIMIZER = ShardingPolicy(
    split=frozenset({"optimizer"}), reduce="dp.scatter", gather="dp.gather"
)


FROZEN = ShardingPolicy(split=frozenset(), reduce="")
"""Of weights that are not trained: neither gradients nor optimizer states."""


def for_experts(policy: ShardingPolicy) -> ShardingPolicy:
    """Return the policy with the messages of routed experts' replicas."""
    gather = None if policy.gather is None else f"e{policy.gather}"
    return replace(policy, reduce=f"e{policy.reduce}", gather=gather)


ZERO_STAGES: Mapping[int, ShardingPolicy] = {
    0: REPLICATED,
    1: DISTRIBUTED_OPTIMIZER,
    2: replace(DISTRIBUTED_OPTIMIZER, split=frozenset({"optimizer", "gradients"})),
    3: replace(DISTRIBUTED_OPTIMIZER, split=frozenset({"optimizer", "gradients", "parameters"})),
}
"""By `training.zero_stage` (Rajbhandari et al. 2020); 3 is what FSDP shards fully (Zhao et al. 2023)."""


@dataclass(frozen=True)
class Sharding:
    """A policy as one job uses it."""

    policy: ShardingPolicy
    group: str
    """The process group of replicas that share a model's state: a key of `GROUPS`."""
    replicas: int
    """How many they are."""
    ahead: bool
    """Gathers stand before the next forward, beside compute; otherwise after the optimizer."""

    each: bool = False
    """Gradients are reduced after every micro-batch's backward, not only after the last one's."""
    instances: int = 1
    """How many such groups there are, each with a whole state."""
    across: str = ""
    """The role by which ranks that hold the same part of each copy sum its gradients."""
    kept: int = 0
    """Over how many ranks that follow one another a unit's parameters stay split from its forward to its
    backward; 0: as at all times, or whole."""
    near: str = ""
    """The process group of these."""

    @property
    def gathers(self) -> str | None:
        """The role by which parameters are gathered once a step; None where nothing has to travel then."""
        return None if self.policy.by_unit else self.unit_gathers

    @property
    def unit_gathers(self) -> str | None:
        """The role by which parameters are gathered, of a unit or once a step; None where none travel."""
        return self.policy.gather if self.replicas > 1 else None

    @property
    def norm_groups(self) -> tuple[str, ...]:
        """The groups that the gradient norm is summed over: replicas where each knows only its part."""
        return (self.group, "model") if "optimizer" in self.policy.split else ("model",)

    def held(self, state: State, elements: int) -> int:
        """Return how many of a rank's `elements` it holds of one state."""
        if not self.policy.reduce and state != "parameters":
            return 0
        whole = state not in self.policy.split or (state == "gradients" and not self.each)
        return elements if whole else ceil_divide(elements, self.replicas)
