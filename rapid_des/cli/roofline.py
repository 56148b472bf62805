"""The picture behind `rapid-des operator roofline`."""

from __future__ import annotations

from pathlib import Path

from rapid_des.cli.options import split_settings
from rapid_des.frontend import load_job
from rapid_des.frontend.parts import training_steps
from rapid_des.machine import load_machine
from rapid_des.report.roofline import draw_roofline


def draw_job(job: str, machine: str, settings: tuple[str, ...], output: str) -> int:
    """Draw the roofline of a machine's device with a training job's operators; return how many."""
    chosen = split_settings(settings)
    loaded = load_machine(machine, settings=chosen["machine"], device_settings=chosen["device"])
    lists = training_steps(load_job(job, settings=chosen["job"]))
    operators = {
        f"{key.section} {key.phase}: {step.name}": step.operator
        for key, steps in lists.items()
        for step in steps
        if step.operator is not None
    }
    draw_roofline(operators, loaded.device, Path(output), title=f"{job} on {loaded.device.spec.name}")
    return len(operators)
