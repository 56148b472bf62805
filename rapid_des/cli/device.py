"""`rapid-des device …`: show, price, calibrate, sample and fit devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rapid_des.cli.main import announce, progress
from rapid_des.cli.options import echo, force_option, json_option, names_or_files, set_option, split_settings
from rapid_des.device.die import LINKS, NODES
from rapid_des.errors import InputError
from rapid_des.learned import FALLBACKS
from rapid_des.report.writing import check_outputs, replacing


@click.group()
def device() -> None:
    """Show, price, sample, fit and calibrate devices."""


@device.command()
@click.argument("reference", metavar="DEVICE", shell_complete=names_or_files("device"))
@set_option
@json_option
def show(reference: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Print a device with its bases merged in, and the constants that it uses.

    rapid-des device show h100_sxm
    """
    from rapid_des.device.device import load_device
    from rapid_des.report.devices import device_as_plain, device_report

    loaded = load_device(reference, settings=split_settings(settings, ("device",))["device"])
    echo(as_json, device_as_plain(loaded), device_report(loaded))


@device.command()
@click.argument("reference", metavar="DEVICE", shell_complete=names_or_files("device"))
@click.option("--node", type=click.Choice(tuple(NODES)), required=True, help="Process of the die.")
@click.option("--stacks", type=click.IntRange(0, 64), required=True, help="Stacks of HBM it has room for.")
@click.option("--links", type=click.IntRange(0, 1024), required=True, help="Links to other GPUs.")
@click.option("--link", type=click.Choice(tuple(LINKS)), default="nvlink3", show_default=True)
@click.option("--spare-sms", type=click.IntRange(0, 2**16), default=0, help="SMs that are switched off.")
@set_option
@json_option
def cost(reference: str, settings: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Estimate the area of a GPU's die and its price, also of one that --set imagines.

    rapid-des device cost a100_sxm_80gb --node 7nm --stacks 6 --links 12 --spare-sms 20
    """
    from rapid_des.device.device import load_device
    from rapid_des.device.die import DieOptions, die_cost
    from rapid_des.report.devices import die_as_plain, die_report

    loaded = load_device(reference, settings=split_settings(settings, ("device",))["device"])
    found = die_cost(loaded.spec, DieOptions(**options))
    echo(as_json, die_as_plain(loaded.spec.name, found), die_report(loaded.spec.name, found))


@device.command()
@click.argument("data", type=click.Path(path_type=Path), metavar="DATA.csv")
@click.option(
    "--device",
    "reference",
    required=True,
    metavar="DEVICE",
    shell_complete=names_or_files("device"),
    help="Device file or preset.",
)
@click.option(
    "--section",
    default="gemm",
    show_default=True,
    help="gemm, attention, decode, decode_mha, mla_decode, mla_prefill or vector.",
)
@click.option("--where", multiple=True, metavar="COLUMN=START", help="Only rows whose column starts so.")
@click.option(
    "--scope", default="default", show_default=True, help="default, a dtype, LIBRARY or LIBRARY/DTYPE."
)
@click.option("--fit", "names", help="Constants to fit, comma-separated; all if absent.")
@set_option
@json_option
def calibrate(data: Path, reference: str, settings: tuple[str, ...], **options: Any) -> None:
    """Fit one section's constants to measured times, calibration cases only.

    Columns, all with dtype, time_us and case_id: gemm M N K; attention, decode and decode_mha batch q_len
    kv_len n_heads n_kv_heads head_dim kv_dtype; mla_decode and mla_prefill op batch q_len past_len n_heads
    kv_dtype; vector kind rows columns. Under library vllm an attention time includes writing the new keys.

    rapid-des device calibrate gemms.csv --device h100_sxm
    """
    from rapid_des.device.calibrate import FitTarget
    from rapid_des.device.calibrate import calibrate as fit_file
    from rapid_des.device.device import load_device

    loaded = load_device(
        reference, settings=split_settings(settings, ("device",))["device"], new_library=True
    )
    names = tuple(options["names"].split(",")) if options["names"] else ()
    wanted = FitTarget(options["section"], options["scope"], _conditions(options["where"]), names)
    with progress(f"fitting {data}"):
        fitted = fit_file(data, loaded, wanted)
    echo(options["as_json"], fitted.as_plain(), [fitted.as_yaml()])


def _conditions(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (column, equals, _) in zip(texts, pairs, strict=True):
        if not column or not equals:
            raise InputError(f"--where: {text!r} is not COLUMN=START")
    return {column: start for column, _, start in pairs}


@device.command()
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--on", "backend", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--l2", type=click.Choice(["cold", "warm"]), default="cold", show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=7, show_default=True, help="The median counts.")
@click.option("--small", is_flag=True, help="A sweep of seconds instead of minutes.")
@click.option("--only", multiple=True, metavar="NAME", help="Operators whose name starts so. Repeatable.")
@force_option
@json_option
def sample(output: Path, backend: Any, l2: Any, as_json: bool, **options: Any) -> None:
    """Measure operators through PyTorch and write the table OUTPUT (CSV).

    rapid-des device sample samples.csv
    """
    from rapid_des.learned import write_samples
    from rapid_des.learned.sampling import Sampling, choose, default_operators
    from rapid_des.learned.sampling import sample as measure

    check_outputs([output], replace=options["force"])
    operators = choose(default_operators(small=options["small"] or backend == "cpu"), options["only"])
    rows = []
    for row in measure(operators, Sampling(backend, l2, options["repeats"])):
        rows.append(row)
        announce(f"{len(rows)}/{len(operators)} {row['operator']} {row['time_us']} us")
    with replacing(output) as beside:
        write_samples(beside, rows)
    echo(as_json, rows, [f"{len(rows)} samples in {output}"])


@device.command()
@click.argument("samples", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--by", default="operator", show_default=True, help="Columns that name an operator, by comma.")
@click.option("--sizes", default="", help="Columns that are sizes, by comma; default: those of `sample`.")
@click.option("--time", default="time_us", show_default=True, help="Column of the microseconds.")
@click.option("--fallback", type=click.Choice(FALLBACKS), required=True, help="Model of the rest.")
@click.option("--boosting", is_flag=True, help="Let XGBoost and LightGBM compete too.")
@click.option(
    "--modules-on",
    "reference",
    metavar="DEVICE",
    shell_complete=names_or_files("device"),
    help="SAMPLES are of modules (linear1, bmm, ...) as in arXiv 2509.22832, run on this device.",
)
@force_option
@json_option
def fit(
    samples: Path, output: Path, reference: str | None, force: bool, as_json: bool, **columns: Any
) -> None:
    """Fit a regressor for each operator in SAMPLES (CSV) and write OUTPUT (.npz).

    rapid-des device fit samples.csv learned.npz --fallback native
    """
    from rapid_des.learned.fit import fit_file, fit_modules
    from rapid_des.report.devices import learned_as_plain, learned_report

    check_outputs([output], replace=force)
    with progress(f"fitting {samples}"):
        file = (
            fit_file(samples, **columns) if reference is None else fit_modules(samples, reference, **columns)
        )
    with replacing(output) as beside:
        file.save(beside)
    echo(as_json, learned_as_plain(file), learned_report(file))
