"""The kernel as Python, and its cache: never that of other sources."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import rapid_des
from rapid_des.engines.compiled import jit

UNCOMPILED = """
from hypothesis import Phase, given, settings
from rapid_des.engines.compiled import kernel
from rapid_des.modes.execution import kernel_is_cold
from tests.engines.agreement import assert_engines_agree
from tests.engines.random_programs import programs

@settings(max_examples=12, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
@given(programs(unordered=True, timetables=True))
def agree(program):
    assert_engines_agree(program, trail=True)

assert type(kernel.play).__name__ == "function"
assert kernel_is_cold()
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


def test_the_name_of_the_cache_changes_with_any_source_of_the_kernel(tmp_path):
    # numba itself looks at kernel.py alone: an edited steps.py would go on as the old machine code
    package = Path(jit.__file__).parents[2]
    copy = tmp_path / "rapid_des"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "presets"))
    code = "from rapid_des.engines.compiled.kernel import play; print(play.__qualname__)"

    def name():
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    names = [name()]
    for source in ("engines/compiled/steps.py", "engines/compiled/calendar.py", "program/timetable.py"):
        with (copy / source).open("a", encoding="utf-8") as file:
            file.write("\n")
        names.append(name())
    assert len(set(names)) == 4
    assert all(one.startswith("play_") for one in names)
