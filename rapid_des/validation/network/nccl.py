"""NCCL in closed form: in a node, on clusters, in published tables and in plots, and over shaped links.

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
from functools import partial

import msgspec

from rapid_des.network.collectives.libraries.nccl import nccl_time, send_time
from rapid_des.network.collectives.libraries.nccl_fabric import load_fabric
from rapid_des.units import PS_PER_US
from rapid_des.validation.measurements import DataFolder, Record, UnsupportedRow
from rapid_des.validation.network import Measured, grouped
from rapid_des.validation.network.nccl_tests import KINDS, SENDS, NcclTest, measured
from rapid_des.validation.scoring import Topic

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
    found: dict[str, list[NcclTest]] = defaultdict(list)
    for name, test in measured(data):
        found[name].append(test)
    for name, tests in found.items():
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
