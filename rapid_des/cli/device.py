"""`rapid-des device …`: show, calibrate, sample and fit devices."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from rapid_des.cli.options import json_option, print_json, set_option, split_settings
from rapid_des.errors import InputError

_ELSEWHERE = {
    "sample": "rapid_des.cli.device_learned:sample",
    "fit": "rapid_des.cli.device_learned:fit",
}


class DeviceGroup(click.Group):
    """A group whose learned-operator commands are imported only to be run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return this module's commands, then the learned operators'."""
        return [*super().list_commands(ctx), *_ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command that was asked for."""
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, attribute = _ELSEWHERE[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=DeviceGroup)
def device() -> None:
    """Show, sample, fit and calibrate devices."""


@device.command()
@click.argument("reference", metavar="DEVICE")
@set_option
@json_option
def show(reference: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Print a device with its bases merged in, and the constants that it uses."""
    from rapid_des.device.describe import device_as_plain, device_as_text
    from rapid_des.device.model import load_device

    loaded = load_device(reference, settings=split_settings(settings, ("device",))["device"])
    print_json(device_as_plain(loaded)) if as_json else click.echo(device_as_text(loaded))


@device.command()
@click.argument("data", type=click.Path(path_type=Path), metavar="DATA.csv")
@click.option("--device", "reference", required=True, metavar="DEVICE", help="Device file or preset.")
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
def calibrate(
    data: Path,
    reference: str,
    section: str,
    where: tuple[str, ...],
    scope: str,
    names: str | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Fit one section's constants to measured times, calibration cases only.

    Columns, all with dtype, time_us and case_id: gemm M N K; attention, decode and decode_mha batch q_len
    kv_len n_heads n_kv_heads head_dim kv_dtype; mla_decode and mla_prefill op batch q_len past_len n_heads
    kv_dtype; vector kind rows columns. Under library vllm an attention time includes writing the new keys.
    """
    from rapid_des.device.model import load_device
    from rapid_des.validation.calibrate import Wanted
    from rapid_des.validation.calibrate import calibrate as fit_file

    loaded = load_device(reference, settings=split_settings(settings, ("device",))["device"])
    chosen = tuple(names.split(",")) if names else ()
    found = fit_file(data, loaded, Wanted(section, scope, _conditions(where), chosen))
    print_json(found.as_plain()) if as_json else click.echo(found.as_yaml())


def _conditions(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (column, equals, _) in zip(texts, pairs, strict=True):
        if not column or not equals:
            raise InputError(f"--where: {text!r} is not COLUMN=START")
    return {column: start for column, _, start in pairs}
