"""The host of a rank: what it takes to issue kernels and messages, and where it must wait for its GPU.

A framework's process hands kernels, collectives and messages to the GPU one after the other and runs ahead of
it. Between two moments at which it waits (a *stretch*) nothing holds it up, so the moment at which it has
issued something is a running sum of times. A captured CUDA graph is handed over at once.

An operator of our lists may be several kernels of a framework; `kernels_of` says how many. The first is
issued before the others, and the node of all starts so that it is not done before the last one can be: at the
issue of the last, less what the others take of its time, but not before that of the first (its *lead*).

What is neglected: a launch queue is finite (CUDA's holds about 1,024 launches), so that a host far ahead of
its GPU is stopped, and has less lead where many small kernels follow; other threads of the process; and that
the ranks of a node share its cores.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import structs

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import NodeKind
from rapid_des.config import Spec
from rapid_des.device.operators import Attention, Operator, Vector
from rapid_des.device.vector import kind_of
from rapid_des.units import PS_PER_S, Duration

Wait = Literal["gradient_norm", "pipeline"]
TIMES = ("kernel", "collective", "graph", "step", "request")
"""The times of a host."""
_LONGEST = Duration(PS_PER_S)
_FLASH = {"forward": 1, "backward": 3}
"""Kernels of FlashAttention; backward: row sums of O·dO, gradients, dQ brought to its format."""
_UNFUSED = {"forward": 3, "backward": 5}
"""Products and softmax, or their gradients, apart (`device.pricing.unfused_kernels`)."""
_NORM_BACKWARD = 2
"""Kernels of a norm's backward: gradients of the input, and the weight's summed over blocks of rows."""


class HostSpec(Spec, frozen=True):
    """What the host of a rank needs to issue work, as a framework's software has it."""

    kernel: Duration
    """Issuing one kernel: the framework's code around it and the launch; at most 1 s."""
    collective: Duration
    """Issuing one collective, or a send or receive between stages."""
    graph: Duration | None = None
    """Launching one captured graph, whatever it holds; unset: as one kernel."""
    step: Duration | None = None
    """Before the first issue of a training step, or of a pass of requests (scheduling, sampled tokens)."""
    request: Duration | None = None
    """Before the first pass of requests: receiving and tokenizing them."""
    captured: Literal["nothing", "decode", "passes"] = "nothing"
    """What is launched as a CUDA graph: decode steps, or prefill too; `inference.cuda_graphs: false`
    captures nothing."""
    waits: tuple[Wait, ...] = ()
    """Where the host of a training job waits for its GPU: for the sum of the gradient norm (and the overflow
    check), for messages between stages that do not travel beside compute."""

    def __post_init__(self) -> None:
        if max(getattr(self, name) or 0 for name in TIMES) > _LONGEST:
            raise ValueError(f"an issue takes at most {_LONGEST}")

    def at_speed(self, speed: float) -> HostSpec:
        """Return what a host needs whose cores are so many times as quick."""
        stated = {name: getattr(self, name) for name in TIMES}
        times = {name: Duration(round(time / speed)) for name, time in stated.items() if time is not None}
        return structs.replace(self, **times)

    def before(self, *, captured: bool = False, first: bool = False) -> int:
        """Return the picoseconds before the first issue of a step, or of a (captured, first) pass."""
        launch = int(self.kernel if self.graph is None else self.graph) if captured else 0
        return int(self.step or 0) + launch + int(self.request or 0) * first

    def of_kernel(self, operator: Operator, duration: int) -> tuple[int, int]:
        """Return the picoseconds that issuing an operator of this duration takes, and its lead."""
        count = kernels_of(operator)
        return count * self.kernel, min((count - 1) * self.kernel, duration - duration // count)


def kernels_of(operator: Operator) -> int:
    """Return how many kernels a framework launches for an operator.

    >>> kernels_of(Vector("rms_norm", 4, 8)), kernels_of(Vector("gradient_norm", 4, 8))
    (1, 2)
    """
    if isinstance(operator, Vector):
        norm = operator.kind in {"layer_norm", "rms_norm"} and operator.phase == "backward"
        return _NORM_BACKWARD if norm else kind_of(operator.kind).kernels
    if isinstance(operator, Attention):
        return (_FLASH if operator.fused else _UNFUSED)[operator.phase]
    return 1


def issue_order(kind: Int64s, counts: Int64s, dependencies: Int64s) -> Int64s:
    """Return the rows of a program in the order in which the host issues them.

    That is program order, but a collective is issued as soon as the last thing it waits for has been, as the
    hooks of data parallelism do. `counts` and `dependencies` say for what each row waits.
    """
    issued_after = np.arange(len(kind))
    waits = np.flatnonzero(counts > 0)
    if len(waits):
        latest = np.maximum.reduceat(dependencies, (np.cumsum(counts) - counts)[waits])
        issued_after[waits] = np.where(kind[waits] == NodeKind.COLLECTIVE, latest, waits)
    return np.argsort(issued_after, kind="stable")
