"""The first milliseconds of an incast under DCQCN: rule R14 against a packet model of its own.

Senders on 40 Gb/s links begin at the line's rate towards one receiver at one switch, whose queue marks. All
are cut again and again until the queue is gone, and recover in steps of 55 us: until then the port idles,
and the incast takes up to 2.8 times as long as the port needs. The model here is written from the paper
alone (Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015, Sections 3 and 5),
event by event, and has nothing of the simulator but what is compared: packets of 1 KB, a notice a flow
every 50 us at most, timers that expire one by one. A packet is marked by the queue that it leaves behind
(`leaving`), as rule R14 has it and as switches that mark on egress do (Zhu et al., ECN or Delay, CoNEXT
2016), or by that which it finds (`arriving`), as the first paper says: news is then as old as the queue is
long, and there are more cuts. The times in the place of measurements are the mean over `SEEDS` draws of
marks; a case is `senders/bytes`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from random import Random
from statistics import fmean

import numpy as np

from rapid_des.chakra.trace import NodeKind, RankTrace, TraceSet, node_table
from rapid_des.machine import load_machine
from rapid_des.simulation import replay
from validation.measurements import DataFolder
from validation.scoring import Row, Topic

SENDERS, SIZES = (2, 4, 8, 16), (1_000_000, 4_000_000)
SEEDS = range(4)
PACKET = 1_000
LINE = 5e9
"""Bytes a second: 40 Gb/s."""
LATENCY = 1e-6
"""Seconds of a link."""
KMIN, KMAX, PMAX = 5_000, 200_000, 0.01
GAIN, NOTICE, TIMER, COUNTER, FAST = 1 / 256, 50e-6, 55e-6, 10_000_000, 5
ADDITIVE, HYPER, LEAST = 5e6, 25e6, 12.5e6
"""Bytes a second: 40 and 200 Mb/s a step, no less than 100 Mb/s."""


@dataclass
class Sender:
    """The reaction point of a flow."""

    left: int
    rate: float = LINE
    target: float = LINE
    alpha: float = 1.0
    limited: bool = False
    cuts: int = 0
    by_time: int = 0
    by_bytes: int = 0
    sent: int = 0
    noticed: float = -1.0
    """When the receiver last sent a notice."""


@dataclass
class Incast:
    """Events in order of time; one queue at the switch."""

    senders: list[Sender]
    random: Random
    on_leaving: bool
    now: float = 0.0
    queued: int = 0
    free: float = 0.0
    """When the port to the receiver is."""
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    order: Iterator[int] = field(default_factory=count)

    def after(self, wait: float, action: Callable[[], None]) -> None:
        """Have something happen."""
        heapq.heappush(self.events, (self.now + wait, next(self.order), action))

    def run(self) -> float:
        """Return the seconds until the last packet has arrived."""
        last = 0.0
        for sender in self.senders:
            self.after(0.0, lambda sender=sender: self.send(sender))  # type: ignore[misc]
        while self.events and (self.queued or any(sender.left for sender in self.senders) or not last):
            self.now, _, action = heapq.heappop(self.events)
            action()
            last = max(last, self.free + LATENCY)
        return last

    def send(self, sender: Sender) -> None:
        """Send a packet, and the next one a packet's time at the present rate later."""
        size = min(PACKET, sender.left)
        sender.left -= size
        self.after(size / LINE + LATENCY, lambda: self.arrive(sender, size))
        if sender.limited:
            sender.sent += size
            if sender.sent >= COUNTER:
                sender.sent -= COUNTER
                sender.by_bytes += 1
                self.rise(sender)
        if sender.left:
            self.after(size / sender.rate, lambda: self.send(sender))

    def arrive(self, sender: Sender, size: int) -> None:
        """Have a packet join the queue of the port; which marks it then, or as it leaves."""
        marked = not self.on_leaving and self.marks()
        self.queued += size
        self.free = max(self.free, self.now) + size / LINE

        def leave() -> None:
            self.queued -= size
            if marked or (self.on_leaving and self.marks()):
                self.after(LATENCY, lambda: self.notice(sender))

        self.after(self.free - self.now, leave)

    def marks(self) -> bool:
        """Tell whether a packet is marked by what is queued now."""
        share = (self.queued - KMIN) / (KMAX - KMIN)
        return share > 0 and (share >= 1 or self.random.random() < share * PMAX)

    def notice(self, sender: Sender) -> None:
        """Have the receiver see a mark: it tells the sender, unless it just did."""
        if sender.noticed < 0 or self.now - sender.noticed >= NOTICE:
            sender.noticed = self.now
            self.after(2 * LATENCY, lambda: self.cut(sender))

    def cut(self, sender: Sender) -> None:
        """Cut a rate; its timers begin again."""
        if not sender.limited:
            sender.alpha, sender.limited = 1.0, True
        sender.target = sender.rate
        sender.rate = max(LEAST, sender.rate * (1 - sender.alpha / 2))
        sender.alpha = (1 - GAIN) * sender.alpha + GAIN
        sender.by_time = sender.by_bytes = sender.sent = 0
        sender.cuts += 1
        self.every(sender, self.calm)
        self.every(sender, self.tick)

    def every(self, sender: Sender, action: Callable[[Sender], None]) -> None:
        """Have a timer expire again and again until the next cut, or until the flow is free."""
        cuts = sender.cuts

        def expire() -> None:
            if sender.cuts == cuts and sender.limited and sender.left:
                action(sender)
                self.after(TIMER, expire)

        self.after(TIMER, expire)

    def calm(self, sender: Sender) -> None:
        """Have alpha fall."""
        sender.alpha *= 1 - GAIN

    def tick(self, sender: Sender) -> None:
        """Count a period of the timer."""
        sender.by_time += 1
        self.rise(sender)

    def rise(self, sender: Sender) -> None:
        """Raise a rate: fast recovery, then additive, then hyper increase."""
        if min(sender.by_time, sender.by_bytes) > FAST:
            sender.target += HYPER
        elif max(sender.by_time, sender.by_bytes) > FAST:
            sender.target += ADDITIVE
        sender.target = min(sender.target, LINE)
        sender.rate = (sender.rate + sender.target) / 2
        if sender.rate >= LINE * (1 - 1e-6):
            sender.rate, sender.limited = LINE, False


def packet_model(senders: int, size: int, seed: int, *, on_leaving: bool) -> float:
    """Return the seconds until an incast has arrived, packet by packet."""
    return Incast([Sender(size) for _ in range(senders)], Random(seed), on_leaving).run()


def simulated(senders: int, size: int, seed: int) -> float:
    """Return the seconds that rule R14 has for it, in parts of a packet."""
    rates = {"preset": "zhu_2015", "seed": seed}
    switching = {
        "mode": "cut_through",
        "segment": f"{PACKET} B",
        "parts": size // PACKET,
        "congestion": {"control": "none", "dcqcn": rates},
    }
    switch = {"name": "switch", "shape": "switch", "size": senders + 1}
    machine = load_machine(
        {
            "name": "incast",
            "device": "a100_sxm_80gb",
            "fabric": [switch | {"bandwidth": "40 Gb/s", "latency": "1 us"}],
            "routing": {"order": "innermost_first", "tie": "positive"},
            "switching": switching,
        }
    )
    return float(replay(incast(senders, size), machine, engine="compiled").step_time) / 1e12


def incast(senders: int, size: int) -> TraceSet:
    """Return the trace in which all ranks but the first send it a message at once."""
    kinds = np.full(senders, NodeKind.RECV)
    streams = tuple(f"from {sender}" for sender in range(senders))
    receives = node_table(
        kinds, [size] * senders, peer=range(senders), stream=range(senders), streams=streams
    )
    send = node_table([NodeKind.SEND], [size], peer=[0], streams=("send",))
    others = tuple(range(1, senders + 1))
    ranks = [RankTrace(0, receives, peers=others), *(RankTrace(rank, send, peers=(0,)) for rank in others)]
    return TraceSet(tuple(ranks), {"world": (0, *others)})


def start_up_topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/dcqcn/start-up/leaving|arriving`; null is the port's rate."""
    del data
    for name, on_leaving in (("leaving", True), ("arriving", False)):
        rows = partial(_rows, on_leaving=on_leaving)
        yield Topic(f"network/dcqcn/start-up/{name}", rows, split=False)


def _rows(*, on_leaving: bool) -> list[Row]:
    return [_row(senders, size, on_leaving=on_leaving) for senders, size in product(SENDERS, SIZES)]


def _row(senders: int, size: int, *, on_leaving: bool) -> Row:
    measured = fmean(packet_model(senders, size, seed, on_leaving=on_leaving) for seed in SEEDS)
    predicted = fmean(simulated(senders, size, seed) for seed in SEEDS)
    ideal = senders * size / LINE
    return Row(f"{senders}/{size}", measured * 1e6, predicted * 1e6, null=ideal * 1e6)
