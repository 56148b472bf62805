"""The `trace` commands: show, check, count and convert Chakra traces."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sized
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rapid_des.chakra import (
    ReadOptions,
    check_report,
    convert_set,
    draw,
    node_rows,
    rank_of,
    rank_statistics,
    read_report,
    read_set,
    repair_lines,
    statistics_json,
    table_lines,
    write_set,
)
from rapid_des.chakra.options import CHOICES
from rapid_des.errors import TraceError
from rapid_des.units import Duration, Size

LAZY: dict[str, tuple[str, str]] = {
    "write": ("rapid_des.cli.trace_write:write", "Write a job's traces as Chakra files."),
}
"""Commands that live in modules of their own: name to ("module:attribute", summary)."""

_MOST_LINES = 38


class _TraceGroup(click.Group):
    """The commands of this module, then those of `LAZY`, imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names."""
        return [*super().list_commands(ctx), *LAZY]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a lazy command, else look here."""
        if cmd_name in LAZY:
            module, attribute = LAZY[cmd_name][0].split(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        return super().get_command(ctx, cmd_name)


@click.group(cls=_TraceGroup)
def trace() -> None:
    """Show, check, count and convert Chakra traces: a folder, a prefix (run/x for run/x.0.et) or a file."""


def _integers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:  # noqa: ARG001
    try:
        return tuple(int(part) for part in value.split(",")) if value else ()
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no list of whole numbers such as 8,8") from error


def read_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how traces are read; the command gets them as `options: ReadOptions`."""

    def wrapped(**values: Any) -> Any:
        chosen = {name: values.pop(name) for name in _OPTION_NAMES}
        return command(options=ReadOptions(**chosen), **values)

    for decorate in reversed(_OPTIONS):
        wrapped = decorate(wrapped)
    wrapped.__doc__ = command.__doc__
    wrapped.__name__ = command.__name__
    return wrapped


_OPTIONS = (
    click.option(
        "--dialect", type=click.Choice(CHOICES["dialect"]), default="auto", help="Whose conventions."
    ),
    click.option("--deps", "dependencies", type=click.Choice(CHOICES["dependencies"]), default="auto"),
    click.option(
        "--time-unit", type=click.Choice(CHOICES["time_unit"]), default="auto", help="Of durations."
    ),
    click.option("--dtype-bytes", type=int, help="Bytes of an element, for writers that count elements."),
    click.option("--groups", type=click.Path(path_type=Path), help="Process groups: {name: [ranks]}."),
    click.option("--generation", type=click.Choice(CHOICES["generation"]), default="auto", help="Wire form."),
    click.option(
        "--streams", type=click.Choice(CHOICES["streams"]), default="auto", help="Order of streams."
    ),
    click.option(
        "--dimensions", callback=_integers, help="Logical shape of the ranks, innermost first: 8,8."
    ),
    click.option("--zero-is-world", is_flag=True, help='Take group "0" for all ranks, as ASTRA-sim does.'),
    click.option("--strict", is_flag=True, help="Refuse what would otherwise be repaired."),
    click.option("--salvage", is_flag=True, help="Keep the whole nodes before a damaged place."),
)
_OPTION_NAMES = (
    "dialect",
    "dependencies",
    "time_unit",
    "dtype_bytes",
    "groups",
    "generation",
    "streams",
    "dimensions",
    "zero_is_world",
    "strict",
    "salvage",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_PREFIX = click.argument("prefix")


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


@trace.command()
@_PREFIX
@click.option("--rank", default=None, type=int, help="Which rank; the first if not said.")
@click.option("--first", default=0, help="Position of the first node.")
@click.option("--count", default=50, help="How many nodes.")
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw the window's graph into an .svg or .png file."
)
@_JSON
@read_options
def show(
    prefix: str,
    rank: int | None,
    first: int,
    count: int,
    plot: Path | None,
    as_json: bool,
    options: ReadOptions,
) -> None:
    """Show a rank's nodes, or a window of them, as a table, as JSON or as a picture."""
    traces = read_set(prefix, options)
    chosen = rank_of(traces, rank)
    rows = node_rows(chosen, first, count)
    if plot is not None:
        draw(chosen, plot, first=first, count=count)
    if as_json:
        nodes = [asdict(row) for row in rows]
        return _print_json(
            {"rank": chosen.rank, "total": len(chosen.nodes), "notes": traces.notes, "nodes": nodes}
        )
    click.echo("\n".join([f"# {note}" for note in traces.notes] + table_lines(rows)))
    click.echo(
        f"rank {chosen.rank}: {len(rows)} of {len(chosen.nodes)} nodes"
        + (f", drawn in {plot}" if plot else "")
    )
    return None


@trace.command()
@_PREFIX
@click.option("--repairs", is_flag=True, help="List every dependency that reading drops.")
@_JSON
@read_options
def check(prefix: str, repairs: bool, as_json: bool, options: ReadOptions) -> None:
    """Find what is wrong with a trace set; exit code 2 if there is anything."""
    report = read_report(prefix, options)
    found = check_report(report)
    serious = [finding for finding in found if finding.severity != "warning"]
    listed = repair_lines(report) if repairs else []
    if as_json:
        _print_json({"notes": report.traces.notes, "findings": [asdict(f) for f in found], "repairs": listed})
    else:
        lines = [f"# {note}" for note in report.traces.notes]
        lines += [f"warning: {finding}" for finding in found if finding.severity == "warning"]
        total = f"{_counted(serious, 'finding')} in {_counted(report.files.files, 'file')}"
        click.echo("\n".join([*lines, *listed, total]))
    if serious:
        raise TraceError(_summary([str(finding) for finding in serious]))


def _summary(lines: list[str]) -> str:
    shown = lines[:_MOST_LINES]
    more = [f"… and {len(lines) - _MOST_LINES} more (--json lists all)"] if len(lines) > _MOST_LINES else []
    return "\n".join([_counted(lines, "finding"), *shown, *more])


def _counted(things: Sized, noun: str) -> str:
    return f"{len(things)} {noun}" + "s" * (len(things) != 1)


@trace.command()
@_PREFIX
@_JSON
@read_options
def stats(prefix: str, as_json: bool, options: ReadOptions) -> None:
    """Count nodes by kind, collectives, bytes, work and depth, for each rank and in total."""
    traces = read_set(prefix, options)
    counted = statistics_json(rank_statistics(traces)) | {"notes": traces.notes}
    if as_json:
        return _print_json(counted)
    click.echo("\n".join([f"# {note}" for note in traces.notes] + _stats_lines(counted)))
    return None


def _stats_lines(counted: dict[str, Any]) -> list[str]:
    total = counted["total"]
    lines = [f"{total['ranks']} ranks, {total['nodes']} nodes, {total['dependencies']} dependencies"]
    lines += [f"  {kind:<20} {count}" for kind, count in total["kinds"].items()]
    for kind, count in total["collectives"].items():
        lines.append(f"  {kind:<20} {count} collectives, {Size(total['collective_bytes'][kind])} of input")
    lines.append(f"  {'sent':<20} {Size(total['sent_bytes'])}")
    lines.append(f"  {'compute':<20} {Duration(total['compute_time'])} stated, {total['flops']:.4g} FLOP")
    lines.append(f"  {'without duration':<20} {total['untimed']} compute nodes")
    lines.append("  rank      nodes  depth  compute")
    for row in counted["ranks"][:64]:
        lines.append(
            f"  {row['rank']:<6} {row['nodes']:>8} {row['depth']:>6}  {Duration(row['compute_time'])}"
        )
    return lines + (
        [f"  … {total['ranks'] - 64} more ranks (--json lists all)"] if total["ranks"] > 64 else []
    )


@trace.command()
@_PREFIX
@click.option(
    "-o", "--output", "folder", required=True, type=click.Path(path_type=Path), help="Folder to write to."
)
@click.option(
    "--to", "form", type=click.Choice(["et", "json", "rapid"]), default="et", help="rapid: our own reading."
)
@_JSON
@read_options
def convert(prefix: str, folder: Path, form: str, as_json: bool, options: ReadOptions) -> None:
    """Convert traces without loss to today's .et or to jsonizer's JSON, or as they are understood."""
    if form == "rapid":
        report = read_report(prefix, options)
        written = write_set(read_set(prefix, options), folder, report.files.prefix)
    else:
        written = convert_set(prefix, folder, "json" if form == "json" else "et", options)
    if as_json:
        return _print_json({"written": [str(path) for path in written]})
    click.echo(f"wrote {len(written)} files to {folder}")
    return None
