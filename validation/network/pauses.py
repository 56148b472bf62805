"""What nodes that stop links cost those that go elsewhere: an incast, and a message that shares its links.

Some GPUs from the second on send to the last GPU, and the first GPU to the last but one: a victim, which
waits as long as links that it shares are stopped (priority flow control). The reference is our packet oracle
with pauses above a threshold that end at half of it, with windows and without. A case is named
`fabric/senders/size/threshold/window`, in bytes and bandwidth-delay products (0: none).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from rapid_des.network.congestion import Pause, Unheld, Window
from rapid_des.network.specs import Switching
from rapid_des.units import Size
from validation.measurements import DataFolder, Record
from validation.network.messages import (
    BANDWIDTH_DELAY_PRODUCTS,
    PARTS,
    Message,
    Traffic,
    alone,
    arrivals,
)
from validation.network.packets import PROTOCOL, router
from validation.scoring import Row, Topic

ANSWERS = "packet_oracle/pauses.csv"
FABRICS = ("fat_tree16", "fat_tree32_3to1")
SENDERS = (3, 7, 11)
SIZES = (1 << 20, 1 << 22)
THRESHOLDS = (1 << 18, 1 << 20)
FINE = 48
"""Parts that are smaller than the thresholds."""
_SCORED = {"stated": (PARTS, True), "fine": (FINE, True), "unstated": (PARTS, False)}
"""Topic to parts of a message, and whether the pauses are stated."""

Case = tuple[str, int, int, int, bool]
"""Fabric, senders of the incast, bytes of each message, threshold, whether there are windows."""


def pause_cases() -> Iterator[Case]:
    """Yield every case."""
    yield from product(FABRICS, SENDERS, SIZES, THRESHOLDS, (False, True))


def incast(fabric: str, senders: int, size: int) -> Traffic:
    """Return the messages of an incast, the victim's last."""
    chosen = router(fabric)
    last = chosen.fabric.gpus - 1
    ends = [*((sender, last) for sender in range(1, senders + 1)), (0, last - 1)]
    messages = (Message(size, chosen.route(*pair), chosen.route(*pair[::-1])) for pair in ends)
    return Traffic(chosen.fabric, tuple(messages), tuple(source for source, _ in ends))


def pause_topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/packet-oracle/pause/stated|fine|unstated`, the victim's arrivals."""
    records = data.read(ANSWERS)
    for name in _SCORED if records else ():
        yield _topic(name, records)


def _topic(name: str, records: list[Record]) -> Topic:
    return Topic(f"network/packet-oracle/pause/{name}", lambda: [_row(record, name) for record in records])


def _row(record: Record, name: str) -> Row:
    parts, stated = _SCORED[name]
    threshold = record.count("stop_above")
    flows = incast(record["fabric"], record.count("senders"), record.count("bytes"))
    pause = Pause(stop_above=Size(threshold), go_at=Size(threshold // 2)) if stated else None
    held: Unheld | Window = Unheld(pause=pause)
    if record.count("windows", least=0):
        held = Window(bandwidth_delay_products=BANDWIDTH_DELAY_PRODUCTS, pause=pause)
    switching = Switching(mode="cut_through", protocol=PROTOCOL, parts=parts, congestion=held)
    predicted = int(arrivals(flows, PROTOCOL, switching)[-1])
    victim = Traffic(flows.fabric, flows.messages[-1:], flows.sources[-1:])
    return Row(record["case_id"], record.time("victim_ps") / 1e6, predicted / 1e6, null=alone(victim) / 1e6)
