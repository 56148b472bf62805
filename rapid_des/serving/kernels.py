"""Kernels of a pass: what the GPU needs for them, and the host to issue them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.frontend.operations import Operation


class Kernels(NamedTuple):
    """Some kernels of a pass."""

    time: int
    issue: int
    """What the host needs to issue them one by one."""

    def then(self, other: Kernels) -> Kernels:
        """Return these and others."""
        return Kernels(self.time + other.time, self.issue + other.issue)

    def less(self, other: Kernels) -> Kernels:
        """Return these without others."""
        return Kernels(self.time - other.time, self.issue - other.issue)

    def between(self, other: Kernels, part: int, whole: int) -> Kernels:
        """Return what lies that part of the way between these and others."""
        return Kernels(self.time + (other.time - self.time) * part // whole, self.issue)


class Opening(NamedTuple):
    """What a pass begins with, until its first layer is over: of each kernel what came before it, and it."""

    issued: Int64s
    """What the host needs until it has issued the kernel."""
    kernels: Int64s
    """What the GPU needs for the kernels before, but attention."""
    attention: Int64s
    """How many attention kernels are before."""
    message: Int64s
    """How many messages."""
    messages: int
    """Of a whole pass."""

    @classmethod
    def of(cls, kernels: Sequence[Kernels], kinds: Sequence[str], messages: int) -> Opening:
        """Return what these kernels, in order, come to."""
        kind = np.array(kinds)
        times = np.array([kernel.time for kernel in kernels], np.int64)
        before = [
            np.cumsum(each) - each
            for each in (np.where(kind == "kernel", times, 0), kind == "attention", kind == "message")
        ]
        issued = np.cumsum(np.array([kernel.issue for kernel in kernels], np.int64))
        return cls(issued, before[0], before[1], before[2], messages)

    def late(self, attention: int, message: int) -> int:
        """Return how long the GPU waits in all, given what each attention kernel and message takes."""
        passed = self.kernels + self.attention * attention + self.message * message
        return max(0, int((self.issued - passed).max()))


class Body(NamedTuple):
    """A pass of so many tokens, but for attention, head and messages."""

    kernels: Kernels
    experts: Kernels
    """Of those what computes the tokens of all replicas that share experts."""
    opening: Opening


def of_all(operations: Sequence[Operation]) -> list[Operation]:
    """Return what lies between the way to the experts and the way back, but for shared experts."""
    chosen, inside = list[Operation](), False
    for operation in operations:
        if operation.name.startswith("ffn.shared"):
            continue
        if operation.operator is None:
            inside = "dispatch" in operation.name
        elif inside:
            chosen.append(operation)
    return chosen


def in_graphs(kernels: Sequence[Kernels], operations: Sequence[Operation], launch: int) -> list[Kernels]:
    """Return kernels that are captured between those of attention: the first of each graph launches it."""
    issued, attends = list[Kernels](), False
    for kernel, operation in zip(kernels, operations, strict=True):
        issue = kernel.issue if operation.sees_cache else launch * attends
        issued.append(Kernels(kernel.time, issue))
        attends = operation.sees_cache
    return issued


def kind_of(operation: Operation) -> str:
    """Return `message`, `attention` or `kernel`."""
    if operation.operator is None:
        return "message"
    return "attention" if operation.sees_cache else "kernel"
