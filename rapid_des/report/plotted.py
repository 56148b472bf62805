"""The figures of a result, each returned as a matplotlib figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapid_des.errors import InputError
from rapid_des.units import seconds

if TYPE_CHECKING:
    from rapid_des.report.timeline import Extract


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


class Plotted:
    """The figures of a result; a path is optional, and the figure is written to it too."""

    def plot_breakdown(self: Any, path: str | Path | None = None, *, title: str = "") -> Any:
        """Return a figure of the step as a bar, stacked by where its time goes; in every mode."""
        from rapid_des.report.pictures.bars import StepBar, draw_bars

        parts = {part: seconds(time) for part, time in self.breakdown.items()}
        bar = StepBar(self.mode, seconds(self.step_time), parts)
        return draw_bars([bar], _path(path), title=title or self.title)

    def plot_timeline(
        self: Any, path: str | Path | None = None, extract: Extract | None = None, *, title: str = ""
    ) -> Any:
        """Return a figure with a row for each stream of the critical rank, or of the ranks of `extract`."""
        from rapid_des.report.pictures.timeline import draw_timeline
        from rapid_des.report.timeline import Extract

        chosen = extract or Extract(frozenset([self.critical_rank]))
        return draw_timeline(self._run("timeline"), chosen, _path(path), title=title or self.title)

    def plot_links(self: Any, path: str | Path | None = None) -> Any:
        """Return a figure of the fabric with the links' utilisation as colour."""
        from rapid_des.report.pictures.fabric import picture
        from rapid_des.report.pictures.overview import draw
        from rapid_des.report.rows import utilisation

        run = self._run("link table")
        return draw(picture(run.machine, utilisation(run.execution.records)), _path(path))

    def plot_schedule(self: Any, path: str | Path | None = None, *, title: str = "pipeline schedule") -> Any:
        """Return a figure of a training step's passes as they ran, stages as rows; in every mode."""
        from rapid_des.report.pictures.schedule import draw_schedule

        run = self.run if self.blocks is None else self.blocks.run
        if run is None or self.trace is None:
            raise InputError("a schedule's picture is of a job: this is a foreign trace")
        return draw_schedule(self.trace, run, _path(path), title=title)

    def plot_memory(self: Any, path: str | Path | None = None, *, title: str = "memory") -> Any:
        """Return a figure of a training step's memory over its time, a panel a stage; in every mode."""
        from rapid_des.report.pictures.memory import draw_memory

        run = self.run if self.blocks is None else self.blocks.run
        if run is None or self.trace is None or self.figures is None:
            raise InputError("a picture of memory is of a job: this is a foreign trace")
        figures = self.figures
        steps = self.trace, run
        return draw_memory(figures.memory, figures.memory_capacity, steps, _path(path), title=title)
