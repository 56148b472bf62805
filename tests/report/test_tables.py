"""Reports as text and HTML: nothing is lost, on a terminal neither, and equal columns are stated once."""

from rapid_des.report.tables import Table, columns, html, text

ROWS = [{"name": "n" * 50, "note": "o" * 30, "size": size, "tp": 8} for size in (7, 5)]
WIDE = Table("title", columns("name", "note", "size", "tp"), ROWS)


def test_reports_fit_a_terminal_and_lose_nothing():
    prose = "a note " + "of many words " * 12
    lines = list(text(["first", prose.strip(), WIDE], 40))
    assert all(len(line) <= 40 for line in lines)
    assert prose.strip() in " ".join(" ".join(lines).split())
    table = "".join(lines[lines.index("  title") + 1 :])
    assert (table.count("n"), table.count("o")) == (2 * 50 + 2, 2 * 30 + 1)  # with those of the headings


def test_elsewhere_lines_are_as_long_as_their_cells():
    assert list(text(["first", WIDE])) == [
        "first",
        "",
        "  title",
        f"    name{' ' * 46}  note{' ' * 26}  size  tp",
        f"    {'n' * 50}  {'o' * 30}     7   8",
        f"    {'n' * 50}  {'o' * 30}     5   8",
    ]


def test_columns_that_are_equal_in_all_rows_are_stated_once():
    table = Table("", columns("size", "tp"), ROWS, shared=True)
    assert list(text([table])) == ["in all rows: tp 8", "size", "   7", "   5"]
    assert html([table]).count("tp") == 1


def test_html_of_many_parts_is_bounded():
    assert len(html([f"<{'y' * 9_000}"] * 1_000)) < 1 << 21
