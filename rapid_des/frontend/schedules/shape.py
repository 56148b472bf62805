"""What a schedule is asked for."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """Stages, micro-batches of a step, chunks of a stage, and micro-batches that pass a chunk together."""

    stages: int
    micro_batches: int
    chunks: int = 1
    group: int | None = None
    """Interleaving; None: as many as stages."""

    @property
    def in_group(self) -> int:
        """Micro-batches that pass a chunk one after the other."""
        return self.group or self.stages
