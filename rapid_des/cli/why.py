"""`rapid-des why`: what a step waits for, and which changes would shorten it most."""

from __future__ import annotations

from typing import Any

import click

from rapid_des.cli.main import announce, progress
from rapid_des.cli.options import (
    echo,
    engine_choice,
    engine_options,
    fault_option,
    job_options,
    json_option,
    open_job,
)
from rapid_des.report.critical_path import critical_path
from rapid_des.report.critical_path.off_path import OffPath, link_queues, operator_slacks
from rapid_des.report.why_text import why_report
from rapid_des.simulation import MODES, simulate
from rapid_des.studies.changes import best_changes


@click.command()
@job_options
@fault_option
@click.option(
    "--mode", type=click.Choice(list(MODES)), default=MODES[0], show_default=True, help="The step's mode."
)
@click.option("--allow-oom", is_flag=True, help="Simulate a job that does not fit into memory too.")
@engine_options
@json_option
def why(job: str, machine: str, settings: tuple[str, ...], faults: tuple[str, ...], **options: Any) -> None:
    """Explain what a step of JOB waits for: its critical path, and the changes that would help the most.

    The critical path is the chain of kernels, messages and waits that decides the end of the step; its parts
    add up to the step time. What is not on it has slack: the time by which it could run later without a
    later end. Each change is simulated.

    rapid-des why llama2_7b_train --on dgx_a100
    """
    wanted, loaded = open_job(job, machine, settings, faults)
    title = f"{job} on {loaded.name}"
    with progress(title) as bar:
        choice = engine_choice(options["engine"], no_shortcuts=options["no_shortcuts"], progress=bar)
        allow = options["allow_oom"]
        result = simulate(wanted, loaded, mode=options["mode"], engine=choice, allow_oom=allow)
        path = critical_path(result)
        beside = OffPath(operator_slacks(result, path), tuple(link_queues(result.run)))
        changes = best_changes((wanted, loaded), result, path, choice, bar.about(title))
    plain = path.as_json() | {"mode": result.mode, "changes": [change.as_json() for change in changes]}
    plain |= beside.as_json()
    echo(options["as_json"], plain, why_report(path, changes, list(beside.report()), title))
    for note in result.notes if result.mode != MODES[0] else ():
        announce(f"note: {note}")
