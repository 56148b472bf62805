"""Kernels kept as machine code: the same results without numba, and never a file that is not ours."""

import errno
import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from threading import Barrier
from typing import NamedTuple

import numpy as np
import pytest

import rapid_des
from rapid_des.compiling import CompiledKernel, Words
from rapid_des.compiling.emit import object_code
from rapid_des.compiling.kinds import (
    COMPILABLE,
    BoolColumn,
    Int8Column,
    Int32Matrix,
    Int64Column,
    TupleType,
    kinds_of,
)
from rapid_des.compiling.library import PACKAGE, KernelLibrary
from tests.engines.test_compiled_kernel import python

AGAIN = """
import sys
from tests.test_compiling import arguments, kernel, weigh
given = arguments()
kernel = kernel()
print(kernel.is_cold())
kernel(*given)
print(given[2].tolist(), "numba" in sys.modules)
"""


FROM_A_LIBRARY = """
import sys
from pathlib import Path
from tests.test_compiling import KernelLibrary, answer_of, kernel
KernelLibrary.shipped = Path({shared!r})
print(answer_of(kernel()), "llvmlite" in sys.modules)
"""


class Inner(NamedTuple):
    small: Int8Column
    table: Int32Matrix


class Outer(NamedTuple):
    inner: Inner
    large: Int64Column
    flags: BoolColumn
    most: int


def weigh(outer: Outer, by: int, result: Int64Column) -> None:
    """Use every argument by every index."""
    for row in range(len(outer.inner.table)):
        for column in range(len(outer.inner.table[row])):
            result[0] += by * outer.inner.table[row, column] * outer.large[column]
    for place in range(len(outer.inner.small)):
        if outer.flags[place]:
            result[1] += outer.inner.small[place] // outer.large[0]
    for place in range(len(outer.large[1 : outer.most])):
        result[1] += outer.large[1 : outer.most][place]


def look(column: Int64Column, place: int, result: Int64Column) -> None:
    """Read what is at one place."""
    result[0] = column[place]


def arguments(*, first=7):
    inner = Inner(np.arange(-3, 9, dtype=np.int8), np.arange(15, dtype=np.int32).reshape(3, 5))
    outer = Outer(inner, np.array([first, 10**12, 5, 4, 3], np.int64), np.arange(12) % 3 == 0, 4)
    return outer, 3, np.zeros(2, np.int64)


def answer():
    given = arguments()
    weigh(*given)
    return given[2].tolist()


def fresh():
    return KernelLibrary(["tests.test_compiling"], lambda: [Path(__file__)])


def kernel():
    return CompiledKernel(weigh, fresh())


WEIGH, LOOK = kernel(), CompiledKernel(look, fresh())


def answer_of(kernel):
    given = arguments()
    kernel(*given)
    return given[2].tolist()


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory):
    """A cache folder with the kernel."""
    folder = tmp_path_factory.mktemp("numba")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", str(folder))
        assert answer_of(kernel()) == answer() != [0, 0]
    return folder


@pytest.fixture
def cache(compiled_once, tmp_path, monkeypatch):
    """A folder with the kernel, of this test's own, set as numba's."""
    shutil.copytree(compiled_once, tmp_path / "numba")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    return tmp_path / "numba" / "rapid_des"


@pytest.fixture
def compilations(compiled_once, monkeypatch):
    """The names of what would be compiled in this test; the machine code is from `compiled_once`."""
    made = []
    (file,) = compiled_once.glob("rapid_des/*.o")
    _, _, code = file.read_bytes().partition(b"\n")

    def counted(self):
        made.append(self.name)
        return code

    monkeypatch.setattr(KernelLibrary, "_compiled", counted)
    return made


def test_a_kept_kernel_runs_without_numba(cache):
    assert python(AGAIN) == f"False\n{answer()} False\n"


def test_indices_of_a_kernel_count_from_the_begin_and_no_others(cache):
    column, result = np.arange(5)[1:], np.zeros(1, np.int64)
    CompiledKernel(look, fresh())(column, -1, result)
    assert result.tolist() == [0]


def test_who_comes_while_it_is_compiled_waits_for_it(tmp_path, monkeypatch, compilations):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    together = Barrier(2)

    def answer_together(_):
        together.wait()
        return answer_of(kernel())

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(answer_together, range(2))) == [answer()] * 2
    assert len(compilations) == 1


def test_a_kernel_that_numba_may_not_compile_is_its_function(cache, compilations):
    code = AGAIN + "print('llvmlite' in sys.modules)"
    assert python(code, NUMBA_DISABLE_JIT="1") == f"True\n{answer()} False\nFalse\n"


WITHOUT_NUMBA = "import sys; sys.modules['numba'] = None\nfrom tests.test_compiling import *\n"


def test_without_machine_code_and_numba_a_kernel_is_its_function_and_says_what_to_do(tmp_path):
    code = WITHOUT_NUMBA + "print(answer_of(kernel()), kernel().is_interpreted, kernel().advice)"
    printed = python(code, NUMBA_CACHE_DIR=str(tmp_path))
    assert printed.startswith(f"{answer()} True interpreted: no machine code was installed")
    assert "with numba" in printed


def test_without_numba_machine_code_that_is_kept_is_used(cache):
    code = WITHOUT_NUMBA + "print(answer_of(kernel()), kernel().is_interpreted, kernel().advice)"
    assert python(code) == f"{answer()} False \n"


def test_machine_code_that_nothing_here_can_load_is_none(cache):
    code = "import sys; sys.modules['llvmlite'] = None\n" + WITHOUT_NUMBA
    assert python(f"{code}print(answer_of(kernel()), kernel().is_interpreted)") == f"{answer()} True\n"


def test_other_sources_are_another_kernel(cache, tmp_path):
    source = tmp_path / "source.py"
    source.write_text("one")
    names = {KernelLibrary([], lambda: [source]).name}
    source.write_text("other")
    assert len(names | {KernelLibrary([], lambda: [source]).name, fresh().name}) == 3


def test_an_argument_of_another_type_is_refused(cache, compilations):
    outer, by, result = arguments()
    frozen = outer.large.copy()
    frozen.flags.writeable = False
    code = kernel()
    code(outer._replace(large=frozen), by, result)
    assert result.tolist() == answer()  # it is only read
    with pytest.raises(AssertionError, match="Outer.large is 1 x int32, not 1 x int64"):
        code(outer._replace(large=outer.large.astype(np.int32)), by, result)
    with pytest.raises(AssertionError, match="contiguous"):
        code(outer._replace(large=np.ones(10, np.int64)[::2]), by, result)
    assert compilations == []


def test_a_kernel_that_fails_says_so(cache):
    with pytest.raises(RuntimeError, match="kernel weigh failed"):
        kernel()(*arguments(first=0))  # divides by it


def damages(content):
    yield b""
    yield content[:-1]
    yield content[:500] + bytes([content[500] ^ 1]) + content[501:]
    yield content + b"?"


@pytest.mark.parametrize("damage", range(4))
def test_a_damaged_file_is_recompiled_and_mended(cache, compilations, damage):
    (file,) = cache.glob("*.o")
    whole = file.read_bytes()
    assert not kernel().is_cold()
    file.write_bytes(list(damages(whole))[damage])
    assert kernel().is_cold()  # so that the user is informed of the wait
    assert answer_of(kernel()) == answer()
    assert len(compilations) == 1
    assert not kernel().is_cold()
    assert answer_of(kernel()) == answer()
    assert len(compilations) == 1


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_may_write_is_not_used(cache, compilations, mode):
    cache.chmod(mode)
    before = sorted(cache.iterdir())
    assert kernel().is_cold()
    with pytest.raises(PermissionError, match="other users can write"):
        kernel().ask()
    assert answer_of(kernel()) == answer()
    assert len(compilations) == 1
    assert sorted(cache.iterdir()) == before


def test_a_folder_that_is_a_link_into_anothers_is_not_used(cache, compilations, tmp_path):
    cache.rename(tmp_path / "elsewhere")
    cache.symlink_to(tmp_path / "elsewhere")
    before = sorted(cache.iterdir())
    assert answer_of(kernel()) == answer()
    assert len(compilations) == 1
    assert sorted(cache.iterdir()) == before


def test_what_a_write_takes_the_place_of_is_not_followed(cache, compilations, tmp_path):
    (file,) = cache.glob("*.o")
    file.unlink()
    (tmp_path / "elsewhere").write_text("not ours to write")
    file.symlink_to(tmp_path / "elsewhere")
    assert answer_of(kernel()) == answer()
    assert len(compilations) == 1
    assert not file.is_symlink()
    assert (tmp_path / "elsewhere").read_text() == "not ours to write"


def test_a_folder_of_somebody_else_is_not_used(cache, compilations, monkeypatch):
    somebody = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody)
    assert answer_of(kernel()) == answer()
    assert len(compilations) == 1


def test_a_full_disk_is_done_without_and_leaves_nothing(cache, compilations, monkeypatch):
    (file,) = cache.glob("*.o")
    file.unlink()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    for _ in range(2):
        assert answer_of(kernel()) == answer()
    assert len(compilations) == 2
    assert list(cache.iterdir()) == []


def test_a_cache_that_can_not_be_there_is_done_without(cache, compilations, tmp_path, monkeypatch):
    (tmp_path / "closed").write_text("no folder")
    for folder in (tmp_path / "closed", "relative"):
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
        assert kernel().is_cold()
        assert answer_of(kernel()) == answer()
        with pytest.raises(OSError):
            kernel().ask()
    assert len(compilations) == 2


def test_a_kernel_is_asked_for_once(cache):
    assert [kernel().ask() for _ in range(3)] == [False, True, True]


def test_a_table_that_was_read_before_is_read_again_where_it_was_replaced(cache):
    called, (outer, by, result), (kind, *_) = kernel(), arguments(), kinds_of(weigh)
    assert isinstance(kind, TupleType)
    first = Words.of(outer, kind)
    assert Words.of(outer, kind, first) is first
    called(first, by, result)
    replaced = outer._replace(large=arguments(first=9)[0].large)
    again = Words.of(replaced, kind, first)
    assert again.parts[0] is first.parts[0]
    other = np.zeros_like(result)
    called(again, by, other)
    expected = np.zeros_like(result)
    weigh(replaced, by, expected)
    assert result.tolist() == answer() and other.tolist() == expected.tolist() != answer()


def test_machine_code_is_named_after_all_its_sources():
    # an edited steps.py must not go on as the old machine code
    for name in PACKAGE.modules:
        import_module(name)
    made_of = {Path(function.__code__.co_filename) for function in COMPILABLE}
    ours = {path for path in made_of if Path(rapid_des.__file__).parent in path.parents}
    assert len(ours) > 10
    assert ours <= set(PACKAGE.sources)


@pytest.mark.skipif(shutil.which("cc") is None, reason="wheels of machines without a linker have no library")
def test_a_library_as_wheels_bring_it_runs_without_llvm(tmp_path):
    code, shared = tmp_path / "kernels.o", tmp_path / "kernels.so"
    names, content = object_code(["tests.test_compiling"], platform.machine())
    assert names == ["look", "weigh"]
    code.write_bytes(content)
    subprocess.run(["cc", "-shared", "-nostdlib", "-o", shared, code], check=True)
    printed = python(FROM_A_LIBRARY.format(shared=str(shared)))
    assert printed == f"{answer()} False\n"
