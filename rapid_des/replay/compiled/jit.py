"""How the kernel's functions are compiled: cached on disk, and without reference counting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile a function that Python calls."""
    decorate = cast("Callable[..., Any]", njit)
    return cast("Function", decorate(cache=True, _nrt=False)(function))


def step(function: Function) -> Function:
    """Compile a function that only kernels call, always inlined: their arguments are hundreds of words."""
    decorate = cast("Callable[..., Any]", njit)
    return cast("Function", decorate(cache=True, forceinline=True, _nrt=False)(function))
