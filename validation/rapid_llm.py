"""RAPID-LLM's own validation (arXiv 2512.19606), on the same measurements.

    python -m validation.rapid_llm [6 | 7 | 8 | koyeb | h100 ...]

Of each figure: rows, our mean and worst error in percent, and what its authors print. Figure 9, whose numbers
they keep, has a command of its own (`validation.figure_9`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from validation import DataFolder, all_topics
from validation.measurements import CHECKOUT_DATA
from validation.scoring import Row


@dataclass(frozen=True)
class Figure:
    """One comparison of the paper, or of the tool's own scripts."""

    what: str
    topics: tuple[str, ...]
    theirs: str
    rows: str = ""
    """What the names of its cases begin with."""


FIGURES = {
    "6": Figure("Llama 2, inference, A100", ("inference/kundu/A100",), "at most 10.4, a factor fitted"),
    "7": Figure("GPT 22B to 1T, A100", ("training/korthikanti",), "at most 14"),
    "8": Figure("Llama 2 7B, DDP, A100 PCIe", ("training/uci",), "at most 5.5, six rows", rows="uci/ddp"),
    "koyeb": Figure("Llama 3.1 8B, A100", ("inference/koyeb",), "5.97 in the mean"),
    "h100": Figure("the same, H100", ("inference/kundu/H100",), "no figure"),
}
"""By the paper's figures. Times of its figure 7 are up to 9 % below those of the primary tables."""


def rows_of(figure: Figure) -> list[Row]:
    """Return the measured rows of a figure that are simulated, each in the reading that is nearest."""
    data = DataFolder(CHECKOUT_DATA, split=False)
    found = [topic for topic in all_topics(data, list(figure.topics)) if topic.name in figure.topics]
    nearest: dict[str, Row] = {}
    for row in (row for topic in found for row in topic.rows()):
        if row.predicted is None or not row.case_id.lower().startswith(figure.rows):
            continue
        other = nearest.get(row.case_id)
        if other is None or error_of(row) < error_of(other):
            nearest[row.case_id] = row
    return list(nearest.values())


def error_of(row: Row) -> float:
    """Return how far off a row is, in percent."""
    assert row.predicted is not None
    return 100 * abs(row.predicted / row.measured - 1)


def main(names: Sequence[str]) -> None:
    """Print a figure's summary, and a line for each of its rows."""
    for name in names or list(FIGURES):
        figure = FIGURES[name]
        rows = sorted(rows_of(figure), key=error_of, reverse=True)
        errors = [error_of(row) for row in rows]
        told = f"{len(rows)} rows, mean {fmean(errors):.1f}, worst {errors[0]:.1f} %"
        print(f"{name}: {figure.what}: {told}; theirs {figure.theirs}")
        for row, error in zip(rows, errors, strict=True):
            print(f"    {row.case_id:48} {row.measured:10.4g} {row.predicted:10.4g} {error:6.1f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
