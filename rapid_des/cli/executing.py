"""Options of commands that run many simulations: executor and mode; and their exit codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from rapid_des import errors
from rapid_des.cli.options import Command, one_of, together
from rapid_des.errors import CannotFinishError, InfeasibleJobError, InputError, RapidDesError
from rapid_des.executors import Executor
from rapid_des.simulation import MODES
from rapid_des.studies.worker_pools import EXECUTORS, executor_of


def executor_options_of(default: str) -> Callable[[Command], Command]:
    """Return the options that choose where simulations run."""
    return together(
        click.option(
            "--executor",
            type=click.Choice(EXECUTORS),
            default=default,
            show_default=True,
            help="Where simulations run: processes of this machine, this process, or a Ray cluster.",
        ),
        click.option("--workers", type=click.IntRange(1), help="Number of them; all cores if absent."),
        click.option(
            "--address", metavar="HOST:PORT", help="With ray: of a cluster; else one is started here."
        ),
    )


executor_options = executor_options_of(EXECUTORS[0])


def chosen_executor(options: Mapping[str, Any]) -> Executor:
    """Return the executor that `executor_options` ask for."""
    return executor_of(options["executor"], options["workers"], options["address"])


def mode_option(default: str) -> Callable[[Command], Command]:
    """Return the option for the mode in which simulations run."""
    return click.option(
        "--mode",
        default=default,
        show_default=True,
        metavar="|".join(MODES),
        shell_complete=one_of(MODES),
        help="Detail of the simulated steps, the finest first.",
    )


_ENDS = (InputError, CannotFinishError, InfeasibleJobError)


def require_some(ran: int, failures: Iterable[str], what: str) -> None:
    """Raise if nothing of a study could be run, after its report: scripts look at the exit code alone.

    `failures` are the classes of its errors: the code is theirs if it is one for all, else that of bad input.

    >>> require_some(0, ["FabricCutError", "FabricCutError"], "draws")
    Traceback (most recent call last):
    rapid_des.errors.CannotFinishError: none of the 2 draws could be run
    """
    names = list(failures)
    if ran or not names:
        return
    ends = {_end(name) for name in names}
    raise (ends.pop() if len(ends) == 1 else InputError)(f"none of the {len(names):,} {what} could be run")


def _end(name: str) -> type[RapidDesError]:
    """Return the error that represents a class of errors, by its exit code."""
    if name in ("WorkerDied", "MemoryError"):
        return CannotFinishError
    kind = getattr(errors, name, RapidDesError)
    return next((end for end in _ENDS if issubclass(kind, end)), RapidDesError)
