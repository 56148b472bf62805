"""Collectives and messages by measured times: of equal groups, between the sizes that were sampled.

A file (CSV) has a row a measurement: `op` (all_reduce, all_gather, reduce_scatter, all_to_all, send),
`nodes`, `gpus_per_node`, `bytes` (each rank's input buffer) and `time_us`. A group that nobody sampled is
not served.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Floats
from rapid_des.chakra.trace import CollectiveType
from rapid_des.config.documents import read_rows
from rapid_des.errors import InputError
from rapid_des.network.collectives.libraries.nccl import GroupPlacement, LibraryCost
from rapid_des.units import PS_PER_US

COLUMNS = ("op", "nodes", "gpus_per_node", "bytes", "time_us")
OPERATIONS: Mapping[str, str] = {
    "all_reduce": "all_reduce", "allreduce": "all_reduce", "all_gather": "all_gather",
    "allgather": "all_gather", "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter",
    "all_to_all": "all_to_all", "alltoall": "all_to_all", "send": "send", "p2p": "send",
}  # fmt: skip
"""The operation of each spelling in files."""


class Curve(Struct, frozen=True):
    """Median times over sizes, both as logarithms, ascending."""

    log_bytes: Floats
    log_us: Floats

    def microseconds(self, size: int) -> float:
        """Return the time of a size: linear in the logarithms, at the last rate beyond the ends."""
        low, high = float(np.exp(self.log_bytes[0])), float(np.exp(self.log_bytes[-1]))
        inside = min(max(float(size), low), high)
        time = float(np.exp(np.interp(np.log(inside), self.log_bytes, self.log_us)))
        return time * size / inside


Samples = Mapping[tuple[str, int, int], Curve]
"""The measured curves by operation, nodes, and ranks on a node."""


@cache
def load_samples(name: str) -> Samples:
    """Return a file's curves; an `InputError` names file, line and what is wrong."""
    path = Path(name)
    samples: dict[tuple[str, int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line, row in enumerate(read_rows(path, COLUMNS), start=2):
        key, size, time = _read(path, line, row)
        samples[key][size].append(time)
    return {key: _curve(times) for key, times in samples.items()}


def _read(path: Path, line: int, row: Mapping[str, str]) -> tuple[tuple[str, int, int], int, float]:
    operation = OPERATIONS.get(row["op"])
    if operation is None:
        raise InputError(f"{path}: line {line}: op {row['op']!r}; allowed: {', '.join(OPERATIONS)}")
    try:
        nodes, each, size = (int(row[column]) for column in COLUMNS[1:4])
        time = float(row["time_us"])
    except (TypeError, ValueError):
        raise InputError(f"{path}: line {line}: {', '.join(COLUMNS[1:])} must be numbers") from None
    if min(nodes, each, size) < 1 or not 0 < time < np.inf:
        raise InputError(f"{path}: line {line}: {', '.join(COLUMNS[1:])} must be above 0")
    return (operation, nodes, each), size, time


def _curve(times: Mapping[int, list[float]]) -> Curve:
    sizes = sorted(times)
    medians = [float(np.median(times[size])) for size in sizes]
    return Curve(np.log(np.array(sizes, np.float64)), np.log(np.array(medians)))


def sampled_cost(
    samples: Samples, collective: CollectiveType, place: GroupPlacement, size: int
) -> LibraryCost | None:
    """Return the measured cost of a collective of such a group; None where none was measured."""
    curve = samples.get((collective.name.lower(), place.nodes, place.per_node))
    if curve is None or place.ranks != place.nodes * place.per_node:
        return None
    algorithm = "direct" if collective is CollectiveType.ALL_TO_ALL else "ring"
    return _cost(curve, size, algorithm)


def sampled_send(samples: Samples, size: int, *, inter_node: bool) -> LibraryCost | None:
    """Return the measured cost of a message, within a node or between two."""
    curve = samples.get(("send", 2, 1) if inter_node else ("send", 1, 2))
    return None if curve is None else _cost(curve, size, "direct")


def _cost(curve: Curve, size: int, algorithm: str) -> LibraryCost:
    return LibraryCost(round(curve.microseconds(size) * PS_PER_US), algorithm, "measured")
