"""What rates that marks cut make of an incast, and of a message that shares its links (DCQCN).

The traffic is that of `pauses`; the reference our packet oracle, which draws every packet's mark and whose
timers are events. A case is named `fabric/senders/constants/threshold`, the threshold of pauses in bytes
(0: none); each is scored on when all messages have arrived, and on when the victim's has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from types import MappingProxyType

from rapid_des.network.congestion import Dcqcn, Pause, Unheld
from rapid_des.network.specs import Switching
from rapid_des.units import Size
from validation.measurements import DataFolder, Record
from validation.network.messages import PARTS, Traffic, alone, arrivals
from validation.network.packets import PROTOCOL
from validation.network.pauses import FINE, incast
from validation.scoring import Row, Topic

ANSWERS = "packet_oracle/marks.csv"
FABRIC = "fat_tree16"
SENDERS = (3, 7)
SIZE = 1 << 22
THRESHOLDS = (0, 1 << 20)
STATED: Mapping[str, Dcqcn] = MappingProxyType(
    {
        "zhu_2015": Dcqcn(preset="zhu_2015"),
        "zhu_2015_at_400g": Dcqcn(
            preset="zhu_2015", kmin=Size.parse("100 KB"), kmax=Size.parse("400 KB"), pmax=0.2
        ),
    }
)
"""The paper's constants, which are for 40 Gb/s, and with thresholds for links of 400."""
_PACKETS = SIZE // int(PROTOCOL.payload)
_SCORED = {
    "packets": (_PACKETS, True),
    "fine": (FINE, True),
    "parts": (PARTS, True),
    "unstated": (_PACKETS, False),
}
"""Topic to parts of a message, and whether rates are stated."""

Case = tuple[str, int, str, int]
"""Fabric, senders of the incast, constants, threshold of pauses."""


def mark_cases() -> Iterator[Case]:
    """Yield every case."""
    yield from product((FABRIC,), SENDERS, STATED, THRESHOLDS)


def mark_topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/packet-oracle/dcqcn/packets|fine|parts|unstated`."""
    records = data.read(ANSWERS)
    for name in _SCORED if records else ():
        yield _topic(name, records)


def _topic(name: str, records: list[Record]) -> Topic:
    topic = f"network/packet-oracle/dcqcn/{name}"
    return Topic(topic, lambda: [row for record in records for row in _rows(record, name)])


def _rows(record: Record, name: str) -> Iterator[Row]:
    parts, stated = _SCORED[name]
    flows = incast(record["fabric"], record.count("senders"), SIZE)
    threshold = record.count("stop_above", least=0)
    held = Unheld(
        dcqcn=STATED[record["constants"]] if stated else None,
        pause=Pause(stop_above=Size(threshold), go_at=Size(threshold // 2)) if threshold else None,
    )
    switching = Switching(mode="cut_through", protocol=PROTOCOL, parts=parts, congestion=held)
    times = arrivals(flows, PROTOCOL, switching)
    victim = Traffic(flows.fabric, flows.messages[-1:], flows.sources[-1:])
    for what, predicted, of in (("all", times.max(), flows), ("victim", times[-1], victim)):
        measured = record.time(f"{what}_ps") / 1e6
        yield Row(f"{record['case_id']}/{what}", measured, int(predicted) / 1e6, null=alone(of) / 1e6)
