"""NCCL in closed form: in a node, on clusters, in published tables and in plots, and over shaped links.

Measurements are rows of nccl-tests, whose sizes are the total for all-gather, reduce-scatter and all-to-all.
Constants of a fabric come from its file under `topologies/fabrics`, fitted on calibration cases only
(`validation/fit_collectives.py`).

Shaped links are a testbed of nodes with one GPU whose links tc limits in rate and delays. Only the link's
stated rate and delay are inputs there. What is on the wire beside the payload is the framing of jumbo packets
(8,949 of 9,015 bytes are payload: 0.74 %); every message starts with one exchange of credit, so that a
collective pays a round trip at its start and one at its end, and a chain pays chunk and delay per hop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives.libraries.nccl_fabric import load_fabric
from rapid_des.network.collectives.libraries.nccl_network import nccl_time, send_time
from rapid_des.units import PS_PER_US
from rapid_des.values import replace
from validation.measurements import DataFolder, Record, UnsupportedRow
from validation.network import Measured, grouped
from validation.scoring import Topic

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
"""Constants behind the GPU names of one-node files."""
PUBLISHED: Mapping[str, tuple[str, int]] = {
    "llmcompass/a100x4": ("a100_nvswitch", 4),
    "coreweave/gb200x72": ("nvlink5", 72),
    "coreweave/gb200x144": ("b200_ndr", 72),
}
"""Constants and ranks a node of the published tables that a fabric here stands for."""
NOT_MODELLED: Mapping[str, str] = {
    "coreweave/h100x64-sharp": "SHARP was on: the NCCL model has no reduction in network switches",
    "stas00/4nodes-32gpu": "the table does not say which GPU and network",
    "stas00/mi300x-n8": "no constants of RCCL over xGMI",
    "deepbench/p100x2": "no constants of P100 over PCIe",
    "deepbench/p100x8": "no constants of P100 over PCIe",
    "deepbench/p100x16": "no constants of P100 over PCIe",
}
MIB = 2**20
_EAGER = ("A100-SXM4-80GB (Azure ND v4)", "H100-SXM-80GB (Azure ND v5)")
_VIDUR_EAGER = 4 * MIB


@dataclass(frozen=True)
class NcclTest:
    """One measurement: microseconds, what ran, among whom, and whose constants predict it."""

    case_id: str
    time: float
    op: str
    size: int
    ranks: int
    per_node: int
    fabric: str = ""
    unsupported: str = ""

    @property
    def wire(self) -> float:
        """Bus bytes, which the null model multiplies."""
        rounds = 2 if self.op == "all_reduce" else 1
        return self.size * rounds * (self.ranks - 1) / self.ranks


def measured(data: DataFolder) -> Iterator[tuple[str, NcclTest]]:
    """Yield (topic, measurement) of every row that is no shaped link's."""
    for read in (_in_node, _ndr, _aws, _alps, _digitised, _b200, _published):
        yield from read(data)


def _test(record: Record, time: float, fabric: str, per_node: int) -> NcclTest:
    return NcclTest(
        case_id=record["case_id"],
        time=time,
        op=record["op"],
        size=record.count("bytes"),
        ranks=record.count("ranks"),
        per_node=per_node,
        fabric=fabric,
    )


def _in_node(data: DataFolder) -> Iterator[tuple[str, NcclTest]]:
    for record in data.read("collectives/nccl_aiconfigurator.csv"):
        yield _node_row(record, record.time("time_us"))
    for record in data.read("collectives/nccl_azure_guide.csv"):
        name, row = _node_row(record, record.time("time_us_in"))
        if (record.number("rel_uncert") if record["rel_uncert"] else 0.0) > 0.02:
            name = name.replace("nccl/", "nccl/excluded-uncertain/")
        elif record["gpu"] in _EAGER and row.size < MIB:
            name = _host_bound(record)
        yield name, row
    for record in data.read("collectives/network_vidur.csv"):
        yield _vidur_row(record)


def _node_row(record: Record, time: float) -> tuple[str, NcclTest]:
    gpu = record["gpu"]
    row = _test(record, time, FABRICS.get(gpu, ""), record.count("ranks"))
    if not row.fabric:
        row = replace(row, unsupported=f"no fabric constants for {gpu}")
    return f"network/nccl/{gpu}/{row.op}/{_size_class(row.size)}", row


def _size_class(size: int) -> str:
    return "large" if size >= MIB else "small"


def _host_bound(record: Record) -> str:
    """Return the topic of kernels that wait for their launch.

    nccl-tests without graphs on two VMs: 42 to 48 us from 1 KiB to 512 KiB on A100. Eager all-reduces under a
    profiler: 40 to 60 us from 50 KiB to 4 MiB on two A100 and on two H100, which reduce 2 KiB in 7 to 10 us;
    the kernel of the rank that is launched first waits for the other.
    """
    return f"network/nccl/host-bound/{record['gpu']}/{record['op']}"


def _vidur_row(record: Record) -> tuple[str, NcclTest]:
    """Return a row of Vidur's profiles: one DGX node, two on a slow network, or GPUs bridged in pairs."""
    name, row = _node_row(record, record.time("time_us"))
    per_node = record.count("devices_per_node")
    if record["topology"] not in ("a100_dgx", "h100_dgx"):
        why = "no constants of GPUs bridged in pairs over PCIe"
        return f"network/vidur-pairwise/{record['gpu']}/{row.op}", replace(row, unsupported=why)
    if row.ranks == per_node:
        host_bound = row.op == "all_reduce" and row.size < _VIDUR_EAGER
        return (_host_bound(record) if host_bound else name), row
    folder = "network/vidur-two-nodes/excluded-slow-network"
    two = replace(row, per_node=per_node, fabric="a100_slow_network")
    return f"{folder}/{row.op}/{_size_class(row.size)}", two


def _ndr(data: DataFolder) -> Iterator[tuple[str, NcclTest]]:
    for record in data.read("collectives/nccl_h100_ndr_10node.csv"):
        row = _test(record, record.time("time_us_out"), "h100_ndr", record.count("gpus_per_node"))
        topic = "large" if row.size >= 256 * MIB else "medium" if row.size >= MIB else "small"
        yield f"network/ndr/{topic}", row


def _aws(data: DataFolder) -> Iterator[tuple[str, NcclTest]]:
    for record in data.read("collectives/nccl_aws_p5_efa.csv"):
        row = _test(record, record.time("time_us_out"), "h100_efa", 8)
        yield f"network/aws-p5/{row.op}", row


def _alps(data: DataFolder) -> Iterator[tuple[str, NcclTest]]:
    """Yield the best of all settings per nodes and size; below 1 GiB it is a sample of variance."""
    best: dict[tuple[int, int], Record] = {}
    for record in data.read("collectives/nccl_alps_gh200_slingshot.csv"):
        if record["valid"] != "True":
            continue
        key = record.count("nodes"), record.count("bytes")
        if key not in best or record.time("time_us_out") < best[key].time("time_us_out"):
            best[key] = record
    for _, record in sorted(best.items()):
        row = _test(record, record.time("time_us_out"), "gh200_slingshot", 4)
        large = row.size >= 1024 * MIB
        yield "network/alps" if large else "network/excluded-alps-below-1-GiB", row


def _digitised(data: DataFolder) -> Iterator[tuple[str, NcclTest]]:
    """Yield ASTRA-sim's plots, as far as a pixel is less than 5 % of the time."""
    for record in data.read("collectives/astra_sim_docs_digitised.csv"):
        if record["series"] != "measured":
            continue
        gpu = (record["gpu"].split() or ["none"])[0]
        coarse = record.number("rel_uncert") >= 0.05
        name = f"network/digitised/{'excluded-coarse/' if coarse else ''}{gpu}"
        fabric = {"H100": "h100_ring", "V100": "v100_cube_mesh"}.get(gpu, "")
        row = _test(record, record.time("time_us"), fabric, record.count("ranks"))
        why = "" if fabric else f"no fabric constants for {gpu}"
        yield name, replace(row, unsupported=why)


def _b200(data: DataFolder) -> Iterator[tuple[str, NcclTest]]:
    """Yield two nodes of 8 B200: v1 before, v2 after a tuning of NCCL's settings, which are no input."""
    for record in data.read("collectives/nccl_b200_2node.csv"):
        ranks, nodes = record.count("ranks"), record.count("nodes")
        row = _test(record, record.time("time_us_out"), "b200_ndr", ranks // nodes)
        topic = "large" if row.size >= 256 * MIB else "medium" if row.size >= MIB else "small"
        yield f"network/b200-ndr/{record['variant']}/{row.op}/{topic}", row


def _published(data: DataFolder) -> Iterator[tuple[str, NcclTest]]:
    for record in data.read("collectives/published_nccl_tables.csv"):
        origin = record["case_id"].rpartition("/")[0]
        fabric, per_node = PUBLISHED.get(origin, ("", record.count("ranks")))
        row = _test(record, record.time("time_us"), fabric, per_node)
        why = NOT_MODELLED.get(origin, f"no constants of {record['gpu']}")
        yield f"network/published/{origin}", row if fabric else replace(row, unsupported=why)


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
    by_topic: dict[str, list[NcclTest]] = defaultdict(list)
    for name, test in measured(data):
        by_topic[name].append(test)
    for name, tests in by_topic.items():
        rows = ((name, predicted(test, partial(microseconds, test))) for test in tests)
        behind = constants(tests)
        yield from grouped(rows, floor=floor, constants=partial(_same, behind))


def floor(topic: str) -> float:
    """Return the microseconds below which a difference is noise."""
    return NCCL_FLOOR_US if topic.endswith("/small") else 0.0


def _same(constants: Mapping[str, object], _topic: str) -> Mapping[str, object]:
    return constants


def constants(tests: Sequence[NcclTest]) -> Mapping[str, object]:
    """Return the constants behind some measurements, by file."""
    names = sorted({test.fabric for test in tests if test.fabric})
    return {
        f"topologies/fabrics/{name}.yaml": msgspec.to_builtins(load_fabric(name), enc_hook=str)
        for name in names
    }


def predicted(test: NcclTest, predict: Callable[[], float]) -> Measured:
    """Return a measurement beside what predicts it."""
    return Measured(test.case_id, test.time, test.wire, predict, test.unsupported)


def microseconds(test: NcclTest) -> float:
    """Return the closed form's time of a measurement; `UnsupportedRow` where it has no such operation."""
    known = load_fabric(test.fabric)
    if test.op in SENDS:
        return send_time(known, test.ranks, test.size, per_node=test.per_node).duration / PS_PER_US
    if test.op not in KINDS:
        raise UnsupportedRow(f"the NCCL model has no {test.op}")
    share = test.size // test.ranks if test.op == "all_gather" else test.size
    return nccl_time(known, KINDS[test.op], test.ranks, share, per_node=test.per_node).duration / PS_PER_US


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
