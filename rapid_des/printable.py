"""Shows text of files on terminals and in notebooks: nothing in it is obeyed, and its size is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_HIDDEN = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
_HIDDEN |= {
    code: f"\\u{code:04x}" for code in (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
"""What `html.escape` writes; the module `html` takes a millisecond to import at every start."""
_LONGEST_CELL, _MOST_CELLS, _MOST_ROWS = 200, 64, 100
_LONGEST_TEXT = 1 << 16


def printable(text: str) -> str:
    r"""Return text for a terminal: control characters that a file brought in are spelled, not obeyed.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return text.translate(_HIDDEN)


def html_text(text: str, tag: str = "p") -> str:
    """Return text as an HTML element of up to 65,536 characters before they are escaped.

    >>> html_text("a<b")
    '<p>a&lt;b</p>'
    """
    return f"<{tag}>{_escaped(text, _LONGEST_TEXT)}</{tag}>"


def html_table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return an HTML table of up to 100 rows of 64 cells of 200 characters.

    >>> html_table([("1", "<i>")], head=("tp", "name"))
    '<table><thead><tr><th>tp</th><th>name</th></tr></thead><tbody><tr><td>1</td><td>&lt;i&gt;</td></tr></tbody></table>'
    """
    every = list(rows)
    body = "".join(_row(row, "td") for row in every[:_MOST_ROWS])
    if len(every) > _MOST_ROWS:
        body += _row((f"… and {len(every) - _MOST_ROWS:,} more rows",), "td")
    above = f"<thead>{_row(head, 'th')}</thead>" if head else ""
    return f"<table>{above}<tbody>{body}</tbody></table>"


def _row(cells: Sequence[str], tag: str) -> str:
    shown = [*cells[:_MOST_CELLS], "…"] if len(cells) > _MOST_CELLS else cells
    return f"<tr>{''.join(f'<{tag}>{_escaped(cell, _LONGEST_CELL)}</{tag}>' for cell in shown)}</tr>"


def _escaped(text: str, most: int) -> str:
    return printable(text if len(text) <= most else f"{text[:most]}…").translate(_MARKUP)
