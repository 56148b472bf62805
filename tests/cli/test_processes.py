"""What commands start: nothing from the current folder runs in it, and nothing of it outlives the command."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import ROOT
from tests.workers import descendants, is_alive, until, workers

if not Path("/proc/self/task").is_dir():
    pytest.skip("processes are looked for in /proc", allow_module_level=True)

STUDY: dict[str, Any] = {
    "job": "llama2_7b_train",
    "on": "dgx_a100",
    "mode": "analytical",
    "axes": {"tp, dp, pp": [[8, 1, 1], [4, 2, 1], [2, 4, 1]]},
    "derive": {"job.parallelism.sequence_parallel": "tp > 1"},
}
STEPS = {"job.training.global_batch": {"from": 16, "to": 4096, "step": 16}}
LONG = {**STUDY, "mode": "flattened", "axes": {**STUDY["axes"], **STEPS}}
FILES = {"short": STUDY, "long": LONG}
ON = "llama2_7b_train --on dgx_a100"
FAULT = "all=links bandwidth=uniform(0.5,1)"
TWO = ("--executor", "processes", "--workers", "2")
SHORT = {
    "sweep": ["sweep", "{short}", *TWO],
    "validate": ["validate", "training/memory"],
}
"""A call of each package that starts processes. Other commands start theirs as these do, in one place."""
ENDLESS = {
    "sweep": ["sweep", "{long}", *TWO],
    "faults sample": ["faults", "sample", *ON.split(), "--draws", "99999", "--fault", FAULT, *TWO],
    "validate": ["validate", "training"],
    "bench": ["bench"],
}
"""Calls that would go on for minutes."""


@pytest.fixture
def start(tmp_path):
    """Start commands in a folder `here`, each in a group of its own; they end with the test."""
    files = {name: tmp_path / f"{name}.yaml" for name in FILES}
    for name, path in files.items():
        path.write_text(json.dumps(FILES[name]))
    (tmp_path / "here").mkdir()
    begun = []

    def started(words, **environment):
        command = [sys.executable, str(ROOT / "cli.py"), *(word.format(**files) for word in words)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        known = {**os.environ, **environment}
        begun.append(
            subprocess.Popen(command, cwd=tmp_path / "here", env=known, start_new_session=True, **pipes)
        )
        return begun[-1]

    yield started
    for process in begun:
        process.kill()
        process.communicate()


PLANTED = (
    *(
        "numpy",
        "simpy",
        "numba",
        "llvmlite",
        "scipy",
        "pandas",
        "pyarrow",
        "networkx",
        "matplotlib",
        "msgspec",
    ),
    *(
        "loky",
        "cloudpickle",
        "joblib",
        "psutil",
        "optuna",
        "sqlalchemy",
        "click",
        "rich",
        "yaml",
        "rapid_des",
    ),
    *(
        "sitecustomize",
        "usercustomize",
        "site",
        "encodings",
        "runpy",
        "pickle",
        "json",
        "argparse",
        "concurrent",
    ),
    *("multiprocessing", "resource_tracker", "signal", "gc", "fcntl", "validation"),
)
RUNS = """import os
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "ran"), "a") as file:
    file.write(__name__ + "\\n")
"""


def planted(folder):
    """Return a folder with code that leaves a mark when it runs, under the names that are imported."""
    for name in PLANTED:
        (folder / f"{name}.py").write_text(RUNS)
    return folder


@pytest.mark.parametrize("name", SHORT)
def test_nothing_from_the_current_folder_runs(name, start, tmp_path):
    folder = planted(tmp_path / "here")
    begun = start(SHORT[name])
    seen: list[int] = []

    def are_seen():
        seen.extend(workers(begun.pid))
        return seen or begun.poll() is not None

    until(are_seen)
    out, err = begun.communicate(timeout=300)
    assert begun.returncode == 0, err
    assert seen, "no process was started"
    assert out
    assert not (folder / "ran").exists(), (folder / "ran").read_text()


COMPILES = """
import sys
sys.path.insert(0, {root!r})
from tests.test_compiling import answer, answer_of, kernel
assert answer_of(kernel()) == answer()
"""


def test_nothing_from_the_current_folder_runs_as_kernels_are_compiled(tmp_path):
    (tmp_path / "here").mkdir()
    folder = planted(tmp_path / "here")
    script = tmp_path / "script.py"
    script.write_text(COMPILES.format(root=str(ROOT)))
    known = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=known, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "compiling the kernels" in done.stderr
    assert list((tmp_path / "numba" / "rapid_des").glob("*.o"))
    assert not (folder / "ran").exists(), (folder / "ran").read_text()


STARTERS = {
    "subprocess",
    "multiprocessing",
    "loky",
    "joblib",
    "pty",
    "ray",
    "asyncio",
    "webbrowser",
    "popen2",
}
OS_STARTERS = {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile"}
STARTS = re.compile("|".join([*STARTERS, "ProcessPool", "os"]).join((r"\b(", r")\b")))
STARTED_IN = {
    "rapid_des/processes.py": {"multiprocessing", "loky", "ProcessPoolExecutor"},
    "rapid_des/compiling/library.py": {"multiprocessing"},  # asks for its own name alone
    "rapid_des/studies/ray_cluster.py": {"ray"},
    "rapid_des/cli/ui/command.py": {"webbrowser"},  # opens the page, unless --no-browser
    "validation/hostile/campaign.py": {"multiprocessing"},  # for developers, in a checkout
    "validation/pages.py": {"subprocess"},  # asks git which commit is checked out
    "validation/scotch.py": {"subprocess"},  # runs SCOTCH's program
}


def starters(path):
    """Return the names by which a module could start processes."""
    found, text = set(), path.read_text()
    for node in ast.walk(ast.parse(text)) if STARTS.search(text) else ():
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & STARTERS
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").partition(".")[0]} & STARTERS
            found |= {alias.name for alias in node.names} & {"ProcessPoolExecutor"}
            found |= {alias.name for alias in node.names if node.module == "os"} & OS_STARTERS
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            found |= {node.attr} & OS_STARTERS
            found |= {node.attr} if node.attr.startswith(("exec", "spawn")) else set()
    return found


def test_processes_are_started_in_one_place():
    modules = [*(ROOT / "rapid_des").rglob("*.py"), *(ROOT / "validation").rglob("*.py"), ROOT / "cli.py"]
    found = {str(path.relative_to(ROOT)): starters(path) for path in modules}
    assert {name: names for name, names in found.items() if names} == STARTED_IN


ENDS = [
    ("sweep", signal.SIGKILL, "as they start"),
    ("bench", signal.SIGTERM, "as they start"),
    ("faults sample", signal.SIGHUP, "as they work"),
    ("sweep", signal.SIGINT, "as they work"),
    ("validate", signal.SIGINT, "as they work"),
]


@pytest.mark.parametrize(("name", "number", "moment"), ENDS)
def test_no_process_outlives_its_command(name, number, moment, start):
    begun = start(ENDLESS[name])
    until(lambda: workers(begun.pid))
    if moment == "as they work":
        until(lambda: any(has_worked(pid) for pid in workers(begun.pid)))
    left = descendants(begun.pid)
    if number == signal.SIGINT:
        os.killpg(begun.pid, number)  # as a terminal sends it, to all of the group
    else:
        begun.send_signal(number)
    _, err = begun.communicate(timeout=60)
    until(lambda: not [pid for pid in left if is_alive(pid)], seconds=10)
    if number == signal.SIGINT:
        assert begun.returncode == 130
        assert err.splitlines()[-1].startswith("interrupted")
        assert "Traceback" not in err
    else:
        assert begun.returncode == -number


def has_worked(pid):
    """Tell whether a process has used the processor for 0.6 seconds: what it imports takes half of one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > 0.6


INTERRUPTED_AT_IMPORT = """
import os, signal, sys
left = [{count}]
def look(event, _):
    if event == "import" and "rapid_des.cli.interrupts" in sys.modules:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)
sys.path.insert(0, {root!r})
from rapid_des.cli.entry import main
sys.addaudithook(look)
sys.argv = ["rapid-des", "run", "llama2_7b_train", "--on", "dgx_a100", "--engine", "simpy"]
main()
"""


@pytest.mark.parametrize("count", [1, 400])
def test_ctrl_c_at_any_import_is_one_line(count):
    code = INTERRUPTED_AT_IMPORT.format(count=count, root=str(ROOT))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


COMPILING = {
    "run": ["run", *ON.split(), "--engine", "compiled"],
    "sweep": ["sweep", "{long}", *TWO],
}


@pytest.mark.parametrize("name", COMPILING)
def test_who_compiles_says_so_first_and_ctrl_c_ends_it(name, start, tmp_path):
    begun = start([*COMPILING[name], "--json"], NUMBA_CACHE_DIR=str(tmp_path / "numba"))
    said = next(line for line in begun.stderr if "compiling" in line)
    assert "once for this installation" in said and "^C ends it" in said
    until(lambda: [child for child in workers(begun.pid) if has_worked(child)])  # the compiler among them
    os.killpg(begun.pid, signal.SIGINT)
    out, err = begun.communicate(timeout=20)  # the compiler takes a minute
    assert begun.returncode == 130
    lines = [line for line in err.splitlines() if line and "compiling" not in line]
    assert lines[-1:] == ["interrupted"]
    assert set(lines[:-1]) <= {"interrupted: what is finished follows"}
    if out:
        json.loads(out)
