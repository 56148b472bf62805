"""Where the command line begins: ^C ends it with one line at any moment, also while Python imports.

Python would print a traceback of the import that it was in. This module imports what is built in alone, so
that little time passes before its handler is there.
"""

from __future__ import annotations

import os
import sys
from _signal import SIGINT, default_int_handler, getsignal, signal  # `signal` itself imports `enum`


def main() -> None:
    """Run the command line."""
    end_at_once()
    try:
        from rapid_des.cli import main as command_line

        command_line.main()
    except KeyboardInterrupt:  # a second one, while the first was told
        _end()
    finally:
        end_at_once()
        if "rapid_des.processes" in sys.modules:
            sys.modules["rapid_des.processes"].end_all()


def end_at_once() -> None:
    """Have ^C end this process: there is nothing to clean up. Whoever ignores it goes on to do so."""
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, _end)


def raise_interrupts() -> None:
    """Have ^C raise `KeyboardInterrupt` again, for a command that keeps what it has done."""
    if getsignal(SIGINT) is _end:
        signal(SIGINT, default_int_handler)


def _end(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)
