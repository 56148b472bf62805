"""The ordered operator list: kernels and messages with what they wait for and what they keep."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack

from rapid_des.device.operators import Operator
from rapid_des.frontend.template import INPUT


class Counts(TypedDict, total=False):
    """The byte and parameter counts of a `Step`, as keywords."""

    saved: int
    core: int
    held: int
    output: int
    parameters: int


@dataclass(frozen=True)
class Step:
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
    """Bytes kept from this forward step to the backward."""
    core: int = 0
    """Bytes kept besides unless the attention core is recomputed."""
    held: int = 0
    """Bytes recomputed here and kept until the end of this list."""
    output: int = 0
    """Bytes of the result, alive while its consumer runs."""
    parameters: int = 0
    """Parameters of this rank whose gradients are final after this (backward) step."""


@dataclass
class Steps:
    """Collects a list in order; each step waits for the one before unless told otherwise."""

    steps: list[Step] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The position of the last step, or the input."""
        return len(self.steps) - 1 if self.steps else INPUT

    def kernel(
        self, name: str, operator: Operator, *, after: int | None = None, **counts: Unpack[Counts]
    ) -> int:
        """Append a kernel and return its position; `counts` are the byte and parameter counts of `Step`."""
        step = Step(name, self._after(after), operator=operator)
        return self._append(replace(step, **counts))

    def message(self, name: str, role: str, size: int, *, after: int | None = None, output: int = 0) -> int:
        """Append a message of this rank's group and return its position."""
        return self._append(Step(name, self._after(after), role=role, size=size, output=output))

    def _after(self, after: int | None) -> tuple[int, ...]:
        return (self.last if after is None else after,)

    def _append(self, step: Step) -> int:
        self.steps.append(step)
        return self.last
