"""Run every check of the project: `python tests`, or `python tests ARGUMENT…` to hand arguments to pytest.

Format, lint, types and import layers first, beside which the kernels are compiled, once for all
tests; then the tests and doctests, whose closing line is the last one printed. Needs `pip install '.[dev]'`.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = Path(sys.executable).parent
CHECKS = {
    "format": [sys.executable, "-m", "ruff", "format", "--check", "--quiet", "."],
    "lint": [sys.executable, "-m", "ruff", "check", "--quiet", "."],
    "types": [sys.executable, "-m", "mypy"],
    "import layers": [str(TOOLS / "lint-imports")],
}
SMALL = ["cli.py", "run", "llama2_7b_train", "--json", "--engine", "compiled", "--set", "job.model.layers=2"]
CHECKS |= {"machine code": [sys.executable, *SMALL, "--on", "dgx_a100"]}
TESTS = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal"]
"""Tests of one module stay in one process as long as there are others: they share what its fixtures make."""


def main(arguments: list[str]) -> int:
    """Run all checks, then the tests; return 1 if any failed."""
    with ThreadPoolExecutor(2) as pool:
        checked = pool.map(passes, CHECKS, CHECKS.values()) if not arguments else ()
        failed = [name for name, passed in zip(CHECKS, checked, strict=False) if not passed]
    if failed:
        print(f"failed: {', '.join(failed)}; the tests run all the same", flush=True)
    tests = subprocess.run([*TESTS, *arguments], cwd=ROOT, check=False).returncode
    return 1 if failed else tests


def passes(name: str, command: list[str]) -> bool:
    """Run one check and show its output only if it fails."""
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    printed = f"FAILED\n{done.stdout}{done.stderr}" if done.returncode else "passed"
    print(f"{name}: {printed}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
