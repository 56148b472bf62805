"""The worker processes of a process, as the system lists them."""

import os
import time
from pathlib import Path


def descendants(pid=None):
    """Return the ids and command lines of all processes below one, this one if none is named."""
    pid = os.getpid() if pid is None else pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return {}
    found = {}
    for child in map(int, children):
        try:
            found[child] = Path(f"/proc/{child}/cmdline").read_text()
        except OSError:
            continue
        found |= descendants(child)
    return found


def workers(pid=None):
    """Return the ids of the worker processes of a process."""
    return [child for child, command in descendants(pid).items() if "popen_loky" in command]


def is_alive(pid):
    """Tell whether a process runs still; one that only waits to be looked at does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(holds, *, seconds=60):
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
