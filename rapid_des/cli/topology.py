"""`rapid-des topology`: show, route, check and benchmark a machine's fabric."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import click
import msgspec

from rapid_des.cli.main import progress, until_interrupted
from rapid_des.cli.options import (
    echo,
    engine_choice,
    engine_option,
    machine_options,
    open_machine,
    plot_option,
)
from rapid_des.errors import InputError
from rapid_des.importers.infragraph import idle_keys
from rapid_des.importers.keys import Ignored, by_reason, shortened
from rapid_des.machine import Machine
from rapid_des.network.build import find_gpu
from rapid_des.network.dimensions import InfraGraph
from rapid_des.network.metrics import check_routes, summary
from rapid_des.network.specs import MOST_CHUNKS
from rapid_des.report.fabric_text import (
    check_report,
    fabric_report,
    route_report,
    shown_check,
    shown_fabric,
    shown_route,
)
from rapid_des.report.pictures.fabric import picture
from rapid_des.report.pictures.overview import draw
from rapid_des.report.writing import check_outputs

_chunks = click.IntRange(1, MOST_CHUNKS)


@click.group()
def topology() -> None:
    """Show, route, check and benchmark a machine's fabric."""


@topology.command()
@machine_options
@plot_option
def show(
    machine: str,
    settings: tuple[str, ...],
    faults: tuple[str, ...],
    as_json: bool,
    plot: Path | None,
    force: bool,
) -> None:
    """Print node and link counts, degree, diameter and bisection bandwidth.

    rapid-des topology show torus_2d_a100
    """
    check_outputs([], pictures=[plot], replace=force)
    opened = open_machine(machine, settings, faults)
    dimensions = opened.spec.fabric
    figures = summary(opened.fabric, dimensions, opened.dead, opened.lost)
    tree = shown_fabric(opened.fabric, dimensions, figures)
    ignored = [
        Ignored(f"{each.name}: {key}", shortened(value), reason)
        for each in opened.spec.fabric
        if isinstance(each, InfraGraph)
        for key, value, reason in idle_keys(opened.path.parent / each.file)
    ]
    if ignored:
        tree |= {"ignored": [msgspec.to_builtins(each) for each in ignored]}
    echo(as_json, tree, chain(fabric_report(tree), (f"note: {line}" for line in by_reason(ignored))))
    if plot is not None:
        draw(picture(opened), plot)


@topology.command()
@machine_options
@click.argument("source")
@click.argument("destination")
def route(
    machine: str,
    source: str,
    destination: str,
    settings: tuple[str, ...],
    faults: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the hops from GPU to GPU, each by id or coordinates as in '(1, 0, 3)'.

    rapid-des topology route torus_2d_a100 0 5
    """
    opened = open_machine(machine, settings, faults)
    ends = find_gpu(opened.fabric, source), find_gpu(opened.fabric, destination)
    tree = shown_route(opened.fabric, opened.router.route(*ends), ends[0])
    echo(as_json, tree, route_report(tree))


@topology.command()
@machine_options
def check(machine: str, settings: tuple[str, ...], faults: tuple[str, ...], as_json: bool) -> None:
    """Check that all GPUs reach each other, and whether routes may wait in a circle.

    rapid-des topology check torus_2d_a100
    """
    opened = open_machine(machine, settings, faults)
    checked = check_routes(opened.fabric, opened.router, opened.dead, opened.lost)
    tree = shown_check(opened.fabric, checked, opened.dead, opened.lost)
    echo(as_json, tree, check_report(tree))


@topology.command()
@machine_options
@click.option("--op", default="all_reduce", show_default=True, help="The collective.")
@click.option("--sizes", default="1KiB:1GiB", show_default=True, help="FIRST:LAST, in bytes as nccl-tests.")
@click.option("--factor", default=4, show_default=True, help="Ratio of sizes.")
@click.option("--gpus", type=int, help="Number of GPUs, the first ones; all if absent.")
@click.option("--algorithm", help="ring, …, torus, rail, …, auto, all (a table), or a file (XML, JSON, CSV).")
@click.option("--chunks", default=1, type=_chunks, show_default=True, help="Parts, with --algorithm.")
@click.option("--nccl", metavar="FABRIC", help="NCCL's own time beside it: a100_nvswitch, h100_ndr, …")
@engine_option
@plot_option
def bench(machine: str, settings: tuple[str, ...], faults: tuple[str, ...], **options: Any) -> None:
    """Time a collective over a range of sizes, beside its lower bounds.

    rapid-des topology bench dgx_h100 --op all_reduce --sizes 1MiB:1GiB
    """
    from rapid_des.report.pictures.studies import draw_collective
    from rapid_des.report.study_text import collective_report
    from rapid_des.studies import collective_bench as study

    check_outputs([], pictures=[options["plot"]], replace=options["force"])
    if options["algorithm"] == "all":
        _compare_algorithms(open_machine(machine, settings, faults), options)
        return
    operation, gpus = options["op"], options["gpus"]
    algorithm, changes = study.chosen(operation, options["algorithm"], options["chunks"])
    question = study.Question(
        operation, study.sizes_between(options["sizes"], options["factor"]), gpus, algorithm
    )
    opened = open_machine(machine, settings, faults, besides=changes)
    with progress(f"{operation} on {opened.name}") as bar:
        engine = engine_choice(options["engine"], progress=bar)
        rows, interrupted = until_interrupted(study.each_answer(opened, question, engine=engine))
    if options["nccl"] is not None:
        rows = study.with_nccl(rows, options["nccl"], question, opened)
    plain = [row.as_json() for row in rows]
    title = f"{operation} on {opened.name}, {gpus or opened.fabric.gpus} GPUs"
    parts = collective_report(plain, f"{title}, {opened.switching.mode}")
    echo(options["as_json"], {"machine": opened.name, "op": operation, "rows": plain}, parts)
    if interrupted:
        raise KeyboardInterrupt
    if options["plot"] is not None:
        draw_collective(plain, title, options["plot"])


def _compare_algorithms(opened: Machine, options: Mapping[str, Any]) -> None:
    """Print every algorithm at every size."""
    from rapid_des.report.study_text import compared_report
    from rapid_des.studies import collective_bench as study

    beside = [f"--{name}" for name in ("plot", "nccl") if options[name] is not None]
    if beside or options["chunks"] != 1:
        raise InputError(f"--algorithm all goes without {', '.join(beside or ['--chunks'])}")
    operation, sizes = options["op"], study.sizes_between(options["sizes"], options["factor"])
    question = study.Question(operation, sizes, options["gpus"])
    with progress(f"{operation} on {opened.name}") as bar:
        engine = engine_choice(options["engine"], progress=bar)
        rows, interrupted = until_interrupted(study.each_compared(opened, question, engine=engine))
    plain = [row.as_json() for row in rows]
    title = f"{operation} on {opened.name}, {options['gpus'] or opened.fabric.gpus} GPUs"
    tree = {"machine": opened.name, "op": operation, "algorithms": plain}
    echo(options["as_json"], tree, compared_report(plain, f"{title}, {opened.switching.mode}"))
    if interrupted:
        raise KeyboardInterrupt
