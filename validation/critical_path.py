"""Checks the critical path and slack on many drawn programs, each simulated again with one kernel changed.

    python -m validation.critical_path --draws 500

What is on the path decides the end, and what is not on it does not: of one rank, and of ranks that meet in
collectives. A kernel can run later by its slack and no more. The tests draw a few of these programs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1] / "tests/report/test_critical_path.py"
ORACLES = (
    "test_what_is_on_the_path_decides_the_end_and_nothing_else_does",
    "test_a_kernel_can_run_later_by_its_slack_and_no_more",
    "test_work_of_any_rank_on_the_path_decides_the_end_and_no_other_does",
    "test_what_is_on_the_path_has_no_slack_and_what_has_more_than_none_can_wait",
)


class _Draws:
    """Has Hypothesis draw a number of programs."""

    def __init__(self, number: int) -> None:
        self._number = number

    def pytest_configure(self) -> None:
        """Set the number before the tests are read."""
        from hypothesis import settings  # pytest wants to import it first

        settings.register_profile("draws", max_examples=self._number, deadline=None)
        settings.load_profile("draws")


def main() -> int:
    """Run the oracles; return 1 if one of them finds a program on which it fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=500, help="programs of each kind (default: 500)")
    draws = _Draws(parser.parse_args().draws)
    options = ["-v", "-n0", "-p", "no:cacheprovider", "--hypothesis-show-statistics"]
    return int(pytest.main([*options, *(f"{_TESTS}::{name}" for name in ORACLES)], plugins=[draws]))


if __name__ == "__main__":
    sys.exit(main())
