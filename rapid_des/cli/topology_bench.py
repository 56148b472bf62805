"""`rapid-des topology bench`: one collective over a range of sizes, as nccl-tests prints it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rapid_des.cli.machine_options import machine_options, open_machine
from rapid_des.cli.options import engine_choice, engine_option, print_json
from rapid_des.studies import bench_table, collective_bench


@click.command()
@machine_options
@click.option("--op", default="all_reduce", show_default=True, help="The collective.")
@click.option("--sizes", default="1KiB:1GiB", show_default=True, help="FIRST:LAST, in bytes as nccl-tests.")
@click.option("--factor", default=4, show_default=True, help="From one size to the next.")
@click.option("--gpus", type=int, help="The first so many GPUs; all if absent.")
@click.option("--algorithm", help="ring, …, torus, mesh_bucket, rail, …, or a file (XML, JSON, CSV).")
@click.option("--chunks", default=1, show_default=True, help="Parts that pipeline, with --algorithm.")
@click.option("--nccl", metavar="FABRIC", help="NCCL's own time beside it: a100_nvswitch, h100_ndr, …")
@engine_option
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw it: PNG, SVG or PDF.")
def bench(machine: str, settings: tuple[str, ...], faults: tuple[str, ...], **options: Any) -> None:
    """Time a collective over a range of sizes, beside its lower bounds."""
    own, changes = collective_bench.chosen(options["op"], options["algorithm"], options["chunks"])
    sizes = collective_bench.sizes_between(options["sizes"], options["factor"])
    opened = open_machine(machine, (*settings, *changes), faults)
    engine = engine_choice(options["engine"])
    question = collective_bench.Question(options["op"], sizes, options["gpus"], own)
    rows = collective_bench.answer(opened, question, engine=engine)
    gpus = options["gpus"] or opened.fabric.gpus
    if options["nccl"] is not None:
        per_node = opened.spec.gpus_per_node
        rows = collective_bench.with_nccl(rows, options["nccl"], options["op"], gpus, per_node=per_node)
    title = f"{options['op']} on {opened.name}, {gpus} GPUs"
    if options["as_json"]:
        print_json({"machine": opened.name, "op": options["op"], "rows": [row.as_json() for row in rows]})
    else:
        click.echo(f"# {title}, {opened.switching.mode}\n{bench_table.table(rows)}")
    if options["plot"] is not None:
        bench_table.draw(rows, title, options["plot"])
