"""What the replicas of a server have in common."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from rapid_des.serving.adapters import Lora
from rapid_des.serving.batch import Costs
from rapid_des.serving.drafts import Drafts, SpeculativeDecoding
from rapid_des.serving.intake import Habits
from rapid_des.serving.policies import Policy
from rapid_des.serving.requests import Decoding

Process: TypeAlias = Generator[Any, Any, None]
MOST_STEPS = 1 << 12
"""Decode steps that pass at once, at most."""


@dataclass(frozen=True)
class Engine:
    """What replicas have in common."""

    policy: Policy
    costs: Costs
    pages: int
    """Of a replica's KV cache."""
    page_size: int
    max_batched_tokens: int
    max_sequences: int
    order: str = "fcfs"
    """In which order requests wait (`rapid_des.serving.order`)."""
    swap: int = 0
    """Picoseconds a token of a preempted request takes to the host, and back; 0: it is computed again."""
    lora: Lora | None = None
    """Of adapters; None: requests name none."""
    host_pages: int = 0
    """Pages that idle sessions may have in the host's memory."""
    fetch: int = 0
    """Picoseconds a token of theirs takes back."""
    habits: Habits = Habits()
    shares: tuple[float, ...] = (1.0,)
    """Of an iteration, by pipeline stage."""
    drafts: Drafts | None = None
    """Which drafted tokens are kept; None: none are drafted."""
    together: int = 1
    """Replicas that share experts, and step together."""
    stepwise: bool = False
    """Wait for every iteration, also for those that could pass at once (the results are the same)."""

    def nobody(self) -> Decoding:
        """Return an empty group of requests that decode."""
        if self.drafts is None:
            return Decoding(self.page_size)
        return SpeculativeDecoding(self.page_size, self.drafts)

    @property
    def is_steady(self) -> bool:
        """Whether who waits is left waiting until somebody ends or comes."""
        return self.policy.steady and self.order != "fair"
