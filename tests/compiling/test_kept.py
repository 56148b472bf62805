"""Kernels kept for themselves: the same machine code without numba, or numba."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numba import njit

from rapid_des.chakra import kernels, trial
from rapid_des.chakra.running import machine_code
from rapid_des.compiling import kept as files
from rapid_des.compiling.machine import digest
from rapid_des.engines import compiled
from rapid_des.engines.compiled import trial as replay_trial
from rapid_des.engines.simpy import engine as simpy_engine
from tests.engines.test_compiled_kernel import python

RUN = """
import sys
from rapid_des.engines import compiled
from rapid_des.engines.compiled import trial
from rapid_des.engines.simpy.engine import run
assert not trial.differences(compiled.run(trial.job("cut_through")), run(trial.job("cut_through")))
print("numba" in sys.modules)
"""


class Inner(NamedTuple):
    small: np.ndarray
    table: np.ndarray


class Outer(NamedTuple):
    inner: Inner
    large: np.ndarray
    flags: np.ndarray


def weigh(outer, by, result):
    """Use every argument by every index."""
    for row in range(outer.inner.table.shape[0]):
        for column in range(outer.inner.table.shape[1]):
            result[0] += by * outer.inner.table[row, column] * outer.large[column]
    for place in range(len(outer.inner.small)):
        if outer.flags[place]:
            result[1] += outer.inner.small[place] // outer.large[0]


def arguments(*, first=7):
    inner = Inner(np.arange(-3, 9, dtype=np.int8), np.arange(15, dtype=np.int32).reshape(3, 5))
    outer = Outer(inner, np.array([first, 10**12, 5, 4, 3], np.int64), np.arange(12) % 3 == 0)
    return outer, 3, np.zeros(2, np.int64)


@pytest.fixture(scope="module")
def content():
    """What is kept of `weigh`."""
    dispatcher, given = njit(_nrt=False)(weigh), arguments()
    dispatcher(*given)
    return files._content(dispatcher, given)


@pytest.fixture
def kept(content, tmp_path):
    file = tmp_path / "weigh.kept"
    file.write_bytes(content)
    return files.read(file)


def test_a_kept_kernel_gets_its_arguments_as_they_are(kept):
    one, other = arguments(), arguments()
    weigh(*one)
    assert kept.fits(other)
    kept.run(other)
    assert one[2].tolist() == other[2].tolist() != [0, 0]


def test_a_kernel_that_fails_says_so(kept):
    with pytest.raises(RuntimeError, match="stopped with status 1"):
        kept.run(arguments(first=0))  # divides by it


def changed(**fields):
    outer, by, result = arguments()
    return outer._replace(**fields), by, result


def test_a_kept_kernel_refuses_arguments_of_other_types(kept):
    frozen = np.ones(5, np.int64)
    frozen.flags.writeable = False
    assert kept.fits(changed(large=np.ones(9, np.int64)))
    assert not kept.fits(changed(large=np.ones(5, np.int32)))
    assert not kept.fits(changed(large=np.ones((5, 1), np.int64)))
    assert not kept.fits(changed(large=np.ones(10, np.int64)[::2]))
    assert not kept.fits(changed(large=frozen))
    assert not kept.fits(changed(large=5))
    assert not kept.fits(arguments()[:2])


def test_a_file_that_is_not_as_it_was_written_is_not_loaded(content, tmp_path):
    file = tmp_path / "weigh.kept"
    for broken in (b"", content[:-1], content[:5000] + b"?" + content[5001:], content + b"?"):
        file.write_bytes(broken)
        assert files.read(file) is None


def test_a_kernel_that_needs_a_symbol_from_outside_is_not_kept():
    # a process whose LLVM finds no such symbol does not fail, it ends
    def gamma(result):
        result[0] = math.gamma(result[0])

    dispatcher, given = njit(_nrt=False)(gamma), (np.ones(1),)
    dispatcher(*given)
    with pytest.raises(files._NotKept, match="gamma"):
        files._content(dispatcher, given)


def test_only_what_stands_its_trial_is_kept(monkeypatch, tmp_path):
    # the trial plays a job, for which a kernel that takes other arguments is of no use
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    dispatcher, given = njit(_nrt=False)(weigh), arguments()
    dispatcher(*given)
    files.keep("weigh", "rapid_des.engines.compiled.trial", dispatcher, given)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_written_is_passed_over(monkeypatch, tmp_path, content):
    (tmp_path / "closed").write_text("no folder")
    monkeypatch.setattr(files, "folders", lambda: [tmp_path / "closed" / "in", tmp_path / "open"])
    monkeypatch.setattr(files, "_try", lambda name, trial, content: None)
    dispatcher, given = njit(_nrt=False)(weigh), arguments()
    dispatcher(*given)
    files.keep("weigh", "no.trial", dispatcher, given)
    assert [file.suffix for file in (tmp_path / "open").iterdir()] == [".kept"]
    loaded = files.load("weigh")
    assert loaded is not None and loaded.fits(given)


def test_a_kernel_compiled_once_runs_without_numba_and_not_with_other_settings(tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert python(RUN, **cache) == "True\n"
    assert [file.name[:5] for file in (tmp_path / "rapid_des").iterdir()] == ["play_"]
    assert python(RUN, **cache) == "False\n"
    assert python(RUN, **cache, NUMBA_OPT="3") == "True\n"
    assert python(RUN, **cache, NUMBA_DISABLE_JIT="1") == "True\n"
    (file,) = (tmp_path / "rapid_des").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert python(RUN, **cache) == "True\n"


@pytest.mark.parametrize("mode", ["cut_through", "fluid"])
def test_the_trial_has_a_job_for_every_kernel(mode):
    program = replay_trial.job(mode)
    assert (program.fluid is not None) == (mode == "fluid")
    assert replay_trial.differences(simpy_engine.run(program), compiled.run(program)) == []


def test_whether_a_kernel_is_cold_is_told_without_numba(tmp_path):
    code = """
import sys
from rapid_des.engines.compiled import jit, kernel
from rapid_des.modes.execution import kernel_is_cold
print(kernel_is_cold(), kernel.play.__qualname__, "numba" in sys.modules)
"""
    answer, name, loaded = python(code, NUMBA_CACHE_DIR=str(tmp_path)).split()
    assert (answer, loaded) == ("True", "False")
    (tmp_path / "compiled_1f").mkdir()
    (tmp_path / "compiled_1f" / f"kernel.{name}-61.py311.nbi").touch()
    assert python(code, NUMBA_CACHE_DIR=str(tmp_path)).split() == ["False", name, "False"]


READ = """
import sys
from rapid_des.chakra import running, trial
from rapid_des.chakra.running import machine_code

running.COMPILE_ABOVE = -1
for kernel in trial.SAMPLES:
    machine_code(kernel)(*trial.arguments(kernel, 0))
    kept = machine_code(kernel).kept
    assert kept is None or trial.differences(kernel, kept) == []
print("numba" in sys.modules)
"""


def test_the_readers_kernels_compiled_once_run_without_numba(tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert python(READ, **cache) == "True\n"
    names = {file.name.rsplit("_", 1)[0] for file in (tmp_path / "rapid_des").iterdir()}
    assert names == {kernel.__name__ for kernel in trial.SAMPLES}
    assert python(READ, **cache) == "False\n"
    assert python(READ, **cache, NUMBA_OPT="1") == "True\n"


@pytest.mark.parametrize("kernel", trial.SAMPLES, ids=lambda kernel: kernel.__name__)
def test_the_trial_of_a_readers_kernel_finds_a_wrong_one(kernel, tmp_path):
    # of each kernel's machine code, one that does nothing but say so
    arguments = trial.arguments(kernel, 0)
    dispatcher = njit(_nrt=False)(idle(len(arguments)))
    dispatcher(*arguments)
    file = tmp_path / "idle"
    file.write_bytes(files._content(dispatcher, arguments))
    kept = files.read(file)
    assert kept.fits(arguments)
    assert trial.differences(kernel, kept) != []


def idle(count):
    names = ", ".join(f"a{place}" for place in range(count))
    scope = {}
    exec(f"def idle({names}):\n    a{count - 1}[0] = 7\n", scope)
    return scope["idle"]


def test_a_readers_kernel_is_named_after_its_source(tmp_path):
    source = Path(kernels.__file__)
    edited = tmp_path / source.name
    edited.write_text(source.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    name = machine_code(kernels.scan_fields).name
    assert name == kernels.scan_fields.__qualname__ == f"scan_fields_{digest([source])}"
    assert digest([edited]) != digest([source])
