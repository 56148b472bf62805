"""Generated parts of pages: what stands between `<!-- NAME: COMMAND -->` and `<!-- end -->`."""

from __future__ import annotations

import datetime
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
ACCURACY = ROOT / "docs" / "accuracy"
NOTES = ROOT / "validation" / "README.md"


def part(page: Path, name: str) -> str:
    """Return what stands in a part of a page."""
    found = _pattern(name).search(page.read_text(encoding="utf-8"))
    assert found is not None, f"{page} has no part {name}"
    return found[2]


def fill(page: Path, name: str, lines: Iterable[str]) -> None:
    """Write the lines of a part of a page."""
    content = "".join(f"{line}\n" for line in lines)
    text = page.read_text(encoding="utf-8")
    page.write_text(_pattern(name).sub(lambda there: there[1] + content + there[3], text), encoding="utf-8")


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name}:[^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)


@cache
def as_of() -> str:
    """Return today's date and the commit that is checked out."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return f"{datetime.datetime.now(tz=datetime.UTC).date()} {commit}"
