"""Fit TensorRT-LLM 0.9's all-reduce (`trtllm-0.9` in `topologies/fabrics/serving`) to its static sweep.

    python -m validation.fit_sums DATA_FOLDER

needs scipy; takes two minutes. What a token of a run on several GPUs takes beyond its prediction without
sums, over their number, is the time of one sum, with all that is wrong in kernels; of the runs of one case
and batch the median counts. Fitted to the calibration half are what begins a sum, each further rank (flags,
and ranks that come apart), two-shot and each block take, and what a block moves. Links are as another
engine's kernels have them; limits and numbers of blocks are in the engine's source. Prints constants, and
the error of both halves.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from msgspec import structs
from scipy.optimize import least_squares

from rapid_des.network.collectives.libraries.nccl import LibraryCost
from rapid_des.network.collectives.libraries.serving_kernels import (
    ServingKernels,
    all_reduce_cost,
    load_kernels,
)
from rapid_des.units import PS_PER_US, Bandwidth, Duration
from validation import DataFolder, is_calibration
from validation.inference import trtllm
from validation.jobs.cases import outcome
from validation.jobs.models import shipped
from validation.measurements import Record

ENGINE = "trtllm-0.9"
FABRICS = {
    "A100-SXM4-80GB": "a100",
    "H100-SXM-80GB": "h100",
    "H200-SXM-141GB": "h100",
    "GH200-120GB(96GB HBM3)": "h100",
}
SUMS = {"Llama-2-70B": 2, "Falcon-180B": 1}
"""Of a layer; Mixtral's steps miss more by its experts than by their sums."""
START = {"base": 5.0, "rank": 1.0, "second": 10.0, "block": 0.3, "rate": 16.0}
MOST = {"base": 20.0, "rank": 5.0, "second": 80.0, "block": 5.0, "rate": 60.0}


@dataclass(frozen=True)
class Measured:
    """One sum of so many bytes among so many ranks, in microseconds."""

    calibration: bool
    ranks: int
    size: int
    time_us: float


def measured(data: DataFolder) -> dict[str, list[Measured]]:
    """Return the sums of cases and batches, by fabric."""
    alike: dict[tuple[str, int], list[float]] = defaultdict(list)
    found: dict[tuple[str, int], tuple[str, int, int]] = {}
    for record in data.read(trtllm.FILE):
        fabric, ranks = FABRICS.get(record["gpu"]), record.count("tp")
        if fabric is None or ranks == 1 or record["model"] not in SUMS:
            continue
        key = record["case_id"], record.count("batch")
        size = 2 * shipped()[record["model"]].size.hidden * record.count("batch")
        cost = all_reduce_cost(load_kernels(fabric), ENGINE, ranks, size)
        if cost is not None:
            alike[key].append(one_sum(record, cost))
            found[key] = fabric, ranks, size
    sums: dict[str, list[Measured]] = defaultdict(list)
    for (case, batch), times in alike.items():
        fabric, ranks, size = found[case, batch]
        if median(times) > 0:
            sums[fabric].append(Measured(is_calibration(case), ranks, size, median(times)))
    return sums


def one_sum(record: Record, cost: LibraryCost) -> float:
    """Return the microseconds that a sum takes in a run: as predicted, and its part of what is missed."""
    row = next(trtllm.times_of(shipped(), record))
    token = row.figure(outcome(row.cases[0]))
    count = SUMS[record["model"]] * shipped()[record["model"]].size.layers
    return cost.duration / PS_PER_US + 1e3 * (row.measured - token) / count


def with_constants(kernels: ServingKernels, values: Mapping[str, float]) -> ServingKernels:
    """Return kernels with other constants of this engine (us, GB/s)."""
    kernel = kernels.all_reduce[ENGINE]
    assert kernel is not None
    assert kernel.blocks is not None
    times = {name: Duration(round(PS_PER_US * time)) for name, time in values.items() if name != "rate"}
    blocks = structs.replace(
        kernel.blocks, block=times.pop("block"), rate=Bandwidth(round(1e9 * values["rate"]))
    )
    return structs.replace(
        kernels, all_reduce=kernels.all_reduce | {ENGINE: structs.replace(kernel, blocks=blocks, **times)}
    )


def ratios(kernels: ServingKernels, sums: Sequence[Measured]) -> list[float]:
    """Return predicted over measured times."""
    costs = [all_reduce_cost(kernels, ENGINE, one.ranks, one.size) for one in sums]
    return [cost.duration / PS_PER_US / one.time_us for cost, one in zip(costs, sums, strict=True) if cost]


def fitted(kernels: ServingKernels, sums: Sequence[Measured]) -> dict[str, float]:
    """Return the constants of the calibration half."""

    def errors(values: Sequence[float]) -> list[float]:
        named = dict(zip(START, values, strict=True))
        return [math.log(ratio) for ratio in ratios(with_constants(kernels, named), sums)]

    start = list(START.values())
    bounds = ([0.01 * value for value in start], list(MOST.values()))
    found = least_squares(
        errors, start, bounds=bounds, loss="soft_l1", f_scale=0.15, x_scale=start, diff_step=0.02
    )
    return {name: float(f"{value:.4g}") for name, value in zip(START, found.x, strict=True)}


def main(folder: str) -> None:
    """Print every fabric's constants."""
    for fabric, sums in measured(DataFolder(Path(folder), split=True)).items():
        kernels = load_kernels(fabric)
        values = fitted(kernels, [one for one in sums if one.calibration])
        print(f"{fabric}: {values}")
        for calibration in (True, False):
            half = [one for one in sums if one.calibration is calibration]
            off = [100 * abs(ratio - 1) for ratio in ratios(with_constants(kernels, values), half)]
            print(f"  {'calibration' if calibration else 'test'}, {len(half)}: {fmean(off):.1f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
