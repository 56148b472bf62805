"""Run every check of the project: `python tests`, or `python tests ARGUMENT…` to hand arguments to pytest.

Format and lint first, while the kernels are compiled, once for all tests; then the tests and doctests, beside
which types and import layers are checked. The closing line of the tests is the last one printed, unless a
check failed, which is then named again. Needs `pip install '.[dev]'`.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = Path(sys.executable).parent
SMALL = ["cli.py", "run", "llama2_7b_train", "--json", "--engine", "compiled", "--set", "job.model.layers=2"]
FIRST = {
    "machine code": [sys.executable, *SMALL, "--on", "dgx_a100"],
    "format": [sys.executable, "-m", "ruff", "format", "--check", "--quiet", "."],
    "lint": [sys.executable, "-m", "ruff", "check", "--quiet", "."],
}
BESIDE = {"types": [sys.executable, "-m", "mypy"], "import layers": [str(TOOLS / "lint-imports")]}
TESTS = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal"]
"""Tests of one module stay in one process as long as there are others: they share what its fixtures make."""


def main(arguments: list[str]) -> int:
    """Run all checks and the tests, or the tests alone that are asked for; return 1 if any failed."""
    if arguments:
        return tested(arguments)
    with ThreadPoolExecutor(2) as two, ThreadPoolExecutor(1) as one:
        outcomes = list(two.map(passes, FIRST, FIRST.values()))
        beside = one.map(passes, BESIDE, BESIDE.values())
        tests = tested(arguments)
        outcomes += beside
    failed = [name for name, passed in zip((*FIRST, *BESIDE), outcomes, strict=True) if not passed]
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return 1 if failed else tests


def tested(arguments: list[str]) -> int:
    """Run the tests and return how pytest ended."""
    return subprocess.run([*TESTS, *arguments], cwd=ROOT, check=False).returncode


def passes(name: str, command: list[str]) -> bool:
    """Run one check and show its output only if it fails."""
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    printed = f"FAILED\n{done.stdout}{done.stderr}" if done.returncode else "passed"
    print(f"{name}: {printed}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
