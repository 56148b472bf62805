"""What every link did, by the kind of traffic: for tables, CSV and pictures."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from rapid_des.network.fabric import Fabric
from rapid_des.program.program import Program, Records
from rapid_des.report.writing import replacing, require_extra
from rapid_des.units import seconds


@dataclass(frozen=True)
class LinkRow:
    """What one directed link carried of one kind of traffic."""

    link: str
    source: int
    destination: int
    dimension: str
    kind: str
    bytes: int
    busy_s: float
    """Time in service."""
    queue_s: float
    """The sum of all transfers' waits."""
    utilisation: float
    """Busy time over the makespan."""


COLUMNS = tuple(field.name for field in fields(LinkRow))


def link_rows(program: Program, records: Records, fabric: Fabric) -> Iterator[LinkRow]:
    """Yield one row a link and kind that carried something."""
    makespan = max(records.makespan, 1)
    for link, label in zip(*records.link_bytes.nonzero(), strict=True):
        busy = int(records.link_busy[link, label])
        dimension = int(fabric.dimension[link])
        yield LinkRow(
            fabric.link_name(int(link)),
            int(fabric.source[link]),
            int(fabric.destination[link]),
            fabric.dimensions[dimension] if 0 <= dimension < len(fabric.dimensions) else "",
            program.labels[label],
            int(records.link_bytes[link, label]),
            seconds(busy),
            seconds(int(records.link_wait[link, label])),
            busy / makespan,
        )


def utilisation(records: Records) -> dict[int, float]:
    """Return the share of the makespan that each link was busy, for links that were."""
    busy = records.link_busy.sum(axis=1) / max(records.makespan, 1)
    return {int(link): float(busy[link]) for link in busy.nonzero()[0]}


def write_links(path: Path, program: Program, records: Records, fabric: Fabric) -> None:
    """Write the rows as Parquet if the path ends in .parquet (needs the extra `parquet`), else as CSV."""
    if path.suffix == ".parquet":
        with replacing(path) as beside:
            _write_parquet(beside, list(map(astuple, link_rows(program, records, fabric))))
        return
    with replacing(path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(map(astuple, link_rows(program, records, fabric)))


def _write_parquet(path: Path, rows: list[tuple[object, ...]]) -> None:
    require_extra("pyarrow", "parquet", "Parquet")
    import pyarrow
    from pyarrow import parquet

    kinds = ("string", "int32", "int32", "string", "string", "int64", "float64", "float64", "float64")
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    arrays = [
        pyarrow.array(column, getattr(pyarrow, kind)()) for column, kind in zip(columns, kinds, strict=True)
    ]
    parquet.write_table(pyarrow.Table.from_arrays(arrays, names=COLUMNS), path)
