"""Results as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from rapid_des.cli.options import print_json
from rapid_des.errors import InputError
from rapid_des.report.figures import JobFigures
from rapid_des.report.result import Result

_PARTS = {
    "compute": "compute",
    "bubble": "bubble (waiting for a message or a late peer)",
    "idle": "idle",
}
_GIB = 2**30


def write_outputs(
    result: Result, timeline: str | None, links: str | None, links_plot: str | None = None
) -> None:
    """Write the files that were asked for; a path that can not be written is one line."""
    wanted = ((timeline, result.write_timeline), (links, result.write_links), (links_plot, result.draw_links))
    for path, write in wanted:
        if path is None:
            continue
        try:
            write(Path(path))
        except OSError as error:
            raise InputError(f"{path}: can not be written: {error.strerror or error}") from None


def show_result(result: Result, *, title: str) -> None:
    """Print a result for a person."""
    click.echo(title)
    if result.figures is not None:
        _show_figures(result, result.figures)
    else:
        click.echo(f"  finish         {result.step_time} (rank {result.critical_rank} is last)")
    click.echo(f"\n  where the time of rank {result.critical_rank} goes")
    for part, time in result.breakdown.items():
        share = time / max(result.step_time, 1)
        name = _PARTS.get(part, f"exposed {part} communication")
        click.echo(f"    {name:<46} {time!s:>12}  {share:6.1%}  {'█' * round(30 * share)}")
    if result.busiest:
        click.echo("\n  busiest operators")
        for name, time in list(result.busiest.items())[:6]:
            click.echo(f"    {name:<46} {time!s:>12}  {time / max(result.step_time, 1):6.1%}")
    folded = f", one rank simulated for {result.folded:g}" if result.folded > 1 else ""
    click.echo(
        f"\n  {result.mode}, {result.switching}, engine {result.engine}: "
        f"{result.hops:,} link hops in {result.wall_s:.2f} s{folded}"
    )
    for note in result.notes:
        click.echo(f"  note: {note}")


def show_modes(results: Mapping[str, Result | str], *, as_json: bool) -> None:
    """Print every mode's step time against the flattened one, and what each run cost."""
    if as_json:
        plain = {
            mode: {"refused": result} if isinstance(result, str) else result.as_json()
            for mode, result in results.items()
        }
        print_json(plain)
        return
    reference = results["flattened"]
    for mode, result in results.items():
        if isinstance(result, str):
            click.echo(f"{mode:<14} refused: {result}")
            continue
        gap = "" if isinstance(reference, str) else f"{result.step_time / reference.step_time - 1:+.2%}"
        cost = f"{result.wall_s:.3f} s, {result.hops:,} hops"
        click.echo(f"{mode:<14} {result.step_time!s:>12}  {gap:>8}  simulated in {cost}")


def _show_figures(result: Result, figures: JobFigures) -> None:
    rows = [("GPUs", f"{figures.gpus}")]
    if figures.requests is None:
        rows.append(("step time", f"{result.step_time}"))
    else:
        rows.append(("first token", f"{figures.requests.first_token}"))
        rows.append(("each next token", f"{figures.requests.per_output_token}"))
        rows.append(("whole request", f"{result.step_time}"))
    rows.append(("tokens/s", f"{figures.tokens_per_s:,.0f}"))
    rows.append(("MFU", f"{figures.mfu:.1%}"))
    fullest = figures.memory.fullest
    rows.append(("memory", f"{fullest.peak / _GIB:.1f} of {figures.memory_capacity / _GIB:.1f} GiB"))
    rows.append(("bound by", result.bound))
    for name, value in rows:
        click.echo(f"  {name:<16} {value}")
    parts = sorted(fullest.categories.items(), key=lambda entry: -entry[1])
    click.echo(
        "    " + ", ".join(f"{name} {size / _GIB:.1f} GiB" for name, size in parts if size >= _GIB / 20)
    )
