"""`rapid-des operator …`: the latency of one operator on a device, and why; `rapid-des gemm`: sharded."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any, cast

import click

from rapid_des.cli.options import (
    echo,
    force_option,
    job_options,
    json_option,
    names_or_files,
    on_options,
    open_job,
    open_machine,
    set_option,
    split_settings,
    together,
)
from rapid_des.device.device import Device, load_device
from rapid_des.device.operators import DTYPE_BITS, Attention, Dtype, Gemm, GroupedGemm, Operator, Vector
from rapid_des.device.pricing import operator_model
from rapid_des.device.vector_kinds import KINDS
from rapid_des.errors import InputError
from rapid_des.report.devices import estimate_as_plain, estimate_report
from rapid_des.report.evidence import measured_topics, unmeasured_lines
from rapid_des.report.writing import check_outputs
from rapid_des.units import whole_number

LARGEST = 2**31
"""Largest value of every dimension of an operator."""
MOST_EXPERTS = 2**16
_size = click.IntRange(1, LARGEST)
_CONDITIONS = ("clock", "launch", "l2", "library")
_ALIASES = {"norm": "rms_norm", "activation": "swiglu", "residual": "residual_add"}

dtype_option = click.option(
    "--dtype",
    type=click.Choice(list(DTYPE_BITS)),
    default="bf16",
    show_default=True,
    help="Type of operands.",
)
phase_option = click.option(
    "--phase", type=click.Choice(["forward", "backward"]), default="forward", show_default=True
)


device_options = together(
    click.option(
        "--device",
        "--on",
        "device",
        required=True,
        metavar="DEVICE",
        shell_complete=names_or_files("device"),
        help="Device file or preset.",
    ),
    *(
        click.option(f"--{name}", help=f"Instead of the device file's conditions.{name}.")
        for name in _CONDITIONS
    ),
    set_option,
    json_option,
)
"""A device, its conditions and settings; `open_device` reads them."""


def open_device(device: str, options: dict[str, Any]) -> Device:
    """Return the device with --set and the conditions applied."""
    given = split_settings(options["settings"], ("device",))["device"]
    given += [(f"conditions.{name}", options[name]) for name in _CONDITIONS if options[name]]
    return load_device(device, settings=given)


def show(operator: Operator, device: str, options: dict[str, Any]) -> None:
    """Print one operator's estimate."""
    loaded = open_device(device, options)
    estimate = operator_model(loaded).estimate(operator)
    plain = estimate_as_plain(operator, estimate, loaded)
    echo(options["as_json"], plain, estimate_report(operator, estimate, loaded))


class VectorGroup(click.Group):
    """A group whose commands are the vector kernels."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the vector kernels."""
        return list(KINDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command of a vector kernel."""
        return _vector_command(cmd_name, cmd_name) if cmd_name in KINDS else None


class OperatorGroup(click.Group):
    """The families of operators; a vector kernel may be named without `vector`, as it once was."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a family's command, or one for the vector kernel of that name."""
        kind = _ALIASES.get(cmd_name, cmd_name)
        return _vector_command(cmd_name, kind) if kind in KINDS else super().get_command(ctx, cmd_name)


@click.group(cls=OperatorGroup)
def operator() -> None:
    """Latency of one operator on a device, and why."""


@operator.group(cls=VectorGroup)
def vector() -> None:
    """Price a vector kernel (norm, activation, optimizer, …) over ROWS x COLUMNS elements."""


@operator.command()
@click.argument("m", type=_size)
@click.argument("n", type=_size)
@click.argument("k", type=_size)
@click.option("--batch", type=_size, default=1, show_default=True)
@dtype_option
@click.option(
    "--out-dtype", type=click.Choice(list(DTYPE_BITS)), help="Type of C; as --dtype (narrow: 16 bit)."
)
@click.option("--weight-dtype", type=click.Choice(list(DTYPE_BITS)), help="Type of B; as --dtype.")
@click.option("--accumulate", is_flag=True, help="C is read too.")
@device_options
def gemm(m: int, n: int, k: int, device: str, **options: Any) -> None:
    """C[M, N] = A[M, K] times B[K, N].

    rapid-des operator gemm 4096 8192 8192 --on h100_sxm
    """
    shape = {name: options[name] for name in ("batch", "dtype", "out_dtype", "weight_dtype", "accumulate")}
    show(Gemm(m, n, k, **shape), device, options)


@operator.command("grouped")
@click.argument("rows")
@click.argument("n", type=_size)
@click.argument("k", type=_size)
@dtype_option
@device_options
def grouped(rows: str, n: int, k: int, dtype: Dtype, device: str, **options: Any) -> None:
    """One kernel over several experts; ROWS as in 128,64,0,8 or 32x128 (32 experts of 128 rows).

    rapid-des operator grouped 32x128 4096 2048 --on h100_sxm
    """
    show(GroupedGemm(_rows(rows), n, k, dtype), device, options)


@operator.command()
@click.argument("batch", type=_size)
@click.argument("query_length", type=_size)
@click.argument("key_length", type=_size)
@click.option("--heads", type=_size, required=True, help="Query heads of this GPU.")
@click.option("--kv-heads", type=_size, help="Default: --heads.")
@click.option("--head-dim", type=_size, default=128, show_default=True)
@click.option("--window", type=_size, help="Sliding window in positions.")
@click.option("--full", is_flag=True, help="Without a causal mask.")
@click.option("--unfused", is_flag=True, help="Scores go through memory.")
@phase_option
@dtype_option
@device_options
def attention(batch: int, query_length: int, key_length: int, device: str, **options: Any) -> None:
    """Attention of BATCH sequences, QUERY_LENGTH new positions over KEY_LENGTH (decode: 1).

    rapid-des operator attention 8 1 4096 --heads 64 --on h100_sxm
    """
    shape = {name: options[name] for name in ("heads", "head_dim", "window", "phase", "dtype")}
    shape |= {"kv_heads": options["kv_heads"] or options["heads"]}
    shape |= {"causal": not options["full"], "fused": not options["unfused"]}
    show(Attention(batch, query_length, key_length, **shape), device, options)


@operator.command()
@job_options
@click.option("-o", "--output", required=True, metavar="FILE", help="PNG or SVG.")
@force_option
@json_option
def roofline(
    job: str, machine: str, settings: tuple[str, ...], output: str, force: bool, as_json: bool
) -> None:
    """Draw the device's roofline with the operators of JOB on it, at the clock that the job runs at.

    rapid-des operator roofline llama2_7b_train --on dgx_a100 -o roofline.png
    """
    from rapid_des.report.charts.roofline import draw_roofline

    check_outputs([], pictures=[output], replace=force)
    wanted, loaded = open_job(job, machine, settings)
    title = f"{job} on {loaded.device.spec.name}"
    count = draw_roofline(wanted, loaded, Path(output), title=title)
    echo(as_json, {"operators": count, "written": output}, [f"{count} operators in {output}"])


def _vector_command(name: str, kind: str) -> click.Command:
    @click.command(name, help=f"{KINDS[kind].summary[:1].upper()}{KINDS[kind].summary[1:]}: ROWS x COLUMNS.")
    @click.argument("rows", type=_size)
    @click.argument("columns", type=_size)
    @phase_option
    @dtype_option
    @device_options
    def command(rows: int, columns: int, phase: str, dtype: Dtype, device: str, **options: Any) -> None:
        show(Vector(kind, rows, columns, dtype, cast(Any, phase)), device, options)

    return command


def _rows(text: str) -> tuple[int, ...]:
    groups, times, each = text.partition("x")
    try:
        if times:
            return (whole_number(each, most=LARGEST),) * whole_number(groups, 1, MOST_EXPERTS)
        return tuple(whole_number(part.strip(), most=LARGEST) for part in text.split(","))
    except ValueError as error:
        shapes = "a list such as 128,64,0 or EXPERTSxROWS such as 32x128"
        raise InputError(f"ROWS: {error}; {shapes}") from None


@click.command("gemm")
@click.argument("m", type=_size)
@click.argument("k", type=_size)
@click.argument("n", type=_size)
@click.option("--tp", type=_size, required=True, help="GPUs that share the GEMM.")
@click.option("--axis", type=click.Choice(["row", "col"]), required=True, help="Cut axis of the weight.")
@click.option("--sequence-parallel", is_flag=True, help="Activations outside are cut along M.")
@dtype_option
@on_options
@json_option
def sharded_gemm(m: int, k: int, n: int, machine: str, settings: tuple[str, ...], **options: Any) -> None:
    """[M, K] times a weight [K, N] cut over tensor-parallel GPUs: forward, backward, collectives.

    rapid-des gemm 4096 8192 8192 --tp 8 --axis col --on dgx_h100
    """
    from rapid_des.report.study_text import sharded_report
    from rapid_des.studies.sharded_gemm import ShardedGemm, run_sharded

    loaded = open_machine(machine, settings, priced=True)
    cut = {name: options[name] for name in ("tp", "axis", "sequence_parallel", "dtype")}
    phases = run_sharded(ShardedGemm(m, k, n, **cut), loaded)
    plain = [phase.as_plain() for phase in phases]
    measured = measured_topics(loaded.device, options["dtype"])
    unmeasured = unmeasured_lines([] if measured else [loaded.device.spec.name])
    echo(options["as_json"], plain, chain(sharded_report(plain), unmeasured))
