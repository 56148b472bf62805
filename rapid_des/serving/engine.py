"""The settings that all replicas of a server share."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

from rapid_des.frontend.operations import RequestGroup
from rapid_des.serving.adapters import Lora
from rapid_des.serving.batch import Batch, Costs
from rapid_des.serving.drafts import Drafts, SpeculativeDecoding
from rapid_des.serving.policies import Habits, Policy
from rapid_des.serving.prefix_cache import LowerTier
from rapid_des.serving.requests import Decoding
from rapid_des.serving.shared_pool import SharedPool

Process: TypeAlias = Generator[Any, Any, None]
MOST_STEPS = 1 << 12
"""Most decode steps that are advanced at once."""
_USUAL_DECODES, _USUAL_POSITIONS = 64, 1024


class Paces(NamedTuple):
    """Picoseconds a token."""

    prompt: float
    answer: float


class Engine(Struct, frozen=True, dict=True):
    """The settings of an engine, shared by its replicas."""

    policy: Policy
    costs: Costs
    pages: int
    """Number of pages of a replica's KV cache."""
    page_size: int
    max_batched_tokens: int
    max_sequences: int
    order: str = "fcfs"
    """Order of waiting requests (`rapid_des.serving.policies`)."""
    swap: int = 0
    """Picoseconds per token to move a preempted request to the host, or back; 0: it is recomputed."""
    encoding: Callable[[int], int] | None = None
    """Returns the time of a number of images on the replica's GPUs; None: it encodes none."""
    lora: Lora | None = None
    """Costs of adapters; None: requests name none."""
    prefix_tiers: tuple[LowerTier, ...] | None = None
    """The memory below the GPU of a cache of prefixes; None: there is no such cache."""
    prefix_pool: SharedPool | None = None
    """The pool that the replicas' caches of prefixes share; None: there is none."""
    host_pages: int = 0
    """Number of pages in the host's memory for idle sessions."""
    fetch: int = 0
    """Picoseconds per token to copy an idle session back from the host."""
    habits: Habits = Habits()
    shares: tuple[float, ...] = (1.0,)
    """Share of an iteration that each pipeline stage takes."""
    drafts: Drafts | None = None
    """Draws which drafted tokens are kept; None: no tokens are drafted."""
    together: int = 1
    """Number of replicas that share experts, and step together."""
    gpus: int = 1
    """Number of GPUs of a replica."""
    samples: bool = True
    """Whether prompts are followed by tokens; else they are all that is computed."""
    stepwise: bool = False
    """Simulate every decode step by itself, for tests; the results are the same."""

    def nobody(self) -> Decoding:
        """Return an empty group of decoding requests."""
        if self.drafts is None:
            return Decoding(self.page_size)
        return SpeculativeDecoding(self.page_size, self.drafts)

    @cached_property
    def paces(self) -> Paces:
        """How long a token takes: of a prompt of 1,024, and of a decode step at as many positions.

        The step is of 64 requests, or as many as may run.
        """
        decodes = min(_USUAL_DECODES, self.max_sequences)
        keys = np.array([decodes * _USUAL_POSITIONS], np.int64)
        tokens = min(_USUAL_POSITIONS, self.max_batched_tokens)
        prompt = Batch(0, 0, (RequestGroup(1, tokens, samples=int(self.samples)),))
        if not self.samples:
            return Paces(self.costs.time(prompt) / tokens, 0.0)
        return Paces(self.costs.time(prompt) / tokens, int(self.costs.ends(decodes, keys)[0]) / decodes)

    @property
    def is_steady(self) -> bool:
        """Whether waiting requests stay waiting until a request ends or arrives."""
        return self.policy.steady and self.order != "fair"
