"""The content of an iteration, and the interface of what prices it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.frontend.operations import RequestGroup


class Batch(Struct, frozen=True):
    """The content of an iteration: the newest token of each of `decodes` requests, and chunks of prompts."""

    decodes: int = 0
    keys: int = 0
    """Sum of the positions that the decoding requests attend to, their new tokens included."""
    chunks: tuple[RequestGroup, ...] = ()
    checked: int = 1
    """Tokens of each decoding request: its newest one, and drafted ones."""

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens in the chunks."""
        return sum(chunk.count * chunk.query_length for chunk in self.chunks)

    @property
    def tokens(self) -> int:
        """Number of tokens that pass the model."""
        return self.decodes * self.checked + self.prompt_tokens

    @property
    def sampled(self) -> int:
        """Number of positions after which a token is sampled."""
        return self.decodes * self.checked + sum(chunk.count * chunk.samples for chunk in self.chunks)

    @property
    def requests(self) -> int:
        """Number of requests that take part."""
        return self.decodes + sum(chunk.count for chunk in self.chunks)

    def groups(self) -> tuple[RequestGroup, ...]:
        """Return the batch as groups of a static run, decoding requests at their mean length."""
        if not self.decodes:
            return self.chunks
        return (decoding_group(self.decodes, -(-self.keys // self.decodes), self.checked), *self.chunks)


def decoding_group(decodes: int, length: int, checked: int) -> RequestGroup:
    """Return requests that attend to this many positions, the last `checked` of them their own new tokens."""
    return RequestGroup(decodes, checked, max(int(checked > 1), length - checked), checked)


class Costs(Protocol):
    """Durations of iterations, in picoseconds."""

    def time(self, batch: Batch) -> int:
        """Return the duration of an iteration."""
        ...

    def ends(self, decodes: int, keys: Int64s) -> Int64s:
        """Return the ends of consecutive decode steps, given the positions that each attends to."""
        ...


class SharedCosts(Costs, Protocol):
    """Durations of iterations of replicas that share experts, each with a batch of its own."""

    def together(self, batches: Sequence[Batch]) -> int:
        """Return the duration of a joint iteration."""
        ...

    def ends_together(self, decoding: Sequence[tuple[int, Int64s]]) -> Int64s:
        """Return the ends of consecutive decode steps, given requests and positions of each replica."""
        ...
