"""A profiled step beside the prediction of its job, part by part and class of kernels by class.

Both steps are cut alike: what computes, exposed communication, exposed copies, the host, and waiting. The
parts of each add up to its step, so that their differences add up to the difference of the steps. Below it
stand kernels by class, as sums over all streams: a class that only one side has is what the model lacks, or
what the run does besides. Then kernels are matched with operators one by one (`kernel_matching`). What these
rows add, less what the kernels that run at once add, is the difference of the parts that compute.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.profiles import Profile, ProfileReport, profile_report
from rapid_des.profiles.breakdown import NS_PER_S, PARTS, UNKNOWN, RankReport, layer_of
from rapid_des.profiles.products import product_sizes
from rapid_des.report.colours import BUBBLE, COMPUTE, HOST, IDLE
from rapid_des.report.kernel_matching import PRODUCT, Kernel, Pair, matched
from rapid_des.report.result import Result
from rapid_des.units import seconds

_PART_OF = {COMPUTE: "compute", HOST: "host", BUBBLE: "waiting", IDLE: "waiting", "offload": "exposed_copies"}
"""The part of a profiled step that a part of a predicted one is; all others are messages."""
_CLASS_OF = {
    "norm": "norm",
    "q_norm": "norm",
    "k_norm": "norm",
    "loss": "softmax",
    "optimizer": "optimizer",
    "gradient_norm": "optimizer",
    "embedding": "embedding",
    "dropout": "dropout",
    "cache": "attention",
}
"""The class of a vector kernel by a word of its operator's name; elementwise if it has none of these."""

_GRADIENT = re.compile(r"\.(?:input|weight)_gradient\Z")


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


class OperatorDifference(Struct, frozen=True):
    """Kernels of a step that do the same on both sides, of all layers; times in seconds.

    A product's two gradients have the same size, so that they stand in one row.
    """

    operators: tuple[str, ...]
    """The predicted operators; empty where the model has none."""
    classes: tuple[str, ...]
    """The classes of the measured kernels; empty where the run has none."""
    difference: PartDifference

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        names = {"operators": list(self.operators), "classes": list(self.classes)}
        return names | self.difference.as_json()


class ProfileComparison(Struct, frozen=True):
    """A profiled step beside a predicted one."""

    parts: tuple[PartDifference, ...]
    """The parts of both steps; each side adds up to its step."""
    classes: tuple[PartDifference, ...]
    """The kernels of a step by class, those with most time on either side first."""
    operators: tuple[OperatorDifference, ...]
    """Kernels of a step that compute, matched one by one, likewise."""
    at_once: PartDifference
    """What kernels take beyond the time in which any of them runs, since several run at once."""
    shaped: bool
    """Whether the profile has shapes of products, by which they are matched."""

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
            "operators": [each.as_json() for each in self.operators],
            "at_once": self.at_once.as_json(),
            "products_have_shapes": self.shaped,
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
    operators = _operators(slowest, result)
    sums = (sum(getattr(row.difference, side) for row in operators) for side in ("measured", "predicted"))
    at_once = (
        total - getattr(parts[0], side) for total, side in zip(sums, ("measured", "predicted"), strict=True)
    )
    shaped = bool(slowest.profile.events.products)
    return ProfileComparison(parts, tuple(classes), operators, PartDifference("at once", *at_once), shaped)


def _operators(rank: RankReport, result: Result) -> tuple[OperatorDifference, ...]:
    """Return the kernels of a profiled rank's mean step matched with the operators of a prediction."""
    predicted = [
        Kernel(row.operator, _class_of(row.operator, row.model), row.time_s, row.flops)
        for row in result.operators(runs=True)
    ]
    steps, sums = len(rank.steady), defaultdict[_Key, list[float]](lambda: [0.0] * 4)
    for number in rank.steady:
        for pair in matched(_measured(rank.profile, *rank.windows[number]), predicted):
            sides = [sum(each.length for each in side) for side in pair]
            counts = [len(side) for side in pair]
            row = sums[_key(pair)]
            row[:] = (known + new / steps for known, new in zip(row, [*sides, *counts], strict=True))
    rows = (
        OperatorDifference(*key, PartDifference(", ".join(key[0]), measured, length, (count, runs)))
        for key, (measured, length, count, runs) in sums.items()
    )
    return tuple(sorted(rows, key=lambda row: -max(row.difference.measured, row.difference.predicted)))


_Key = tuple[tuple[str, ...], tuple[str, ...]]


def _key(pair: Pair) -> _Key:
    """Return the names of a pair's operators, gradients as one, and the classes of its kernels."""
    names = (_GRADIENT.sub("", each.name) for each in pair.predicted)
    return tuple(dict.fromkeys(names)), tuple(dict.fromkeys(each.kind for each in pair.measured))


def _measured(profile: Profile, begin: int, end: int) -> list[Kernel]:
    """Return the kernels that compute in a step of a profile, by their start."""
    events, found = profile.events, list[Kernel]()
    for event in np.flatnonzero((events.start >= begin) & (events.start < end)).tolist():
        name, kind = (texts[events.name[event]] for texts in (events.names, events.classes))
        if layer_of(kind) == 0:
            sizes = product_sizes(events.products.get(event, "")) if kind == PRODUCT else None
            length = int(events.end[event] - events.start[event]) / NS_PER_S
            found.append(Kernel(name, kind or UNKNOWN, length, 2 * prod(sizes) if sizes else 0))
    return found


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
