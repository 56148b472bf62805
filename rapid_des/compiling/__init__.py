"""Functions that run as they stand and that numba compiles into kernels; marking them imports no numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

_MARKED: dict[Callable[..., Any], dict[str, bool]] = {}
"""What numba has yet to be told: functions with their options."""


def compilable(function: Function) -> Function:
    """Mark a function that kernels call."""
    _MARKED[function] = {}
    return function


def inlined(function: Function) -> Function:
    """Mark a small hot one: a call would copy the whole state, hundreds of words."""
    _MARKED[function] = {"forceinline": True}
    return function


def compiler() -> Callable[..., Any]:
    """Return numba's `njit`, once numba knows everything that was marked; nothing counts references."""
    from numba import njit
    from numba.extending import register_jitable

    while _MARKED:
        function, options = _MARKED.popitem()
        register_jitable(_nrt=False, **options)(function)
    return cast("Callable[..., Any]", njit)
