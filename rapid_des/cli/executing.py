"""Options of commands that run many simulations: where they run, and in which mode."""

from __future__ import annotations

from collections.abc import Callable

import click

from rapid_des.cli.options import Command, one_of, together
from rapid_des.simulation import MODES
from rapid_des.studies.crews import EXECUTORS

executor_options = together(
    click.option(
        "--executor",
        type=click.Choice(EXECUTORS),
        default=EXECUTORS[0],
        show_default=True,
        help="Where simulations run: processes of this machine, this process, or a Ray cluster.",
    ),
    click.option("--workers", type=click.IntRange(1), help="How many; all cores if absent."),
)


def mode_option(default: str) -> Callable[[Command], Command]:
    """Return the option for the mode in which simulations run."""
    return click.option(
        "--mode", default=default, show_default=True, shell_complete=one_of(MODES), help=", ".join(MODES)
    )
