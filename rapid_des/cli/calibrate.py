"""`rapid-des calibrate`: the files of one's own machine, from what was measured on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from rapid_des.cli.main import progress
from rapid_des.cli.options import echo, force_option, json_option, names_or_files
from rapid_des.errors import ConfigError, InputError
from rapid_des.report.tables import Column, Part, Table
from rapid_des.report.writing import check_outputs, write_text
from rapid_des.units import PS_PER_S, Duration


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE…]", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The folder to write.",
)
@click.option(
    "--on",
    "machine",
    required=True,
    help="The machine file or preset that is nearest.",
    shell_complete=names_or_files("machine"),
)
@click.option(
    "--step",
    "steps",
    multiple=True,
    metavar="JOB=TIME",
    help="The measured step of a training job: my_job.yaml=4.3s. Repeatable.",
)
@click.option(
    "--software",
    default="torchtitan",
    show_default=True,
    help="The software profile that a profile's host is compared with.",
)
@force_option
@json_option
def calibrate(files: tuple[Path, ...], output: Path, machine: str, **options: Any) -> None:
    """Write the files of a machine, DIR/machine.yaml and what it names, from what was measured on it.

    FILE is a profile, the output of nccl-tests, ib_write_bw, `dcgmi dmon` or `nvidia-smi dmon`, or a CSV of
    matrix products (columns M, N, K, dtype, time_us). Only what was measured differs from the base.

    rapid-des calibrate -o my_cluster --on dgx_h100_x8 all_reduce.txt gemms.csv --step my_job.yaml=4.3s
    """
    from rapid_des.studies.calibration import Questions, calibrate_machine
    from rapid_des.studies.calibration.calibrate import DEVICE, MACHINE, NCCL, SOFTWARE

    check_outputs((output / name for name in (MACHINE, DEVICE, NCCL, SOFTWARE)), replace=options["force"])
    steps = tuple(map(_step, options["steps"]))
    with progress(f"calibrating {output}") as bar:
        found = calibrate_machine(Questions(machine, files, steps, options["software"]), progress=bar)
    for name, text in found.files.items():
        write_text(output / name, text)
    plain = {"folder": str(output), **found.as_json()}
    echo(options["as_json"], plain, _report(plain))


def _step(text: str) -> tuple[Any, Duration]:
    from rapid_des.frontend import load_job

    job, _, time = text.rpartition("=")
    try:
        measured = Duration.parse(time if " " in time else time.replace("s", " s").replace("m ", " m"))
    except ValueError:
        measured = Duration(0)
    if not job or not 0 < measured < 3600 * PS_PER_S:
        raise InputError(
            f"--step {text!r}: allowed: JOB=TIME, a time above 0 up to an hour such as 4.3s or 850ms"
        )
    try:
        return load_job(job), measured
    except ConfigError as error:
        raise InputError(f"--step {text!r}: {error}") from None


def _report(plain: Mapping[str, Any]) -> Iterator[Part]:
    yield f"{plain['folder']}: {', '.join(plain['files'])}"
    rows = [
        {
            "evidence": row["evidence"],
            "held": len([case for case in row["cases"] if case["held_out"]]),
            **row["mean_abs_pct"]["held_out"],
            "kept": "yes" if row["kept"] else "no",
        }
        for row in plain["findings"]
    ]
    named = [
        Column("evidence", "evidence"),
        Column("held", "held out"),
        Column("before", "error before", ".1f"),
        Column("after", "after, in %", ".1f"),
        Column("kept", "written"),
    ]
    yield Table("what was measured, and how far off the cases held out are", named, rows)
    yield from (
        f"{row['file']}: {key} {value}"
        for row in plain["findings"]
        if row["kept"]
        for key, value in row["changes"].items()
    )
    steps = [
        {
            "job": case["case"],
            "measured": f"{case['measured_s']:.4g} s",
            "before": f"{case['before_s']:.4g} s",
            "after": f"{case['after_s']:.4g} s" if case["held_out"] else "-",
        }
        for case in plain["steps"]
    ]
    named = [
        Column("job", "job"),
        Column("measured", "measured"),
        Column("before", "forecast before"),
        Column("after", "forecast from the other steps"),
    ]
    yield Table("measured steps", named, steps)
    yield from (f"note: {note}" for note in plain["notes"])
