"""The ns-3 goldens: messages on fixed paths over RoCE links, packet by packet, whole-nanosecond packet times.

The reference is the arrival of the last byte with acknowledgements first and windows of twice the
bandwidth-delay product (`relaxed_rx_ns`); collectives add their endpoint's delay once more at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rapid_des.errors import InputError
from rapid_des.network.fabric import UNSTATED, Fabric
from rapid_des.network.fluid_flows import Message
from rapid_des.network.protocol import Protocol
from rapid_des.units import PS_PER_NS, Bandwidth, Duration, Size
from rapid_des.validation.folder import DataFolder, Record
from rapid_des.validation.messages import Mode, Traffic, alone, makespan
from rapid_des.validation.scoring import Row, Topic

FOLDERS = ("ns3", "golden/ns3")
"""Where the set may stand in the folder of measurements."""
CLASSES = ("clean", "contended", "cc-dominated")
OTHER_MODES: tuple[Mode, ...] = ("cut_through", "cut_through_whole", "store_and_forward")


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/ns3/CLASS` in the fluid mode, and the other modes below `network/ns3-modes/`."""
    folder = next((name for name in FOLDERS if (data.path / name).is_dir()), FOLDERS[0])
    index = data.read(f"{folder}/index.csv")
    for kind in CLASSES:
        chosen = [record for record in index if record["class"] == kind]
        if chosen:
            yield _topic(f"network/ns3/{kind}", data, folder, chosen, "fluid")
            for mode in OTHER_MODES:
                yield _topic(f"network/ns3-modes/{mode}/{kind}", data, folder, chosen, mode)


def _topic(name: str, data: DataFolder, folder: str, chosen: Sequence[Record], mode: Mode) -> Topic:
    def rows() -> list[Row]:
        return [_row(data, folder, record, mode) for record in chosen]

    return Topic(name, rows)


def _row(data: DataFolder, folder: str, record: Record, mode: Mode) -> Row:
    traffic = read_traffic(data, f"{folder}/{record['case']}")
    measured = float(record["relaxed_rx_ns"]) / 1000
    if traffic is None:
        return Row(record["case"], measured, None, unsupported="topo.txt or messages.csv is not there")
    end = max(message.delay for message in traffic.messages)
    predicted = makespan(traffic, protocol(int(record["payload"])), mode) + end
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
    fabric = _fabric(folder, topology.read_text(encoding="utf-8"))
    place = {record["id"]: number for number, record in enumerate(records)}
    messages = tuple(_message(fabric, record, place) for record in records)
    return Traffic(fabric, messages, tuple(int(record["src"]) for record in records))


def _message(fabric: Fabric, record: Record, place: dict[str, int]) -> Message:
    path = [int(node) for node in record["path_nodes"].split("-")]
    return Message(
        size=int(record["bytes"]),
        route=tuple(fabric.link(*ends) for ends in zip(path, path[1:], strict=False)),
        back=tuple(fabric.link(*ends) for ends in zip(path[::-1], path[-2::-1], strict=False)),
        after_arrival=tuple(place[name] for name in record["deps"].split()),
        after_answer=tuple(place[name] for name in record["send_deps"].split()),
        delay=int(record["start_overhead_ns"]) * PS_PER_NS,
    )


def _fabric(name: str, text: str) -> Fabric:
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
