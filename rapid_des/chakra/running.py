"""Running the loops of `kernels`: as plain Python where there is little to do, else as machine code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rapid_des.chakra import kernels
from rapid_des.compiling import Kernel

Loop = Callable[..., None]

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
def kernel_of(loop: Loop) -> Kernel:
    """Return what runs a loop as machine code."""
    return Kernel(loop, [Path(kernels.__file__)])


def _worth_it(loop: Loop, size: int) -> bool:
    """Tell whether an input of `size` elements is worth loading machine code, or compiling it.

    NOTE: counts the work of this process, because a thousand small files are one large input. Both forms give
    the same outcome, so the count decides speed alone.
    """
    if _plain_work[0] + size > LOAD_AFTER:
        kernel = kernel_of(loop)
        wanted = size > COMPILE_ABOVE or _plain_work[0] + size > COMPILE_AFTER
        if not kernel.is_cold() or (wanted and not kernel.is_interpreted):
            return True
    _plain_work[0] += size
    return False


def on_bytes(loop: Loop, buffer: bytes, *arguments: Any) -> list[int]:
    """Run a loop on a buffer and return its outcome."""
    outcome = np.zeros(OUTCOMES, np.int64)
    if _worth_it(loop, len(buffer)):
        kernel_of(loop)(np.frombuffer(buffer, np.uint8), *arguments, outcome)
    else:
        loop(buffer, *arguments, outcome)
    return outcome.tolist()


def on_arrays(
    loop: Loop, size: int, read: tuple[NDArray[np.int64], ...], written: tuple[NDArray[np.int64], ...]
) -> list[int]:
    """Run a loop on arrays that it reads and arrays that it writes; `size` is its amount of work.

    NOTE: a small input goes in as lists, which Python indexes several times faster than arrays.
    """
    outcome = np.zeros(OUTCOMES, np.int64)
    if _worth_it(loop, size):
        kernel_of(loop)(*map(_read_only, read), *written, outcome)
        return outcome.tolist()
    lists = [array.tolist() for array in written]
    loop(*(array.tolist() for array in read), *lists, outcome)
    for array, new in zip(written, lists, strict=True):
        array[:] = new
    return outcome.tolist()


def _read_only(array: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an array as kernels take what they only read, whatever the caller may do with it."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
