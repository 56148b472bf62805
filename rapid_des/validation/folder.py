"""The folder of measurements: files by their relative name, plain or gzipped, absent ones remembered."""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass, field
from pathlib import Path

from rapid_des.errors import InputError

Record = dict[str, str]

CHECKOUT_DATA = Path(__file__).parents[2] / "validation" / "data"


@dataclass(frozen=True)
class DataFolder:
    """Measured files below `path`; `split` is False where every row counts as test (`--data`)."""

    path: Path
    split: bool
    absent: list[str] = field(default_factory=list)
    """Names that were asked for and are not there, in order of asking."""

    def find(self, name: str) -> Path | None:
        """Return the file `name` or its `.gz` form; None, and remembered as absent, if neither exists."""
        for candidate in (self.path / name, self.path / f"{name}.gz"):
            if candidate.is_file():
                return candidate
        if name not in self.absent:
            self.absent.append(name)
        return None

    def read(self, name: str) -> list[Record]:
        """Return the rows of a CSV file as text by column; [] when the file is absent."""
        path = self.find(name)
        if path is None:
            return []
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return list(csv.DictReader(io.StringIO(raw.decode("utf-8"), newline="")))


def open_folder(data: Path | None) -> DataFolder:
    """Return the folder that `--data` names, else the checkout's own; an installed wheel has none."""
    if data is not None:
        if not data.is_dir():
            raise InputError(f"--data: {data} is no folder")
        return DataFolder(data, split=False)
    if not CHECKOUT_DATA.is_dir():
        raise InputError(
            "the measured data ships with a checkout, not with the wheel; name it with --data DIR"
        )
    return DataFolder(CHECKOUT_DATA, split=True)
