"""Kernels that are compiled together: where their machine code is found, and how it is made if it is nowhere.

A wheel brings a shared library beside this module, which the system loads. A checkout has none: object code
is kept in numba's cache folder, from where llvmlite alone loads it. If it is not there or not whole, one
process compiles, and others that want the same wait for it. A folder that is not ours alone is not used. The
compiler runs in a process of its own: LLVM does not look for signals, so ^C would wait for it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, ClassVar

_ROOT = Path(__file__).parents[1]


def say(text: str) -> None:
    """Say something on stderr: a library that compiles for long without a word seems to hang."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - workers have no other way to say it


class Library:
    """Kernels of some modules, made of some source files."""

    announce: ClassVar[Callable[[str], None]] = say
    """Told in a line that kernels are compiled, or waited for, before that is done."""

    def __init__(self, modules: Iterable[str], sources: Callable[[], Iterable[Path]]) -> None:
        self.modules, self._sources = tuple(modules), sources

    @cached_property
    def is_interpreted(self) -> bool:
        """Whether kernels run as Python: numba may not compile, or there is neither code nor numba."""
        return _may_not_compile() or bool(self.advice)

    @cached_property
    def advice(self) -> str:
        """What to do about a lack of machine code; nothing if it is there, can be made or is not wanted."""
        if _may_not_compile() or self.is_kept() or find_spec("numba") is not None:
            return ""
        return "interpreted: no machine code was installed for this machine; with numba it would be compiled"

    @property
    def sources(self) -> list[Path]:
        """The files of which the machine code is made."""
        return sorted({*self._sources(), *Path(__file__).parent.glob("*.py")})

    @cached_property
    def name(self) -> str:
        """What the machine code is called: its sources and the kind of machine."""
        content = [file.read_bytes() for file in self.sources]
        digest = sha256(repr((platform.system(), platform.machine(), content)).encode()).hexdigest()
        return f"kernels-{digest[:24]}"

    @property
    def shipped(self) -> Path:
        """Where a wheel brings it."""
        return Path(__file__).with_name(f"{self.name}.so")

    def is_kept(self) -> bool:
        """Tell whether there is machine code on this machine."""
        with suppress(OSError):
            return self.shipped.exists() or bool(_read(self._place))
        return False

    def ask(self) -> bool:
        """Note in the cache that machine code is wanted; tell whether that was noted before."""
        note = self._place.with_suffix(".wanted")
        known = note.exists()
        note.touch()
        return known

    def code(self, name: str, floats: Sequence[bool]) -> Callable[..., int]:
        """Return a kernel's machine code, of arguments that are floats or words."""
        types = [ctypes.c_double if is_float else ctypes.c_int64 for is_float in floats]
        returned: Callable[..., int] = ctypes.PYFUNCTYPE(
            ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *types
        )(self._loaded[name])
        return returned

    @cached_property
    def _loaded(self) -> Addresses:
        if self.shipped.exists():
            return Addresses.of_library(self.shipped)
        return Addresses.of_object(self._object())

    def _object(self) -> bytes:
        """Return the object code, kept or compiled."""
        with suppress(OSError):
            return _read(self._place)
        with self._alone():
            with suppress(OSError):  # another process may have compiled it meanwhile
                return _read(self._place)
            Library.announce(self._compiling())
            content = self._compiled()
            with suppress(OSError), NamedTemporaryFile(dir=self._place.parent) as beside:
                beside.write(sha256(content).hexdigest().encode() + b"\n" + content)
                beside.flush()
                Path(beside.name).replace(self._place)
        return content

    def _compiled(self) -> bytes:
        """Return the object code, which another process makes."""
        from concurrent.futures.process import BrokenProcessPool

        from rapid_des.compiling.emit import object_code
        from rapid_des.processes import Worker

        asked = self.modules, platform.machine()
        try:
            worker = Worker()
        except (ImportError, NotImplementedError, OSError):  # a system without semaphores: ^C waits
            return _with_names(*object_code(*asked))
        with worker:
            try:
                return _with_names(*worker.submit(object_code, *asked).result())
            except BrokenProcessPool as died:
                raise MemoryError(f"the compiler of kernels ended: {died}") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold back others that would compile the same; where nothing can be kept or locked, do not."""
        with ExitStack() as held:
            with suppress(OSError):
                lock = held.enter_context(self._place.with_suffix(".lock").open("w"))
                held.callback(Path(lock.name).unlink, missing_ok=True)
                import fcntl  # of posix alone, as the folder is

                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    _announce_waiting()
                    fcntl.flock(lock, fcntl.LOCK_EX)  # a process that dies lets go of it
            yield

    def _compiling(self) -> str:
        try:
            kept = f", once for this installation ({self._place.parent})"
        except OSError as error:
            kept = f", which no cache will keep ({error})"
        return f"compiling the kernels{kept}: up to half a minute; ^C ends it …"

    @cached_property
    def _place(self) -> Path:
        """Where object code is kept; raises OSError where nothing can be."""
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
        folder = Path(os.environ.get("NUMBA_CACHE_DIR") or f"{caches}/numba", "rapid_des")
        if os.name != "posix" or not folder.is_absolute():
            raise OSError("there is no folder that is ours alone")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (status := folder.lstat()).st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(f"others may write {folder}")
        return folder / f"{self.name}.o"


def _may_not_compile() -> bool:
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def _announce_waiting() -> None:
    """Say who is waited for; workers of one process do not: one of them said that it compiles."""
    from multiprocessing import current_process

    if current_process().name == "MainProcess":
        Library.announce("waiting for another process that compiles the kernels …")


def _read(file: Path) -> bytes:
    """Return what is in a file that is whole; raise OSError for others."""
    digest, _, content = file.read_bytes().partition(b"\n")
    if sha256(content).hexdigest().encode() != digest:
        raise OSError(f"{file} is not as it was written")
    return content


class Addresses:
    """Where functions of loaded machine code begin, by name."""

    def __init__(self, find: Callable[[str], int], owner: Any) -> None:
        self._find, self._owner = find, owner

    def __getitem__(self, name: str) -> int:
        return self._find(name)

    @classmethod
    def of_library(cls, file: Path) -> Addresses:
        """Load a shared library."""
        library = ctypes.PyDLL(str(file))

        def find(name: str) -> int:
            return int(ctypes.cast(library[name], ctypes.c_void_p).value or 0)

        return cls(find, library)

    @classmethod
    def of_object(cls, content: bytes) -> Addresses:
        """Load an object file behind the names of its functions, by LLVM alone."""
        import llvmlite.binding as llvm

        names, _, code = content.partition(b"\n")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        builder = llvm.JITLibraryBuilder().add_object_img(code)
        for name in names.decode().split():
            builder.export_symbol(name)
        linked = builder.link(llvm.create_lljit_compiler(), "rapid_des")
        return cls(linked.__getitem__, linked)


def _with_names(names: Sequence[str], code: bytes) -> bytes:
    return " ".join(names).encode() + b"\n" + code


def _of_package() -> Iterable[Path]:
    compiled = "engines/compiled", "network/fluid"
    others = "chakra/kernels", "device/attention/flash", "program/collectives/pacing"
    rules = (f"program/{name}" for name in ("delays", "program", "rates", "spraying", "timetable"))
    return [
        *(file for folder in compiled for file in _ROOT.glob(f"{folder}/*.py")),
        *(_ROOT / f"{name}.py" for name in (*others, *rules)),
    ]


PACKAGE = Library(
    (
        *(f"rapid_des.engines.compiled.{name}kernel" for name in ("", "paired_", "closing_", "fluid_")),
        *(
            "rapid_des.chakra.kernels",
            "rapid_des.device.attention.flash",
            "rapid_des.program.collectives.pacing",
        ),
    ),
    _of_package,
)
"""The kernels of this package."""
