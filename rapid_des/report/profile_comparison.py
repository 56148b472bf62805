"""A profiled step beside the prediction of its job, part by part and class of kernels by class.

Both steps are cut alike: what computes, exposed communication, exposed copies, the host, and waiting. The
parts of each add up to its step, so that their differences add up to the difference of the steps. Below it
stand kernels by class, as sums over all streams: a class that only one side has is what the model lacks, or
what the run does besides. Matrix products whose shapes were recorded are matched one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from msgspec import Struct

from rapid_des.profiles import ProfileReport, profile_report
from rapid_des.profiles.breakdown import NS_PER_S, PARTS, UNKNOWN, RankReport
from rapid_des.profiles.products import product_sizes
from rapid_des.report.colours import BUBBLE, COMPUTE, HOST, IDLE
from rapid_des.report.result import Result
from rapid_des.report.rows import OperatorRow
from rapid_des.units import seconds

_PART_OF = {COMPUTE: "compute", HOST: "host", BUBBLE: "waiting", IDLE: "waiting", "offload": "exposed_copies"}
"""The part of a profiled step that a part of a predicted one is; all others are messages."""
_CLASS_OF = {
    "norm": "norm",
    "loss": "softmax",
    "optimizer": "optimizer",
    "gradient_norm": "optimizer",
    "embedding": "embedding",
    "dropout": "dropout",
}
"""The class of a vector kernel by a word of its operator's name; elementwise if it has none of these."""


class PartDifference(Struct, frozen=True):
    """A part of a step, or a class of kernels, on both sides; times in seconds."""

    name: str
    measured: float
    predicted: float
    counts: tuple[float, float] | None = None
    """How many kernels a step has, measured and predicted; None for parts."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        plain = {
            "measured_s": self.measured,
            "predicted_s": self.predicted,
            "difference_s": self.predicted - self.measured,
            "ratio": self.predicted / self.measured if self.measured else None,
        }
        counts = (
            {}
            if self.counts is None
            else dict(zip(("measured_count", "predicted_count"), self.counts, strict=True))
        )
        return plain | counts


class ProductDifference(Struct, frozen=True):
    """The matrix products of one size on both sides; times in seconds.

    A product and its two gradients have the same size, so that they stand in one row.
    """

    flops: int
    """The FLOPs of one of them."""
    operators: tuple[str, ...]
    """The predicted operators in the order of their passes; empty where the model has no such product."""
    difference: PartDifference

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"flops": self.flops, "operators": list(self.operators)} | self.difference.as_json()


class ProfileComparison(Struct, frozen=True):
    """A profiled step beside a predicted one."""

    parts: tuple[PartDifference, ...]
    """The parts of both steps; each side adds up to its step."""
    classes: tuple[PartDifference, ...]
    """The kernels of a step by class, those with most time on either side first."""
    products: tuple[ProductDifference, ...]
    """The matrix products of a step by size, likewise; empty where the profile has no shapes."""

    def as_json(self) -> dict[str, Any]:
        """Return what `profile compare --json` prints."""
        measured, predicted = (
            sum(getattr(part, side) for part in self.parts) for side in ("measured", "predicted")
        )
        return {
            "measured_s": measured,
            "predicted_s": predicted,
            "difference_s": predicted - measured,
            "parts": {part.name: part.as_json() for part in self.parts},
            "classes": {each.name: each.as_json() for each in self.classes},
            "products": [each.as_json() for each in self.products],
        }


def compare_with_profile(report: ProfileReport, result: Result) -> ProfileComparison:
    """Return the difference of the slowest profiled rank's mean step and a predicted step's critical rank."""
    slowest = report.ranks[0]
    predicted = defaultdict[str, float](float)
    for name, time in result.breakdown.items():
        predicted[_PART_OF.get(name, "exposed_communication")] += seconds(time)
    parts = tuple(PartDifference(part, slowest.parts[part] / NS_PER_S, predicted[part]) for part in PARTS)
    steps = len(slowest.steady)
    seen = defaultdict[str, list[float]](lambda: [0.0, 0.0])
    for each in profile_report([slowest.profile]).operators:
        seen[each.kind][0] += each.time / NS_PER_S / steps
        seen[each.kind][1] += each.count / steps
    priced = defaultdict[str, list[float]](lambda: [0.0, 0.0])
    for kind, length, count in _kernels(result):
        priced[kind][0] += length
        priced[kind][1] += count
    names = sorted({*seen, *priced}, key=lambda name: -max(seen[name][0], priced[name][0]))
    classes = (
        PartDifference(name, seen[name][0], priced[name][0], (seen[name][1], priced[name][1]))
        for name in names
    )
    return ProfileComparison(parts, tuple(classes), _products(slowest, result.operators()))


def _products(rank: RankReport, operators: Sequence[OperatorRow]) -> tuple[ProductDifference, ...]:
    """Return the products of a profiled rank beside those of a prediction, matched by their FLOPs."""
    measured = _measured_products(rank)
    if not measured:
        return ()
    predicted = defaultdict[int, list[OperatorRow]](list)
    for row in operators:
        if _class_of(row.operator, row.model) == "gemm" and row.flops % row.runs == 0:
            predicted[row.flops // row.runs].append(row)
    rows = []
    for flops in {*measured, *predicted}:
        count, time = measured.get(flops, (0.0, 0.0))
        alike = sorted(
            predicted[flops], key=lambda row: (not row.operator.startswith("forward"), row.operator)
        )
        runs, length = sum(row.runs for row in alike), sum(row.time_s for row in alike)
        difference = PartDifference(f"{flops:,} FLOPs", time, length, (count, runs))
        rows.append(ProductDifference(flops, tuple(row.operator for row in alike), difference))
    return tuple(
        sorted(rows, key=lambda row: (-max(row.difference.measured, row.difference.predicted), row.flops))
    )


def _measured_products(rank: RankReport) -> dict[int, tuple[float, float]]:
    """Return number and time in seconds of the products of a mean steady step, by the FLOPs of one."""
    events, steady = rank.profile.events, [rank.windows[number] for number in rank.steady]
    found = defaultdict[int, list[float]](list)
    for event, shapes in events.products.items():
        start, end = int(events.start[event]), int(events.end[event])
        sizes = product_sizes(shapes) if any(low <= start < high for low, high in steady) else None
        if sizes is not None and events.classes[events.name[event]] == "gemm":
            found[2 * prod(sizes)].append((end - start) / NS_PER_S)
    return {flops: (len(times) / len(steady), sum(times) / len(steady)) for flops, times in found.items()}


def _kernels(result: Result) -> Iterator[tuple[str, float, int]]:
    """Yield class, time in seconds and number of the kernels and messages of the critical rank."""
    for row in result.operators():
        yield _class_of(row.operator, row.model), row.time_s, row.runs
    for message in result.messages():
        yield "communication", message.finish_s - message.ready_s, 1


def _class_of(operator: str, model: str) -> str:
    """Return the class of a predicted kernel, as profiles name classes.

    >>> _class_of("forward.ffn.in", "gemm"), _class_of("backward.ffn.norm", "vector")
    ('gemm', 'norm')
    """
    if "attention" in model:
        return "attention"
    if "vector" not in model:
        return "gemm" if model else UNKNOWN
    return next((kind for word, kind in _CLASS_OF.items() if word in operator.split(".")), "elementwise")
