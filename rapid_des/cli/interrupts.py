"""What ^C does until a command runs: it ends the process at once.

This module imports what is built in alone: it is there before anything else of the package is.
"""

from __future__ import annotations

import os
from _signal import SIGINT, default_int_handler, getsignal, signal  # `signal` itself imports `enum`


def end_at_once() -> None:
    """Make ^C end this process without cleanup. A process that ignores ^C keeps ignoring it."""
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, end)


def end(*_: object) -> None:
    """End this process with one line."""
    os.write(2, b"interrupted\n")
    os._exit(130)
