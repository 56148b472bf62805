"""Tables of accuracy: figures by row, old lines kept, and the README's rows by the names of their columns."""

from msgspec import structs

from rapid_des.report.forecast import JobKind
from validation import fit_forecast, refresh_docs, refresh_jobs
from validation.fit_forecast import Measured
from validation.pages import ACCURACY, fill, part
from validation.refresh_jobs import SETS, columns_of, table
from validation.scoring import Row, Topic, score

ROWS = [
    Row("a", 1.0, 0.9, null=1.0, covered=True, forecast=1.0, alone=0.8),
    Row("a", 1.0, 0.7, null=1.0, covered=False, forecast=0.9, alone=0.6),
    Row("b", 1.0, 1.1, null=1.0, covered=True, forecast=1.2, alone=1.0),
    Row("c", 1.0, None, unsupported="the layout is not printed"),
]


def test_a_set_has_its_figures_by_row_and_a_set_not_run_keeps_its_line(monkeypatch):
    monkeypatch.setattr(refresh_jobs, "as_of", lambda: "2026-01-02 abc")
    report = {"topics": {"training/uci": score(Topic("training/uci", lambda: ROWS, unit="s"), split=False)}}
    known = {one.name: f"| {one.name} | kept |" for one in SETS[:2]}
    *lines, line = table(report, "training", known)
    assert lines[2:] == list(known.values())
    cells = dict(
        zip(["set", "rows", "not run", *columns_of("training"), "as of"], line.split(" | "), strict=True)
    )
    assert cells["rows"] == "3" and cells["not run"] == "1" and cells["as of"] == "2026-01-02 abc |"
    assert cells["mean"] == "16.7" and cells["bias"] == "-10.0" and cells["worst row"] == "30.0"
    assert cells["forecast"] == "10.0" and cells["in interval"] == "66.7" and cells["profile alone"] == "20.0"
    assert cells["null"] == "**0.0**"


def test_a_part_of_a_page_is_written_and_read(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- x: command -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    fill(page, "x", ["new \\1", "lines"])
    assert part(page, "x") == "new \\1\nlines\n"
    assert page.read_text(encoding="utf-8").endswith("<!-- end -->\nafter\n")


def test_the_readme_repeats_rows_of_the_pages_of_accuracy():
    lines = list(refresh_docs.short())
    assert f"{lines[0]}\n" in refresh_docs.README.read_text(encoding="utf-8")
    assert all(line.count("|") == 4 and "| None |" not in line for line in lines[:-2])
    assert lines[-1].startswith("As of 20") and "," not in lines[-1]  # all its rows are of one commit
    assert part(ACCURACY / "training.md", "ranking").startswith("| source | jobs |")


def test_sources_left_out_have_a_line_each_and_a_mean_in_which_each_weighs_the_same():
    kind = JobKind("A", "hopper", "bf16", False, {})
    found = [(Measured(source, "m", kind, error), 0.1, 0.05)
             for source, error in (("s", 0.1), ("s", 0.1), ("t", 0.3))]  # fmt: skip
    *_, first, second, by_row, by_source = fit_forecast.lines(
        found, structs.replace(fit_forecast.START, width=1.0)
    )
    assert first.startswith("| s, dense | 2 | 9.5 | -9.5 |") and "| 0.0 | +0.0 |" in first
    assert second.endswith("| 0 |") and by_row.startswith("| **all dense, by row** | 3 |")
    assert by_source.startswith("| **all dense, by source** | 3 | 17.7 | -17.7 |")
