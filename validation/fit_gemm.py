"""Fit the GEMM and MoE constants of `topologies/devices/families` on the calibration split.

    python -m validation.fit_gemm DATA_FOLDER JOB [JOB ...]

prints the block for a family file and the mean error of both splits. A job starts from the constants that
its family has. Kernel menus (tiles, splits of K) are facts of the libraries and no subject of a fit; nor is
any row whose case has an odd sha256, which is read only to print its error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rapid_des.device.calibration import MeasuredGemms, error, pattern_search
from rapid_des.device.gemm.candidates import NAMES, UTILISATIONS, GemmConstants, gemm_constants
from validation import DataFolder, is_calibration
from validation.measurements import device_for
from validation.operators.gemm import measured_gemms
from validation.operators.moe import MOE_NAMES, gated_ffn_us, kernels_of, moe_device, products

QUANTISE = ("quantise_row_us", "quantise_element_ns")
GEMV = ("gemv_start_us", "vector")
DENSE = tuple(name for name in NAMES if name not in (*QUANTISE, "quantise_us"))
"""`quantise_us` is not to be told from `start_us`: their sum is fitted."""
NARROW = tuple(name for name in NAMES if name not in GEMV)
POWER = ("start_us", "throttle_us", "throttled", "power_load", "overlap", "tensor")
GROUPED = (
    "prologue_us", "epilogue_us", "step_us", "tensor", "hbm", "l2", "stream_k", "store", "overlap",
    "multicast", "shared", "throttled", *MOE_NAMES,
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A scope of a family, the measurements (GPU, dtype, start of the case) behind it, and what is fitted."""

    scope: str
    sources: tuple[tuple[str, str, str], ...]
    names: tuple[str, ...]


FP32 = (
    "start_us", "prologue_us", "epilogue_us", "step_us", "tensor", "shared", "l2", "hbm", "store", "stream_k",
    "overlap", "throttle_us", "throttled", "power_load",
)  # fmt: skip
"""`start_us` of these goes to the scope of the loops that were timed, `torch-events`; what one board's power
sets stands in its device file."""

JOBS: dict[str, Job] = {
    "ampere-fp32": Job("fp32", (("A100-PCIE-40GB", "fp32", ""), ("A100-PCIE-80GB", "fp32", "")), FP32),
    "hopper-fp32": Job("fp32", (("H100-SXM-80GB", "fp32", ""),), FP32),
    "ada-fp32": Job("fp32", (("L4", "fp32", ""),), POWER[1:]),
    "pascal-fp32": Job(
        "fp32", (("P100-PCIE-16GB", "fp32", ""),), ("hbm", "l2", "stream_k", "store", "shared", *POWER)
    ),
    "ampere": Job("default", (("A100-SXM4-80GB", "bfloat16", "aic/"),), DENSE),
    "hopper": Job("default", (("H100-SXM-80GB", "bfloat16", "aic/h100_sxm/vllm"),), DENSE),
    "hopper-trtllm": Job("trtllm", (("H100-SXM-80GB", "bfloat16", "aic/h100_sxm/trtllm"),), POWER),
    "hopper-vllm-fp8": Job("vllm/fp8", (("H100-SXM-80GB", "fp8", "aic/h100_sxm/vllm"),), NARROW),
    "hopper-trtllm-fp8": Job("trtllm/fp8", (("H100-SXM-80GB", "fp8", "aic/h100_sxm/trtllm"),), NARROW),
    "hopper-vidur": Job("vidur", (("H100-SXM-80GB", "fp16", "vidur/"),), POWER),
    "blackwell": Job("default", (("GB200", "bfloat16", "aic/"),), DENSE),
    "blackwell-vllm-fp8": Job("vllm/fp8", (("GB200", "fp8", ""), ("B200-SXM-180GB", "fp8", "")), NARROW),
    "blackwell-fp4": Job("fp4", (("GB200", "nvfp4", ""), ("B200-SXM-180GB", "nvfp4", "")), NARROW),
    "ada": Job("default", (("L40S", "bfloat16", ""),), DENSE),
    "ada-vllm-fp8": Job("vllm/fp8", (("L40S", "fp8", ""),), NARROW),
    "volta": Job(
        "default",
        (("V100-SXM2 (DGX-1)", "fp16(tensor-core,fp32-acc)", ""), ("V100-SXM2 (DGX-1)", "fp32", "")),
        DENSE,
    ),
    "cdna": Job("default", (("MI210", "fp32", ""), ("MI100", "fp32", "")), DENSE),
    "tpu": Job("default", (("TPU-v6e-1", "bf16", ""),), DENSE),
}


def samples(data: DataFolder, source: tuple[str, str, str], *, calibration: bool) -> list[MeasuredGemms]:
    """Return one split of a source; none if it has no rows."""
    gpu, dtype, start = source
    rows = [
        row
        for topic, row in measured_gemms(data)
        if topic == "gemm" and (row.gpu, row.dtype) == (gpu, dtype) and row.case_id.startswith(start)
    ]
    rows = [row for row in rows if is_calibration(row.case_id) == calibration]
    if not rows:
        return []
    device = device_for(gpu, **dict(rows[0].conditions))
    times = np.array([row.time_us for row in rows])
    return [MeasuredGemms(device, tuple(row.gemm for row in rows), times, tuple(row.case_id for row in rows))]


def fit_job(data: DataFolder, job: Job) -> None:
    """Fit and print one job."""
    fitted = [s for source in job.sources for s in samples(data, source, calibration=True)]
    thin = [group.thinned(900 // len(fitted) + 300) for group in fitted]
    device, dtype = thin[0].device, thin[0].operators[0].dtype
    start = dict(device.constants("gemm", dtype))
    gemm_constants(start, device.spec.name)
    best = pattern_search(
        start, lambda values: error(GemmConstants(**values), thin), job.names, shares=UTILISATIONS
    )
    _show(f"gemm: {job.scope}", start, best)
    held = [s for source in job.sources for s in samples(data, source, calibration=False)]
    for name, groups in (("calibration", fitted), ("test", held)):
        if groups:
            before, after = (error(GemmConstants(**values), groups) for values in (start, best))
            print(f"# {name}: mean absolute log error {before:.4f} before, {after:.4f} after")


def fit_moe(data: DataFolder, gpus: Sequence[str], library: str, dtype: str) -> None:
    """Fit and print the grouped GEMM and MoE constants of a library and dtype."""
    rows = [
        row
        for row in data.read("operators/moe_aiconfigurator.csv")
        if row["gpu"] in gpus and kernels_of(row) == (library, dtype) and is_calibration(row["case_id"])
    ]
    groups = []
    for gpu in gpus:
        own = [row for row in rows if row["gpu"] == gpu]
        _, index, counts = np.unique([row["case_id"] for row in own], return_inverse=True, return_counts=True)
        times = np.array([float(row["time_us"]) for row in own])
        weights = 1.0 / counts[index] / len(counts)
        groups.append((moe_device(own[0]), [products(row) for row in own], times, weights))

    def loss(values: dict[str, float]) -> float:
        errors = [
            float(np.sum(weights * np.abs(np.log(gated_ffn_us(pairs, device, values) / times))))
            for device, pairs, times, weights in groups
        ]
        return sum(errors) / len(errors)

    device, first = groups[0][0], groups[0][1][0][0]
    start = {**device.constants("gemm", ""), **device.constants("grouped_gemm", first.dtype)}
    start |= device.constants("moe", first.dtype)
    best = pattern_search(start, loss, GROUPED, shares=(*UTILISATIONS, "move"))
    _show(f"grouped_gemm and moe: {library}/{dtype}", start, best)
    print(f"# calibration: mean absolute log error {loss(start):.4f} before, {loss(best):.4f} after")


def _show(title: str, before: dict[str, float], after: dict[str, float]) -> None:
    print(f"# {title}")
    for name, value in after.items():
        if value != before[name]:
            print(f"      {name}: {value:.4g}")


def main(folder: str, *jobs: str) -> None:
    """Run the jobs; `moe:GPU,GPU:LIBRARY:DTYPE` fits MoE constants."""
    data = DataFolder(Path(folder), split=True)
    for name in jobs:
        if name.startswith("moe:"):
            _, gpus, library, dtype = name.split(":")
            fit_moe(data, gpus.split(","), library, dtype)
        else:
            fit_job(data, JOBS[name])


if __name__ == "__main__":
    main(*sys.argv[1:])
