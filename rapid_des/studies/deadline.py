"""The time limit of a study: checked between its pieces of work, and while it waits for workers."""

from __future__ import annotations

import time
from collections.abc import Iterator

from msgspec import Struct, field

_PATIENCE_S = 0.02
"""The seconds between two looks at the clock while workers are busy."""


class TimeIsUp(Exception):  # noqa: N818 - ends a wait for workers, and is no error
    """Raised while workers are waited for, when the time is up."""


class Deadline(Struct, frozen=True):
    """The end of the time that a study may take.

    >>> Deadline().over, Deadline(0.0).over
    (False, True)
    """

    seconds: float | None = None
    """The time limit in seconds from `began`; None: there is none."""
    began: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.seconds is not None and time.monotonic() - self.began >= self.seconds

    def wait(self, work: Iterator[bool]) -> bool:
        """Do a piece of `work`, or wait a little if there is a limit; raise `TimeIsUp` at the end."""
        if self.over:
            raise TimeIsUp
        if next(work, False):
            return True
        if self.seconds is not None:
            time.sleep(_PATIENCE_S)
        return self.seconds is not None
