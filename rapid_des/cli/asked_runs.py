"""Options of `plan`, `sweep` and `search` that ask for runs of weeks with failures in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rapid_des.cli.options import Amount, names_or_files, together
from rapid_des.errors import InputError
from rapid_des.runs.asked import AskedRun
from rapid_des.runs.loading import load_reliability
from rapid_des.studies.spaces import Study, load_study

_DAYS = 54.0
run_options = together(
    click.option(
        "--reliability",
        metavar="FILE",
        shell_complete=names_or_files("reliability"),
        help="Reliability file or preset: adds goodput and tokens a day of runs in which parts fail.",
    ),
    click.option(
        "--days",
        type=Amount(0, 36_500, min_open=True),
        metavar="N",
        help="Length of such a run; 54 if absent.",
    ),
)


def asked_run(options: dict[str, Any]) -> AskedRun | None:
    """Return the run that options ask for, if any; `InputError` for options that lack --reliability."""
    if options["reliability"] is None:
        lacking = "--days" if options["days"] is not None else None
        if options["objective"] == "tokens_per_day":
            lacking = "--objective tokens_per_day"
        if lacking is not None:
            raise InputError(f"{lacking} is for runs with failures: it needs --reliability FILE")
        return None
    return AskedRun(load_reliability(options["reliability"]), options["days"] or _DAYS)


def study_asked(study: Path, options: dict[str, Any]) -> Study:
    """Return a study file, with what options ask for in place of its own keys."""
    changes = {name: options[name] for name in ("objective", "days") if options.get(name) is not None}
    if options["reliability"] is not None:
        here = Path(options["reliability"])
        changes["reliability"] = str(here.absolute() if here.is_file() else here)
    return load_study(study, changes=changes)
