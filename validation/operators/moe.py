"""MoE topics: the fused gated feed-forward of one rank's experts, `operators/moe/GPU/DTYPE`.

Predicted as what the fused kernels contain: permutation, grouped GEMM of gate and up, SwiGLU, grouped GEMM
down, weighted un-permutation. `tokens` are those of the whole expert-parallel group; a skewed routing is
measured on the hottest rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import cast

import numpy as np

from rapid_des.arrays import Floats
from rapid_des.device.device import Device
from rapid_des.device.gemm import grouped_model, grouped_work
from rapid_des.device.operators import Dtype, GroupedGemm
from rapid_des.device.pricing import roofline_grouped_gemm
from rapid_des.units import PS_PER_US
from validation.measurements import (
    DTYPES,
    PRESETS,
    DataFolder,
    Record,
    UnsupportedRow,
    device_for,
    engine_of,
)
from validation.scoring import Row, Topic, roofline_null

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
    tokens, topk, experts, ranks = (row.count(key) for key in ("tokens", "topk", "n_experts", "moe_ep"))
    if row["routing"] == "balanced":
        return hottest_rank(balanced(tokens * topk, experts), ranks)
    exponent = _power(row["routing"])
    in_blocks = row["framework"] in SORTED_EXPERTS
    return hottest_rank(power_law(tokens, topk, experts, exponent), ranks, sorted_experts=in_blocks)


def _power(routing: str) -> float:
    try:
        exponent = float(routing.removeprefix("power_law_"))
    except ValueError:
        exponent = math.nan
    if not 1 < exponent < math.inf:
        raise UnsupportedRow(f"no routing {routing!r}; there are balanced and power_law_EXPONENT above 1")
    return exponent


def kernels_of(row: Record) -> tuple[str, Dtype]:
    """Return the library (with its MoE backend where it has several) and the dtype of a row."""
    library = engine_of(row["framework"])
    backend = {"deepgemm": "deepgemm", "moe_torch_flow_min_latency": "trtllm_min_latency"}.get(row["kernel"])
    return backend or library, cast(Dtype, DTYPES[row["dtype"]])


def moe_device(row: Record) -> Device:
    """Return the device of a row under its conditions."""
    return device_for(row["gpu"], library=kernels_of(row)[0], launch="graph", l2="activations")


def products(row: Record) -> tuple[GroupedGemm, GroupedGemm]:
    """Return the gate-and-up and the down product of a row."""
    hidden, inter = row.count("hidden"), row.count("inter") // row.count("moe_tp")
    rows, dtype = expert_rows(row), kernels_of(row)[1]
    return GroupedGemm(rows, 2 * inter, hidden, dtype), GroupedGemm(rows, hidden, inter, dtype)


def score_rows(rows: Sequence[Record], split: bool) -> list[Row]:
    """Return the rows with predictions, priced together by device."""
    why = "" if rows[0]["gpu"] in PRESETS else f"no device file for {rows[0]['gpu']}"
    why = why or ("" if rows[0]["dtype"] in DTYPES else f"no dtype {rows[0]['dtype']}")
    reasons = [why or _reason(row) for row in rows]
    known = [row for row, reason in zip(rows, reasons, strict=True) if not reason]
    unknown = [
        Row(row["case_id"], row.time("time_us"), None, None, reason)
        for row, reason in zip(rows, reasons, strict=True)
        if reason
    ]
    return (_known_rows(known, split) if known else []) + unknown


def _reason(row: Record) -> str:
    """Return why a row cannot be predicted; empty where it can."""
    try:
        products(row)
    except UnsupportedRow as why:
        return str(why)
    return ""


def _known_rows(rows: Sequence[Record], split: bool) -> list[Row]:
    predicted: dict[int, float] = {}
    for group in _by_device(rows):
        times = gated_ffn_us([products(rows[place]) for place in group], moe_device(rows[group[0]]))
        predicted |= {place: float(time) for place, time in zip(group, times, strict=True)}
    nulls = _null(rows, split)
    return [
        Row(row["case_id"], row.time("time_us"), predicted[place], null)
        for place, (row, null) in enumerate(zip(rows, nulls, strict=True))
    ]


def _by_device(rows: Sequence[Record]) -> list[list[int]]:
    groups: dict[tuple[str, Dtype], list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(kernels_of(row), []).append(place)
    return list(groups.values())


def _null(rows: Sequence[Record], split: bool) -> list[float]:
    parts = [[roofline_grouped_gemm(gemm, moe_device(row)) for gemm in products(row)] for row in rows]
    basis = [
        (float(sum(part.flops for part in pair)), float(sum(part.bytes["hbm"] for part in pair)))
        for pair in parts
    ]
    return roofline_null(basis, [(row["case_id"], row.time("time_us")) for row in rows], split=split)


def balanced(pairs: int, experts: int) -> tuple[int, ...]:
    """Return the rows of each expert when `pairs` (token, expert) pairs are dealt out in turn.

    >>> balanced(10, 4)
    (3, 3, 2, 2)
    """
    each, more = divmod(pairs, experts)
    return tuple(each + (index < more) for index in range(experts))


def power_law(tokens: int, topk: int, experts: int, exponent: float) -> tuple[int, ...]:
    """Return the rows of each expert, most first, for popularities drawn from a bounded power law.

    Popularity runs from 1 to 0.8 tokens with density x**-exponent; instead of a random draw each expert takes
    its quantile. No expert gets more than every token once.

    >>> sum(power_law(64, 8, 16, 1.2))
    512
    """
    quantile = (np.arange(experts) + 0.5) / experts
    top, power = max(2.0, 0.8 * tokens), 1.0 - exponent
    popularity = ((top**power - 1.0) * quantile + 1.0) ** (1.0 / power)
    exact = np.sort(popularity)[::-1] / popularity.sum() * tokens * topk
    rows = np.minimum(np.floor(exact), tokens).astype(int)
    left = tokens * topk - int(rows.sum())
    for index in np.argsort(rows - exact, kind="stable"):
        added = min(max(left, 0), 1, tokens - int(rows[index]))
        rows[index] += added
        left -= added
    return _spread(rows.tolist(), left, tokens)


def _spread(rows: list[int], left: int, tokens: int) -> tuple[int, ...]:
    for index in range(len(rows)):
        added = min(left, tokens - rows[index])
        rows[index] += added
        left -= added
    return tuple(rows)


def hottest_rank(rows: tuple[int, ...], ranks: int, *, sorted_experts: bool = False) -> tuple[int, ...]:
    """Return the experts of the rank with the busiest one, most first.

    Experts are dealt to ranks in turn, or in blocks where the benchmark left them `sorted_experts`.

    >>> hottest_rank((9, 5, 2, 1), 2), hottest_rank((9, 5, 2, 1), 2, sorted_experts=True)
    ((9, 2), (9, 5))
    """
    return rows[: len(rows) // ranks] if sorted_experts else rows[::ranks]


def gated_ffn_us(
    pairs: Sequence[tuple[GroupedGemm, GroupedGemm]],
    device: Device,
    changes: Mapping[str, float] | None = None,
) -> Floats:
    """Return the microseconds of fused gated feed-forwards: route, gate and up, SwiGLU, down, combine.

    Each pair is the gate-and-up and the down product of one rank. `changes` replaces constants (calibration).
    """
    changes = changes or {}
    first = pairs[0][0]
    model = grouped_model(device, first.dtype, {k: v for k, v in changes.items() if k not in MOE_NAMES})
    moe = {**device.constants("moe", first.dtype), **{k: v for k, v in changes.items() if k in MOE_NAMES}}
    up, down = (grouped_work([pair[index] for pair in pairs], model.tiles) for index in (0, 1))
    gathered = up.rows * up.k * 2 * 2 + up.rows * up.n * 1.5 * 2 + down.rows * down.n * 2 * 2
    moving = 1e6 * gathered[:, 0] / (model.rates.hbm * moe["move"])
    products: Floats = model.price(up).kernel_us + model.price(down).kernel_us
    routing = moe["route_us"] + moe["row_ns"] / 1000 * up.rows[:, 0]
    return products + moving + routing + device.launch_overhead / PS_PER_US


MOE_NAMES = ("route_us", "row_ns", "move")
"""The constants of section `moe`: the fixed time of the routing, permutation and combination kernels (µs),
their time for a row (ns), and the share of the HBM bandwidth at which they move the activations.
"""
