"""How the kernel's functions are compiled: cached on disk, and without reference counting."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit

Function = TypeVar("Function", bound=Callable[..., Any])


def _digest() -> str:
    """Return a short digest of every source that goes into a kernel."""
    here = Path(__file__).parent
    sources = [*sorted(here.glob("*.py")), here.parent / "timetable.py"]
    sources += sorted((here.parents[1] / "network").glob("fluid*.py"))
    return sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def kernel(function: Function) -> Function:
    """Compile a function that Python calls.

    numba looks only at the function's own file to tell whether its cache is stale, and names the cache after
    the function: the name therefore says which sources of this package the kernel was made of.
    """
    function.__qualname__ += f"_{_digest()}"
    decorate = cast("Callable[..., Any]", njit)
    return cast("Function", decorate(cache=True, _nrt=False)(function))


def is_cold(function: Callable[..., Any]) -> bool:
    """Tell whether a kernel has yet to be compiled on this machine; without a compiler it always has."""
    if cast("Any", config).DISABLE_JIT:
        return True
    folder = Path(cast("Any", function).stats.cache_path)
    return not any(folder.glob(f"*.{function.__qualname__}-*.nbi"))


def step(function: Function) -> Function:
    """Compile a function that only kernels call, always inlined: their arguments are hundreds of words."""
    decorate = cast("Callable[..., Any]", njit)
    return cast("Function", decorate(forceinline=True, _nrt=False)(function))
