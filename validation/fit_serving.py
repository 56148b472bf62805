"""Fit the constants of `topologies/fabrics/serving` on the calibration split of measured kernels.

    python -m validation.fit_serving DATA_FOLDER [KERNELS ...]

needs scipy; see fit_collectives.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.device.calibration import Record
from rapid_des.network.collectives.libraries.serving_kernels import (
    ServingKernels,
    all_reduce_cost,
    all_reduce_time,
    hybrid_time,
    load_kernels,
    low_latency_time,
    normal_time,
)
from validation.fit_collectives import fit, rows
from validation.network.serving_kernels import (
    KERNELS,
    exchange,
    hybrid_exchange,
    hybrid_measured,
)

Row = Record
ALIKE = {"nvlink5": "b300"}
"""A file whose kernels' constants are another's: it differs in limits, which go by compute capability."""


def all_reduces(data: Path, name: str, library: str) -> list[Row]:
    """Return the device times of one library's own all-reduce on the GPUs of a file.

    Those of boards with the same links count too where the library's limits for these agree; without vLLM's
    on GB200, which took another way: 5.0 us where B200 and B300 take 6.9.
    """
    return [
        row
        for row in rows(data, "custom_allreduce_aiconfigurator.csv")
        if row["kernel"].lower().startswith(library)
        and not row["kernel"].endswith("_eager")
        and not (row["gpu"].startswith("GB") and library == "vllm")
        and KERNELS.get(row["gpu"]) in (name, ALIKE.get(name))
        and _serves(name, library, row) == _serves(KERNELS[row["gpu"]], library, row) != ""
    ]


def _serves(name: str, library: str, row: Row) -> str:
    """Return the kernel that serves a row by the limits in a file; empty if that is NCCL's."""
    cost = all_reduce_cost(load_kernels(name), library, int(row["ranks"]), int(row["bytes"]))
    return "" if cost is None else cost.algorithm


def exchanges(data: Path, name: str, part: str) -> list[Row]:
    """Return DeepEP's times: low latency on any number of nodes, normal on one and two."""
    return [
        row
        for row in rows(data, "moe_alltoall_aiconfigurator.csv")
        if KERNELS.get(row["gpu"]) == name
        and row["op"] == f"deepep_{part}"
        and (part.startswith("low") or float(row["nodes"]) <= 2)
    ]


def hybrids(data: Path, name: str, direction: str) -> list[Row]:
    """Return Hybrid-EP's published kernels, with what their bandwidth comes to as `time_us`."""
    return [
        Record({**row, "time_us": str(hybrid_measured(row))}, row.where)
        for row in rows(data, "hybrid_ep_published.csv")
        if KERNELS.get(row["gpu"]) == name and row["op"] == f"hybridep_{direction}"
    ]


def predict(kernels: ServingKernels, row: Row) -> float:
    """Return microseconds."""
    if row["op"].startswith("all_reduce"):
        library = row["kernel"].lower().split("_")[0]
        return all_reduce_time(kernels, library, int(row["ranks"]), int(row["bytes"])) / 1e6
    direction = row["op"].rsplit("_", maxsplit=1)[-1]
    if row["op"].startswith("hybridep"):
        hybrid, sms = kernels.hybrid[direction], int(row["sms"])
        return hybrid_time(hybrid, hybrid_exchange(row), multiprocessors=sms) / 1e6
    what = exchange(row)
    if "low_latency" in row["op"]:
        return low_latency_time(kernels.low_latency[direction], what) / 1e6
    return normal_time(kernels.normal[direction], what, multiprocessors=int(float(row["sms"]))) / 1e6


def errors_of(measured: list[Row]) -> Callable[[ServingKernels], Any]:
    """Return log errors."""
    return lambda kernels: np.array(
        [math.log(predict(kernels, row) / float(row["time_us"])) for row in measured]
    )


def fit_hybrids(data: Path, path: Path) -> None:
    """Fit Hybrid-EP's kernels in one file; what is around them, and NICs without rows, stay as they are."""
    for direction in ("dispatch", "combine"):
        measured = hybrids(data, path.stem, direction)
        names = ("link", "multiprocessor", *(["nic"] if any(row["nodes"] != "1" for row in measured) else []))
        if measured:
            free = tuple(f"hybrid.{direction}.{name}" for name in names)
            print("hybrid", direction, fit(path, free, ServingKernels, errors_of(measured)))


def main(data: Path, chosen: list[str]) -> None:
    """Fit every kernel of the chosen files, or of all."""
    folder = Path(__file__).parents[1] / "topologies" / "fabrics" / "serving"
    for path in sorted(folder.glob("*.yaml")):
        if path.stem in ALIKE.values() or (chosen and path.stem not in chosen):
            continue
        for library in ("vllm", "sglang", "trtllm"):
            measured = all_reduces(data, path.stem, library)
            if not measured:
                continue
            print(library, fit(path, (f"all_reduce.{library}.",), ServingKernels, errors_of(measured)))
        for part in ("low_latency_dispatch", "low_latency_combine", "normal_dispatch", "normal_combine"):
            measured = exchanges(data, path.stem, part)
            key = part.replace("latency_", "latency.").replace("normal_", "normal.") + "."
            if measured:
                print(part, fit(path, (key,), ServingKernels, errors_of(measured)))
        fit_hybrids(data, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
