"""The storage of a machine."""

from __future__ import annotations

from rapid_des.config import Spec
from rapid_des.units import Bandwidth, Size


class StorageSpec(Spec, frozen=True, kw_only=True):
    """The storage that all nodes share: training runs write their checkpoints to it and load them from it."""

    bandwidth: Bandwidth
    """The rate of all nodes together."""
    per_node: Bandwidth | None = None
    """The rate at which one node reaches it; unset: as fast as all together."""
    capacity: Size | None = None
    """The bytes that it holds; unset: not checked."""

    def __post_init__(self) -> None:
        if not self.bandwidth or (self.per_node is not None and not self.per_node):
            raise ValueError("storage: bandwidths must be above 0")
