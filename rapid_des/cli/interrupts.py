"""What ^C does: it ends the process at once, or raises `KeyboardInterrupt` where a command keeps what it did.

This module imports what is built in alone: it is there before anything else of the package is.
"""

from __future__ import annotations

import os
from _signal import SIGINT, default_int_handler, getsignal, signal  # `signal` itself imports `enum`


def end_at_once() -> None:
    """Have ^C end this process: there is nothing to clean up. Whoever ignores it goes on to do so."""
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, end)


def raise_interrupts() -> None:
    """Have ^C raise `KeyboardInterrupt` again, for a command that keeps what it has done."""
    if getsignal(SIGINT) is end:
        signal(SIGINT, default_int_handler)


def end(*_: object) -> None:
    """End this process in one line."""
    os.write(2, b"interrupted\n")
    os._exit(130)
