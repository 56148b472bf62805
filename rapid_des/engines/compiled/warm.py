"""Compiling the replay kernel beside its users: `python -m rapid_des.engines.compiled.warm`.

A run that is small enough does not wait for the compiler: it is interpreted, and this process, started when
the command ends, has the kernel ready for the next ones. `RAPID_DES_BACKGROUND=0` forbids it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from rapid_des.compiling import kept
from rapid_des.engines.compiled import jit, kernel

FORBIDS = "RAPID_DES_BACKGROUND"
_PATIENCE_S = 300
"""A claim older than this was left by a process that died."""


def in_background() -> bool:
    """Start compiling the kernel; return False where it is compiled, being compiled, or must not be."""
    wanted = os.environ.get(FORBIDS, "1") != "0" and not kept.unusual() and bool(sys.executable)
    if not wanted or not jit.is_cold(kernel.play) or not _claimed():
        return False
    root = str(Path(__file__).parents[3])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    with suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return True
    return False


def _claim() -> Path:
    return kept.folders()[-1] / f"{kernel.play.__qualname__}.compiling"


def _claimed() -> bool:
    """Claim the compiling for this process, unless another one has."""
    path = _claim()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and time.time() - path.stat().st_mtime > _PATIENCE_S:
            path.unlink(missing_ok=True)
        path.touch(exist_ok=False)
    except OSError:
        return False
    return True


def main() -> None:
    """Compile the kernel by playing a small job."""
    from rapid_des.engines import compiled
    from rapid_des.engines.compiled import trial

    with suppress(OSError, AttributeError):
        os.nice(10)
    try:
        compiled.run(trial.job("cut_through"))
    finally:
        _claim().unlink(missing_ok=True)


if __name__ == "__main__":
    main()
