"""`rapid-des trace`: show, check, count, convert and write Chakra traces."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Literal

import click

from rapid_des.chakra import (
    ReadOptions,
    check_report,
    convert_set,
    converted_paths,
    rank_statistics,
    read_report,
    read_set,
    repair_lines,
    set_paths,
    statistics_json,
    write_set,
)
from rapid_des.cli.main import progress
from rapid_des.cli.options import (
    echo,
    force_option,
    job_options,
    json_option,
    names_or_files,
    open_job,
    trace_options,
)
from rapid_des.errors import TraceError
from rapid_des.report.pictures.trace import draw
from rapid_des.report.tables import counted
from rapid_des.report.trace_text import finding_lines, node_rows, nodes_table, rank_of, statistics_report
from rapid_des.report.writing import check_folder, check_outputs, refuse_present
from rapid_des.values import asdict

_prefix = click.argument("prefix", shell_complete=names_or_files("trace"))


@click.group()
def trace() -> None:
    """Show, check, count and convert Chakra traces: a folder, a prefix (run/x for run/x.0.et) or a file."""


@trace.command()
@_prefix
@click.option("--rank", default=None, type=int, help="Rank; the first if absent.")
@click.option("--first", default=0, help="Position of the first node.")
@click.option("--count", default=50, help="Number of nodes.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the window's graph: PNG, SVG or PDF.")
@force_option
@json_option
@trace_options
def show(
    prefix: str,
    rank: int | None,
    first: int,
    count: int,
    plot: Path | None,
    force: bool,
    as_json: bool,
    reading: ReadOptions,
) -> None:
    """Show a rank's nodes, or a window of them, as a table, as JSON or as a picture.

    rapid-des trace show traces/llama2_7b_train --rank 0
    """
    check_outputs([], pictures=[plot], replace=force)
    with progress(f"reading {prefix}"):
        traces = read_set(prefix, reading)
    chosen = rank_of(traces, rank)
    rows = node_rows(chosen, first, count)
    if plot is not None:
        draw(chosen, plot, first=first, count=count)
    nodes = [asdict(row) for row in rows]
    plain = {"rank": chosen.rank, "total": len(chosen.nodes), "notes": traces.notes, "nodes": nodes}
    drawn = f", drawn in {plot}" if plot else ""
    total = f"rank {chosen.rank}: {len(rows)} of {len(chosen.nodes)} nodes{drawn}"
    echo(as_json, plain, [total, *(f"note: {note}" for note in traces.notes), nodes_table(rows)])


@trace.command()
@_prefix
@click.option("--repairs", is_flag=True, help="List every dependency that reading drops.")
@json_option
@trace_options
def check(prefix: str, repairs: bool, as_json: bool, reading: ReadOptions) -> None:
    """Find what is wrong with a trace set; exit code 2 if there is anything.

    rapid-des trace check traces/llama2_7b_train
    """
    with progress(f"checking {prefix}"):
        report = read_report(prefix, reading)
        findings = check_report(report)
    serious = [finding for finding in findings if finding.severity != "warning"]
    listed = repair_lines(report) if repairs else []
    notes = report.traces.notes
    plain = {"notes": notes, "findings": [asdict(finding) for finding in findings], "repairs": listed}
    lines = [f"# {note}" for note in notes]
    lines += [f"warning: {finding}" for finding in findings if finding.severity == "warning"]
    total = f"{counted(len(serious), 'finding')} in {counted(len(report.files.files), 'file')}"
    echo(as_json, plain, ["\n".join([*lines, *listed, total])])
    if serious:
        raise TraceError("\n".join(finding_lines([str(finding) for finding in serious])))


@trace.command()
@_prefix
@json_option
@trace_options
def stats(prefix: str, as_json: bool, reading: ReadOptions) -> None:
    """Count nodes by kind, collectives, bytes, work and depth, for each rank and in total.

    rapid-des trace stats traces/llama2_7b_train
    """
    with progress(f"counting {prefix}"):
        traces = read_set(prefix, reading)
        counts = statistics_json(rank_statistics(traces)) | {"notes": traces.notes}
    notes = (f"note: {note}" for note in traces.notes)
    echo(as_json, counts, chain(statistics_report(counts), notes))


@trace.command()
@_prefix
@click.option(
    "-o", "--output", "folder", required=True, type=click.Path(path_type=Path), help="Folder to write to."
)
@click.option(
    "--to", "form", type=click.Choice(["et", "json", "rapid"]), default="et", help="rapid: our own reading."
)
@force_option
@json_option
@trace_options
def convert(prefix: str, folder: Path, form: str, force: bool, as_json: bool, reading: ReadOptions) -> None:
    """Convert traces without loss to today's .et or to jsonizer's JSON, or as they are understood.

    rapid-des trace convert traces/llama2_7b_train --to json -o as_json
    """
    check_folder(folder)
    with progress(f"converting {prefix}"):
        if form == "rapid":
            files = read_report(prefix, reading).files
            refuse_present(set_paths(folder, files.prefix, files.files), force=force)
            written = write_set(read_set(prefix, reading), folder, files.prefix)
        else:
            to: Literal["et", "json"] = "json" if form == "json" else "et"
            refuse_present(converted_paths(prefix, folder, to), force=force)
            written = convert_set(prefix, folder, to, reading)
    plain = {"written": [str(path) for path in written]}
    echo(as_json, plain, [f"wrote {len(written)} files to {folder}"])


@trace.command()
@job_options
@click.option("-o", "--output", required=True, metavar="DIR", help="Folder to write into.")
@force_option
@json_option
def write(job: str, machine: str, settings: tuple[str, ...], output: str, force: bool, as_json: bool) -> None:
    """Write the traces of JOB on a machine: one file a rank, and its process groups.

    rapid-des trace write llama2_7b_train --on dgx_a100 -o traces
    """
    from rapid_des.modes.pricing import price

    check_folder(Path(output))
    wanted, loaded = open_job(job, machine, settings)
    refuse_present(set_paths(output, wanted.name, range(wanted.gpus)), force=force)
    with progress(f"traces of {job}"):
        traced = price(wanted, loaded)
        paths = write_set(traced.traces, output, traced.job.name)
    prefix = f"{output}/{traced.job.name}"
    plain = {"files": [str(path) for path in paths], "prefix": prefix}
    echo(as_json, plain, [f"{len(paths)} files: {prefix}.<rank>.et and {paths[0].name}"])
