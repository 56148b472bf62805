"""All tables of accuracy by one command: `python -m validation.refresh_accuracy [--keep FOLDER] [PART ...]`.

It fits the forecasts of steps and of memory, scores all measured jobs (each is run once), and rewrites the
tables and pictures of `validation/README.md`, `docs/accuracy` and the README, with the date and the commit.
A folder keeps the outcome of each job for the simulator as it stands, so that a run which was stopped goes
on, and that parts (all, if none is named) can be made one after the other. Takes an hour of two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from validation import fit_forecast, fit_memory, inference, refresh_docs, refresh_jobs, training

PARTS: Mapping[str, Callable[[], None]] = {
    "forecasts": fit_forecast.main,
    "memory": fit_memory.main,
    "training": partial(refresh_jobs.refresh, ("training",)),
    "inference": partial(refresh_jobs.refresh, ("inference",)),
    "kernels": refresh_docs.refresh_tables,
    "docs": refresh_docs.refresh,
}


def main() -> None:
    """Make the parts that are asked for, in their order."""
    parser = argparse.ArgumentParser(prog="python -m validation.refresh_accuracy")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keeps the outcomes of jobs")
    wanted = parser.parse_args()
    for runs in (training.runs(), inference.runs()):
        runs.keep = wanted.keep
    for name, make in PARTS.items():
        if not wanted.parts or name in wanted.parts:
            make()


if __name__ == "__main__":
    main()
