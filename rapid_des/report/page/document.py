"""The page: sections, tables, style and script in one file that loads nothing.

A policy in the file itself forbids every other script and every request, so that a name in a job that looked
like markup could neither run nor load anything, even if it were not escaped.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from rapid_des import __version__
from rapid_des.inputs import escaped, html_text
from rapid_des.report.charts import (
    Bars,
    CellGrid,
    Chart,
    Diagram,
    Lanes,
    PageSection,
    Parallel,
    Plot,
    TextFile,
    Tiles,
)
from rapid_des.report.colours import BUSY, COLOURS, OTHERS
from rapid_des.report.page.diagram_svg import diagram_svg, grid_svg, parallel_svg
from rapid_des.report.page.lanes import lanes_html
from rapid_des.report.page.svg import bars_html, plot_svg, property_of, script_json, tiles_html
from rapid_des.report.tables import Column, Part, Plain, Table, split_shared

_FILTERED = 12
"""Tables with more rows than this have a field for a filter."""
_MOST_ROWS = 2000


def page(title: str, sections: Sequence[PageSection], plain: object, *, command: str = "") -> str:
    """Return the HTML file of a report; `plain` is what `--json` prints, which the page can save, or None.

    >>> text = page("<i>", [PageSection("Groups", ["one"])], {"a": 1})
    >>> "<h1>&lt;i&gt;</h1>" in text, "<i>" in text
    (True, False)
    """
    script = fabric_script() + _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    kept = [section for section in sections if section.parts]
    links = "".join(f'<li><a href="#{_anchor(each.title)}">{escaped(each.title)}</a></li>' for each in kept)
    body = sections_html(kept)
    made = f"rapid-des {__version__}" + (f": <code>{escaped(command)}</code>" if command else "")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escaped(title)}</title><style>{style()}</style></head><body>"
        f'<a class="skip" href="#main">Skip to the report</a><header><h1>{escaped(title)}</h1></header>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav><main id="main">{body}</main>'
        f"<footer><p>{made}</p>{'' if plain is None else _saving(plain)}</footer>"
        f"<script>{script}</script></body></html>\n"
    )


def _saving(plain: object) -> str:
    return (
        '<button type="button" id="save" hidden>Save the numbers as JSON</button>'
        f'<script type="application/json" id="plain">{script_json(plain)}</script>'
    )


def fabric_script() -> str:
    """Return the script by which fabrics change their colours and open boxes."""
    return _asset("fabric.js")


def style() -> str:
    """Return the style of a page with the colours of categories."""
    return _colours() + _asset("page.css")


def sections_html(sections: Sequence[PageSection]) -> str:
    """Return sections as HTML, without a page around them."""
    return "".join(_sections([section for section in sections if section.parts]))


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _colours() -> str:
    """Return the colours of categories and of utilisation as custom properties."""
    known = {f"c-{property_of(name)}": value for name, value in COLOURS.items()}
    known |= {f"c-other-{number}": value for number, value in enumerate(OTHERS)}
    known |= {f"u-{level}": value for level, value in enumerate(BUSY)}
    return f":root{{{''.join(f'--{name}:{value};' for name, value in known.items())}}}"


def _anchor(title: str) -> str:
    """Return the identifier of a section.

    >>> _anchor("Where the time goes")
    'where-the-time-goes'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _sections(sections: Sequence[PageSection]) -> Iterator[str]:
    for section in sections:
        name = _anchor(section.title)
        lead = html_text(section.lead) if section.lead else ""
        parts = "".join(map(_part, section.parts))
        yield (
            f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">'
            f"{escaped(section.title)}</h2>{lead}{parts}</section>"
        )


def _part(part: Part | Chart | TextFile) -> str:
    return _RENDERERS.get(type(part), _facts)(part)


def _file(file: TextFile) -> str:
    text = escaped(file.text)
    return f'<details><summary>{escaped(file.title)}</summary><pre tabindex="0">{text}</pre></details>'


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escaped(label.strip())}</th><td>{escaped(value)}</td></tr>'
        for label, value in facts.items()
    )
    return f'<table class="facts"><tbody>{rows}</tbody></table>' if rows else ""


def _table(table: Table) -> str:
    """Return a table whose columns sort, with a filter if it is long."""
    if not table.rows:
        return ""
    shared, kept = split_shared(table)
    heads = "".join(_head(column) for column in kept)
    rows = "".join(_row(row, kept) for row in table.rows[:_MOST_ROWS])
    left = len(table.rows) - _MOST_ROWS
    more = html_text(f"{left:,} more rows are in the JSON output alone.") if left > 0 else ""
    long, tall = (' data-filter=""', " tall") if len(table.rows) > _FILTERED else ("", "")
    label = escaped(f"table: {table.title}")
    return (
        f'{html_text(shared) if shared else ""}<div class="scroll{tall}" tabindex="0" role="region" '
        f'aria-label="{label}"><table class="rows"{long}><caption>{escaped(table.title)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{more}"
    )


def _head(column: Column) -> str:
    return f'<th scope="col">{escaped(column.heading)}</th>' if column.heading else "<td></td>"


def _row(row: Plain, columns: Sequence[Column]) -> str:
    return f"<tr>{''.join(_cell(row, column) for column in columns)}</tr>"


def _cell(row: Plain, column: Column) -> str:
    """Return a cell with the number by which it sorts, if it has one."""
    value = row.get(column.key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    order = f' class="n" data-v="{value!r}"' if number else ""
    return f"<td{order}>{escaped(column.cell(row))}</td>"


def _text(text: str) -> str:
    return html_text(text.strip())


_RENDERERS: Mapping[type, Callable[[Any], str]] = {
    str: _text,
    Table: _table,
    Tiles: tiles_html,
    Bars: bars_html,
    Plot: plot_svg,
    Parallel: parallel_svg,
    Diagram: diagram_svg,
    CellGrid: grid_svg,
    Lanes: lanes_html,
    TextFile: _file,
}
