"""The figures of a result, each returned as a matplotlib figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapid_des.errors import InputError

if TYPE_CHECKING:
    from rapid_des.report.timeline import Extract


_STAGES = 8
"""Up to this many stages are all drawn; of more the first and the last ones, and the fullest."""


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


class Plotted:
    """The figures of a result; a path is optional, and the figure is written to it too."""

    def plot_breakdown(self: Any, path: str | Path | None = None, *, title: str = "") -> Any:
        """Return a figure of where the step's time goes, a bar a part; in every mode."""
        from rapid_des.report.charts.breakdown import breakdown_bars
        from rapid_des.report.pictures.charts import draw_charts

        return draw_charts([breakdown_bars(self.as_json())], _path(path), title=title or self.title)

    def plot_timeline(
        self: Any, path: str | Path | None = None, extract: Extract | None = None, *, title: str = ""
    ) -> Any:
        """Return a figure with a row for each stream of the critical rank, or of the ranks of `extract`."""
        from rapid_des.report.charts.timeline import timeline
        from rapid_des.report.pictures.charts import draw_charts
        from rapid_des.report.timeline import Extract

        chosen = extract or Extract(frozenset([self.critical_rank]))
        lanes = timeline(self._run("timeline"), chosen, self.stream_kinds or {})
        return draw_charts([lanes], _path(path), title=title or self.title)

    def plot_links(self: Any, path: str | Path | None = None) -> Any:
        """Return a figure of the fabric with the links' utilisation as colour."""
        from rapid_des.report.pictures.fabric import picture
        from rapid_des.report.pictures.overview import draw
        from rapid_des.report.rows import utilisation

        run = self._run("link table")
        return draw(picture(run.machine, utilisation(run.execution.records)), _path(path))

    def plot_schedule(self: Any, path: str | Path | None = None, *, title: str = "pipeline schedule") -> Any:
        """Return a figure of a training step's passes as they ran, stages as rows; in every mode."""
        from rapid_des.report.charts.schedule import schedule
        from rapid_des.report.pictures.charts import draw_charts

        run = self.run if self.blocks is None else self.blocks.run
        if run is None or self.trace is None:
            raise InputError("a schedule's picture is of a job: this is a foreign trace")
        return draw_charts([schedule(self.trace, run)], _path(path), title=title)

    def plot_memory(self: Any, path: str | Path | None = None, *, title: str = "memory") -> Any:
        """Return a figure of a training step's memory over its time, a panel a stage; in every mode."""
        from rapid_des.report.charts.memory import memory_plots
        from rapid_des.report.pictures.charts import draw_charts

        run = self.run if self.blocks is None else self.blocks.run
        if run is None or self.trace is None or self.figures is None:
            raise InputError("a picture of memory is of a job: this is a foreign trace")
        memory, capacity = self.figures.memory, self.figures.memory_capacity
        plots = memory_plots((self.trace, run), memory, capacity, _STAGES)
        return draw_charts(plots, _path(path), title=title)
