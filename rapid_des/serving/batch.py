"""What an iteration computes, and what is asked of those who say how long it lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rapid_des.arrays import Int64s
from rapid_des.frontend.operations import Group


@dataclass(frozen=True, slots=True)
class Batch:
    """What an iteration computes: the newest token each of `decodes` requests, and chunks of prompts."""

    decodes: int = 0
    keys: int = 0
    """Positions that the decoding requests attend to, all together, their own new tokens among them."""
    chunks: tuple[Group, ...] = ()
    checked: int = 1
    """Tokens of each decoding request: its newest one, and drafts."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of chunks."""
        return sum(chunk.count * chunk.query_length for chunk in self.chunks)

    @property
    def tokens(self) -> int:
        """Tokens that pass the model."""
        return self.decodes * self.checked + self.prompt_tokens

    @property
    def sampled(self) -> int:
        """Positions after which a token is chosen."""
        return self.decodes * self.checked + sum(chunk.count * chunk.samples for chunk in self.chunks)

    @property
    def requests(self) -> int:
        """Requests that take part."""
        return self.decodes + sum(chunk.count for chunk in self.chunks)

    def groups(self) -> tuple[Group, ...]:
        """Return it as a static run takes it, decoding requests at their mean length."""
        if not self.decodes:
            return self.chunks
        return (decoding_group(self.decodes, -(-self.keys // self.decodes), self.checked), *self.chunks)


def decoding_group(decodes: int, length: int, checked: int) -> Group:
    """Return requests that attend to so many positions, the last `checked` of them their own new tokens."""
    return Group(decodes, checked, max(int(checked > 1), length - checked), checked)


class Costs(Protocol):
    """What iterations take, in picoseconds."""

    def time(self, batch: Batch) -> int:
        """Return how long one lasts."""
        ...

    def ends(self, decodes: int, keys: Int64s) -> Int64s:
        """Return when each of some pure decode steps ends, given the positions that each attends to."""
        ...


class SharedCosts(Costs, Protocol):
    """What iterations of replicas take that share experts, each with a batch of its own."""

    def together(self, batches: Sequence[Batch]) -> int:
        """Return how long one lasts."""
        ...

    def ends_together(self, decoding: Sequence[tuple[int, Int64s]]) -> Int64s:
        """Return when each of some pure decode steps ends, given each one's requests and their positions."""
        ...
