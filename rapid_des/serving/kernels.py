"""Kernels of a pass: GPU time, and host time to issue them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.frontend.operations import Operation


class Kernels(NamedTuple):
    """The sum of some kernels of a pass, in picoseconds."""

    time: int
    issue: int
    """Host time to issue them one by one."""

    def then(self, other: Kernels) -> Kernels:
        """Return the sum of both."""
        return Kernels(self.time + other.time, self.issue + other.issue)

    def less(self, other: Kernels) -> Kernels:
        """Return the difference of both."""
        return Kernels(self.time - other.time, self.issue - other.issue)

    def between(self, other: Kernels, part: int, whole: int) -> Kernels:
        """Return the linear interpolation towards the other, at `part` of `whole`."""
        return Kernels(self.time + (other.time - self.time) * part // whole, self.issue)


class Opening(NamedTuple):
    """The kernels of a pass up to the end of its first layer; arrays with one entry per kernel."""

    issued: Int64s
    """Picoseconds until the host has issued the kernel."""
    kernels: Int64s
    """Picoseconds of all kernels before it, without attention."""
    attention: Int64s
    """Number of attention kernels before it."""
    message: Int64s
    """Number of messages before it."""
    messages: int
    """Number of messages in the whole pass."""

    @classmethod
    def of(cls, kernels: Sequence[Kernels], kinds: Sequence[str], messages: int) -> Opening:
        """Return the arrays for these kernels in order."""
        kind = np.array(kinds)
        times = np.array([kernel.time for kernel in kernels], np.int64)
        before = [
            # Exclusive prefix sums: what stands before each kernel.
            np.cumsum(each) - each
            for each in (np.where(kind == "kernel", times, 0), kind == "attention", kind == "message")
        ]
        issued = np.cumsum(np.array([kernel.issue for kernel in kernels], np.int64))
        return cls(issued, before[0], before[1], before[2], messages)

    def late(self, attention: int, message: int) -> int:
        """Return the GPU's total wait for the host, given the times of an attention kernel and a message."""
        # The GPU would reach a kernel after `passed`; in all it waits for the largest delay of the host.
        passed = self.kernels + self.attention * attention + self.message * message
        return max(0, int((self.issued - passed).max()))


class Body(NamedTuple):
    """The kernels of a pass without attention, head and messages."""

    kernels: Kernels
    experts: Kernels
    """The part of the kernels that processes the tokens of all replicas that share experts."""
    opening: Opening


def of_all(operations: Sequence[Operation]) -> list[Operation]:
    """Return the operations from sending tokens to experts to receiving results, but shared experts."""
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
    """Return the kind of an operation: `message`, `attention` or `kernel`."""
    if operation.operator is None:
        return "message"
    return "attention" if operation.sees_cache else "kernel"
