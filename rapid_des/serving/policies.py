"""What an iteration computes: one small function an engine, after its documented behaviour.

A policy sees what waits, what is half way through its prompt and how much is decoding, and returns how many
tokens of which prompts the next iteration computes. Decoding requests get a token each unless it says not.

- `vllm_v1`: vLLM's V1 scheduler (docs.vllm.ai, "Optimization and Tuning": chunked prefill). Decodes first,
  then prompts, first come first served, in chunks within the token budget; whoever came last is preempted
  and recomputed when pages run out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rapid_des.serving.requests import Request


class View(Protocol):
    """What a policy may look at."""

    @property
    def waiting(self) -> Sequence[Request]:
        """Requests that hold nothing yet, first the one whose turn it is."""
        ...

    @property
    def prefilling(self) -> Sequence[Request]:
        """Requests whose prompt is computed in part, in order of admission."""
        ...

    @property
    def decoding(self) -> int:
        """How many requests decode."""
        ...

    @property
    def free_pages(self) -> int:
        """Pages that are free once the decoding requests have theirs."""
        ...

    @property
    def max_batched_tokens(self) -> int:
        """Tokens of an iteration at most."""
        ...

    @property
    def max_sequences(self) -> int:
        """Requests of an iteration at most."""
        ...

    def pages_for(self, request: Request, tokens: int) -> int:
        """Return how many more pages a request needs for so many further tokens."""
        ...


@dataclass(frozen=True)
class Plan:
    """What the next iteration computes."""

    chunks: tuple[tuple[Request, int], ...] = ()
    """Prompts and how many tokens of each."""
    decodes: bool = True
    """Whether decoding requests get a token."""


Policy = Callable[[View], Plan]


def vllm_v1(view: View) -> Plan:
    """Take decodes first, then prompts in chunks, first come first served."""
    return Plan(tuple(_chunks(view, view.max_batched_tokens - view.decoding)))


def _chunks(view: View, budget: int) -> Iterator[tuple[Request, int]]:
    """Yield prompts in their order and how much of each fits into the budget, the sequences and the pages."""
    free, places = view.free_pages, view.max_sequences - view.decoding
    for request in (*view.prefilling, *_first(view.waiting, places)):
        tokens = min(request.missing, budget)
        pages = view.pages_for(request, tokens)
        if tokens < 1 or places < 1 or pages > free:
            return
        yield request, tokens
        budget, free, places = budget - tokens, free - pages, places - 1


def _first(waiting: Sequence[Request], count: int) -> Iterator[Request]:
    """Yield as many as could be admitted."""
    for request, _ in zip(waiting, range(max(0, count)), strict=False):
        yield request


POLICIES: Mapping[str, Policy] = {"vllm_v1": vllm_v1}
