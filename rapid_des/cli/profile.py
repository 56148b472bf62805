"""`rapid-des profile`: what measured runs say of themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rapid_des.cli.main import progress
from rapid_des.cli.options import (
    echo,
    engine_choice,
    engine_option,
    fault_option,
    json_option,
    names_or_files,
    open_job,
    set_option,
)
from rapid_des.errors import InputError
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.profiles import profile_report, read_profile, read_run, replay_step
from rapid_des.profiles.kernel_classes import CLASSES
from rapid_des.profiles.replay import HOST
from rapid_des.report.profile_comparison import compare_with_profile
from rapid_des.report.profile_text import comparison_text, profile_text
from rapid_des.simulation import simulate
from rapid_des.units import whole_number

_SCALED = (*CLASSES, HOST)


@click.group()
def profile() -> None:
    """Explain profiles that PyTorch's profiler wrote (JSON, plain or gzip)."""


@profile.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option(
    "--top", type=click.IntRange(1, 10_000), default=5, show_default=True, help="How many kernels are shown."
)
@json_option
def show(files: tuple[Path, ...], top: int, *, as_json: bool) -> None:
    """Show where the time of profiled steps goes.

    Each FILE is the profile of one rank. A host trace of PyTorch may stand before it.

    rapid-des profile show trace_rank_0.json.gz trace_rank_1.json.gz
    """
    with progress("profiles"):
        profiles = read_run(files)
    plain = profile_report(profiles).as_json()
    echo(as_json, plain, profile_text(plain, top=top))


@profile.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option(
    "--job",
    required=True,
    help="The job that was profiled: a file or preset.",
    shell_complete=names_or_files("job"),
)
@click.option(
    "--on", "machine", required=True, help="Machine file or preset.", shell_complete=names_or_files("machine")
)
@set_option
@fault_option
@engine_option
@json_option
def compare(
    files: tuple[Path, ...],
    job: str,
    machine: str,
    settings: tuple[str, ...],
    faults: tuple[str, ...],
    **options: Any,
) -> None:
    """Compare profiled steps with the prediction of their job, part by part and class by class.

    The parts of each side add up to its step. Each FILE is the profile of one rank; the slowest is compared.

    rapid-des profile compare rank_0.json.gz --job llama2_7b_train --on dgx_a100
    """
    report = profile_report([each.with_whole_steps() for each in read_run(files)])
    wanted, loaded = open_job(job, machine, settings, faults)
    title = f"{files[0]} beside {job} on {loaded.name}"
    with progress(title) as bar:
        result = simulate(
            wanted, loaded, engine=engine_choice(options["engine"], progress=bar), allow_oom=True
        )
    plain = compare_with_profile(report, result).as_json()
    echo(options["as_json"], plain, comparison_text(plain, title))


def replayed(file: str, options: Mapping[str, Any], engine: EngineChoice) -> Mapping[str, Any]:
    """Return a replayed step of a profile beside what was measured, as `replay FILE --json` prints it."""
    scaled, overlap = _scaled(options["speed"], options["remove"]), options["overlap"] or "measured"
    return replay_step(
        read_profile(Path(file)).with_whole_steps(), scaled, overlap=overlap, engine=engine
    ).as_json()


def asked(
    files: tuple[str, ...],
    machines: tuple[Machine, Machine],
    options: Mapping[str, Any],
    engine: EngineChoice,
) -> Mapping[str, Any]:
    """Return a run's profiles on a machine as `replay FILE… --network simulated --json` prints them."""
    from rapid_des.profiles.ranks import ProfileChanges
    from rapid_des.studies.profile_replay import ask_profiles

    profiles = [each.with_whole_steps() for each in read_run([Path(file) for file in files])]
    wanted = ProfileChanges(
        _scaled(options["speed"], options["remove"]),
        options["dp"] and _grown(options["dp"]),
        options["overlap"] or "measured",
    )
    return ask_profiles(profiles, machines, wanted, engine=engine).as_json()


def _grown(text: str) -> tuple[int, int]:
    before, _, after = text.partition("=")
    try:
        return whole_number(before, 2, 2**20), whole_number(after, 2, 2**20)
    except ValueError:
        raise InputError(
            f"--dp {text!r}: allowed: N=M, two numbers of ranks, each 2 or more, as in 8=512"
        ) from None


def _scaled(speeds: tuple[str, ...], removed: tuple[str, ...]) -> dict[str, float]:
    for kind in removed:
        if kind not in _SCALED:
            raise InputError(f"--remove {kind!r}: is not one of {', '.join(_SCALED)}")
    return dict(map(_speed, speeds)) | dict.fromkeys(removed, math.inf)


def _speed(text: str) -> tuple[str, float]:
    """Return the class and the factor of `gemm=1.3x`."""
    kind, _, factor = text.partition("=")
    if kind not in _SCALED:
        raise InputError(f"--speed {text!r}: {kind!r} is not one of {', '.join(_SCALED)}")
    try:
        value = float(factor.removesuffix("x"))
    except ValueError:
        value = 0.0
    if not 1e-3 <= value <= 1e3:
        raise InputError(f"--speed {text!r}: {factor!r} is not a factor from 0.001x to 1000x, such as 1.3x")
    return kind, value
