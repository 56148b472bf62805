"""A figure that a notebook shows as a page has it: with zoom, and with texts where it is pointed at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rapid_des.inputs import escaped
from rapid_des.report.charts import Chart, PageSection
from rapid_des.report.page.document import page

_DOTS_PER_INCH = 110


class ChartFigure(Figure):
    """A matplotlib figure of charts that knows what it shows."""

    def __init__(self, title: str, charts: Sequence[Chart], **options: Any) -> None:
        super().__init__(**options)
        FigureCanvasAgg(self)
        self.title, self.charts = title, tuple(charts)

    def _repr_html_(self) -> str:
        """Return the charts as a page in a frame of its own, which can load nothing and reach nothing."""
        text = escaped(page(self.title, [PageSection("Charts", self.charts)], None))
        height = round(_DOTS_PER_INCH * self.get_figheight()) + 160
        look = f'sandbox="allow-scripts" style="width:100%;height:{height}px;border:0"'
        return f'<iframe {look} title="{escaped(self.title)}" srcdoc="{text}"></iframe>'
