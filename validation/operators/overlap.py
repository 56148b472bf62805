"""`operators/overlap/GPU`: how much longer kernels take beside a collective, lowered as jobs are.

A trace of one node is replayed in which every rank runs one kernel and one collective. Scored is the ratio
of times, beside each other against alone or one after the other; for the null model nothing slows anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial

from rapid_des.chakra.trace import CollectiveType
from rapid_des.device.operators import Gemm
from rapid_des.machine import Machine, load_machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.simulation import run_traces
from rapid_des.studies.traffic import GpuKernel, beside
from validation.measurements import DataFolder, Record, device_for, dtype_of, prices_on
from validation.scoring import Row, Topic

MACHINES = {"A100-SXM4-80GB": "dgx_a100", "H100-SXM-80GB": "dgx_h100"}
_LONG = 2**30
"""Bytes of a collective that outlasts the kernel."""
_KERNEL = 10**9
"""Picoseconds of a kernel whose shape is not stated."""


def topics(data: DataFolder) -> Iterable[Topic]:
    """Yield one topic a GPU; every row is test, as nothing is fitted on any."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in data.read("overlap/published_slowdowns.csv"):
        groups[f"operators/overlap/{record['gpu'] or 'not-stated'}"].append(record)
    for name, records in groups.items():
        yield Topic(name, partial(_rows, records), unit="times", split=False)


def _rows(records: Iterable[Record]) -> list[Row]:
    return [_row(record) for record in records]


def _row(record: Record) -> Row:
    case, measured = record["case_id"], record.time("beside") / record.time("alone")
    if record["left_out"]:
        return Row(case, measured, None, unsupported=record["left_out"])
    kernel, collective = _kernel(record), CollectiveType[record["collective"]]
    size = record.count("bytes") if record["bytes"] else _LONG

    def run(*, waits: bool) -> tuple[int, int]:
        traces = beside(range(record.count("ranks")), kernel, collective, size, waits=waits)
        records = run_traces(traces, _machine(record), EngineChoice("simpy")).execution.records
        return int(records.finish[0]), records.makespan

    end, both = run(waits=False)
    if record["measure"] == "kernel":
        return Row(case, measured, end / kernel.duration, null=1.0)
    _, serial = run(waits=True)
    return Row(case, measured, both / serial, null=max(kernel.duration, serial - kernel.duration) / serial)


def _machine(record: Record) -> Machine:
    if not record["sms"]:
        return load_machine(MACHINES[record["gpu"]])
    library = {"library": "nccl", "multiprocessors": record.count("sms", least=0)}
    return load_machine(MACHINES[record["gpu"]], settings={"collectives.libraries.dp": library})


def _kernel(record: Record) -> GpuKernel:
    if record["kernel"] != "gemm":
        return GpuKernel(record["kernel"], _KERNEL)
    m, n, k = (record.count(name) for name in "mnk")
    device = device_for(record["gpu"], clock="sustained")  # hundreds of times one after the other
    estimate = prices_on(device).estimate(Gemm(m, n, k, dtype=dtype_of(record["dtype"])))
    return GpuKernel(estimate.bound, estimate.duration, estimate.bytes["hbm"])
