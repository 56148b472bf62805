"""Serving engines' all-reduce, and DeepEP's and Hybrid-EP's dispatch and combine.

Low-latency DeepEP and the normal kernels on up to two nodes are scored; normal kernels on four and eight
nodes are far below line rate for reasons that the files do not state and go to a topic that says so.
Hybrid-EP's rows are its kernels alone; their bandwidth counts what every node (H100), or every rank, gets
of a token.
Constants come from `topologies/fabrics/serving`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import msgspec

from rapid_des.network.collectives.libraries.serving_kernels import (
    ExpertExchange,
    all_reduce_time,
    hybrid_time,
    load_kernels,
    low_latency_time,
    normal_time,
)
from rapid_des.units import PS_PER_US
from validation.measurements import DataFolder, Record, UnsupportedRow
from validation.network import Measured, grouped
from validation.scoring import Topic

KERNELS: Mapping[str, str] = {
    "A100-SXM4-80GB": "a100",
    "H100-SXM-80GB": "h100",
    "H200-SXM-141GB": "h100",
    "B200-SXM": "nvlink5",
    "B300-SXM": "b300",
    "GB200-NVL72": "nvlink5",
    "GB300-NVL72": "b300",
    "L40S": "l40s",
    "RTX-PRO-6000": "rtx_pro_6000",
}
_NO_KERNELS = "no constants of this GPU's kernels"


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/custom-all-reduce/GPU`, `network/deepep/GPU` and `network/hybrid-ep/GPU`."""
    for rows in (reductions, exchanges, hybrid_exchanges):
        yield from grouped(((name, row) for name, row, _ in rows(data)), constants=_constants)


def _constants(topic: str) -> Mapping[str, object]:
    name = KERNELS.get(topic.rsplit("/", maxsplit=1)[-1])
    if name is None:
        return {}
    return {f"topologies/fabrics/serving/{name}.yaml": msgspec.to_builtins(load_kernels(name), enc_hook=str)}


def reductions(data: DataFolder) -> Iterator[tuple[str, Measured, Record]]:
    """Yield topic, measurement and record of every all-reduce of a serving engine."""
    for record in data.read("collectives/custom_allreduce_aiconfigurator.csv"):
        gpu, kernel, ranks = record["gpu"], record["kernel"], record.count("ranks")
        family = "network/custom-all-reduce"
        if kernel.endswith("_eager"):
            family += "/excluded-eager"
        elif gpu.startswith("GB200") and kernel.startswith("vllm") and ranks == 2:
            family += "/excluded-fallback"
        library, size = kernel.lower().split("_")[0], record.count("bytes")
        name = KERNELS.get(gpu)
        row = Measured(
            case_id=record["case_id"],
            time=record.time("time_us"),
            wire=2 * (ranks - 1) / ranks * size,
            predict=partial(_all_reduce, name or "", library, ranks, size),
            unsupported="" if name else _NO_KERNELS,
        )
        yield f"{family}/{gpu}", row, record


def _all_reduce(name: str, library: str, ranks: int, size: int) -> float:
    return all_reduce_time(load_kernels(name), library, ranks, size) / PS_PER_US


def exchanges(data: DataFolder) -> Iterator[tuple[str, Measured, Record]]:
    """Yield topic, measurement and record of every exchange among experts."""
    for record in data.read("collectives/moe_alltoall_aiconfigurator.csv"):
        gpu, op = record["gpu"], record["op"]
        if not op.startswith("deepep"):
            row = _exchange_row(record, "only DeepEP is modelled")
            yield f"network/excluded-trtllm-alltoall/{gpu}", row, record
            continue
        far = "excluded-four-and-more-nodes/" if "normal" in op and exchange(record).nodes > 2 else ""
        why = "" if gpu in KERNELS else _NO_KERNELS
        yield f"network/deepep/{far}{gpu}", _exchange_row(record, why), record


def exchange(record: Record) -> ExpertExchange:
    """Return what a rank exchanges in a measurement; a tray of GB200 or GB300 holds four GPUs."""
    return ExpertExchange(
        tokens=record.count("tokens"),
        hidden=record.count("hidden"),
        topk=record.count("topk"),
        experts=record.count("experts"),
        nodes=(record.count("nodes") if record["nodes"] else 1),
        per_node=4 if record["gpu"].startswith("GB") else 8,
        element_bytes=1 if "dispatch" in record["op"] else 2,
    )


def _exchange_row(record: Record, why: str) -> Measured:
    what = exchange(record)
    multiprocessors = record.count("sms") if record["sms"] else 0
    return Measured(
        case_id=record["case_id"],
        time=record.time("time_us"),
        wire=what.copies,
        predict=partial(exchange_time, KERNELS.get(record["gpu"], ""), record["op"], multiprocessors, what),
        unsupported=why,
    )


def hybrid_exchanges(data: DataFolder) -> Iterator[tuple[str, Measured, Record]]:
    """Yield topic, measurement and record of every kernel of Hybrid-EP."""
    for record in data.read("collectives/hybrid_ep_published.csv"):
        gpu, what = record["gpu"], hybrid_exchange(record)
        row = Measured(
            case_id=record["case_id"],
            time=hybrid_measured(record),
            wire=what.copies,
            predict=partial(hybrid_predicted, KERNELS.get(gpu, ""), record),
            unsupported="" if gpu in KERNELS else _NO_KERNELS,
        )
        yield f"network/hybrid-ep/{gpu}", row, record


def hybrid_exchange(record: Mapping[str, str]) -> ExpertExchange:
    """Return what a rank exchanges in a measurement of Hybrid-EP, in bf16."""
    nodes = int(record["nodes"])
    return ExpertExchange(
        tokens=int(record["tokens"]),
        hidden=int(record["hidden"]),
        topk=int(record["topk"]),
        experts=int(record["experts"]),
        nodes=nodes,
        per_node=int(record["ranks"]) // nodes,
        element_bytes=2,
    )


def hybrid_measured(record: Mapping[str, str]) -> float:
    """Return the microseconds that a printed bandwidth stands for."""
    what = hybrid_exchange(record)
    parts = what.nodes if record["counted"] == "network" else what.nodes * what.per_node
    payload = what.tokens * what.hidden * what.element_bytes
    return payload * what.distinct(parts) / float(record["algorithm_bandwidth_gb_s"]) / 1e3


def hybrid_predicted(name: str, record: Mapping[str, str]) -> float:
    """Return the predicted microseconds of one of Hybrid-EP's kernels."""
    kernels, direction = load_kernels(name), record["op"].removeprefix("hybridep_")
    if direction not in kernels.hybrid:
        raise UnsupportedRow(f"{kernels.name}: no constants of Hybrid-EP")
    what = hybrid_exchange(record)
    return hybrid_time(kernels.hybrid[direction], what, multiprocessors=int(record["sms"])) / PS_PER_US


def exchange_time(name: str, op: str, multiprocessors: int, what: ExpertExchange) -> float:
    """Return the predicted microseconds of one DeepEP measurement."""
    kernels = load_kernels(name)
    mode, _, direction = op.removeprefix("deepep_").rpartition("_")
    if mode == "low_latency" and direction in kernels.low_latency:
        return low_latency_time(kernels.low_latency[direction], what) / PS_PER_US
    if mode == "normal" and direction in kernels.normal and multiprocessors:
        return normal_time(kernels.normal[direction], what, multiprocessors=multiprocessors) / PS_PER_US
    raise UnsupportedRow(f"{kernels.name}: no constants of {op} on {multiprocessors} SMs")
