"""Tables in CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from rapid_des.config.documents import read_text
from rapid_des.errors import InputError


def read_rows(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file, each by the names in its first line; `InputError` for a missing column.

    A cell that a line lacks is None, and cells beyond the first line's are below the key None.
    """
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    try:
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{path}: not valid CSV: {error}") from None
    if missing:
        raise InputError(f"{path}: no column {missing[0]!r}; needed: {', '.join(needed)}")
    if not rows:
        raise InputError(f"{path}: no rows in it")
    return rows
