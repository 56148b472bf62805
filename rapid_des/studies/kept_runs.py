"""Replications of a run with failures in a folder: a second call plays only those that are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import msgspec

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import to_tree
from rapid_des.config.texts import parse_json
from rapid_des.errors import InputError
from rapid_des.runs.clock import Replication
from rapid_des.runs.goodput import RunRequest
from rapid_des.studies.points import machine_content, source_content
from rapid_des.studies.store import ResultStore
from rapid_des.units import seconds
from rapid_des.version import __version__

_COLUMNS = {
    "id": "int64",
    "goodput": "float64",
    "wall_s": "float64",
    "incidents": "int64",
    "replication": "string",
}


class KeptRuns:
    """The replications of one run in a folder, which is locked until it is closed."""

    def __init__(self, folder: Path, request: RunRequest, cache: BoundedCache) -> None:
        study = {
            "rapid_des": __version__,
            "source": source_content(),
            "job": to_tree(request.job.spec, "job"),
            "machine": machine_content(request.machine, cache),
            "reliability": to_tree(request.reliability.spec, "reliability"),
            "picoseconds": str(request.length.horizon),
            "steps": request.length.steps,
            "tokens": request.length.tokens,
            "mode": request.mode,
            "seed": request.seed,
        }
        self._store = ResultStore.create(folder, {"kind": "goodput", "study": study}, _COLUMNS)
        rows = self._store.table(["id", "replication"]).to_pylist()
        self.found = {row["id"]: _read(row["replication"], folder, row["id"]) for row in rows}
        """The replications by number."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._store.__exit__(*error)

    def keep(self, replication: Replication) -> None:
        """Keep a replication; it is written with others within some seconds."""
        wall = seconds(replication.wall)
        row = {
            "id": replication.number,
            "goodput": seconds(replication.times["steps"]) / wall,
            "wall_s": wall,
            "incidents": sum(replication.counts.values()),
            "replication": json.dumps(msgspec.to_builtins(replication)),
        }
        self._store.append(row)


def _read(text: str, folder: Path, number: int) -> Replication:
    """Return a replication that was kept; `InputError` for one that no run gives."""
    place = folder / f"replication {number}"
    try:
        found = msgspec.convert(parse_json(text, place), Replication)
    except msgspec.ValidationError as error:
        raise InputError(f"{place}: {error}; name another folder") from None
    if found.number != number or sum(found.times.values()) != found.wall:
        raise InputError(f"{place}: its times do not add up to its wall time; name another folder")
    return found
