"""Network topics that need no measured machine: ns-3's goldens and our own packet oracle."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.validation import network_grid, network_ns3
from rapid_des.validation.folder import DataFolder
from rapid_des.validation.scoring import Topic


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/ns3…` and `network/packet-oracle/…`."""
    yield from network_ns3.topics(data)
    yield from network_grid.topics(data)
