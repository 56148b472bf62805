"""MoE topics: the fused gated feed-forward of one rank's experts, `operators/moe/GPU/DTYPE`.

Predicted as what the fused kernels contain: permutation, grouped GEMM of gate and up, SwiGLU, grouped GEMM
down, weighted un-permutation. `tokens` are those of the whole expert-parallel group; a skewed routing is
measured on the hottest rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import cast

import numpy as np

from rapid_des.device import Device, GroupedGemm
from rapid_des.device.gemm_grouped import gated_ffn_us
from rapid_des.device.operators import Dtype
from rapid_des.device.roofline import price_grouped_gemm
from rapid_des.validation.folder import DataFolder, Record
from rapid_des.validation.hardware import DTYPES, PRESETS, device_for
from rapid_des.validation.null import fit_roofline, roofline
from rapid_des.validation.routing import balanced, hottest_rank, power_law
from rapid_des.validation.scoring import Row, Topic, is_calibration

SORTED_EXPERTS = {"vllm-0.14.0"}
"""Benchmarks of this age gave the first rank the most popular experts, by the times of few tokens."""


def topics(data: DataFolder) -> Iterable[Topic]:
    """Yield one topic a GPU and dtype."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for row in data.read("operators/moe_aiconfigurator.csv"):
        groups.setdefault((row["gpu"], row["dtype"]), []).append(row)
    for (gpu, dtype), rows in groups.items():
        yield Topic(f"operators/moe/{gpu}/{dtype}", partial(score_rows, rows, data.split))


def expert_rows(row: Record) -> tuple[int, ...]:
    """Return the rows of each local expert of the measured rank."""
    tokens, topk, experts, ranks = (int(row[key]) for key in ("tokens", "topk", "n_experts", "moe_ep"))
    if row["routing"] == "balanced":
        return hottest_rank(balanced(tokens * topk, experts), ranks)
    exponent = float(row["routing"].removeprefix("power_law_"))
    in_blocks = row["framework"] in SORTED_EXPERTS
    return hottest_rank(power_law(tokens, topk, experts, exponent), ranks, sorted_experts=in_blocks)


def kernels_of(row: Record) -> tuple[str, Dtype]:
    """Return the library (with its MoE backend where it has several) and the dtype of a row."""
    library = row["framework"].split("-")[0]
    backend = {"deepgemm": "deepgemm", "moe_torch_flow_min_latency": "trtllm_min_latency"}.get(row["kernel"])
    return backend or library, cast(Dtype, DTYPES[row["dtype"]])


def moe_device(row: Record) -> Device:
    """Return the device of a row under its conditions."""
    return device_for(row["gpu"], library=kernels_of(row)[0], launch="graph", l2="activations")


def products(row: Record) -> tuple[GroupedGemm, GroupedGemm]:
    """Return the gate-and-up and the down product of a row."""
    hidden, inter = int(row["hidden"]), int(row["inter"]) // int(row["moe_tp"])
    rows, dtype = expert_rows(row), kernels_of(row)[1]
    return GroupedGemm(rows, 2 * inter, hidden, dtype), GroupedGemm(rows, hidden, inter, dtype)


def score_rows(rows: Sequence[Record], split: bool) -> list[Row]:
    """Return the rows with predictions, priced together by device."""
    why = "" if rows[0]["gpu"] in PRESETS else f"no device file for {rows[0]['gpu']}"
    why = why or ("" if rows[0]["dtype"] in DTYPES else f"no dtype {rows[0]['dtype']}")
    if why:
        return [Row(row["case_id"], float(row["time_us"]), None, None, why) for row in rows]
    predicted: dict[int, float] = {}
    for group in _by_device(rows):
        times = gated_ffn_us([products(row) for row in group], moe_device(group[0]))
        predicted |= {id(row): float(time) for row, time in zip(group, times, strict=True)}
    nulls = _null(rows, split)
    return [
        Row(row["case_id"], float(row["time_us"]), predicted[id(row)], null)
        for row, null in zip(rows, nulls, strict=True)
    ]


def _by_device(rows: Sequence[Record]) -> list[list[Record]]:
    groups: dict[tuple[str, Dtype], list[Record]] = {}
    for row in rows:
        groups.setdefault(kernels_of(row), []).append(row)
    return list(groups.values())


def _null(rows: Sequence[Record], split: bool) -> list[float]:
    times = np.array([float(row["time_us"]) for row in rows])
    parts = [[price_grouped_gemm(gemm, moe_device(row)) for gemm in products(row)] for row in rows]
    flops = np.array([float(sum(part.flops for part in pair)) for pair in parts])
    moved = np.array([float(sum(part.bytes["hbm"] for part in pair)) for pair in parts])
    fitted = np.array([is_calibration(row["case_id"]) for row in rows])
    if not split or not fitted.any():
        fitted = np.ones(len(rows), dtype=bool)
    parameters = fit_roofline(flops[fitted], moved[fitted], times[fitted])
    return [float(time) for time in roofline(parameters, flops, moved)]
