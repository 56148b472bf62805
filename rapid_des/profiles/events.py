"""What a profiler saw of a GPU: kernels, copies and fills, when each was launched, and the steps of the host.

PyTorch's profiler (Kineto JSON, plain or gzip) and exports of Nsight Systems (SQLite, JSON lines) are read to
the same columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s
from rapid_des.errors import TraceError
from rapid_des.inputs import Kind

PROFILE = Kind("a profile", 1 << 36)
GZIP = b"\x1f\x8b"


class Collective(NamedTuple):
    """What an NCCL kernel's arguments say of its collective."""

    name: str
    group_size: int | None
    size: int | None = None
    """The input buffer of the rank in bytes."""
    group: str = ""
    """The name of its process group."""
    ranks: str = ""
    """The ranks of the group, as text."""


class DeviceEvents(Struct, frozen=True):
    """Kernels, copies and fills of one GPU by their start; times in nanoseconds of the profiler's clock."""

    names: Sequence[str]
    classes: Sequence[str]
    """[name]: the class of the kernel; empty if it is not known."""
    name: Int32s
    """[event]: the row of `names`."""
    stream: Int64s
    start: Int64s
    end: Int64s
    called: Int64s
    """[event]: when the host's launching call began; -1 where the trace has no such call."""
    launched: Int64s
    """[event]: when that call ended, or -1."""
    collectives: Mapping[int, Collective]
    """What events were collectives of which arguments are known, by event."""
    products: Mapping[int, str]
    """The shapes and number format of matrix products that the profiler recorded, by event."""

    def __len__(self) -> int:
        return len(self.start)


class HostStep(NamedTuple):
    """A step as the training loop marked it, in nanoseconds."""

    name: str
    start: int
    end: int


class Profile(Struct, frozen=True):
    """The events of one rank's profile."""

    path: Path
    rank: int | None
    device: str
    events: DeviceEvents
    steps: Sequence[HostStep]
    """The steps that `torch.profiler` marked (`ProfilerStep#7`), in order; none if the loop marked none."""
    waits: Int64s
    """[call]: when calls of the host that wait for the GPU ended."""
    orders: Int64s
    """[call]: when calls of the host began that make a stream wait for another one's event."""
    span: tuple[int, int]
    """The first and the last nanosecond of any event."""
    left_out: int = 0
    """Device events that were not kept, of a profile with more than a million; the earliest are kept."""

    def with_whole_steps(self) -> Profile:
        """Return the profile; `TraceError` if it was cut, and no marked step is whole in what is kept."""
        if self.left_out and not self.steps:
            kept = f"its first {len(self.events):,} device events, which are kept"
            raise TraceError(
                f"{self.path}: no marked step is whole in {kept}; profile fewer steps, with profiler.step()"
            )
        return self
