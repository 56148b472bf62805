"""A function that runs as machine code, or as Python where there is none."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from rapid_des.compiling.kinds import Column, Kind, Scalar, Table, compilable, kinds_of
from rapid_des.compiling.library import PACKAGE, Library
from rapid_des.compiling.words import Words, column_words

_RESULTS = np.zeros(2, np.int64)
"""Where machine code leaves its result, which is none, and why it failed."""


class Kernel:
    """A function of numbers, contiguous columns and tables of them, which allocates and returns nothing.

    It may not index from the end: numbers below 0 are no places.
    """

    known: ClassVar[list[Kernel]] = []
    """All kernels of this process."""

    def __init__(self, function: Callable[..., None], library: Library = PACKAGE) -> None:
        self.function, self.library = compilable(function), library
        Kernel.known.append(self)
        self.name = function.__name__.strip("_")

    def __call__(self, *arguments: Any) -> None:
        """Run the kernel; tables may be `Words`."""
        if self.library.is_interpreted:
            self.function(*(part.argument if isinstance(part, Words) else part for part in arguments))
            return
        code, kinds = self._code
        kept, given = [], []  # what addresses point to stays alive during the call
        for argument, kind in zip(arguments, kinds, strict=True):
            word, owner = _word(argument, kind)
            given.append(word)
            kept.append(owner)
        results = _RESULTS.__array_interface__["data"][0]
        if code(results, results + 8, *given) != 0:
            raise RuntimeError(f"kernel {self.name} failed")

    @property
    def is_loaded(self) -> bool:
        """Whether its machine code has been loaded."""
        return "_code" in self.__dict__

    @property
    def is_interpreted(self) -> bool:
        """Whether it runs as Python."""
        return self.library.is_interpreted

    @property
    def advice(self) -> str:
        """What to do about a lack of machine code; nothing if it is there, can be made or is not wanted."""
        return self.library.advice

    def is_cold(self) -> bool:
        """Tell whether the kernel has yet to be compiled on this machine; an interpreted one always has."""
        return self.is_interpreted or not (self.is_loaded or self.library.is_kept())

    def ask(self) -> bool:
        """Note in the cache that the kernel is wanted; tell whether that was noted before."""
        return self.library.ask()

    @cached_property
    def _code(self) -> tuple[Callable[..., int], tuple[Kind, ...]]:
        kinds = kinds_of(self.function)
        floats = [isinstance(kind, Scalar) and kind.dtype == "float64" for kind in kinds]
        return self.library.code(self.name, floats), kinds


def _word(argument: Any, kind: Kind) -> tuple[Any, Any]:
    """Return what machine code is given for an argument, and what must stay alive meanwhile."""
    if isinstance(kind, Table):
        words = argument if isinstance(argument, Words) else Words.of(argument, kind)
        return words.address, words
    if isinstance(kind, Column):
        column = np.array(column_words(argument, kind, "an argument"), np.int64)
        return column.__array_interface__["data"][0], (column, argument)
    return argument, None
