"""The kinds of a kernel's arguments: integers, floats, columns, and tables, which are named tuples of those.

A kernel's annotations state the kinds, so that it can be compiled before it is called. A column is an array
of one type; `Annotated[Int64s, 2]` has rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[Any]
BoolColumn = Annotated[_Array, np.bool_]
Int8Column = Annotated[_Array, np.int8]
UInt8Column = Annotated[_Array, np.uint8]
FloatColumn = Annotated[_Array, np.float64]
Int32Column = Annotated[_Array, np.int32]
Int64Column = Annotated[_Array, np.int64]
Int32Matrix = Annotated[_Array, np.int32, 2]
Int64Matrix = Annotated[_Array, np.int64, 2]
"""Columns for kernels. To a type checker an entry has any type, so Python code can use it as an integer."""


class ArrayType(NamedTuple):
    """A contiguous array of one or two dimensions."""

    dtype: str
    """The name of its type in numpy."""
    dimensions: int
    """The number of its dimensions, 1 or 2."""


class Scalar(NamedTuple):
    """A number."""

    dtype: str
    """The name of its type in numpy."""


class TupleType(NamedTuple):
    """A named tuple of columns, numbers and tables."""

    name: str
    """The name of the named tuple."""
    fields: tuple[tuple[str, Kind], ...]
    """The name and kind of each field, in order."""


Kind = ArrayType | Scalar | TupleType
COLUMN_WORDS = 3
"""The words of a column: address of the first entry, length, and length of a row if there are rows."""


def words_of(kind: Kind) -> int:
    """Return the number of words of a field in a table; a table inside it takes one, its address."""
    return COLUMN_WORDS if isinstance(kind, ArrayType) else 1


@cache
def kinds_of(function: Callable[..., Any]) -> tuple[Kind, ...]:
    """Return the kinds of a kernel's arguments, in order."""
    hints = get_type_hints(function, include_extras=True)
    return tuple(_kind(hint) for name, hint in hints.items() if name != "return")


@cache
def _kind(hint: Any) -> Kind:
    """Return the kind that an annotation states."""
    if hint in (int, float):
        return Scalar(np.dtype(hint).name)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        hints = get_type_hints(hint, include_extras=True)
        return TupleType(hint.__name__, tuple((name, _kind(part)) for name, part in hints.items()))
    array, details = (get_args(hint)[0], get_args(hint)[1:]) if get_origin(hint) is Annotated else (hint, ())
    dimensions = next((detail for detail in details if isinstance(detail, int)), 1)
    stated = [detail for detail in details if not isinstance(detail, int)]
    if get_origin(array) is not np.ndarray:
        raise TypeError(f"a kernel takes numbers, columns and named tuples of them, not {hint}")
    return ArrayType(np.dtype(*(stated or get_args(get_args(array)[1]))).name, dimensions)


Function = TypeVar("Function", bound=Callable[..., Any])
COMPILABLE = dict[Callable[..., Any], None]()
"""The functions that kernels call."""


KERNELS = list[Callable[..., None]]()
"""The functions that run as kernels."""


def compilable(function: Function) -> Function:
    """Mark a function that kernels call."""
    COMPILABLE[function] = None
    return function


def name_of(kernel: Callable[..., None]) -> str:
    """Return the name of a kernel in machine code."""
    return kernel.__name__.strip("_")
