"""How far a server's mean times may be off: the errors of measured servers.

Of the calibration half's cases (a model on a GPU under an engine, closed loops) each brings as many quantiles
of ln(measured / predicted) over its configurations, so that none outvotes others; an interval is made of
their quantiles, as of jobs' errors (`report.evidence`). `validation/fit_served.py` wrote `residuals.json`.
An engine alone has too few cases for intervals of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Any

from rapid_des.report.evidence import FIRST_TOKEN, PER_TOKEN, Interval, quantiles
from rapid_des.units import Duration


def intervals(means: Mapping[str, float], device: str) -> dict[str, Interval]:
    """Return where the measured means of a served workload are expected, by figure; none of other devices."""
    known = residuals()
    if device not in known["devices"]:
        return {}
    intervals = {}
    for figure, mean in means.items():
        errors = known["errors"][figure]
        places = (*quantiles(errors), median(errors))
        low, high, middle = (Duration(round(mean * math.exp(error))) for error in places)
        intervals[figure] = Interval(
            Duration(round(mean)), low, high, known["cases"], known["source"], middle
        )
    return intervals


def forecasts(expected: Mapping[str, Interval]) -> dict[str, dict[str, float] | None]:
    """Return where measured means are expected as plain data, in seconds; None without evidence."""
    figures = {"ttft": FIRST_TOKEN, "tpot": PER_TOKEN}
    return {
        name: expected[figure].forecast() if figure in expected else None for name, figure in figures.items()
    }


@cache
def residuals() -> Mapping[str, Any]:
    """Return the fitted residuals."""
    tree: Mapping[str, Any] = json.loads(files(__package__).joinpath("residuals.json").read_text("utf-8"))
    return tree
