"""Where the command line begins: ^C ends it with one line at any moment, also while Python imports.

Python would print a traceback of the import that it was in. What is imported first is built in, so that
little time passes before the handler is there.
"""

from __future__ import annotations

import os
import sys

from rapid_des.cli.interrupts import end, end_at_once


def main() -> None:
    """Run the command line."""
    end_at_once()
    _open_standard_streams()
    try:
        from rapid_des.cli import main as command_line

        command_line.main()
    except KeyboardInterrupt:  # a second one, while the first was reported
        end()
    finally:
        end_at_once()
        if "rapid_des.processes" in sys.modules:
            sys.modules["rapid_des.processes"].end_all()


def _open_standard_streams() -> None:
    """Put /dev/null where the caller closed a standard stream: a file opened next would get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115, PTH123
