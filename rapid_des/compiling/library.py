"""Kernels that are compiled together: their machine code is found here, or made if there is none.

A wheel contains a shared library beside this module, which the system loads. A checkout has none: its object
code is in numba's cache folder, and llvmlite alone loads it. If it is missing or damaged, one process
compiles, and others that need the same code wait. A folder that other users can write is not used. The
compiler runs in a process of its own, because LLVM does not look for signals and ^C would wait for it.
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
    """Print a line on stderr: a library that compiles for long without any message seems to hang."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - workers have no other output


class KernelLibrary:
    """Kernels of some modules, made of some source files."""

    announce: ClassVar[Callable[[str], None]] = say
    """Called with a line before kernels are compiled, or before the process waits for them."""

    def __init__(self, modules: Iterable[str], sources: Callable[[], Iterable[Path]]) -> None:
        self.modules, self._sources = tuple(modules), sources
        self.is_loaded = False
        """Whether machine code has been loaded."""

    @cached_property
    def is_interpreted(self) -> bool:
        """Whether kernels run as Python: compiling is switched off, or there is neither code nor numba."""
        return _may_not_compile() or bool(self.advice)

    @cached_property
    def advice(self) -> str:
        """The advice on how to get machine code; empty if there is some, it can be made or is not wanted."""
        if _may_not_compile() or self.is_kept() or find_spec("numba") is not None:
            return ""
        return "interpreted: no machine code was installed for this machine; with numba it would be compiled"

    @property
    def sources(self) -> list[Path]:
        """The files from which the machine code is made."""
        return sorted({*self._sources(), *Path(__file__).parent.glob("*.py")})

    @cached_property
    def name(self) -> str:
        """The name of the machine code, a digest of its sources and the kind of machine."""
        content = [file.read_bytes() for file in self.sources]
        digest = sha256(repr((platform.system(), platform.machine(), content)).encode()).hexdigest()
        return f"kernels-{digest[:24]}"

    @property
    def shipped(self) -> Path:
        """The place of the shared library in a wheel."""
        return Path(__file__).with_name(f"{self.name}.so")

    def is_kept(self) -> bool:
        """Return whether there is machine code on this machine that can be loaded."""
        with suppress(OSError):
            return self.shipped.exists() or (find_spec("llvmlite") is not None and bool(_read(self._place)))
        return False

    def ask(self) -> bool:
        """Record in the cache that machine code is wanted; return whether that was recorded before."""
        note = self._place.with_suffix(".wanted")
        known = note.exists()
        note.touch()
        return known

    def code(self, name: str, floats: Sequence[bool]) -> Callable[..., int]:
        """Return a kernel's machine code; `floats` states which arguments are floats; others are words."""
        types = [ctypes.c_double if is_float else ctypes.c_int64 for is_float in floats]
        returned: Callable[..., int] = ctypes.PYFUNCTYPE(
            ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *types
        )(self._loaded[name])
        return returned

    @cached_property
    def _loaded(self) -> Addresses:
        if self.shipped.exists():
            addresses = Addresses.of_library(self.shipped)
        else:
            addresses = Addresses.of_object(self.object_code())
        self.is_loaded = True
        return addresses

    def object_code(self) -> bytes:
        """Return a line with the kernels' names and their object code, from the cache if it is there."""
        with suppress(OSError):
            return _read(self._place)
        with self._alone():
            with suppress(OSError):  # another process may have compiled it meanwhile
                return _read(self._place)
            KernelLibrary.announce(self._compiling())
            content = self._compiled()
            with suppress(OSError), NamedTemporaryFile(dir=self._place.parent) as beside:
                beside.write(sha256(content).hexdigest().encode() + b"\n" + content)
                beside.flush()
                Path(beside.name).replace(self._place)
        return content

    def _compiled(self) -> bytes:
        """Return the object code that another process compiles."""
        from concurrent.futures.process import BrokenProcessPool

        from rapid_des.compiling import emit
        from rapid_des.processes import Worker

        asked = self.modules, platform.machine()
        try:
            worker = Worker()
        except (ImportError, NotImplementedError, OSError):  # a system without semaphores: ^C waits
            return _with_names(*emit.object_code(*asked))
        with worker:
            try:
                return _with_names(*worker.submit(emit.object_code, *asked).result())
            except BrokenProcessPool as died:
                raise MemoryError(f"the compiler of kernels ended: {died}") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let other processes wait that need the same code; where no file can be locked, they compile too."""
        with ExitStack() as held:
            with suppress(OSError):
                lock = held.enter_context(self._place.with_suffix(".lock").open("w"))
                held.callback(Path(lock.name).unlink, missing_ok=True)
                import fcntl  # exists on posix only, where the folder is used

                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    _announce_waiting()
                    fcntl.flock(lock, fcntl.LOCK_EX)  # the system unlocks it if the process dies
            yield

    def _compiling(self) -> str:
        """Return the line that announces a compilation."""
        try:
            kept = f", once for this installation ({self._place.parent})"
        except OSError as error:
            kept = f", which cannot be cached ({error})"
        return f"compiling the kernels{kept}: half a minute on an idle machine; ^C ends it …"

    @cached_property
    def _place(self) -> Path:
        """The file of the object code in the cache; raises OSError where none can be kept."""
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
        folder = Path(os.environ.get("NUMBA_CACHE_DIR") or f"{caches}/numba", "rapid_des")
        if os.name != "posix" or not folder.is_absolute():
            raise OSError("no cache folder belongs to this user alone")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (status := folder.lstat()).st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(f"other users can write {folder}")
        return folder / f"{self.name}.o"


def _may_not_compile() -> bool:
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def _announce_waiting() -> None:
    """Announce the wait; workers stay silent, because one of them has announced that it compiles."""
    from multiprocessing import current_process

    if current_process().name == "MainProcess":
        KernelLibrary.announce("waiting for another process that compiles the kernels …")


def _read(file: Path) -> bytes:
    """Return the content of a file behind its digest; raise OSError if the digest differs."""
    digest, _, content = file.read_bytes().partition(b"\n")
    if sha256(content).hexdigest().encode() != digest:
        raise OSError(f"{file} is damaged: its digest differs")
    return content


class Addresses:
    """The addresses of loaded functions, by name."""

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
        """Load an object file, which follows a line with the names of its functions, by LLVM alone."""
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
    others = "chakra/kernels", "device/attention/flash", "program/collectives/pacing", "program/latest"
    rules = (f"program/{name}" for name in ("delays", "program", "rates", "timetable"))
    return [
        *(file for folder in compiled for file in _ROOT.glob(f"{folder}/*.py")),
        *(_ROOT / f"{name}.py" for name in (*others, *rules)),
    ]


PACKAGE = KernelLibrary(
    (
        *(f"rapid_des.engines.compiled.{name}kernel" for name in ("", "paired_", "closure_", "fluid_")),
        *(
            "rapid_des.chakra.kernels",
            "rapid_des.device.attention.flash",
            "rapid_des.program.collectives.pacing",
            "rapid_des.program.latest",
        ),
    ),
    _of_package,
)
"""The kernels of this package."""
