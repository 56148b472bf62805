"""Report pages in a browser: nothing serious for axe, light, dark and as narrow as a phone."""

from typing import Any

from rapid_des.report.charts import (
    Bars,
    CellGrid,
    HorizontalBar,
    Lane,
    Lanes,
    PageSection,
    Parallel,
    ParallelLine,
    Plot,
    PlotAxis,
    Series,
    Span,
    TextFile,
    Tile,
    Tiles,
)
from rapid_des.report.page.document import page
from rapid_des.report.tables import Table, columns
from tests.browser import browser, violations  # noqa: F401
from tests.report.page.test_page import made, small

LEGEND = [("kernels", "compute"), ("messages", "tp")]


def every_kind():
    """A page with every kind of chart that studies have."""
    bar = HorizontalBar("tp 2", 3.0, "3 s", "before", [("compute", 2.0), ("tp", 1.0)], (2.5, 3.5))
    line = Series("limit", "", [(0.0, 1.0), (1.0, 1.0)], dashed=True, legend=False)
    dots = Series("dots", "hbm", [(0.5, 0.5)], "dots", titles=["a dot"])
    area = Series("held", "weights", [(0.0, 1.0), (1.0, 2.0)], "area", base=[0.0, 0.0])
    charts: list[Any] = [
        Tiles([Tile("A step takes", "1 s", "simulated")]),
        Bars("bars", [bar], 4.0, LEGEND),
        Plot("plot", PlotAxis("time, s"), PlotAxis("GiB"), [line, dots, area]),
        Parallel("all", [("tp", [(0.5, "1")]), ("step", [(0.0, "1 s")])], [ParallelLine([0.5, 0], "a", 4)]),
        CellGrid("pairs", ["pp 1", "pp 2"], [[4, None], [0, 2]], [["a", ""], ["b", "c"]], "tp",
                 ["far", "near"], ["1", "2"]),
        Lanes("lanes", 10**9, [Lane("rank 0", [Span(0, 10**8, "a kernel", "compute")])], LEGEND),
        Table("rows", columns(a="a", b="b"), [{"a": number, "b": "text"} for number in range(20)]),
        TextFile("a file", "key: value"),
    ]  # fmt: skip
    return page("every kind", [PageSection("Charts", charts)], {"a": 1})


PAGES = [(every_kind, ("light", "dark")), (lambda: made(*small("training", "analytical")), ("light",))]


def test_axe_finds_nothing_serious_and_nothing_is_wider_than_a_phone(browser, tmp_path):  # noqa: F811
    path = tmp_path / "page.html"
    for text, schemes in PAGES:
        path.write_text(text())
        browser.set_viewport_size({"width": 1200, "height": 800})
        browser.goto(path.as_uri())
        for scheme in schemes:
            browser.emulate_media(color_scheme=scheme)
            assert violations(browser) == []
        browser.set_viewport_size({"width": 375, "height": 800})
        assert browser.evaluate("document.documentElement.scrollWidth") <= 375
