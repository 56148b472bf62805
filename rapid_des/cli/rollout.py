"""`rapid-des rollout`: a step of reinforcement learning."""

from __future__ import annotations

from typing import Any

import click

from rapid_des.bounded_cache import BoundedCache
from rapid_des.cli.main import progress
from rapid_des.cli.options import (
    echo_marked,
    fault_option,
    json_option,
    names_or_files,
    on_options,
    one_of,
    open_machine,
    split_settings,
)
from rapid_des.serving.rollout import load_rollout, rollout_report, simulate_rollout
from rapid_des.simulation import MODES


@click.command()
@click.argument("rollout", shell_complete=names_or_files("rollout"))
@on_options
@fault_option
@click.option(
    "--mode", metavar="MODE", default=MODES[0], shell_complete=one_of(MODES), help="Mode of training."
)
@json_option
def rollout(
    rollout: str, machine: str, settings: tuple[str, ...], faults: tuple[str, ...], **options: Any
) -> None:
    """Predict a step of ROLLOUT (file or preset): answers generated, trained on, weights moved back.

    rapid-des rollout llama3_1_8b_grpo --on dgx_h100
    """
    split = split_settings(settings)
    loaded = load_rollout(rollout, settings=split["job"])
    of_machine = [setting for setting in settings if not setting.strip().startswith("job.")]
    wanted = open_machine(machine, of_machine, faults, priced=True)
    title = f"{rollout} on {wanted.name}"
    with progress(title) as bar:
        result = simulate_rollout(loaded, wanted, mode=options["mode"], watch=bar, cache=BoundedCache())
    jobs = ((job, wanted) for job in (loaded.training, loaded.server))
    echo_marked(options["as_json"], result.as_json(), rollout_report(result, title), jobs)
