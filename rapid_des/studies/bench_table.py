"""The bench's rows as nccl-tests' table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rapid_des.errors import InputError
from rapid_des.studies.collective_bench import BenchRow
from rapid_des.units import PS_PER_US


def table(rows: Sequence[BenchRow]) -> str:
    """Return the rows as text, columns as in nccl-tests, then the bound."""
    names = ("size", "time", "algbw", "busbw", "bound", "of bound")
    units = ("(B)", "(us)", "(GB/s)", "(GB/s)", "(us)", "(%)")
    lines = [
        "".join(f"{name:>13}" for name in names) + "  limited by  algorithm",
        "".join(f"{unit:>13}" for unit in units),
    ]
    for row in rows:
        figures = (
            row.duration / PS_PER_US,
            row.algorithm_bandwidth / 1e9,
            row.bus_bandwidth / 1e9,
            row.bound.time / PS_PER_US,
            100 * row.bound_share,
        )
        cells = "".join(f"{figure:>13.2f}" for figure in figures)
        line = f"{row.size:>13}{cells}  {row.bound.kind:<11} {row.algorithm}"
        if row.nccl is not None:
            line += (
                f"  NCCL {row.nccl.duration / PS_PER_US:.2f} us ({row.nccl.algorithm}, {row.nccl.protocol})"
            )
        lines.append(line)
    return "\n".join(lines)


def draw(rows: Sequence[BenchRow], title: str, path: Path) -> None:
    """Draw time and its bound, and bus bandwidth, over the size; needs matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("a plot needs matplotlib: pip install 'rapid-des[plot]'") from None
    sizes = [row.size for row in rows]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    times, rates = figure.subplots(1, 2)
    times.loglog(sizes, [row.duration / PS_PER_US for row in rows], "o-", label="simulated")
    times.loglog(sizes, [max(row.bound.time / PS_PER_US, 1e-3) for row in rows], "k--", label="lower bound")
    times.set_ylabel("time (us)")
    times.legend()
    rates.semilogx(sizes, [row.bus_bandwidth / 1e9 for row in rows], "o-")
    rates.set_ylabel("bus bandwidth (GB/s)")
    rates.set_ylim(bottom=0)
    for axes in (times, rates):
        axes.set_xlabel("size (bytes)")
        axes.grid(visible=True, alpha=0.3)
    figure.suptitle(title)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can not be written: {error}") from None
