"""The kernel as Python."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rapid_des
from rapid_des.engines import compiled
from rapid_des.engines.compiled import engine
from rapid_des.engines.simpy import engine as simpy_engine
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.execution import expected_hops
from rapid_des.modes.pricing import price
from rapid_des.program.lowering import lower

UNCOMPILED = """
from hypothesis import Phase, given, settings
from rapid_des.engines.compiled import kernel, kernel_of
from tests.engines.agreement import assert_engines_agree
from tests.engines.random_programs import programs

@settings(max_examples=12, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
@given(programs(unordered=True, timetables=True))
def agree(program):
    assert_engines_agree(program, trail=True)

assert type(kernel.play).__name__ == "function"
assert kernel_of(fluid=False).is_cold()
agree()
"""


def python(code, **environment):
    """Run code in a fresh interpreter, warnings being errors; return what it printed."""
    root = Path(rapid_des.__file__).parents[1]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_kernel_runs_uncompiled():
    python(UNCOMPILED, NUMBA_DISABLE_JIT="1")


WARM = """
import sys
from rapid_des.engines import compiled
from tests.engines.test_compiled_kernel import small_job
print(compiled.run(small_job(sys.argv[1])).makespan, "numba" in sys.modules)
"""


def small_job(mode):
    job = load_job("llama2_7b_train", settings=[("model.layers", "2"), ("training.global_batch", "4")])
    on = load_machine("dgx_a100", settings=[("switching.mode", mode)])
    return lower(price(job, on).traces, on).program


@pytest.mark.parametrize("mode", ["cut_through", "fluid"])
def test_a_process_after_the_first_plays_without_numba(mode):
    compiled.run(small_job(mode))
    makespan = simpy_engine.run(small_job(mode)).makespan
    assert python(f"import sys; sys.argv.append({mode!r})\n{WARM}") == f"{makespan} False\n"


@pytest.mark.parametrize("mode", ["cut_through", "fluid"])
def test_a_run_in_many_slices_is_the_same_run_and_tells_its_progress(mode, monkeypatch):
    program = small_job(mode)
    at_once = compiled.run(program)
    monkeypatch.setattr(engine, "_FIRST_SLICE", 1)
    monkeypatch.setattr(engine, "_SLICE_S", 1e-9)
    told: list[int] = []
    sliced = compiled.run(program, progress=told.append)
    assert len(told) > 100
    assert told == sorted(told)
    assert 0.9 * expected_hops(program) < told[-1] <= expected_hops(program)
    for column in ("start", "finish", "met", "link_bytes", "link_busy", "link_wait"):
        np.testing.assert_array_equal(getattr(sliced, column), getattr(at_once, column))
    assert (sliced.hops, sliced.events) == (at_once.hops, at_once.events)


def test_an_interrupt_ends_a_run_between_slices_with_what_happened(monkeypatch):
    monkeypatch.setattr(engine, "_FIRST_SLICE", 1_000)

    def interrupt(_):
        raise KeyboardInterrupt

    simulation = engine.CompiledSimulation(compiled.KernelRun(small_job("cut_through")), progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        simulation.run()
    finish = simulation.records().finish
    assert 0 < np.count_nonzero(finish >= 0) < len(finish)
