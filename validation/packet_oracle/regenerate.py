"""Run the packet oracle over its grid and store the answers.

    python -m validation.packet_oracle.regenerate [FABRIC ...]

writes the rows of these fabrics (all without any, which takes about half an hour) into
`validation/data/packet_oracle/grid.csv`; with `pauses` as FABRIC those of incasts with pauses, in
`pauses.csv` beside it, which takes two minutes; with `marks` those with rates that marks cut, in `marks.csv`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rapid_des.values import replace
from validation.network.marks import SIZE, STATED, mark_cases
from validation.network.marks import Case as MarkCase
from validation.network.packets import FABRICS, PROTOCOL, cases, traffic
from validation.network.pauses import Case, incast, pause_cases
from validation.packet_oracle.simulation import simulate_packets
from validation.packet_oracle.transport import Pause, Transport

GRID = Path(__file__).parents[1] / "data" / "packet_oracle" / "grid.csv"
PAUSES = GRID.with_name("pauses.csv")
PAUSE_COLUMNS = (
    "case_id",
    "fabric",
    "senders",
    "bytes",
    "stop_above",
    "windows",
    "victim_ps",
    "makespan_ps",
)
MARKS = GRID.with_name("marks.csv")
MARK_COLUMNS = ("case_id", "fabric", "senders", "constants", "stop_above", "victim_ps", "all_ps")
COLUMNS = ("case_id", "fabric", "pattern", "bytes", "gpus", "messages", "makespan_ps")
TRANSPORT = Transport(
    protocol=PROTOCOL,
    window_in_bdp=2.0,
    acknowledgements_first=True,
    flow_control=Pause(stop_above=1 << 22, go_at=(1 << 22) - (1 << 13)),
)
"""As the ns-3 goldens' relaxed profile: two bandwidth-delay products, pause at 4 MiB behind a link."""


def answer(fabric: str, pattern: str, size: int) -> dict[str, object]:
    """Return one case's row."""
    flows = traffic(fabric, pattern, size)
    times = simulate_packets(TRANSPORT, flows.links, flows.messages)
    cells = (f"{fabric}/{pattern}/{size}", fabric, pattern, size, flows.fabric.gpus, len(flows.messages))
    return dict(zip(COLUMNS, (*cells, int(times.arrival.max())), strict=True))


def pause_answer(case: Case) -> dict[str, object]:
    """Return the row of an incast with pauses."""
    fabric, senders, size, threshold, windows = case
    flows = incast(fabric, senders, size)
    transport = replace(
        TRANSPORT,
        window_in_bdp=TRANSPORT.window_in_bdp if windows else None,
        flow_control=Pause(stop_above=threshold, go_at=threshold // 2),
    )
    arrival = simulate_packets(transport, flows.links, flows.messages).arrival
    name = f"{fabric}/{senders}/{size}/{threshold}/{2 * windows}"
    cells = (name, fabric, senders, size, threshold, int(windows), int(arrival[-1]), int(arrival.max()))
    return dict(zip(PAUSE_COLUMNS, cells, strict=True))


def mark_answer(case: MarkCase) -> dict[str, object]:
    """Return the row of an incast with rates that marks cut."""
    fabric, senders, constants, threshold = case
    flows = incast(fabric, senders, SIZE)
    transport = replace(
        TRANSPORT,
        window_in_bdp=None,
        flow_control=Pause(stop_above=threshold, go_at=threshold // 2) if threshold else None,
        rate_control=STATED[constants].whole(),
    )
    arrival = simulate_packets(transport, flows.links, flows.messages).arrival
    name = f"{fabric}/{senders}/{constants}/{threshold}"
    cells = (name, fabric, senders, constants, threshold, int(arrival[-1]), int(arrival.max()))
    return dict(zip(MARK_COLUMNS, cells, strict=True))


def write(path: Path, columns: Sequence[str], rows: Iterable[dict[str, object]]) -> None:
    """Store answers."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(fabrics: Sequence[str]) -> None:
    """Replace the rows of these fabrics in the stored grid."""
    if list(fabrics) == ["pauses"]:
        write(PAUSES, PAUSE_COLUMNS, map(pause_answer, pause_cases()))
        return
    if list(fabrics) == ["marks"]:
        write(MARKS, MARK_COLUMNS, map(mark_answer, mark_cases()))
        return
    rows = list(csv.DictReader(GRID.open(encoding="utf-8"))) if GRID.exists() else []
    stored = {name: [row for row in rows if row["fabric"] == name] for name in FABRICS}
    for name in fabrics or FABRICS:
        stored[name] = [answer(name, pattern, size) for pattern, size in cases(name)]
        print(name, len(stored[name]), "cases", flush=True)
        GRID.parent.mkdir(parents=True, exist_ok=True)
        with GRID.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(row for kept in stored.values() for row in kept)


if __name__ == "__main__":
    main(sys.argv[1:])
