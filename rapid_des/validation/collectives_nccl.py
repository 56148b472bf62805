"""NCCL: in a node, on 10 nodes with NDR, on AWS p5, on Alps, and ASTRA-sim's digitised rings.

Constants of a fabric come from its file under `topologies/fabrics`, fitted on calibration cases only
(`validation/fit_collectives.py`). Sizes in the files are those of nccl-tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import msgspec

from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives.nccl import nccl_time, send_time
from rapid_des.network.collectives.nccl_fabric import load_fabric
from rapid_des.units import PS_PER_US
from rapid_des.validation.collective_rows import Measured, grouped
from rapid_des.validation.folder import DataFolder, Record
from rapid_des.validation.scoring import Topic

C = CollectiveType
KINDS: Mapping[str, CollectiveType] = {
    "all_reduce": C.ALL_REDUCE,
    "all_gather": C.ALL_GATHER,
    "reduce_scatter": C.REDUCE_SCATTER,
    "alltoall": C.ALL_TO_ALL,
}
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
    if op in ("sendrecv", "send_recv"):
        return send_time(known, ranks, size, per_node=per_node).duration / PS_PER_US
    share = size // ranks if op == "all_gather" else size
    return nccl_time(known, KINDS[op], ranks, share, per_node=per_node).duration / PS_PER_US


def measurement(fabric: str, record: Record, time: float, *, per_node: int) -> Measured:
    """Return a row of nccl-tests, its bus bytes for the null model."""
    op, size, ranks = record["op"], int(record["bytes"]), int(record["ranks"])
    rounds = 2 if op == "all_reduce" else 1
    return Measured(
        case_id=record["case_id"],
        time=time,
        wire=size * rounds * (ranks - 1) / ranks,
        predict=partial(microseconds, fabric, op, size, ranks=ranks, per_node=per_node),
    )


def _in_node(data: DataFolder) -> Iterator[tuple[str, Measured]]:
    for record in data.read("collectives/nccl_aiconfigurator.csv"):
        yield _node_row(record, float(record["time_us"]))
    for record in data.read("collectives/nccl_azure_guide.csv"):
        name, row = _node_row(record, float(record["time_us_in"]))
        uncertain = float(record["rel_uncert"] or 0) > 0.02
        yield name.replace("nccl/", "nccl/excluded-uncertain/") if uncertain else name, row
    for record in data.read("collectives/network_vidur.csv"):
        if record["topology"] in ("a100_dgx", "h100_dgx") and record["ranks"] == record["devices_per_node"]:
            yield _node_row(record, float(record["time_us"]))


def _node_row(record: Record, time: float) -> tuple[str, Measured]:
    gpu, op = record["gpu"], record["op"]
    fabric, ranks = FABRICS.get(gpu), int(record["ranks"])
    size = "large" if int(record["bytes"]) >= MIB else "small"
    name = f"network/nccl/{gpu}/{op}/{size}"
    if fabric is None or (op not in KINDS and op not in ("sendrecv", "send_recv")):
        why = f"no fabric constants for {gpu}" if fabric is None else f"the NCCL model has no {op}"
        return name, Measured(record["case_id"], time, 0.0, lambda: 0.0, why)
    return name, measurement(fabric, record, time, per_node=ranks)


def _ndr(data: DataFolder) -> Iterator[tuple[str, Measured]]:
    for record in data.read("collectives/nccl_h100_ndr_10node.csv"):
        size = int(record["bytes"])
        topic = "large" if size >= 256 * MIB else "medium" if size >= MIB else "small"
        per_node = int(record["gpus_per_node"])
        row = measurement("h100_ndr", record, float(record["time_us_out"]), per_node=per_node)
        yield f"network/ndr/{topic}", row


def _aws(data: DataFolder) -> Iterator[tuple[str, Measured]]:
    for record in data.read("collectives/nccl_aws_p5_efa.csv"):
        row = measurement("h100_efa", record, float(record["time_us_out"]), per_node=8)
        yield f"network/aws-p5/{record['op']}", row


def _alps(data: DataFolder) -> Iterator[tuple[str, Measured]]:
    """Yield the best of all settings per nodes and size; below 1 GiB it is a sample of variance."""
    best: dict[tuple[int, int], Record] = {}
    for record in data.read("collectives/nccl_alps_gh200_slingshot.csv"):
        if record["valid"] != "True":
            continue
        key = int(record["nodes"]), int(record["bytes"])
        if key not in best or float(record["time_us_out"]) < float(best[key]["time_us_out"]):
            best[key] = record
    for _, record in sorted(best.items()):
        row = measurement("gh200_slingshot", record, float(record["time_us_out"]), per_node=4)
        large = int(record["bytes"]) >= 1024 * MIB
        yield "network/alps" if large else "network/excluded-alps-below-1-GiB", row


def _digitised(data: DataFolder) -> Iterator[tuple[str, Measured]]:
    """Yield ASTRA-sim's plots, as far as a pixel is less than 5 % of the time."""
    for record in data.read("collectives/astra_sim_docs_digitised.csv"):
        if record["series"] != "measured":
            continue
        gpu, ranks = record["gpu"].split()[0], int(record["ranks"])
        coarse = float(record["rel_uncert"]) >= 0.05
        name = f"network/digitised/{'excluded-coarse/' if coarse else ''}{gpu}"
        fabric = "h100_ring" if gpu == "H100" else "v100_cube_mesh"
        yield name, measurement(fabric, record, float(record["time_us"]), per_node=ranks)
