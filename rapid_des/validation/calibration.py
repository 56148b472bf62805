"""What a calibration is asked and answers, and the CSV rows it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rapid_des.errors import InputError
from rapid_des.validation.folder import DataFolder, Record
from rapid_des.validation.scoring import is_calibration


@dataclass(frozen=True)
class Wanted:
    """Which constants to fit, to which rows: those whose columns start with `where`'s values."""

    section: str = "gemm"
    scope: str = "default"
    where: Mapping[str, str] = field(default_factory=dict)
    names: Sequence[str] = ()
    """All of the section if empty."""


@dataclass(frozen=True)
class Calibration:
    """Fitted constants and the mean errors (percent, cases weighing the same) before and after, by split."""

    section: str
    scope: str
    constants: Mapping[str, float]
    errors: Mapping[str, tuple[float, float]]
    """`calibration` and, if it has rows, `test`: before, after."""

    def as_plain(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "section": self.section,
            "scope": self.scope,
            "constants": dict(self.constants),
            "mean_abs_pct": dict(self.errors),
        }

    def as_yaml(self) -> str:
        """Return the block for a device or family file."""
        lines = ["constants:", f"  {self.section}:", f"    {self.scope}:{'' if self.constants else ' {}'}"]
        lines += [f"      {name}: {value}" for name, value in self.constants.items()]
        for split, (before, after) in self.errors.items():
            lines.append(f"# {split}: mean absolute error {before:.2f} % before, {after:.2f} % after")
        return "\n".join(lines)


def read_rows(path: Path, columns: Sequence[str], where: Mapping[str, str]) -> list[Record]:
    """Return the rows of `path` whose columns start with `where`'s values; all of `columns` must be there."""
    folder = DataFolder(path.parent, split=True)
    rows = folder.read(path.name)
    if folder.absent:
        raise InputError(f"{path}: no such file")
    needed = [*columns, *where]
    missing = [column for column in needed if rows and column not in rows[0]]
    if missing or not rows:
        problem = f"no column {missing[0]!r}" if missing else "no rows"
        raise InputError(f"{path}: {problem}; needed: {', '.join(needed)}")
    short = next((index for index, row in enumerate(rows) if any(row[name] is None for name in needed)), None)
    if short is not None:
        raise InputError(f"{path}: row {short + 1} ends before its last column")
    return [row for row in rows if all(row[column].startswith(value) for column, value in where.items())]


def split_of(case_id: str) -> str:
    """Return the split's name as a calibration reports it."""
    return "calibration" if is_calibration(case_id) else "test"


def time_of(record: Record) -> float:
    """Return a row's microseconds; anything but a time above 0 is a `ValueError`."""
    time = float(record["time_us"])
    if not 0 < time < math.inf:
        raise ValueError(f"time_us: {record['time_us']} is no time above 0")
    return time


def no_calibration_row(path: Path, wanted: Wanted) -> InputError:
    """Return the error of a file without a row to fit."""
    chosen = dict(wanted.where) or "the file"
    return InputError(f"{path}: no row of the calibration split matches {chosen}")
