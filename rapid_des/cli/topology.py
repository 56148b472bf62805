"""`rapid-des topology`: show, route and check a machine's fabric."""

from __future__ import annotations

import importlib
import json
from importlib.util import find_spec
from pathlib import Path

import click

from rapid_des.cli.machine_options import machine_options, open_machine
from rapid_des.network.checks import check_routes
from rapid_des.network.metrics import summary
from rapid_des.network.nodes import find_gpu
from rapid_des.report.fabric_picture import draw, picture
from rapid_des.report.fabric_text import (
    Tree,
    check_lines,
    fabric_lines,
    route_lines,
    shown_check,
    shown_fabric,
    shown_route,
)

_ELSEWHERE = {"bench": "rapid_des.cli.topology_bench"}
"""Commands that are imported only when they are called, and the modules that hold them."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        there = [name for name, module in _ELSEWHERE.items() if find_spec(module)]
        return [*super().list_commands(ctx), *there]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx) or cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(importlib.import_module(_ELSEWHERE[cmd_name]), cmd_name)
        return command


@click.group(cls=_LazyGroup)
def topology() -> None:
    """Show, route, check and benchmark a machine's fabric."""


@topology.command()
@machine_options
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw the fabric: PNG, SVG or PDF."
)
def show(
    machine: str, settings: tuple[str, ...], faults: tuple[str, ...], as_json: bool, plot: Path | None
) -> None:
    """Print node and link counts, degree, diameter and bisection bandwidth."""
    opened = open_machine(machine, settings, faults)
    dimensions = opened.spec.fabric
    tree = shown_fabric(
        opened.fabric, dimensions, summary(opened.fabric, dimensions, opened.dead, opened.lost)
    )
    _echo(tree, fabric_lines(tree), as_json)
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
    """Print the hops from GPU to GPU, each by id or coordinates as in '(1, 0, 3)'."""
    opened = open_machine(machine, settings, faults)
    ends = find_gpu(opened.fabric, source), find_gpu(opened.fabric, destination)
    tree = shown_route(opened.fabric, opened.router.route(*ends), ends[0])
    _echo(tree, route_lines(tree), as_json)


@topology.command()
@machine_options
def check(machine: str, settings: tuple[str, ...], faults: tuple[str, ...], as_json: bool) -> None:
    """Check that all GPUs reach each other, and whether routes may wait in a circle."""
    opened = open_machine(machine, settings, faults)
    found = check_routes(opened.fabric, opened.router, opened.dead, opened.lost)
    tree = shown_check(opened.fabric, found, opened.dead, opened.lost)
    _echo(tree, check_lines(tree), as_json)


def _echo(tree: Tree, lines: list[str], as_json: bool) -> None:
    click.echo(json.dumps(tree) if as_json else "\n".join(lines))
