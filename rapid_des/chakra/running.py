"""Running the loops of `kernels`: as plain Python where there is little to do, else as machine code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rapid_des.chakra import kernels
from rapid_des.compiling.machine import MachineCode, digest, named

Kernel = Callable[..., None]

LOAD_AFTER = 1 << 16
"""Kept machine code is worth loading once this many elements went through plain loops."""
COMPILE_ABOVE = 1 << 18
"""Inputs with more elements than this are worth the compiler's start."""
COMPILE_AFTER = 1 << 21
"""Small inputs too are compiled for once this many elements went through plain loops."""
_plain_work = [0]
OUTCOMES = 3
"""Words of a kernel's last argument."""


@functools.cache
def machine_code(kernel: Kernel) -> MachineCode:
    """Return what runs a kernel's machine code."""
    return MachineCode(named(kernel, digest([Path(kernels.__file__)])), f"{__package__}.trial")


def _machine(kernel: Kernel, size: int) -> MachineCode | None:
    """Return what runs a kernel's machine code, where an input of `size` elements is worth it.

    NOTE: counts the work of this process, because a thousand small files are one large input. Both forms give
    the same outcome, so the count decides speed alone.
    """
    if _plain_work[0] + size > LOAD_AFTER:
        machine = machine_code(kernel)
        wanted = size > COMPILE_ABOVE or _plain_work[0] + size > COMPILE_AFTER
        if machine.kept is not None or (wanted and not machine.is_interpreted):
            return machine
    _plain_work[0] += size
    return None


def on_bytes(kernel: Kernel, buffer: bytes, *arguments: Any) -> list[int]:
    """Run a kernel on a buffer and return its outcome."""
    outcome = np.zeros(OUTCOMES, np.int64)
    machine = _machine(kernel, len(buffer))
    if machine is None:
        kernel(buffer, *arguments, outcome)
    else:
        machine(np.frombuffer(buffer, np.uint8), *arguments, outcome)
    return outcome.tolist()


def on_arrays(
    kernel: Kernel, size: int, read: tuple[NDArray[np.int64], ...], written: tuple[NDArray[np.int64], ...]
) -> list[int]:
    """Run a kernel on arrays that it reads and arrays that it writes; `size` is its amount of work.

    NOTE: a small input goes in as lists, which Python indexes several times faster than arrays.
    """
    outcome = np.zeros(OUTCOMES, np.int64)
    machine = _machine(kernel, size)
    if machine is None:
        lists = [array.tolist() for array in written]
        kernel(*(array.tolist() for array in read), *lists, outcome)
        for array, new in zip(written, lists, strict=True):
            array[:] = new
    else:
        machine(*map(read_only, read), *written, outcome)
    return outcome.tolist()


def read_only(array: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an array as the kernels' machine code takes what it only reads."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
