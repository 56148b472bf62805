"""Our own packet oracle over a grid of fabrics, patterns and sizes, against each switching mode.

The answers are stored; `validation/packet_oracle/regenerate.py` computes them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from rapid_des.validation.folder import DataFolder, Record
from rapid_des.validation.grid import PROTOCOL, traffic
from rapid_des.validation.messages import Mode, alone, makespan
from rapid_des.validation.scoring import Row, Topic

GRID = "packet_oracle/grid.csv"
MODES: tuple[Mode, ...] = ("cut_through", "fluid", "cut_through_whole", "store_and_forward")
LARGE = 1 << 20


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/packet-oracle/MODE/large|small`, large from 1 MiB on."""
    records = data.read(GRID)
    for mode in MODES if records else ():
        for name, large in (("large", True), ("small", False)):
            chosen = [record for record in records if (int(record["bytes"]) >= LARGE) == large]
            yield _topic(f"network/packet-oracle/{mode}/{name}", chosen, mode)


def _topic(name: str, chosen: Sequence[Record], mode: Mode) -> Topic:
    return Topic(name, lambda: [_row(record, mode) for record in chosen])


def _row(record: Record, mode: Mode) -> Row:
    measured = int(record["makespan_ps"]) / 1e6
    answers = _answers(record["fabric"], record["pattern"], int(record["bytes"]))
    return Row(record["case_id"], measured, answers[mode], null=answers["alone"])


@cache
def _answers(fabric: str, pattern: str, size: int) -> dict[str, float]:
    """Return every mode's makespan and the null model's, in microseconds: the messages are made once."""
    flows = traffic(fabric, pattern, size)
    return {mode: makespan(flows, PROTOCOL, mode) / 1e6 for mode in MODES} | {"alone": alone(flows) / 1e6}
