"""A fabric: one immutable table of directed links between GPUs and switches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Fabric:
    """Directed links as columns; nodes 0..gpus-1 are GPUs, the rest are switches (and NICs, if modelled).

    GPU id = a0 + n0·(a1 + n1·(a2 + …)) with dimension 0 innermost. Link ids are positions in the columns.
    """

    name: str
    extents: tuple[tuple[int, ...], ...]
    """The size of each dimension, innermost first; a dimension of a tuple shape keeps its tuple."""
    gpus: int
    nodes: int
    source: NDArray[np.int32]
    destination: NDArray[np.int32]
    bandwidth: NDArray[np.int64]
    """Bytes a second."""
    latency: NDArray[np.int64]
    """Picoseconds."""
    dimension: NDArray[np.int16]
    """The dimension that a link belongs to; UNSTATED (-1) where a fabric has none (graphs)."""

    def __len__(self) -> int:
        return len(self.source)


class Router(Protocol):
    """Where messages go: a pure, deterministic function of source and destination."""

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the ids of the links on the way, in order; `FabricCutError` if there is none."""
        ...
