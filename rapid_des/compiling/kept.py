"""Kernels kept as object files of their own, which a process calls without importing numba.

Importing numba and reading a kernel back from numba's cache takes half a second, more than most runs take.
So a process that had numba compile a kernel also keeps its machine code: the kernel's own function and a
small entry that takes one table of words, in an object file that llvmlite alone can load (0.05 s).

What makes it safe: the file's name holds a digest of the kernel's sources, of Python, numba and llvmlite and
of the processor with its features, and the file begins with a digest of the rest. It may need no symbol from
outside, because to lack one would end the process. Before a file is used, another process loads it and tries
it: the module that the kernel's family names for that compares what the kernel does with what other code
does. Each call compares its arrays' types with those the kernel was compiled for. Whatever does not fit goes
the ordinary way, through numba.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

_ENTRY = "rapid_des_kernel"
_FLAGS = 0x1 | 0x100 | 0x400
"""Of an array, what numba looks at: rows without gaps, aligned, writeable."""
_OK = (0, -2)
"""What numba's functions return that ended as they should, with nothing to give back."""
_HARMLESS = {"NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS"}
_TRIAL_SECONDS = 120
_OBSTACLES = (OSError, RuntimeError, AttributeError, TypeError)
"""Files that can not be read, what LLVM refuses, and what another numba or llvmlite calls otherwise."""


class _NotKept(Exception):  # noqa: N818 - never leaves this module
    """Why a kernel's code can not be kept."""


@dataclass(frozen=True)
class Kept:
    """A kernel's machine code in this process."""

    types: tuple[str, ...]
    """What `_type` says of each argument."""
    entry: Any
    engine: Any = field(repr=False)
    """Owns the code."""

    def fits(self, arguments: tuple[Any, ...]) -> bool:
        """Tell whether the kernel was compiled for arguments of these types."""
        return self.types == tuple(map(_type, leaves(arguments)))

    def run(self, arguments: tuple[Any, ...]) -> None:
        """Call the kernel."""
        results = np.zeros(2, np.int64)  # numba's calling convention: where the result and an error go
        words = [results.ctypes.data, results.ctypes.data + 8]
        for leaf in leaves(arguments):
            words += _words(leaf)
        table = np.array(words, np.int64)
        status = self.entry(table.ctypes.data)
        if status not in _OK:
            raise RuntimeError(f"the kernel stopped with status {status}")


def leaves(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """Yield arguments with those that tuples hold in place of the tuples."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from leaves(argument)
        else:
            yield argument


def _type(leaf: Any) -> str:
    if isinstance(leaf, np.ndarray):
        return f"{leaf.dtype.str} {leaf.ndim} {leaf.flags.num & _FLAGS}"
    return type(leaf).__name__


def _words(leaf: Any) -> list[int]:
    """Return an argument as numba passes it: an array without an owner, or an integer."""
    if not isinstance(leaf, np.ndarray):
        return [leaf]
    return [0, 0, leaf.size, leaf.itemsize, leaf.__array_interface__["data"][0], *leaf.shape, *leaf.strides]


def unusual() -> bool:
    """Tell whether numba is told how to compile, or not to: its users want numba then."""
    told = {name for name in os.environ if name.startswith("NUMBA_")} - _HARMLESS
    return bool(told) or Path(".numba_config.yaml").exists()


def load(name: str) -> Kept | None:
    """Return a kernel that was kept for these sources, versions and processor, if there is one."""
    if unusual():
        return None
    with suppress(*_OBSTACLES):
        for folder in folders():
            if any(folder.glob(f"{name}-*.kept")) and (folder / f"{name}-{_key()}.kept").exists():
                return read(folder / f"{name}-{_key()}.kept")
    return None


def read(path: Path) -> Kept | None:
    """Return the kernel in a file, or None for a file that is not as it was written."""
    digest, _, rest = path.read_bytes().partition(b"\n")
    if sha256(rest).hexdigest().encode() != digest:
        return None
    head, _, code = rest.partition(b"\n")
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _processor())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    call = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_size_t)(engine.get_function_address(_ENTRY))
    return Kept(tuple(json.loads(head)), call, engine)


def keep(name: str, trial: str, dispatcher: Any, arguments: tuple[Any, ...]) -> None:
    """Keep the code that numba has just compiled for these arguments, if it stands its trial.

    `trial` is the module that tries it: run with the kernel's name and its file, it exits with 0 if all is
    well, without having imported numba.
    """
    if unusual():
        return
    with suppress(_NotKept, *_OBSTACLES):
        content = _content(dispatcher, arguments)
        _try(name, trial, content)
        for folder in folders():
            if _written(folder / f"{name}-{_key()}.kept", content):
                return


def _written(path: Path, content: bytes) -> bool:
    """Write a file at once or not at all, and tell which; an installation's folder may be closed to us."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        beside.replace(path)
    except OSError:
        return False
    return True


def _try(name: str, trial: str, content: bytes) -> None:
    """Try a kernel in a process of its own."""
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    own = os.environ | {"PYTHONPATH": paths, "NUMBA_DISABLE_JIT": "1"}  # a kernel that does not fit fails
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel"
        file.write_bytes(content)
        command = [sys.executable, "-m", trial, name, str(file)]
        try:
            subprocess.run(command, env=own, capture_output=True, check=True, timeout=_TRIAL_SECONDS)
        except subprocess.SubprocessError as error:
            raise _NotKept(str(error)) from error


def _content(dispatcher: Any, arguments: tuple[Any, ...]) -> bytes:
    types = json.dumps([_type(leaf) for leaf in leaves(arguments)]).encode()
    rest = types + b"\n" + _object_code(dispatcher.overloads[dispatcher.signatures[-1]])
    return sha256(rest).hexdigest().encode() + b"\n" + rest


def _object_code(compiled: Any) -> bytes:
    """Return an object file of a kernel's function and its entry: all else that numba made is left out."""
    import llvmlite.binding as llvm

    symbol = compiled.fndesc.llvm_func_name
    try:
        whole = llvm.parse_assembly(compiled.library.get_llvm_str())
        for function in whole.functions:
            if not function.is_declaration:
                function.linkage = "linkonce_odr"  # linked only where it is called
        types = [str(argument.type) for argument in whole.get_function(symbol).arguments]
        module = llvm.parse_assembly(_entry(symbol, types))
        module.triple, module.data_layout = whole.triple, whole.data_layout
        module.link_in(whole)
        module.verify()
    except (RuntimeError, NameError) as error:
        raise _NotKept(str(error)) from error
    outside = [one.name for one in module.functions if one.is_declaration]
    if not all(one.startswith("llvm.") for one in outside):
        raise _NotKept(f"needs {outside}")
    code: bytes = _processor().emit_object(module)
    return code


def _entry(symbol: str, types: list[str]) -> str:
    """Return LLVM assembly of a function that takes the address of a table of words, one an argument."""
    pointer = "ptr" if "ptr" in types else "i64*"
    given = ", ".join(f"{kind} %given{place}" for place, kind in enumerate(types))
    lines = [f'declare i32 @"{symbol}"({", ".join(types)})', f"define i32 @{_ENTRY}(i64 %table) {{"]
    for place, kind in enumerate(types):
        lines += [
            f"%address{place} = add i64 %table, {8 * place}",
            f"%place{place} = inttoptr i64 %address{place} to {pointer}",
            f"%word{place} = load i64, {pointer} %place{place}",
            f"%given{place} = {'bitcast' if kind == 'i64' else 'inttoptr'} i64 %word{place} to {kind}",
        ]
    lines += [f'%status = call i32 @"{symbol}"({given})', "ret i32 %status", "}"]
    return "\n".join(lines)


def _processor() -> Any:
    """Return LLVM's code generator for this machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu, features, opt=3, codemodel="jitdefault", jit=True)


@cache
def _key() -> str:
    """Return a digest of what machine code depends on besides its sources."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features().flatten()
    parts = [sys.version, llvm.get_process_triple(), llvm.get_host_cpu_name(), features]
    for package in ("numba", "llvmlite"):
        found = find_spec(package)
        assert found is not None and found.origin is not None, "numba is required"
        parts.append(Path(found.origin).with_name("_version.py").read_text(encoding="utf-8"))
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def folders() -> list[Path]:
    """Return where kernels are kept: where numba keeps its own, beside the sources or in the user's cache."""
    wanted = os.environ.get("NUMBA_CACHE_DIR")
    if wanted:
        return [Path(wanted) / "rapid_des"]
    beside = Path(__file__).parent / "__pycache__"
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return [beside]
    return [beside, Path(caches) / "numba" / "rapid_des"]


def folders_of_numba(source: Path) -> list[Path]:
    """Return where numba keeps what it compiled of a source file."""
    beside = [] if os.environ.get("NUMBA_CACHE_DIR") else [source.parent / "__pycache__"]
    return beside + [place for folder in folders() for place in folder.parent.glob("*/")]
