"""References packet by packet: the goldens of ns-3, and our own packet oracle over a grid.

ns-3: messages on fixed paths over RoCE links, whole-nanosecond packet times. The reference is the arrival of
the last byte with acknowledgements first and windows of twice the bandwidth-delay product (`relaxed_rx_ns`);
collectives add their endpoint's delay once more at the end.

The oracle's grid is fabrics × traffic patterns × sizes, as messages on routes. Every link has 400 Gb/s and
500 ns each way. A case is named `fabric/pattern/size`, the size in bytes. The answers are stored;
`validation/packet_oracle/regenerate.py` computes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from rapid_des.config import read_text
from rapid_des.errors import InputError
from rapid_des.network.build import build
from rapid_des.network.dimensions import (
    AnyDimension,
    Extent,
    FatTree,
    FullyConnected,
    Hypercube,
    KingMesh,
    Mesh,
    Rate,
    Ring,
    Switch,
    Torus,
)
from rapid_des.network.fabric import UNSTATED, Fabric
from rapid_des.network.protocol import Protocol
from rapid_des.network.routing import DimensionOrderRouter
from rapid_des.network.specs import Routing
from rapid_des.units import PS_PER_NS, Bandwidth, Duration, Size
from validation.measurements import DataFolder, Record
from validation.network.messages import Message, Mode, Traffic, alone, makespan
from validation.network.patterns import PATTERNS, Script
from validation.scoring import Row, Topic

NS3_FOLDERS = ("ns3", "golden/ns3")
"""Where the set may stand in the folder of measurements."""
NS3_CLASSES = ("clean", "contended", "cc-dominated")
NS3_OTHER_MODES: tuple[Mode, ...] = (
    "cut_through",
    "cut_through_turns",
    "cut_through_window",
    "cut_through_whole",
    "store_and_forward",
)


def ns3_topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/ns3/CLASS` in the fluid mode, and the other modes below `network/ns3-modes/`."""
    folder = next((name for name in NS3_FOLDERS if (data.path / name).is_dir()), NS3_FOLDERS[0])
    index = data.read(f"{folder}/index.csv")
    for kind in NS3_CLASSES:
        chosen = [record for record in index if record["class"] == kind]
        if chosen:
            yield _ns3_topic(f"network/ns3/{kind}", data, folder, chosen, "fluid")
            for mode in NS3_OTHER_MODES:
                yield _ns3_topic(f"network/ns3-modes/{mode}/{kind}", data, folder, chosen, mode)


def _ns3_topic(name: str, data: DataFolder, folder: str, chosen: Sequence[Record], mode: Mode) -> Topic:
    def rows() -> list[Row]:
        return [_ns3_row(data, folder, record, mode) for record in chosen]

    return Topic(name, rows)


def _ns3_row(data: DataFolder, folder: str, record: Record, mode: Mode) -> Row:
    traffic = read_traffic(data, f"{folder}/{record['case']}")
    measured = record.time("relaxed_rx_ns") / 1000
    if traffic is None:
        return Row(record["case"], measured, None, unsupported="topo.txt or messages.csv is not there")
    end = max(message.delay for message in traffic.messages)
    predicted = makespan(traffic, protocol(record.count("payload")), mode) + end
    return Row(record["case"], measured, predicted / 1e6, null=(alone(traffic) + end) / 1e6)


def protocol(payload: int) -> Protocol:
    """Return RoCE as ns-3 has it: 36 bytes of headers, an acknowledgement of 48 bytes for every packet."""
    return Protocol(
        payload=Size(payload),
        header=Size(36),
        acknowledgement=Size(48),
        packets_per_acknowledgement=1,
        packet_time="whole_ns",
    )


def read_traffic(data: DataFolder, folder: str) -> Traffic | None:
    """Return a case's fabric and messages, on the paths that ns-3 took; None if its files are not there.

    Acknowledgements take the same path back (ns-3 may choose another one of equal length).
    """
    topology = data.find(f"{folder}/topo.txt")
    records = data.read(f"{folder}/messages.csv")
    if topology is None or not records:
        return None
    fabric = _ns3_fabric(folder, read_text(topology))
    place = {record["id"]: number for number, record in enumerate(records)}
    messages = tuple(_message(fabric, record, place) for record in records)
    return Traffic(fabric, messages, tuple(record.count("src", least=0) for record in records))


def _message(fabric: Fabric, record: Record, place: dict[str, int]) -> Message:
    path = [int(node) for node in record["path_nodes"].split("-")]
    return Message(
        size=record.count("bytes"),
        route=tuple(fabric.link(*ends) for ends in zip(path, path[1:], strict=False)),
        back=tuple(fabric.link(*ends) for ends in zip(path[::-1], path[-2::-1], strict=False)),
        after_arrival=tuple(place[name] for name in record["deps"].split()),
        after_answer=tuple(place[name] for name in record["send_deps"].split()),
        delay=record.count("start_overhead_ns", least=0) * PS_PER_NS,
    )


def _ns3_fabric(name: str, text: str) -> Fabric:
    """Read ns-3's topology file: counts, the switches, then one full-duplex link a line."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    nodes, switches, links = (int(number) for number in lines[0])
    if len(lines) != links + 2:
        raise InputError(f"{name}/topo.txt: {len(lines) - 2} links, the first line says {links}")
    ends = np.array([[int(line[0]), int(line[1])] for line in lines[2:]], np.int32)
    rates = [[Bandwidth.parse(line[2]), Duration.parse(line[3])] for line in lines[2:]]
    bandwidth, latency = np.array(rates, np.int64).T
    return Fabric(
        name=name,
        extents=((nodes - switches,),),
        gpus=nodes - switches,
        nodes=nodes,
        source=np.concatenate((ends[:, 0], ends[:, 1])),
        destination=np.concatenate((ends[:, 1], ends[:, 0])),
        bandwidth=np.tile(bandwidth, 2),
        latency=np.tile(latency, 2),
        dimension=np.full(2 * links, UNSTATED, np.int16),
    )


_BANDWIDTH, _LATENCY = Bandwidth.parse("400 Gb/s"), Duration.parse("500 ns")
_UPLINK = Rate(bandwidth=_BANDWIDTH, latency=_LATENCY)


def _of(shape: Callable[..., AnyDimension], size: Extent, **more: Any) -> AnyDimension:
    return shape(name="fabric", bandwidth=_BANDWIDTH, latency=_LATENCY, size=size, **more)


FABRICS: Mapping[str, AnyDimension] = {
    "ring8": _of(Ring, 8),
    "ring16": _of(Ring, 16),
    "mesh4x4": _of(Mesh, (4, 4)),
    "mesh8x8": _of(Mesh, (8, 8)),
    "torus4x4": _of(Torus, (4, 4)),
    "torus8x8": _of(Torus, (8, 8)),
    "torus2x2x4": _of(Torus, (2, 2, 4)),
    "torus4x4x4": _of(Torus, (4, 4, 4)),
    "king4x4": _of(KingMesh, (4, 4)),
    "king8x8": _of(KingMesh, (8, 8)),
    "hypercube8": _of(Hypercube, 8),
    "hypercube32": _of(Hypercube, 32),
    "fully_connected8": _of(FullyConnected, 8),
    "switch8": _of(Switch, 8),
    "switch32": _of(Switch, 32),
    "fat_tree16": _of(FatTree, 16, levels=2, radix=8, oversubscription=1, uplink=_UPLINK),
    "fat_tree32_3to1": _of(FatTree, 32, levels=2, radix=8, oversubscription=3, uplink=_UPLINK),
}

PROTOCOL = Protocol(
    payload=Size.parse("4 KiB"),
    header=Size(36),
    acknowledgement=Size(48),
    packets_per_acknowledgement=1,
    packet_time="exact",
)
"""RoCE v2 with the largest MTU."""

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
MOST_BYTES = 1 << 27
"""Size times GPUs of the largest cases; those of 16 MiB are hours of packets on more GPUs."""
MANY_MESSAGES = ("all_reduce-bidirectional_ring", "all_reduce-direct", "all_to_all-ring", "all_to_all-direct")
"""Left out on 64 GPUs."""

_ROUTING = Routing(order="innermost_first", tie="positive")


@cache
def router(fabric: str) -> DimensionOrderRouter:
    """Return the router of one of the grid's fabrics."""
    return DimensionOrderRouter(build(fabric, [FABRICS[fabric]], _ROUTING))


def traffic(fabric: str, pattern: str, size: int) -> Traffic:
    """Return one case's messages; `size` is the pattern's, in bytes."""
    chosen = router(fabric)
    route, script = cache(chosen.route), Script(chosen.fabric.gpus)
    PATTERNS[pattern](script, size)
    messages = tuple(
        Message(
            size=sent.size,
            route=route(sent.source, sent.destination),
            back=route(sent.destination, sent.source),
            after_arrival=sent.after,
        )
        for sent in script.messages
    )
    return Traffic(chosen.fabric, messages, tuple(sent.source for sent in script.messages))


def cases(fabric: str) -> Iterator[tuple[str, int]]:
    """Yield the grid's (pattern, size) for a fabric: fewer sizes where there are more GPUs."""
    gpus = router(fabric).fabric.gpus
    sizes = [size for size in SIZES if size * gpus <= MOST_BYTES]
    for size in sizes if gpus < 64 else sizes[2:3]:
        for pattern in PATTERNS:
            if gpus < 64 or pattern not in MANY_MESSAGES:
                yield pattern, size


GRID = "packet_oracle/grid.csv"
GRID_MODES: tuple[Mode, ...] = (
    "cut_through",
    "cut_through_window",
    "fluid",
    "cut_through_whole",
    "store_and_forward",
)
LARGE = 1 << 20


def grid_topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/packet-oracle/MODE/large|small`, large from 1 MiB on."""
    records = data.read(GRID)
    for mode in GRID_MODES if records else ():
        for name, large in (("large", True), ("small", False)):
            chosen = [record for record in records if (record.count("bytes") >= LARGE) == large]
            yield _grid_topic(f"network/packet-oracle/{mode}/{name}", chosen, mode)


def _grid_topic(name: str, chosen: Sequence[Record], mode: Mode) -> Topic:
    return Topic(name, lambda: [_grid_row(record, mode) for record in chosen])


def _grid_row(record: Record, mode: Mode) -> Row:
    measured = record.time("makespan_ps") / 1e6
    answers = _answers(record["fabric"], record["pattern"], record.count("bytes"))
    return Row(record["case_id"], measured, answers[mode], null=answers["alone"])


@cache
def _answers(fabric: str, pattern: str, size: int) -> dict[str, float]:
    """Return every mode's makespan and the null model's, in microseconds: the messages are made once."""
    flows = traffic(fabric, pattern, size)
    return {mode: makespan(flows, PROTOCOL, mode) / 1e6 for mode in GRID_MODES} | {
        "alone": alone(flows) / 1e6
    }
