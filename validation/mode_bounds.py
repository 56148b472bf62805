"""Modes against what they stand for: drawn training jobs and layouts on shipped machines, and on drawn ones.

    python -m validation.mode_bounds [--draws 100] [--seed 0] [--in-blocks] [--kind switched] [--csv rows.csv]

simulates each draw flattened and in every other mode, and prints by mode and kind of machine how far its step
is off, how wide its bound is, and every step that lies outside the bound; these end the command with 1. With
`--in-blocks` no step is small enough to be simulated at once instead.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import RapidDesError
from rapid_des.frontend import Job, load_job
from rapid_des.machine import Machine, load_machine
from rapid_des.simulation import MODES, simulate
from rapid_des.values import asdict

MACHINES = {
    "switched": (
        "dgx_a100_x4", "dgx_a100_x8", "dgx_h100_x8", "perlmutter_32", "hgx_a100_clos_16", "gb200_nvl72",
    ),
    "direct": (
        "torus_2d_a100", "torus2d_ring_a100_64", "torus_3d_a100", "mesh_2d_a100", "hypercube_a100",
        "king_mesh_a100", "hyperx_a100_128", "dragonfly_a100_256",
    ),
}  # fmt: skip
_STORED = {
    "switching.mode": "store_and_forward",
    "switching.segment": "64 KiB",
}
"""Of drawn machines: links pass on whole segments."""
_MOST = 16
"""GPUs of a drawn job."""


@dataclass(frozen=True)
class Row:
    """One mode on one draw; times in picoseconds."""

    seed: int
    kind: str
    machine: str
    layout: str
    mode: str
    step: int
    flattened: int
    low: int
    high: int

    @property
    def off(self) -> float:
        """How far the step is off, relative to the flattened one."""
        return self.step / self.flattened - 1

    @property
    def holds(self) -> bool:
        """Whether the flattened step lies within the bound."""
        return self.low <= self.flattened <= self.high

    @property
    def text(self) -> str:
        """One line: where, how far it is off, and where its bound lies."""
        ends = f"{self.low / self.flattened - 1:+.2%} to {self.high / self.flattened - 1:+.2%}"
        return f"{self.kind} {self.seed}, {self.machine}, {self.mode} {self.off:+.2%}, {ends}: {self.layout}"


def drawn(seed: int, kind: str) -> tuple[Job, Machine, str]:
    """Return a job and a machine of a kind, and the layout in words; what does not fit raises."""
    draw = random.Random(f"{kind} {seed}")  # noqa: S311 - no secret
    name = draw.choice(MACHINES[kind])
    stored = draw.random() < 0.2
    machine = load_machine(name, settings=tuple(_STORED.items()) if stored else ())
    gpus = draw.choice([size for size in (4, 8, 16) if size <= min(machine.fabric.gpus, _MOST)])
    tp = draw.choice([size for size in (1, 2, 4) if size <= gpus])
    pp = draw.choice([size for size in (1, 2, 4) if size <= gpus // tp])
    cp = draw.choice([size for size in (1, 1, 1, 2) if size <= gpus // tp // pp])
    dp = gpus // tp // pp // cp
    hidden = draw.choice([512, 1024, 2048])
    layers = pp * draw.choice([1, 2, 4])
    schedule = draw.choice(["1f1b", "gpipe"])
    micro, batches = draw.choice([1, 2]), pp * draw.choice([1, 2])
    changed = {
        "parallelism": f"{{tp: {tp}, pp: {pp}, cp: {cp}, dp: {dp}, "
        f"sequence_parallel: {str(tp > 1 and draw.random() < 0.7).lower()}}}",
        "model.layers": layers,
        "model.hidden": hidden,
        "model.attention": f"{{heads: {hidden // 128}, kv_heads: {hidden // 128}}}",
        "model.feed_forward": f"{{activation: swiglu, hidden: {hidden * 11 // 4}}}",
        "model.vocabulary": 8192,
        "training.schedule": schedule,
        "training.micro_batch": micro,
        "training.global_batch": dp * micro * batches,
        "training.sequence_length": draw.choice([512, 1024, 2048]),
        "training.zero_stage": draw.choice([0, 1, 2, 3]) if dp > 1 else 0,
        "training.overlap_gradients": str(draw.random() < 0.5).lower(),
        "training.recompute": draw.choice(["none", "selective", "full"]),
    }
    settings = {key: str(value) for key, value in changed.items()}
    job = load_job("llama2_7b_train", settings=settings)
    words = f"{gpus} GPUs " + ", ".join(
        f"{key.rpartition('.')[2]} {value}" for key, value in settings.items()
    )
    return job, machine, words + (", stored" if stored else "")


def rows_of(seed: int, kind: str) -> Iterator[Row]:
    """Yield a row a mode of one draw; nothing where a mode refuses it."""
    job, machine, words = drawn(seed, kind)
    cache = BoundedCache()
    flattened = simulate(job, machine, allow_oom=True, cache=cache)
    for mode in MODES[1:]:
        try:
            found = simulate(job, machine, mode=mode, allow_oom=True, cache=cache)
        except RapidDesError as refusal:
            print(f"{kind} {seed} {mode}: refused: {refusal}", file=sys.stderr)
            continue
        bound = found.mode_bound
        assert bound is not None, "every mode but the flattened one has a bound"
        yield Row(
            seed, kind, machine.path.stem, words, mode, int(found.step_time), int(flattened.step_time),
            bound.low, bound.high,
        )  # fmt: skip


def campaign(draws: int, seed: int, kinds: Sequence[str], *, told: bool) -> Iterator[Row]:
    """Yield the rows of so many draws, the kinds in turn."""
    for number in range(seed, seed + draws):
        kind = kinds[number % len(kinds)]
        try:
            for row in rows_of(number, kind):
                if told:
                    print(row.text, flush=True)
                yield row
        except RapidDesError as refusal:
            print(f"{kind} {number}: {refusal}", file=sys.stderr)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line a kind of machine and mode, and one a step outside its bound."""
    groups = dict.fromkeys((row.kind, row.mode) for row in rows)
    for kind, mode in groups:
        mine = [row for row in rows if (row.kind, row.mode) == (kind, mode)]
        off, width = (
            np.array([abs(row.off) for row in mine]),
            np.array([row.high / row.step - 1 for row in mine]),
        )
        yield (
            f"{kind:9} {mode:13} {len(mine):4} draws: off by {np.median(off):.2%} (median), "
            f"{np.quantile(off, 0.9):.2%} (p90), {off.max():.2%} (worst); at most "
            f"{np.median(width):.1%} (median), {np.quantile(width, 0.9):.1%} (p90) by its bound; "
            f"outside that {sum(not row.holds for row in mine)}"
        )
    for row in rows:
        if not row.holds:
            yield f"outside: {row.text}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in-blocks", action="store_true")
    parser.add_argument("--kind", action="append", choices=MACHINES)
    parser.add_argument("--rows", action="store_true", help="print every row as it comes")
    parser.add_argument("--csv", type=Path, help="write every row there")
    wanted = parser.parse_args(arguments)
    with patch("rapid_des.modes.blocks.bounds._MOST_RANKS", 0 if wanted.in_blocks else 256):
        rows = list(campaign(wanted.draws, wanted.seed, wanted.kind or list(MACHINES), told=wanted.rows))
    print(*summary(rows), sep="\n")
    if wanted.csv and rows:
        with wanted.csv.open("w", newline="") as file:
            table = csv.DictWriter(file, list(asdict(rows[0])))
            table.writeheader()
            table.writerows(map(asdict, rows))
    return int(not all(row.holds for row in rows))


if __name__ == "__main__":
    sys.exit(main())
