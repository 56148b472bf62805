"""The shaped-link testbed: nodes with one GPU whose links tc limits in rate and delays.

Only the link's stated rate and delay are inputs. What is on the wire beside the payload is the framing of
jumbo packets (8,949 of 9,015 bytes are payload: 0.74 %); every message starts with one exchange of credit, so
that a collective pays a round trip at its start and one at its end, and a chain pays chunk and delay per hop.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rapid_des.validation.collective_rows import Measured, grouped
from rapid_des.validation.folder import DataFolder, Record
from rapid_des.validation.scoring import Topic

FRAMING = 9015 / 8949
"""TCP over jumbo frames: 9,001 bytes of MTU plus 14 of Ethernet for 8,949 of payload."""
RING_OVERHEAD = 0.005
"""Flags and requests that NCCL's ring adds to its payload on sockets."""
CHAIN_OVERHEAD = 0.105
"""Stalls of a chain: a node's socket threads send what they have just received."""
CHAIN_CHUNK = 2**20
"""Bytes that a node of a chain has received before it sends them on (NCCL's default on sockets)."""
_NAMES = {"allreduce": "all_reduce", "send_recv": "p2p", "broadcast": "broadcast", "reduce": "reduce"}


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/tc…/OP`, in milliseconds."""
    yield from grouped(_rows(data), unit="ms")


def _rows(data: DataFolder) -> Iterator[tuple[str, Measured]]:
    for record in data.read("network_congestion/tc_throttled_testbed.csv"):
        op = _NAMES.get(record["op"], record["op"])
        shaped = float(record["bandwidth_gbps"]) < 10
        family = "tc-unshaped" if not shaped else "tc" if record["lib"] == "nccl" else "tc-gloo"
        yield f"network/{family}/{op}", _row(record, op)


def _row(record: Record, op: str) -> Measured:
    size, nodes = float(record["megabytes"]) * 2**20, int(record["nodes"])
    bytes_a_ms = float(record["bandwidth_gbps"]) * 1e9 / 8 / 1e3
    wire = size * (2 * (nodes - 1) / nodes if op == "all_reduce" else 1)
    why = ""
    if record["lib"] != "nccl":
        why = "Gloo's algorithms are not modelled"
    elif op not in _NAMES.values():
        why = "parameter-server syncs are not collectives"
    predict = partial(milliseconds, op, size, nodes, bytes_a_ms, float(record["delay_ms"]))
    return Measured(record["case_id"], float(record["time_ms"]), wire / bytes_a_ms, predict, why)


def milliseconds(op: str, size: float, nodes: int, bytes_a_ms: float, delay_ms: float) -> float:
    """Return the time of an NCCL operation over links of one rate and one delay."""
    if op == "p2p":
        return size * FRAMING / bytes_a_ms + delay_ms / 5
    if op == "all_reduce":
        wire = size * 2 * (nodes - 1) / nodes * (FRAMING + RING_OVERHEAD)
        return wire / bytes_a_ms + 4 * delay_ms
    hops = max(nodes - 2, 0)
    wire = size * (FRAMING + CHAIN_OVERHEAD)
    return wire / bytes_a_ms + hops * (CHAIN_CHUNK / bytes_a_ms / 2 + delay_ms) + 4 * delay_ms
