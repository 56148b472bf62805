"""Errors of measured servers behind the intervals of `serve`: `rapid_des/serving/residuals.json`.

    python -m validation.fit_served [DATA_FOLDER]

runs the silicon rows (`inference/silicon`; some hours of a core), writes nine quantiles of each calibration
case's errors, and prints for the test half how many measurements lie in the intervals that follow.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from rapid_des.report.evidence import FIRST_TOKEN, LEVEL, PER_TOKEN, quantiles
from rapid_des.serving import uncertainty
from validation import all_topics, is_calibration, open_folder

FILE = Path(uncertainty.__file__).with_name("residuals.json")
TOPIC = "inference/silicon/"
FIGURES = {"ttft": FIRST_TOKEN, "tpot": PER_TOKEN}
DEVICES = {
    "h100_sxm": "H100-SXM-80GB",
    "h200_sxm": "H200-SXM-141GB",
    "b200_sxm": "B200-SXM-180GB",
    "b300_sxm": "B300-SXM-270GB",
    "gb200": "GB200",
}
"""Names of device files by those of the rows."""
_QUANTILES, _DIGITS = 9, 4
Errors = Mapping[tuple[str, str], Sequence[float]]
"""ln(measured / predicted) of the configurations of a case under an engine."""


def errors_by_figure(data: Path | None) -> dict[str, Errors]:
    """Return the errors of all rows that are scored, by figure."""
    found = {figure: defaultdict[tuple[str, str], list[float]](list) for figure in FIGURES.values()}
    for topic in all_topics(open_folder(data)):
        *place, what = topic.name.split("/")
        if topic.name.startswith(TOPIC) and what in FIGURES:
            for row in topic.rows():
                if row.predicted:
                    error = math.log(row.measured / row.predicted)
                    found[FIGURES[what]][row.case_id, place[2]].append(error)
    return dict(found)


def tree(errors: Mapping[str, Errors]) -> dict[str, object]:
    """Return what the intervals read."""
    cases = {key for each in errors.values() for key in each if is_calibration(key[0])}
    return {
        "devices": sorted(DEVICES.values()),
        "cases": len(cases),
        "source": "vLLM, SGLang and TensorRT-LLM under closed loops",
        "errors": {
            figure: sorted(value for key, own in each.items() if key in cases for value in thinned(own))
            for figure, each in errors.items()
        },
    }


def thinned(errors: Sequence[float]) -> list[float]:
    """Return evenly placed quantiles."""
    found = np.quantile(errors, np.linspace(0.05, 0.95, _QUANTILES))
    return [round(float(value), _DIGITS) for value in found]


def coverage(errors: Mapping[str, Errors], written: Mapping[str, Any]) -> Iterable[str]:
    """Yield by figure how many of the test half's measurements the intervals hold."""
    for figure, each in errors.items():
        low, high = quantiles(written["errors"][figure])
        held = [
            [low <= one <= high for one in own] for key, own in each.items() if not is_calibration(key[0])
        ]
        rows, cases = fmean(one for own in held for one in own), fmean(fmean(own) for own in held)
        ends = f"{math.exp(low):.2f} to {math.exp(high):.2f} of the prediction"
        yield f"{figure}: {ends}; {rows:.0%} of {sum(map(len, held))} rows inside, {cases:.0%} a case"


def main() -> None:
    """Fit, write and judge."""
    errors = errors_by_figure(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    written = tree(errors)
    FILE.write_text(json.dumps(written, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{LEVEL:.0%} intervals, test half")
    print("\n".join(coverage(errors, written)))


if __name__ == "__main__":
    main()
