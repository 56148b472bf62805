"""What numba is told to compile, and compiling it in a process of its own.

LLVM does not hear of ^C until it is done with a module, ten seconds for the largest; another process can be
ended at once. It is given the function's name and arguments without their contents, and returns object code.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

_MARKED: dict[Callable[..., Any], dict[str, bool]] = {}
"""What numba has yet to be told: functions with their options."""
_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from rapid_des.compiler import answer; answer()"


def compilable(function: Function) -> Function:
    """Mark a function that kernels call."""
    _MARKED[function] = {}
    return function


def inlined(function: Function) -> Function:
    """Mark a small hot one: a call would copy the whole state, hundreds of words."""
    _MARKED[function] = {"forceinline": True}
    return function


def register_marked() -> None:
    """Tell numba what was marked; nothing counts references."""
    from numba.extending import register_jitable

    while _MARKED:
        function, options = _MARKED.popitem()
        register_jitable(_nrt=False, **options)(function)


@dataclass(frozen=True)
class _ArrayType:
    """What stands for an array where only its type matters."""

    dtype: np.dtype[Any]
    dimensions: int
    writeable: bool

    def array(self) -> np.ndarray[Any, Any]:
        made = np.empty((0,) * self.dimensions, self.dtype)
        made.flags.writeable = self.writeable
        return made


def object_code(function: Callable[..., None], arguments: tuple[Any, ...]) -> bytes:
    """Return the name of a C function and the object code that numba makes of it, in another process.

    An interrupt ends that process. Where it fails (the function can not be named, or not be imported there)
    this process does the work, and raises what there is to raise.
    """
    try:
        order = pickle.dumps((function, _without_contents(arguments)))
        # -P: what lies in the current folder is not imported
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD, str(Path(__file__).parents[1])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except (pickle.PicklingError, AttributeError, OSError):
        return compiled(function, arguments)
    with child:
        try:
            content, _ = child.communicate(order)
        except BaseException:
            child.kill()
            raise
    return content if child.returncode == 0 else compiled(function, arguments)


def answer() -> None:
    """Compile what stdin asks for, as the parent's `object_code` sends it, and write it to stdout."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # numba may talk
        function, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 - our parent wrote it
        out.write(compiled(compilable(function), _with_arrays(arguments)))


def _without_contents(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return _ArrayType(argument.dtype, argument.ndim, argument.flags.writeable)
    return _mapped(_without_contents, argument)


def _with_arrays(argument: Any) -> Any:
    return argument.array() if isinstance(argument, _ArrayType) else _mapped(_with_arrays, argument)


def _mapped(change: Callable[[Any], Any], argument: Any) -> Any:
    """Return a (named) tuple with every part changed; what is no tuple as it is."""
    if not isinstance(argument, tuple):
        return argument
    parts = map(change, argument)
    return type(argument)(*parts) if hasattr(argument, "_fields") else tuple(parts)


def compiled(function: Callable[..., None], arguments: tuple[Any, ...]) -> bytes:
    """Return the name of a C function and the object code that numba makes of it."""
    import numba
    from numba import types
    from numba.extending import intrinsic

    register_marked()
    kinds = types.Tuple([numba.typeof(argument) for argument in arguments])  # type: ignore[no-untyped-call]

    def load(context: Any, builder: Any, _: Any, values: Any) -> Any:
        return builder.load(builder.inttoptr(values[0], context.get_value_type(kinds).as_pointer()))

    unpacked: Any = intrinsic(lambda typing, table: (kinds(types.intp), load))  # noqa: ARG005

    def entry(table: Any) -> int:
        function(*unpacked(table))
        return 1

    options: Any = {"_nrt": False}
    made: Any = numba.cfunc(types.int32(types.intp), **options)(entry)
    content: bytes = made.native_name.encode() + b"\n" + made._library._get_compiled_object()  # noqa: SLF001
    return content
