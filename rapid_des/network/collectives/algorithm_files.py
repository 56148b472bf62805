"""Algorithms from files, by the kind of file."""

from __future__ import annotations

from pathlib import Path

from rapid_des.errors import ConfigError
from rapid_des.network.collectives.msccl import load_msccl
from rapid_des.network.collectives.written import WrittenAlgorithm, load_written

READERS = {".xml": load_msccl, ".json": load_written, ".yaml": load_written, ".csv": load_written}


def load_algorithm(path: Path) -> WrittenAlgorithm:
    """Read, check and prove an algorithm: MSCCL's XML, or transfers as JSON, YAML or CSV."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(f"an algorithm's file ends in one of {', '.join(READERS)}", file=str(path))
    return reader(path)
