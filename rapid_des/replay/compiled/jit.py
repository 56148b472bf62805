"""How a kernel's functions are compiled and kept: by numba's cache, and once more for itself (`direct`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from rapid_des.compiling import Function, compilable, compiler
from rapid_des.replay.compiled import direct


@cache
def _digest() -> str:
    """Return a short digest of every source that goes into a kernel."""
    here = Path(__file__).parent
    sources = [*sorted(here.glob("*.py")), here.parent / "timetable.py", here.parents[1] / "compiling.py"]
    sources += sorted((here.parents[1] / "network").glob("fluid*.py"))
    return sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def kernel(function: Function) -> Function:
    """Mark a function that is run by its `machine_code`.

    numba looks only at the function's own file to tell whether its cache is stale, and names the cache after
    the function: the name therefore says which sources of this package the kernel was made of.
    """
    function.__qualname__ += f"_{_digest()}"
    return compilable(function)


class MachineCode:
    """A kernel to be called: as kept for itself, else as compiled by numba, which then is kept."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.kept = direct.load(function.__qualname__)

    def __call__(self, *arguments: Any) -> None:
        """Run the kernel."""
        if self.kept is not None and self.kept.fits(arguments):
            self.kept.run(arguments)
            return
        dispatcher = _dispatcher(self.function)
        if dispatcher is self.function:  # numba is told not to compile
            dispatcher(*arguments)
            return
        had = dispatcher.stats.cache_misses.total()
        dispatcher(*arguments)
        if dispatcher.stats.cache_misses.total() > had:
            direct.keep(self.function.__qualname__, dispatcher, arguments)


@cache
def machine_code(function: Callable[..., Any]) -> MachineCode:
    """Return what runs a kernel."""
    return MachineCode(function)


@cache
def _dispatcher(function: Callable[..., Any]) -> Any:
    return compiler()(cache=True, _nrt=False)(function)


def is_cold(function: Callable[..., Any]) -> bool:
    """Tell whether a kernel has yet to be compiled on this machine; without a compiler it always has."""
    if machine_code(function).kept is not None:
        return False
    if direct.unusual():
        dispatcher = _dispatcher(function)
        if dispatcher is function:
            return True
        folders = [Path(dispatcher.stats.cache_path)]
    else:  # as numba would say, but it takes a quarter of a second to import
        folders = [place for folder in direct.folders() for place in folder.parent.glob("*/")]
    return not any(any(folder.glob(f"*.{function.__qualname__}-*.nbi")) for folder in folders)
