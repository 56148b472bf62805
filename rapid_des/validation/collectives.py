"""Collectives against measurements: NCCL in a node and across nodes, shaped links, serving kernels."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.validation import collectives_kernels, collectives_nccl, collectives_shaped
from rapid_des.validation.folder import DataFolder
from rapid_des.validation.scoring import Topic


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield every topic about collectives."""
    yield from collectives_nccl.topics(data)
    yield from collectives_shaped.topics(data)
    yield from collectives_kernels.topics(data)
