"""A function that runs as machine code, or as Python where there is none.

The arguments of machine code are numbers and addresses of tables of 64-bit words. A column takes three words:
the address of its first entry, its length, and the length of a row if it has rows. A table consists of the
words of its fields one after the other; a table inside it is the address of its own words.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof, c_char
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rapid_des.compiling.kinds import (
    KERNELS,
    ArrayType,
    Kind,
    Scalar,
    TupleType,
    compilable,
    kinds_of,
    name_of,
)
from rapid_des.compiling.library import PACKAGE, KernelLibrary

_RESULTS = np.zeros(2, np.int64)
"""The memory into which machine code writes its result, which is unused, and the cause of a failure."""


class Words(NamedTuple):
    """A table's words with what they point to, so that the next call computes only the words that changed."""

    argument: tuple[Any, ...]
    """The table as a Python function takes it."""
    words: NDArray[np.int64]
    """The table as machine code reads it, in words of 64 bits."""
    parts: list[Words]
    """The words of the tables inside it."""

    @property
    def address(self) -> int:
        """The address of the first word."""
        return _address(self.words, True)

    @classmethod
    def of(cls, argument: tuple[Any, ...], kind: TupleType, before: Words | None = None) -> Words:
        """Return a table's words, reusing those of the table that had its place before."""
        if before is not None and before.argument is argument:
            return before
        parts, words = list[Words](), list[int]()
        known = iter(() if before is None else before.parts)
        for value, (name, field) in zip(argument, kind.fields, strict=True):
            if isinstance(field, ArrayType):
                words += column_words(value, field, f"{kind.name}.{name}")
            elif isinstance(field, Scalar):
                words.append(int(value))
            else:
                parts.append(cls.of(value, field, next(known, None)))
                words.append(parts[-1].address)
        return cls(argument, np.array(words, np.int64), parts)


def column_words(array: Any, kind: ArrayType, name: str) -> tuple[int, int, int]:
    """Return a column's words."""
    fits = array.dtype == _dtype(kind.dtype) and array.ndim == kind.dimensions
    assert fits, f"{name} is {array.ndim} x {array.dtype}, not {kind.dimensions} x {kind.dtype}"
    flags = array.flags
    assert flags.c_contiguous and flags.aligned, f"{name} is not contiguous"
    return _address(array, flags.writeable), len(array), array.shape[1] if array.ndim > 1 else 0


_dtype = cache(np.dtype)


def _address(array: Any, writeable: bool) -> int:
    """Return the address of the first entry; ctypes finds it four times as fast, but not of every array."""
    if writeable and array.size:
        return addressof(c_char.from_buffer(array))
    address: int = array.__array_interface__["data"][0]
    return address


class CompiledKernel:
    """A function of numbers, contiguous columns and tables of them, which allocates and returns nothing.

    It must not index from the end, because machine code takes an index below 0 as it is.
    """

    def __init__(self, function: Callable[..., None], library: KernelLibrary = PACKAGE) -> None:
        self.function, self.library = compilable(function), library
        KERNELS.append(function)
        self.name = name_of(function)

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
        """Whether machine code has been loaded, so that a call costs nothing more."""
        return self.library.is_loaded

    @property
    def is_interpreted(self) -> bool:
        """Whether it runs as Python."""
        return self.library.is_interpreted

    @property
    def advice(self) -> str:
        """The advice on how to get machine code; empty if there is some, it can be made or is not wanted."""
        return self.library.advice

    def is_cold(self) -> bool:
        """Return whether the kernel is not compiled yet on this machine; an interpreted one never is."""
        return self.is_interpreted or not (self.is_loaded or self.library.is_kept())

    def ask(self) -> bool:
        """Record in the cache that the kernel is wanted; return whether that was recorded before."""
        return self.library.ask()

    @cached_property
    def _code(self) -> tuple[Callable[..., int], tuple[Kind, ...]]:
        kinds = kinds_of(self.function)
        floats = [isinstance(kind, Scalar) and kind.dtype == "float64" for kind in kinds]
        return self.library.code(self.name, floats), kinds


def _word(argument: Any, kind: Kind) -> tuple[Any, Any]:
    """Return the word of an argument for machine code, and the objects that must stay alive meanwhile."""
    if isinstance(kind, TupleType):
        words = argument if isinstance(argument, Words) else Words.of(argument, kind)
        return words.address, words
    if isinstance(kind, ArrayType):
        column = np.array(column_words(argument, kind, "an argument"), np.int64)
        return column.__array_interface__["data"][0], (column, argument)
    return argument, None
