"""Placements of ranks on 2-D meshes and tori beside SCOTCH's, by hop-bytes.

    python -m validation.scotch [GMAP]

RAPID-LLM maps the ranks of its first dimension by SCOTCH where `optimize_2dmap` is set. For jobs that split
tensors and sequences over a mesh or torus this prints the bytes times the links that they cross, in the order
of ranks, as `parallelism.placement: auto` places them (the lowest score, before it simulates), and as
SCOTCH's program `gmap` does (Debian's package `scotch`). GMAP is that program; unset, `scotch_gmap`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rapid_des.arrays import Floats, Int64s
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.placement import cost_of, in_orders, searched, seconds_a_byte, traffic_of
from rapid_des.modes.pricing import price

CASES = [
    ("mesh", (2, 2), (2, 2)),
    ("mesh", (4, 2), (4, 2)),
    ("mesh", (4, 4), (4, 4)),
    ("mesh", (4, 4), (2, 8)),
    ("mesh", (4, 4), (8, 2)),
    ("mesh", (8, 4), (4, 8)),
    ("torus", (4, 4), (4, 4)),
    ("torus", (4, 4), (2, 8)),
    ("torus", (4, 4), (8, 2)),
    ("torus", (8, 4), (4, 8)),
]
"""Shapes, their sizes, and the degrees of tp and cp."""
_BANDWIDTH = 10**11


def main(program: str = "scotch_gmap") -> Iterator[str]:
    """Yield the lines of a table."""
    yield "| fabric | tp x cp | rank order | auto | SCOTCH |"
    yield "|---|---|---:|---:|---:|"
    for shape, size, (tp, cp) in CASES:
        axes = {"parallelism.tp": tp, "parallelism.cp": cp, "parallelism.dp": 1, "parallelism.pp": 1}
        job = load_job("llama2_7b_train", settings=axes | {"model.layers": 2, "training.global_batch": 2})
        links = {"name": "net", "shape": shape, "size": [*size], "bandwidth": "100 GB/s", "latency": "1 us"}
        machine = load_machine({"name": "m", "device": "a100_sxm_80gb", "fabric": [links]})
        traffic = traffic_of(price(job, machine).traces)
        hops = seconds_a_byte(machine, job.gpus) * _BANDWIDTH
        orders = sorted(in_orders(job), key=lambda gpus: cost_of(traffic, hops, gpus))
        placed = (
            np.arange(job.gpus),
            searched(traffic, hops, orders),
            scotch(program, traffic, shape, size),
        )
        cells = " | ".join(f"{cost_of(traffic, hops, gpus) / 1e9:.2f} GB" for gpus in placed)
        yield f"| {shape} {'x'.join(map(str, size))} | {tp} x {cp} | {cells} |"


def scotch(program: str, traffic: Floats, shape: str, size: tuple[int, ...]) -> Int64s:
    """Return the GPU of each rank as SCOTCH maps the graph of traffic, weights in MB."""
    both = np.rint((traffic + traffic.T) / 1e6).astype(np.int64)
    lines = []
    for row in both:
        others = np.flatnonzero(row)
        lines.append(f"{len(others)} " + " ".join(f"{row[other]} {other}" for other in others))
    edges = int(np.count_nonzero(both))
    with tempfile.TemporaryDirectory() as folder:
        graph, target, out = (Path(folder, name) for name in ("graph", "target", "map"))
        graph.write_text(f"0\n{len(both)} {edges}\n0 010\n" + "\n".join(lines) + "\n")
        target.write_text(f"{'mesh2D' if shape == 'mesh' else 'torus2D'} {size[0]} {size[1]}\n")
        subprocess.run([program, graph, target, out], check=True, stdout=subprocess.DEVNULL)
        pairs = [tuple(map(int, line.split())) for line in out.read_text().splitlines()[1:]]
    gpus = np.empty(len(both), np.int64)
    for rank, place in pairs:
        gpus[rank] = place
    return gpus


if __name__ == "__main__":
    for line in main(*sys.argv[1:]):
        print(line)
