"""What every link did, by the kind of traffic: for tables, CSV and pictures."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from rapid_des.network.fabric import Fabric
from rapid_des.replay.program import Program, Records
from rapid_des.units import seconds

COLUMNS = ("link", "source", "destination", "dimension", "kind", "bytes", "busy_s", "queue_s", "utilisation")


def link_rows(program: Program, records: Records, fabric: Fabric) -> Iterator[tuple[object, ...]]:
    """Yield one row a link and kind that carried something, in `COLUMNS` order.

    `busy_s` is time in service, `queue_s` the sum of all transfers' waits, `utilisation` busy over makespan.
    """
    makespan = max(records.makespan, 1)
    for link, label in zip(*records.link_bytes.nonzero(), strict=True):
        busy = int(records.link_busy[link, label])
        dimension = int(fabric.dimension[link])
        yield (
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


def write_links(path: Path, program: Program, records: Records, fabric: Fabric) -> None:
    """Write the rows as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(link_rows(program, records, fabric))
