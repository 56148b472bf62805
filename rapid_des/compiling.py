"""Loops that run as they stand, and as machine code that a process calls without importing numba.

Importing numba takes longer than most runs. So numba compiles a `Kernel` once, as a C function (`cfunc`) of
one address: that of a table with the kernel's arguments, an integer as a word and an array as numba's struct
of an array. Its object code is kept in numba's cache folder, from where llvmlite alone loads it (0.01 s); the
file's name says what it was made of and for, its first line is a digest of the rest. If it is not there or
not whole, numba compiles the kernel again while others that want the same wait for it; a folder that is not
ours alone is done without. The compiler runs in a process of its own: LLVM does not look for signals, and so
^C would wait for it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])
_MARKED = set[Callable[..., Any]]()


def compilable(function: Function) -> Function:
    """Mark a function that kernels call: inlined, as a call would copy the whole state, hundreds of words."""
    _MARKED.add(function)
    return function


def say(text: str) -> None:
    """Say something on stderr: a library that compiles for minutes without a word seems to hang."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - workers have no other way to say it


class Kernel:
    """A function of integers, contiguous arrays and tuples of them, which allocates and returns nothing.

    It may not index from the end: numbers below 0 are no places.
    """

    announce: ClassVar[Callable[[str], None]] = say
    """Told in a line that a kernel is compiled, or waited for, before that is done."""

    def __init__(self, function: Callable[..., None], sources: Iterable[Path]) -> None:
        self.function, self.sources = compilable(function), tuple(sources)  # of it and all that it calls
        self.is_interpreted = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
        self.loaded: dict[tuple[str, ...], Any] = {}  # C functions by the types of their arguments

    def __call__(self, *arguments: Any) -> None:
        """Run the kernel; arguments may be `Read`."""
        if self.is_interpreted:
            self.function(*map(_unread, arguments))
            return
        types, words = list[str](), list[int]()
        for argument in arguments:
            read = argument if isinstance(argument, Read) else Read.of((argument,))
            types += read.types
            words += read.words
        if (known := tuple(types)) not in self.loaded:
            digest = sha256(repr(known).encode()).hexdigest()[:12]
            self.loaded[known] = _loaded(self._code(tuple(map(_unread, arguments)), digest))
        table = np.array(words, np.int64)
        if self.loaded[known](table.ctypes.data) != 1:
            raise RuntimeError(f"kernel {self.function.__name__} failed")

    def is_cold(self) -> bool:
        """Tell whether the kernel has yet to be compiled on this machine; an interpreted one always has."""
        if self.is_interpreted or self.loaded:
            return self.is_interpreted
        with suppress(OSError):
            return not [_read(file) for file in self._place.parent.glob(f"{self._place.name}-*")]
        return True

    def ask(self) -> bool:
        """Note in the cache that the kernel is wanted; tell whether that was noted before."""
        note = self._place.with_suffix(".wanted")
        known = note.exists()
        note.touch()
        return known

    def _code(self, arguments: tuple[Any, ...], types: str) -> bytes:
        """Return the name and the code of the C function for arguments of these types, kept or compiled."""
        with suppress(OSError):
            return _read(Path(f"{self._place}-{types}.o"))
        with self._alone(types):
            with suppress(OSError):  # another process may have compiled it meanwhile
                return _read(Path(f"{self._place}-{types}.o"))
            Kernel.announce(self._compiling())
            content = _compiled(self.function, arguments)
            with suppress(OSError), NamedTemporaryFile(dir=self._place.parent) as beside:
                beside.write(sha256(content).hexdigest().encode() + b"\n" + content)
                beside.flush()
                Path(beside.name).replace(f"{self._place}-{types}.o")
        return content

    @contextmanager
    def _alone(self, types: str) -> Iterator[None]:
        """Hold back others that would compile the same; where nothing can be kept or locked, do not."""
        with ExitStack() as held:
            with suppress(OSError):
                lock = held.enter_context(Path(f"{self._place}.{types}.lock").open("w"))
                held.callback(Path(lock.name).unlink, missing_ok=True)
                import fcntl  # of posix alone, as the folder is

                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self._announce_waiting()
                    fcntl.flock(lock, fcntl.LOCK_EX)  # a process that dies lets go of it
            yield

    def _compiling(self) -> str:
        try:
            kept = f", once for this installation ({self._place.parent})"
        except OSError as error:
            kept = f", which no cache will keep ({error})"
        return f"compiling the kernel {self.function.__name__}{kept}: up to two minutes; ^C ends it …"

    def _announce_waiting(self) -> None:
        """Say who is waited for; workers of one process do not: one of them said that it compiles."""
        from multiprocessing import current_process

        if current_process().name == "MainProcess":
            Kernel.announce(
                f"waiting for another process that compiles the kernel {self.function.__name__} …"
            )

    @cached_property
    def _place(self) -> Path:
        """Where the kernel is kept, less what differs by types; raises OSError where nothing can be."""
        import llvmlite.binding as llvm

        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
        folder = Path(os.environ.get("NUMBA_CACHE_DIR") or f"{caches}/numba", "rapid_des")
        if os.name != "posix" or not folder.is_absolute():
            raise OSError("there is no folder that is ours alone")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (status := folder.lstat()).st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(f"others may write {folder}")
        numba: Any = find_spec("numba")
        files = [Path(numba.origin).with_name("_version.py"), Path(__file__), *self.sources]
        target = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        key = sha256(repr((target, [file.read_bytes() for file in files])).encode()).hexdigest()
        return folder / f"{self.function.__name__}-{key[:24]}"


class Read(NamedTuple):
    """A tuple for kernels with its table, so that who calls again reads anew only what has been replaced."""

    argument: tuple[Any, ...]
    types: list[str]
    """Of each integer and each array."""
    words: list[int]
    """Theirs in numba's structs, one after the other; they point into `argument`."""
    parts: list[Read]
    """Of the tuples in it."""

    @classmethod
    def of(cls, argument: tuple[Any, ...], before: Read | None = None) -> Read:
        """Return an argument as it is now, given what stood in its place before."""
        if before is not None and before.argument is argument:
            return before
        read = cls(argument, [], [], [])
        known = iter(() if before is None else before.parts)
        for part in argument:
            if isinstance(part, tuple):
                inner = cls.of(part, next(known, None))
                read.parts.append(inner)
                read.types.extend(inner.types)
                read.words.extend(inner.words)
            elif isinstance(part, np.ndarray):
                there = part.__array_interface__
                assert there["strides"] is None and part.flags.aligned, "kernels take contiguous arrays"
                read.types.append(f"{there['typestr']}{part.ndim}")
                sizes = part.size, part.itemsize, there["data"][0], *there["shape"], *part.strides
                read.words.extend((0, 0, *sizes))  # without an owner
            else:
                read.types.append(type(part).__name__)
                read.words.append(int(part))
        return read


def _unread(argument: Any) -> Any:
    """Return what an argument is to the function itself."""
    return argument.argument if isinstance(argument, Read) else argument


def _writable(argument: Any) -> Any:
    """Return a like argument whose arrays are writable: numba compiles read-only ones anew, for a minute."""
    if isinstance(argument, tuple):
        parts = map(_writable, argument)
        return argument._make(parts) if hasattr(argument, "_make") else tuple(parts)
    return np.zeros((0,) * argument.ndim, argument.dtype) if isinstance(argument, np.ndarray) else argument


def _compiled(function: Callable[..., None], arguments: tuple[Any, ...]) -> bytes:
    """Return the name of a C function and its object code, which another process makes of it."""
    from concurrent.futures.process import BrokenProcessPool

    from rapid_des.processes import Worker

    given = _writable(arguments)
    try:
        worker = Worker()
    except (ImportError, NotImplementedError, OSError):  # a system without semaphores: ^C waits
        return _object_code(function, given)
    with worker:
        try:
            content: bytes = worker.submit(_object_code, function, given).result()
        except BrokenProcessPool as died:
            raise MemoryError(f"the compiler of {function.__name__} ended: {died}") from None
    return content


def _object_code(function: Callable[..., None], arguments: tuple[Any, ...]) -> bytes:
    """Return the name of a C function and the object code that numba makes of it in this process."""
    from numba import cfunc, extending, typeof, types

    def entry(table: Any) -> int:
        function(*table[0])
        return 1

    compilable(function)
    while _MARKED:
        extending.register_jitable(_nrt=False, forceinline=True)(_MARKED.pop())
    kinds: Any = types.Tuple(list(map(typeof, arguments)))  # type: ignore[no-untyped-call]
    with _places_from_the_begin():
        made: Any = cfunc(types.int32(types.CPointer(kinds)), _nrt=False)(entry)  # type: ignore[call-arg, no-untyped-call]
    return bytes(made.native_name.encode() + b"\n" + made._library._get_compiled_object())  # noqa: SLF001


@contextmanager
def _places_from_the_begin() -> Iterator[None]:
    """Have numba take every index of an array for a place from its begin, while nothing else is compiled.

    Looking at each whether it is below 0, and so counts from the end, takes a quarter of a kernel's time;
    numba has no option to leave that out for signed ones.
    """
    from numba.core import types
    from numba.core.compiler_lock import global_compiler_lock
    from numba.np import arrayobj

    def place(context: Any, builder: Any, kind: Any, index: Any, *_: Any) -> Any:
        return context.cast(builder, index, kind, types.intp)

    known = getattr(arrayobj, "fix_integer_index", None)
    if known is None:  # a numba that does it elsewhere: kernels take longer
        yield
        return
    with global_compiler_lock:
        arrayobj.fix_integer_index = place
        try:
            yield
        finally:
            arrayobj.fix_integer_index = known


def _loaded(content: bytes) -> Any:
    """Return the C function in an object file, by LLVM alone."""
    import llvmlite.binding as llvm

    name, _, code = content.partition(b"\n")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    nothing = ctypes.cast(ctypes.pythonapi.PyErr_Occurred, ctypes.c_void_p).value  # returns NULL
    library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(name.decode())
    for helper in ("gil_ensure", "gil_release", "unpickle", "runtime_build_excinfo_struct", "do_raise"):
        library.import_symbol(f"numba_{helper}", nothing)  # numba's would say why a kernel failed
    linked = library.link(llvm.create_lljit_compiler(), "rapid_des")
    function: Any = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(linked[name.decode()])
    function.owner = linked
    return function


def _read(file: Path) -> bytes:
    """Return what is in a file that is whole; raise OSError for others."""
    digest, _, content = file.read_bytes().partition(b"\n")
    if sha256(content).hexdigest().encode() != digest:
        raise OSError(f"{file} is not as it was written")
    return content
