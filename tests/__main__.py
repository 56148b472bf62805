"""Run every check of the project: `python tests`, or `python tests ARGUMENT…` to hand arguments to pytest.

Format, lint, types and import layers first, since they take seconds; then the tests and doctests, whose
closing line is the last one printed. Needs `pip install '.[dev]'`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = Path(sys.executable).parent
CHECKS = {
    "format": [sys.executable, "-m", "ruff", "format", "--check", "--quiet", "."],
    "lint": [sys.executable, "-m", "ruff", "check", "--quiet", "."],
    "types": [sys.executable, "-m", "mypy"],
    "import layers": [str(TOOLS / "lint-imports")],
}
TESTS = [sys.executable, "-m", "pytest", "-n", "auto"]


def main(arguments: list[str]) -> int:
    """Run all checks, then the tests; return 1 if any failed."""
    failed = [] if arguments else [name for name, command in CHECKS.items() if not passes(name, command)]
    if failed:
        print(f"failed: {', '.join(failed)}; the tests run all the same", flush=True)
    tests = subprocess.run([*TESTS, *arguments], cwd=ROOT, check=False).returncode
    return 1 if failed else tests


def passes(name: str, command: list[str]) -> bool:
    """Run one check and show its output only if it fails."""
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    print(f"{name}: {'passed' if done.returncode == 0 else 'FAILED'}", flush=True)
    if done.returncode:
        print(done.stdout + done.stderr, flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
