"""Run the packet oracle over its grid and store the answers.

    python -m validation.packet_oracle.regenerate [FABRIC ...]

writes the rows of these fabrics (all without any, which takes about half an hour) into
`validation/data/packet_oracle/grid.csv`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from rapid_des.validation.network.packets import FABRICS, PROTOCOL, cases, traffic
from validation.packet_oracle.simulation import simulate_packets
from validation.packet_oracle.transport import Pause, Transport

GRID = Path(__file__).parents[1] / "data" / "packet_oracle" / "grid.csv"
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


def main(fabrics: Sequence[str]) -> None:
    """Replace the rows of these fabrics in the stored grid."""
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
