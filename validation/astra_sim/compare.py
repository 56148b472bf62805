"""Compare recorded ASTRA-sim runs with our replay of the same files, rank by rank.

    python -m validation.astra_sim.compare FOLDER [--csv residuals.csv]

FOLDER holds one folder a run: net.yml, sys.json, [groups.json], the traces, cmd.txt (the command that ran:
its first word names the backend) and stdout.txt. Every case is one row; nothing is left out.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rapid_des.errors import RapidDesError
from rapid_des.importers.astra_sim import Files, replay_astra
from rapid_des.values import astuple, fields

PRINTED = re.compile(r"sys\[(\d+)\] finished, (\d+) cycles")

REASONS = (
    (r"unaware", "another model: no congestion"),
    (r"agent|cluster|_from2\Z|r01_", "that fork sends messages through agent nodes"),
    (r"hypercube", "that fork doubles the bandwidth of a hypercube"),
    (r"x_kingmesh2d16", "that fork's king mesh is 8 x 2 whatever the file says"),
    (r"_mesh2d\Z", "that fork aborts on its own algorithm"),
    (r"mesh8_ar_hard", "the fault cuts the fabric: that fork aborts, we name the cut"),
    (r"ring8_ar_hard", "that fork ignores a dead link of a ring, we go round"),
    (r"_hard", "that fork detours by a fixed rule, we take the shortest surviving path"),
    (r"delay0", "that simulator asserts on an endpoint delay of 0"),
)
"""The first that fits a case's name or backend says why the two differ; see README.md."""


@dataclass(frozen=True)
class Row:
    """One run: latest finish in nanoseconds, and the worst relative difference of any rank."""

    case: str
    backend: str
    ranks: int
    peer_ns: int | None
    ours_ns: int | None
    worst: str
    equal_ranks: int
    why: str


def compare(folder: Path) -> Row:
    """Replay one case."""
    command = (folder / "cmd.txt").read_text()
    backend = command.split()[0].removesuffix("_aware")
    peer = {int(rank): int(time) for rank, time in PRINTED.findall((folder / "stdout.txt").read_text())}
    peer_ns = max(peer.values(), default=None)
    why = next((reason for name, reason in REASONS if re.search(name, f"{backend} {folder.name}")), "")
    if "unaware" in backend:
        return Row(folder.name, backend, len(peer), peer_ns, None, "", 0, why)
    queues = re.search(r"num-queues-per-dim=(\d+)", command)
    files = Files(
        folder / "net.yml",
        folder / "sys.json",
        folder / "groups.json" if "--comm-group" in command else None,
        queues=int(queues[1]) if queues else 1,
        dialect="stock" if backend == "stock" else "extended",
    )
    prefix = re.search(r"--workload-configuration=(\S+)", command)
    assert prefix is not None, f"{folder}: no workload in cmd.txt"
    try:
        ours = replay_astra(folder / prefix[1], files).finish_ns
    except RapidDesError as error:
        return Row(folder.name, backend, len(peer), peer_ns, None, type(error).__name__, 0, why)
    gaps = [abs(ours[rank] - time) / max(time, 1) for rank, time in peer.items()]
    equal = sum(ours[rank] == time for rank, time in peer.items())
    reason = "" if equal == len(peer) and peer else why or "order of equals at one instant (rules R3, R4)"
    worst = f"{max(gaps):.1e}" if gaps else "peer failed"
    return Row(folder.name, backend, len(ours), peer_ns, max(ours), worst, equal, reason)


def cases(folder: Path) -> Iterator[Path]:
    """Yield the folders of all runs."""
    return (path.parent for path in sorted(folder.glob("*/cmd.txt")))


def main() -> None:
    """Print the table; write it with --csv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    rows = [compare(path) for path in cases(arguments.folder)]
    header = list(fields(Row))
    for row in rows:
        print("{:44} {:14} {:>5} {!s:>12} {!s:>12} {:>12} {:>5}  {}".format(*astuple(row)))
    if arguments.csv:
        with arguments.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *map(astuple, rows)])


if __name__ == "__main__":
    main()
