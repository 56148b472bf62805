"""Fit the constants of `topologies/fabrics/serving` on the calibration split of measured kernels.

    python validation/fit_serving.py DATA_FOLDER [KERNELS ...]

needs scipy; see fit_collectives.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fit_collectives import fit, rows

from rapid_des.network.collectives.libraries.serving_kernels import (
    ServingKernels,
    all_reduce_time,
    low_latency_time,
    normal_time,
)
from rapid_des.validation.network.serving_kernels import KERNELS, exchange

Row = dict[str, str]


def all_reduces(data: Path, name: str, library: str) -> list[Row]:
    """Return the device times of one library's all-reduce on the GPUs of a file."""
    return [
        row
        for row in rows(data, "custom_allreduce_aiconfigurator.csv")
        if KERNELS.get(row["gpu"]) == name
        and row["kernel"].lower().startswith(library)
        and not row["kernel"].endswith("_eager")
    ]


def exchanges(data: Path, name: str, part: str) -> list[Row]:
    """Return DeepEP's times: low latency on any number of nodes, normal on one and two."""
    return [
        row
        for row in rows(data, "moe_alltoall_aiconfigurator.csv")
        if KERNELS.get(row["gpu"]) == name
        and row["op"] == f"deepep_{part}"
        and (part.startswith("low") or float(row["nodes"]) <= 2)
    ]


def predict(kernels: ServingKernels, row: Row) -> float:
    """Return microseconds."""
    if row["op"].startswith("all_reduce"):
        library = row["kernel"].lower().split("_")[0]
        return all_reduce_time(kernels, library, int(row["ranks"]), int(row["bytes"])) / 1e6
    what, direction = exchange(row), row["op"].rsplit("_", maxsplit=1)[-1]
    if "low_latency" in row["op"]:
        return low_latency_time(kernels.low_latency[direction], what) / 1e6
    return normal_time(kernels.normal[direction], what, multiprocessors=int(float(row["sms"]))) / 1e6


def errors_of(measured: list[Row]) -> Callable[[ServingKernels], Any]:
    """Return log errors."""
    return lambda kernels: np.array(
        [math.log(predict(kernels, row) / float(row["time_us"])) for row in measured]
    )


def main(data: Path, chosen: list[str]) -> None:
    """Fit every kernel of the chosen files, or of all."""
    folder = Path(__file__).parents[1] / "topologies" / "fabrics" / "serving"
    for path in sorted(folder.glob("*.yaml")):
        if chosen and path.stem not in chosen:
            continue
        for library in ("vllm", "sglang", "trtllm"):
            measured = all_reduces(data, path.stem, library)
            print(library, fit(path, (f"all_reduce.{library}.",), ServingKernels, errors_of(measured)))
        for part in ("low_latency_dispatch", "low_latency_combine", "normal_dispatch", "normal_combine"):
            measured = exchanges(data, path.stem, part)
            key = part.replace("latency_", "latency.").replace("normal_", "normal.") + "."
            if measured:
                print(part, fit(path, (key,), ServingKernels, errors_of(measured)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
