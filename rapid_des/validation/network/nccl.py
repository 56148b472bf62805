"""NCCL: in a node, on 10 nodes with NDR, on AWS p5, on Alps, ASTRA-sim's digitised rings, and shaped links.

Constants of a fabric come from its file under `topologies/fabrics`, fitted on calibration cases only
(`validation/fit_collectives.py`). Sizes in the files are those of nccl-tests.

Shaped links are a testbed of nodes with one GPU whose links tc limits in rate and delays. Only the link's
stated rate and delay are inputs there. What is on the wire beside the payload is the framing of jumbo packets
(8,949 of 9,015 bytes are payload: 0.74 %); every message starts with one exchange of credit, so that a
collective pays a round trip at its start and one at its end, and a chain pays chunk and delay per hop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import msgspec

from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives.libraries.nccl import nccl_time, send_time
from rapid_des.network.collectives.libraries.nccl_fabric import load_fabric
from rapid_des.units import PS_PER_US
from rapid_des.validation.measurements import DataFolder, Record, UnsupportedRow
from rapid_des.validation.network import Measured, grouped
from rapid_des.validation.scoring import Topic

C = CollectiveType
KINDS: Mapping[str, CollectiveType] = {
    "all_reduce": C.ALL_REDUCE,
    "all_gather": C.ALL_GATHER,
    "reduce_scatter": C.REDUCE_SCATTER,
    "alltoall": C.ALL_TO_ALL,
}
SENDS = ("sendrecv", "send_recv")
"""Rings of sends to the next rank."""
FABRICS: Mapping[str, str] = {
    "A100": "a100_nvswitch",
    "A100-SXM4-80GB": "a100_nvswitch",
    "A100-SXM4-80GB (Azure ND v4)": "a100_nvswitch",
    "H100": "h100_nvswitch",
    "H100-SXM-80GB": "h100_nvswitch",
    "H100-SXM-80GB (Azure ND v5)": "h100_ndr",
    "H200-SXM-141GB": "h100_nvswitch",
    "B200-SXM": "nvlink5",
    "B300-SXM": "nvlink5",
    "GB200-NVL72": "nvlink5",
    "GB300-NVL72": "nvlink5",
    "GB200 (Azure ND v6, 4 GPU VM)": "nvlink5",
    "L40S": "l40s_pcie",
    "RTX-PRO-6000": "rtx_pro_6000_pcie",
    "Intel-Arc-B60": "arc_b60_pcie",
}
MIB = 2**20
NCCL_FLOOR_US = 3.0

FRAMING = 9015 / 8949
"""TCP over jumbo frames: 9,001 bytes of MTU plus 14 of Ethernet for 8,949 of payload."""
RING_OVERHEAD = 0.005
"""Flags and requests that NCCL's ring adds to its payload on sockets."""
CHAIN_OVERHEAD = 0.105
"""Stalls of a chain: a node's socket threads send what they have just received."""
CHAIN_CHUNK = 2**20
"""Bytes that a node of a chain has received before it sends them on (NCCL's default on sockets)."""
_SHAPED_NAMES = {"allreduce": "all_reduce", "send_recv": "p2p", "broadcast": "broadcast", "reduce": "reduce"}


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield the NCCL topics."""
    yield from grouped(_in_node(data), floor=_floor, constants=_constants)
    yield from grouped(_ndr(data), floor=_floor, constants=_constants)
    yield from grouped(_aws(data), constants=_constants)
    yield from grouped(_alps(data), constants=_constants)
    yield from grouped(_digitised(data), constants=_constants)


def _floor(topic: str) -> float:
    return NCCL_FLOOR_US if topic.endswith("/small") else 0.0


def _constants(topic: str) -> Mapping[str, object]:
    part = topic.split("/")
    name = {"ndr": "h100_ndr", "aws-p5": "h100_efa", "alps": "gh200_slingshot"}.get(part[1])
    if part[1] == "nccl":
        name = FABRICS.get(part[2])
    if name is None:
        return {}
    return {f"topologies/fabrics/{name}.yaml": msgspec.to_builtins(load_fabric(name), enc_hook=str)}


def microseconds(fabric: str, op: str, size: int, *, ranks: int, per_node: int) -> float:
    """Return the predicted time of an nccl-tests measurement."""
    known = load_fabric(fabric)
    if op in SENDS:
        return send_time(known, ranks, size, per_node=per_node).duration / PS_PER_US
    if op not in KINDS:
        raise UnsupportedRow(f"the NCCL model has no {op}")
    share = size // ranks if op == "all_gather" else size
    return nccl_time(known, KINDS[op], ranks, share, per_node=per_node).duration / PS_PER_US


def measurement(fabric: str, record: Record, time: float, *, per_node: int) -> Measured:
    """Return a row of nccl-tests, its bus bytes for the null model."""
    op, size, ranks = record["op"], record.count("bytes"), record.count("ranks")
    rounds = 2 if op == "all_reduce" else 1
    return Measured(
        case_id=record["case_id"],
        time=time,
        wire=size * rounds * (ranks - 1) / ranks,
        predict=partial(microseconds, fabric, op, size, ranks=ranks, per_node=per_node),
    )


def unknown(record: Record, time: float, why: str) -> Measured:
    """Return a row that no model here represents."""
    return Measured(record["case_id"], time, 0.0, lambda: 0.0, why)


def _in_node(data: DataFolder) -> Iterator[tuple[str, Measured]]:
    for record in data.read("collectives/nccl_aiconfigurator.csv"):
        yield _node_row(record, record.time("time_us"))
    for record in data.read("collectives/nccl_azure_guide.csv"):
        name, row = _node_row(record, record.time("time_us_in"))
        uncertain = (record.number("rel_uncert") if record["rel_uncert"] else 0.0) > 0.02
        yield name.replace("nccl/", "nccl/excluded-uncertain/") if uncertain else name, row
    for record in data.read("collectives/network_vidur.csv"):
        if record["topology"] in ("a100_dgx", "h100_dgx") and record["ranks"] == record["devices_per_node"]:
            yield _node_row(record, record.time("time_us"))


def _node_row(record: Record, time: float) -> tuple[str, Measured]:
    gpu, op = record["gpu"], record["op"]
    fabric, ranks = FABRICS.get(gpu), record.count("ranks")
    size = "large" if record.count("bytes") >= MIB else "small"
    name = f"network/nccl/{gpu}/{op}/{size}"
    if fabric is None:
        return name, unknown(record, time, f"no fabric constants for {gpu}")
    return name, measurement(fabric, record, time, per_node=ranks)


def _ndr(data: DataFolder) -> Iterator[tuple[str, Measured]]:
    for record in data.read("collectives/nccl_h100_ndr_10node.csv"):
        size = record.count("bytes")
        topic = "large" if size >= 256 * MIB else "medium" if size >= MIB else "small"
        per_node = record.count("gpus_per_node")
        row = measurement("h100_ndr", record, record.time("time_us_out"), per_node=per_node)
        yield f"network/ndr/{topic}", row


def _aws(data: DataFolder) -> Iterator[tuple[str, Measured]]:
    for record in data.read("collectives/nccl_aws_p5_efa.csv"):
        row = measurement("h100_efa", record, record.time("time_us_out"), per_node=8)
        yield f"network/aws-p5/{record['op']}", row


def _alps(data: DataFolder) -> Iterator[tuple[str, Measured]]:
    """Yield the best of all settings per nodes and size; below 1 GiB it is a sample of variance."""
    best: dict[tuple[int, int], Record] = {}
    for record in data.read("collectives/nccl_alps_gh200_slingshot.csv"):
        if record["valid"] != "True":
            continue
        key = record.count("nodes"), record.count("bytes")
        if key not in best or record.time("time_us_out") < best[key].time("time_us_out"):
            best[key] = record
    for _, record in sorted(best.items()):
        row = measurement("gh200_slingshot", record, record.time("time_us_out"), per_node=4)
        large = record.count("bytes") >= 1024 * MIB
        yield "network/alps" if large else "network/excluded-alps-below-1-GiB", row


def _digitised(data: DataFolder) -> Iterator[tuple[str, Measured]]:
    """Yield ASTRA-sim's plots, as far as a pixel is less than 5 % of the time."""
    for record in data.read("collectives/astra_sim_docs_digitised.csv"):
        if record["series"] != "measured":
            continue
        gpu, ranks = (record["gpu"].split() or ["none"])[0], record.count("ranks")
        coarse = record.number("rel_uncert") >= 0.05
        name = f"network/digitised/{'excluded-coarse/' if coarse else ''}{gpu}"
        time, fabric = record.time("time_us"), {"H100": "h100_ring", "V100": "v100_cube_mesh"}.get(gpu)
        if fabric is None:
            yield name, unknown(record, time, f"no fabric constants for {gpu}")
        else:
            yield name, measurement(fabric, record, time, per_node=ranks)


def shaped_topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/tc…/OP`, in milliseconds."""
    yield from grouped(_shaped(data), unit="ms")


def _shaped(data: DataFolder) -> Iterator[tuple[str, Measured]]:
    for record in data.read("network_congestion/tc_throttled_testbed.csv"):
        op = _SHAPED_NAMES.get(record["op"], record["op"])
        shaped = record.number("bandwidth_gbps") < 10
        family = "tc-unshaped" if not shaped else "tc" if record["lib"] == "nccl" else "tc-gloo"
        yield f"network/{family}/{op}", _shaped_row(record, op)


def _shaped_row(record: Record, op: str) -> Measured:
    size, nodes = record.number("megabytes") * 2**20, record.count("nodes")
    bytes_a_ms = record.number("bandwidth_gbps") * 1e9 / 8 / 1e3
    wire = size * (2 * (nodes - 1) / nodes if op == "all_reduce" else 1)
    why = ""
    if record["lib"] != "nccl":
        why = "Gloo's algorithms are not modelled"
    elif op not in _SHAPED_NAMES.values():
        why = "parameter-server syncs are not collectives"
    predict = partial(shaped_milliseconds, op, size, nodes, bytes_a_ms, record.number("delay_ms"))
    return Measured(record["case_id"], record.time("time_ms"), wire / bytes_a_ms, predict, why)


def shaped_milliseconds(op: str, size: float, nodes: int, bytes_a_ms: float, delay_ms: float) -> float:
    """Return the time of an NCCL operation over links of one rate and one delay."""
    if op == "p2p":
        return size * FRAMING / bytes_a_ms + delay_ms / 5
    if op == "all_reduce":
        wire = size * 2 * (nodes - 1) / nodes * (FRAMING + RING_OVERHEAD)
        return wire / bytes_a_ms + 4 * delay_ms
    hops = max(nodes - 2, 0)
    wire = size * (FRAMING + CHAIN_OVERHEAD)
    return wire / bytes_a_ms + hops * (CHAIN_CHUNK / bytes_a_ms / 2 + delay_ms) + 4 * delay_ms
