"""Which sources the replay kernels are made of, and what runs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from rapid_des.compiling import Function, compilable
from rapid_des.compiling.machine import MachineCode, digest, named


@cache
def _digest() -> str:
    """Return a short digest of every source that goes into a kernel."""
    here = Path(__file__).parent
    sources = [*sorted(here.glob("*.py")), here.parents[1] / "program" / "timetable.py"]
    return digest(sources + sorted((here.parents[1] / "network").glob("fluid*.py")))


def kernel(function: Function) -> Function:
    """Mark a function that is run by its `machine_code`."""
    return compilable(named(function, _digest()))


@cache
def machine_code(function: Callable[..., Any]) -> MachineCode:
    """Return what runs a kernel."""
    return MachineCode(function, f"{__package__}.trial")


def is_cold(function: Callable[..., Any]) -> bool:
    """Tell whether a kernel has yet to be compiled on this machine; without a compiler it always has."""
    return machine_code(function).is_cold()
