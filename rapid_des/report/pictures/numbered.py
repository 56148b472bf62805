"""Dots with numbers that cover nothing, and the list of what the numbers are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

LABEL, DOT = (9.0, 8.0), (7.0, 7.0)
"""Width and height in points of a number and of a dot."""


def number_dots(figure: Any, axes: Any, places: Sequence[tuple[float, float]]) -> None:
    """Write each dot's number at the nearest free place, with a line to the dot if that is not beside it."""
    figure.canvas.draw()
    scale = 72 / figure.dpi
    dots = axes.transData.transform(np.array(places).reshape(-1, 2)) * scale  # in points
    taken = [(x, y, *DOT) for x, y in dots]
    texts = [text.get_window_extent() for text in axes.texts]
    taken += [
        tuple(scale * side for side in ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2, box.width, box.height))
        for box in texts
    ]
    for number, ((x, y), place) in enumerate(zip(dots, places, strict=True), start=1):
        dx, dy = next(
            (radius * np.cos(angle), radius * np.sin(angle))
            for radius in np.arange(9.0, 400.0, 3.0)
            for angle in np.linspace(-np.pi / 4, 2 * np.pi - np.pi / 4, 16, endpoint=False)
            if not any(
                overlaps((x + radius * np.cos(angle), y + radius * np.sin(angle), *LABEL), other)
                for other in taken
            )
        )
        taken.append((x + dx, y + dy, *LABEL))
        line = {"arrowstyle": "-", "linewidth": 0.5, "color": "0.4", "shrinkA": 0, "shrinkB": 2}
        axes.annotate(
            f"{number}", place, xytext=(dx, dy), textcoords="offset points", fontsize=7,
            ha="center", va="center", arrowprops=line if np.hypot(dx, dy) > 10 else None,
        )  # fmt: skip


def overlaps(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Return whether two boxes (middle x and y, width, height) overlap."""
    return all(abs(one[axis] - other[axis]) * 2 < one[axis + 2] + other[axis + 2] for axis in (0, 1))
