"""What the arguments of `compare` and `report` stand for: results in files and studies, and runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from rapid_des.cli.main import progress
from rapid_des.cli.options import (
    engine_choice,
    engine_option,
    fault_option,
    job_options,
    one_of,
    open_job_with_notes,
)
from rapid_des.cli.pages import run_page
from rapid_des.cli.run import given_job, model_options
from rapid_des.config.documents import read_text
from rapid_des.config.texts import parse_json
from rapid_des.errors import InputError
from rapid_des.simulation import MODES, simulate
from rapid_des.studies.difference import check_result
from rapid_des.studies.results import whole_result
from rapid_des.studies.store import ResultStore
from rapid_des.values import replace

if TYPE_CHECKING:
    from rapid_des.frontend import Job
    from rapid_des.machine import Machine
    from rapid_des.modes.execution import EngineChoice
    from rapid_des.report.charts import PageSection
    from rapid_des.report.result import Result


class Source(Struct, frozen=True):
    """A result as `run --json` prints it."""

    plain: Mapping[str, Any]


class Simulated(Source, frozen=True):
    """A result of a run that has just ended."""

    result: Result
    inputs: tuple[Job, Machine]
    choice: EngineChoice

    def sections(self) -> list[PageSection]:
        """Return the sections of its page."""
        return run_page(self.result, self.inputs, (self.choice, None))


def source_of(text: str) -> Source:
    """Return the result that an argument of `compare` or `report` stands for."""
    folder, sharp, number = text.rpartition("#")
    if sharp and number.isdecimal():
        store = ResultStore.open(Path(folder))
        if store.manifest["kind"] != "sweep":
            raise InputError(f"{text}: draws of faults keep no whole results; `faults sample --replay`: one")
        row = store.row(int(number))
        whole = whole_result(row)
        if whole is None:
            raise InputError(f"{text}: this point failed: {row['status']}: {row['error']}")
        return Source(whole)
    if text.endswith(".json"):
        read = parse_json(read_text(Path(text)), Path(text))
        check_result(read, text)
        return Source(dict(read))
    if text and Path(text).is_dir():
        raise InputError(f"{text}: a folder; of a study's results name a point, as in {text}#1")
    try:
        context = _run_words.make_context("run", shlex.split(text))
    except (click.UsageError, ValueError) as error:
        why = error.format_message() if isinstance(error, click.UsageError) else str(error)
        allowed = "a file of `run --json`, FOLDER#POINT, or what follows `run`: 'JOB --on MACHINE'"
        raise InputError(f"{text!r}: {why.rstrip('.')}; allowed: {allowed}") from None
    with context:
        return _simulated(**context.params)


@click.command("run")
@job_options
@fault_option
@model_options
@click.option("--mode", default=MODES[0], shell_complete=one_of(MODES))
@engine_option
def _run_words(**_: Any) -> None:
    """Read what follows `run`."""


def _simulated(
    job: str, machine: str, settings: tuple[str, ...], faults: tuple[str, ...], **options: Any
) -> Simulated:
    source, mode = given_job(job, options["tokens"], options["sequence"]), options["mode"]
    analytic = mode == "analytical"
    wanted, loaded, idle = open_job_with_notes(source, machine, settings, faults, analytic=analytic)
    with progress(f"{job} on {loaded.name}") as bar:
        choice = engine_choice(options["engine"], progress=bar)
        result = simulate(wanted, loaded, mode=mode, engine=choice)
    result = replace(result, notes=(*idle, *result.notes))
    return Simulated(result.as_json(), result, (wanted, loaded), choice)
