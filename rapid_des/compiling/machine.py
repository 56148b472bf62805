"""Kernels as they are called: as kept for themselves (`kept`), else as numba compiles and caches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from rapid_des.compiling import Function, compiler, kept


def digest(sources: Iterable[Path]) -> str:
    """Return a short digest of the sources that go into a kernel, and of what compiles and calls it."""
    own = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"\0".join(source.read_bytes() for source in [*sources, *own])).hexdigest()[:12]


def named(function: Function, sources: str) -> Function:
    """Return a kernel with the digest of its sources in its name.

    numba looks only at the function's own file to tell whether its cache is stale, and names the cache after
    the function: the name therefore says which sources the kernel was made of.
    """
    function.__qualname__ = f"{function.__name__}_{sources}"
    return function


class MachineCode:
    """A kernel to be called: as kept for itself, else as compiled by numba, which then is kept.

    The function returns nothing, allocates nothing, and has the digest of its sources in its qualified name,
    see `named`; `trial` is the module that tries what is to be kept, see `kept.keep`.
    """

    def __init__(self, function: Callable[..., Any], trial: str) -> None:
        self.function = function
        self.name = function.__qualname__
        self.trial = trial
        self.kept = kept.load(self.name)

    def __call__(self, *arguments: Any) -> None:
        """Run the kernel."""
        if self.kept is not None and self.kept.fits(arguments):
            self.kept.run(arguments)
            return
        dispatcher = self.dispatcher
        if dispatcher is self.function:
            dispatcher(*arguments)
            return
        had = dispatcher.stats.cache_misses.total()
        dispatcher(*arguments)
        if dispatcher.stats.cache_misses.total() > had:
            kept.keep(self.name, self.trial, dispatcher, arguments)

    @cached_property
    def dispatcher(self) -> Any:
        """The function as numba calls it; the function itself where numba is told not to compile."""
        try:
            return compiler()(cache=True, _nrt=False)(self.function)
        except RuntimeError:  # no writable place for numba's cache
            return compiler()(_nrt=False)(self.function)

    @property
    def is_interpreted(self) -> bool:
        """Tell whether there is neither kept code nor a compiler."""
        return self.kept is None and self.dispatcher is self.function

    def is_cold(self) -> bool:
        """Tell whether the kernel has yet to be compiled on this machine; without a compiler it has."""
        if self.kept is not None:
            return False
        if kept.unusual():
            if self.is_interpreted:
                return True
            cached = self.dispatcher.stats.cache_path
            folders = [Path(cached)] if cached else []
        else:  # as numba would say, but it takes a quarter of a second to import
            folders = kept.folders_of_numba(Path(self.function.__code__.co_filename))
        return not any(any(folder.glob(f"*.{self.name}-*.nbi")) for folder in folders)
