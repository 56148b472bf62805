"""Loops that run as they stand, and as machine code that a process calls without importing numba.

Importing numba takes longer than most runs. So another process (`rapid_des.compiler`) has numba compile a
`Kernel` once, as a C function (`cfunc`) of one address: that of a table with the kernel's arguments, an
integer as a word and an array as numba's struct of an array. The object code is kept in numba's cache folder,
from where llvmlite alone loads it (0.04 s). Its name says what it was made of (sources, Python, numba,
llvmlite, processor, `NUMBA_…` settings, types of the arguments), its first line is a digest of the rest. A
file that is not there, not whole, or not ours alone is not used: numba compiles the kernel again; where none
can be written it is done without. With `NUMBA_DISABLE_JIT` a kernel is its plain function.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkstemp
from typing import Any

import numpy as np

from rapid_des.compiler import compilable, object_code

_OURS = (Path(__file__), Path(__file__).with_name("compiler.py"))
_HARMLESS = {"NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS"}


class Kernel:
    """A function of integers, contiguous arrays and tuples of them, which allocates and returns nothing."""

    def __init__(self, function: Callable[..., None], sources: Iterable[Path]) -> None:
        """Take a function, and the files that it and all it calls are written in."""
        self.function = compilable(function)
        self.sources = tuple(sources)
        self._entries: dict[str, Any] = {}

    def __call__(self, *arguments: Any) -> None:
        """Run the kernel."""
        if self.is_interpreted:
            self.function(*arguments)
            return
        leaves = list(_leaves(arguments))
        types = " ".join(kind for kind, _ in leaves)
        if types not in self._entries:
            self._entries[types] = self._entry(arguments, types)
        table = np.array([word for _, words in leaves for word in words], np.int64)
        if self._entries[types](table.ctypes.data) != 1:
            raise RuntimeError(f"kernel {self.function.__name__} failed")

    @property
    def is_interpreted(self) -> bool:
        """Tell whether numba is told not to compile."""
        return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")

    @property
    def is_loaded(self) -> bool:
        """Tell whether this process has the kernel's machine code, for some arguments at least."""
        return bool(self._entries)

    def is_cold(self) -> bool:
        """Tell whether the kernel has yet to be compiled on this machine; an interpreted one always has."""
        if self.is_interpreted or self.is_loaded:
            return self.is_interpreted
        with suppress(OSError):
            return not any(map(_is_whole, _folder().glob(f"{self._name}-*.o")))
        return True

    def ask(self) -> bool:
        """Note in the cache that the kernel is wanted; tell whether that was noted before."""
        note = f"{self._name}.wanted"
        with suppress(OSError):
            return _read(note) == b""
        _write(note, b"")
        return False

    def _entry(self, arguments: tuple[Any, ...], types: str) -> Any:
        """Return the kernel's C function for arguments of these types, kept or else compiled."""
        name = f"{self._name}-{sha256(types.encode()).hexdigest()[:12]}.o"
        with suppress(OSError):
            return _loaded(_read(name))
        content = object_code(self.function, arguments)
        with suppress(OSError):
            _write(name, content)
        return _loaded(content)

    @cached_property
    def _name(self) -> str:
        """A name that no kernel has that was made of or for something else."""
        import llvmlite.binding as llvm

        made = [Path(spec.origin) for spec in map(find_spec, ("numba", "llvmlite")) if spec and spec.origin]
        files = [*(path.with_name("_version.py") for path in made), *_OURS, *self.sources]
        features = llvm.get_host_cpu_features().flatten()
        names = sorted({name for name in os.environ if name.startswith("NUMBA_")} - _HARMLESS)
        settings = [(name, os.environ[name]) for name in names]
        surroundings = (sys.version, llvm.get_process_triple(), llvm.get_host_cpu_name(), features, settings)
        key = sha256(b"\0".join([repr(surroundings).encode(), *(file.read_bytes() for file in files)]))
        return f"{self.function.__name__}-{key.hexdigest()[:24]}"


def _leaves(argument: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the type of an integer or an array, or all in a tuple, and its words in numba's structs."""
    if isinstance(argument, tuple):
        for part in argument:
            yield from _leaves(part)
    elif isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous and argument.flags.aligned, "kernels take contiguous arrays"
        address = argument.__array_interface__["data"][0]
        words = (0, 0, argument.size, argument.itemsize, address, *argument.shape, *argument.strides)
        yield f"{argument.dtype.str}{argument.ndim}{argument.flags.writeable:d}", words  # without an owner
    else:
        yield type(argument).__name__, (int(argument),)


def _loaded(content: bytes) -> Any:
    """Return the C function in an object file, by LLVM alone."""
    import llvmlite.binding as llvm

    name, _, code = content.partition(b"\n")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    nothing = ctypes.cast(ctypes.pythonapi.PyErr_Occurred, ctypes.c_void_p).value  # returns NULL
    for helper in ("gil_ensure", "gil_release", "unpickle", "runtime_build_excinfo_struct", "do_raise"):
        # What would say why a kernel failed is numba's: without it, a kernel only says that it did.
        if llvm.address_of_symbol(f"numba_{helper}") is None:
            llvm.add_symbol(f"numba_{helper}", nothing)
    target = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(name.decode())
    function: Any = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_size_t)(address)
    function.owner = engine
    return function


def _folder() -> Path:
    """Return where numba keeps what it can't keep beside sources."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(caches) / "numba") / "rapid_des"
    if os.name != "posix" or not folder.is_absolute():
        raise OSError("there is no folder that is ours alone")
    return folder


def _require_ours(status: os.stat_result) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError("others may write it")


def _read(name: str) -> bytes:
    """Return what is in a file that is whole and ours alone; raise OSError for others."""
    _require_ours(_folder().stat())
    with open(os.open(_folder() / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:  # noqa: PTH123
        _require_ours(os.fstat(file.fileno()))
        digest, _, content = file.read().partition(b"\n")
    if sha256(content).hexdigest().encode() != digest:
        raise OSError(f"{name} is not as it was written")
    return content


def _is_whole(file: Path) -> bool:
    with suppress(OSError):
        return bool(_read(file.name))
    return False


def _write(name: str, content: bytes) -> None:
    """Write a file at once or not at all."""
    _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_ours(_folder().stat())
    number, beside = mkstemp(dir=_folder())
    try:
        with open(number, "wb") as file:  # noqa: PTH123
            file.write(sha256(content).hexdigest().encode() + b"\n" + content)
        Path(beside).replace(_folder() / name)
    except OSError:
        Path(beside).unlink(missing_ok=True)
        raise
