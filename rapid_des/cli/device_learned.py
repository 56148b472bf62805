"""`rapid-des device sample` and `rapid-des device fit`: measured operators into a device's price list."""

from __future__ import annotations

from pathlib import Path

import click

from rapid_des.cli.options import json_option, print_json
from rapid_des.device.learned import FALLBACKS, fit_file
from rapid_des.device.learned_samples import write_samples
from rapid_des.device.sample import Sampling, choose, default_operators
from rapid_des.device.sample import sample as measure

_names = click.option(
    "--only", multiple=True, metavar="NAME", help="Operators whose name starts so. Repeatable."
)


@click.command()
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--on", "place", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--l2", type=click.Choice(["cold", "warm"]), default="cold", show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=7, show_default=True, help="The median counts.")
@click.option("--small", is_flag=True, help="A sweep of seconds instead of minutes.")
@_names
@json_option
def sample(
    output: Path, place: str, l2: str, repeats: int, small: bool, only: tuple[str, ...], as_json: bool
) -> None:
    """Measure operators through PyTorch and write the table OUTPUT (CSV)."""
    operators = choose(default_operators(small=small or place == "cpu"), only)
    rows = []
    for row in measure(operators, Sampling(place, l2, repeats)):  # type: ignore[arg-type]
        rows.append(row)
        click.echo(f"{len(rows)}/{len(operators)} {row['operator']} {row['time_us']} us", err=True)
    write_samples(output, rows)
    print_json(rows) if as_json else click.echo(f"{len(rows)} samples in {output}")


@click.command()
@click.argument("samples", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--by", default="operator", show_default=True, help="Columns that name an operator, by comma.")
@click.option("--sizes", default="", help="Columns that are sizes, by comma; default: those of `sample`.")
@click.option("--time", default="time_us", show_default=True, help="Column of the microseconds.")
@click.option("--fallback", type=click.Choice(FALLBACKS), required=True, help="What prices the rest.")
@click.option("--boosting", is_flag=True, help="Let XGBoost and LightGBM compete too.")
@json_option
def fit(
    samples: Path, output: Path, by: str, sizes: str, time: str, fallback: str, boosting: bool, as_json: bool
) -> None:
    """Fit a regressor for each operator in SAMPLES (CSV) and write OUTPUT (.npz)."""
    file = fit_file(samples, by=by, sizes=sizes, time=time, fallback=fallback, boosting=boosting)
    file.save(output)
    print_json(file.summary()) if as_json else click.echo(file.table())
