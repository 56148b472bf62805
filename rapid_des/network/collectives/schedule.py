"""What a collective algorithm returns: transfers among members, joined by dependencies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Schedule:
    """Transfers among members 0..members-1 as read-only columns, ordered so that dependencies point back.

    A transfer starts once its source member has arrived at the collective and all transfers it depends on
    have arrived. A member is done once it has arrived and every transfer from it and to it has arrived.
    """

    members: int
    source: NDArray[np.int32]
    destination: NDArray[np.int32]
    size: NDArray[np.int64]
    """Bytes."""
    reduces: NDArray[np.bool_]
    """The receiver combines the payload with its own copy instead of replacing it."""
    offset: NDArray[np.int64]
    """Where the payload stands in the logical buffer of the collective (the data property reads this)."""
    dependency_starts: NDArray[np.int64]
    dependencies: NDArray[np.int32]
    """Transfer t waits for dependencies[dependency_starts[t] : dependency_starts[t + 1]]."""

    def __len__(self) -> int:
        return len(self.source)
