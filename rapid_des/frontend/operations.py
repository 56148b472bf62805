"""The ordered operator list: kernels and messages with what they wait for and what they keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from rapid_des.device.operators import Operator
from rapid_des.frontend.template import INPUT


class Counts(TypedDict, total=False):
    """What an `Operation` keeps, makes and depends on, as keywords."""

    saved: int
    core: int
    logits: int
    held: int
    output: int
    parameters: int
    weights: int
    sees_cache: bool


@dataclass(frozen=True)
class Operation:
    """One kernel or one message of a rank."""

    name: str
    after: tuple[int, ...]
    """Positions in the list, or ports; a stream's own order holds besides."""
    operator: Operator | None = None
    """None: a message."""
    role: str = ""
    """A key of `TRAFFIC`; empty: a kernel."""
    size: int = 0
    """Bytes of a message (comm_size)."""
    saved: int = 0
    """Bytes kept from this forward operation to the backward."""
    core: int = 0
    """Bytes kept besides unless the attention core is recomputed."""
    logits: int = 0
    """Bytes of logits kept besides."""
    held: int = 0
    """Bytes recomputed here and kept until the end of this list."""
    output: int = 0
    """Bytes of the result, alive while its consumer runs."""
    parameters: int = 0
    """Parameters of this rank whose gradients are final after this (backward) operation."""
    weights: int = 0
    """Elements of this rank's weight matrix that a serving job stores in its format of weights."""
    sees_cache: bool = False
    """Serving: whether its cost depends on how many positions the KV cache holds."""


@dataclass
class OperationList:
    """Collects a list in order; each operation waits for the one before unless told otherwise."""

    entries: list[Operation] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The position of the last operation, or the input."""
        return len(self.entries) - 1 if self.entries else INPUT

    def finish(self) -> tuple[Operation, ...]:
        """Return the list."""
        return tuple(self.entries)

    def kernel(
        self, name: str, operator: Operator, *, after: int | None = None, **counts: Unpack[Counts]
    ) -> int:
        """Append a kernel and return its position; `counts` are fields of `Operation`."""
        return self._append(Operation(name, self._after(after), operator=operator, **counts))

    def message(self, name: str, role: str, size: int, *, after: int | None = None, output: int = 0) -> int:
        """Append a message of this rank's group and return its position."""
        return self._append(Operation(name, self._after(after), role=role, size=size, output=output))

    def _after(self, after: int | None) -> tuple[int, ...]:
        return (self.last if after is None else after,)

    def _append(self, operation: Operation) -> int:
        self.entries.append(operation)
        return self.last
