"""Measured collectives against what a run of them takes on the machine files: `network/as-run/…`.

A trace in which a group calls one collective is replayed, through the same lowering that jobs take. The group
has as many GPUs a node as the measurement, the first ones of the machine's first nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

import msgspec
import numpy as np
from msgspec import structs

from rapid_des.chakra.trace import CollectiveType, collectives
from rapid_des.errors import InputError
from rapid_des.machine import Machine, MachineSpec, load_machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.network.collectives.libraries.serving_kernels import all_reduce_cost, load_kernels
from rapid_des.network.collectives.schedule import Draft, demand
from rapid_des.program.lowering import rank_times
from rapid_des.simulation import replay, run_traces
from rapid_des.studies.traffic import messages
from rapid_des.units import PS_PER_US
from rapid_des.values import replace
from validation.measurements import DataFolder, Record, UnsupportedRow
from validation.network import Measured, grouped
from validation.network.nccl import KINDS, SENDS, NcclTest, floor, measured, predicted
from validation.network.serving_kernels import KERNELS, exchange, exchanges, reductions
from validation.scoring import Topic

C = CollectiveType
MACHINES: Mapping[str, str] = {
    "A100-SXM4-80GB": "dgx_a100",
    "H100-SXM-80GB": "dgx_h100",
    "H200-SXM-141GB": "dgx_h200",
    "B200-SXM": "hgx_b200",
    "B300-SXM": "hgx_b300",
    "GB200-NVL72": "gb200_nvl72",
    "GB300-NVL72": "gb200_nvl72",
    "L40S": "l40s_pcie_x8",
    "RTX-PRO-6000": "rtx_pro_6000_x8",
}
"""The machine file of one node, by the GPU names of the data files; all else of a GB300 is as of a GB200."""
CLUSTERS: Mapping[str, str] = {
    "ndr": "dgx_h100_superpod_32",
    "aws-p5": "aws_p5_x32",
    "alps": "gh200_alps_x16",
    "b200-ndr": "hgx_b200_x2",
}
"""By family: the machine of several nodes."""
SEVERAL_NODES: Mapping[str, str] = {
    "H100-SXM-80GB": "dgx_h100_x8",
    "H200-SXM-141GB": "dgx_h100_x8",
    "B200-SXM": "hgx_b200_x2",
}
"""The machine of exchanges over nodes; an H200's links and NICs are those of an H100."""
DEEPEP = tuple(product(("low_latency", "normal"), ("dispatch", "combine")))
_MOST_AT_ONCE = 64
_MOST_TRANSFERS = 100_000
"""Of a trace: so many collectives, and, of rings, about so many transfers."""


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/as-run/…`: `nccl`, the clusters, `sends` of both, `custom-all-reduce` and `deepep`."""
    runs = Runs()
    yield from grouped(_nccl(data, runs), floor=floor, constants=_behind)
    yield from grouped(_serving(data, runs), constants=_behind)


def _behind(topic: str) -> Mapping[str, object]:
    """Return what a topic's machine file says of collectives, by file."""
    family, _, kind = topic.removeprefix("network/as-run/").removeprefix("sends/").partition("/")
    machine = CLUSTERS.get(family) or MACHINES.get(kind.split("/")[0])
    if machine is None:
        return {}
    spec = _machine(machine, ()).spec.collectives
    return {f"topologies/{machine}.yaml": msgspec.to_builtins(spec, enc_hook=str)}


def _nccl(data: DataFolder, runs: Runs) -> Iterator[tuple[str, Measured]]:
    for name, test in measured(data):
        family, _, rest = name.removeprefix("network/").partition("/")
        machine = CLUSTERS.get(family)
        if family == "nccl" and test.ranks == test.per_node:
            machine = MACHINES.get(rest.split("/")[0])
        if machine is not None:
            topic = name.removeprefix("network/")
            if test.op in SENDS:
                topic = f"sends/{topic.removesuffix(f'/{test.op}').replace(f'/{test.op}/', '/')}"
            ask = partial(_ask_test, runs, machine, test)
            yield f"network/as-run/{topic}", _asked(predicted(test, lambda: 0.0), ask)


def _serving(data: DataFolder, runs: Runs) -> Iterator[tuple[str, Measured]]:
    for name, row, record in reductions(data):
        gpu = record["gpu"]
        if gpu in MACHINES and name == f"network/custom-all-reduce/{gpu}":
            yield (
                f"network/as-run/custom-all-reduce/{gpu}",
                _asked(row, partial(_ask_reduction, runs, record)),
            )
    for name, row, record in exchanges(data):
        if name == f"network/deepep/{record['gpu']}":
            ask = partial(_ask_exchange, runs, record)
            yield f"network/as-run/deepep/{record['gpu']}", _asked(row, ask)


def _asked(row: Measured, ask: Callable[[], Callable[[], float]]) -> Measured:
    """Return a row that is predicted by what it asks a run for; a reason why it cannot ask is the row's."""
    if row.unsupported:
        return row
    try:
        return replace(row, predict=ask())
    except UnsupportedRow as why:
        return replace(row, unsupported=str(why))


def _ask_test(runs: Runs, machine: str, test: NcclTest) -> Callable[[], float]:
    if test.op in SENDS:
        case = Collective(alike(machine), None, test.ranks // test.per_node, test.per_node)
        return runs.ask(case, test.size)
    kind = KINDS.get(test.op)
    if kind is None:
        raise UnsupportedRow(f"the NCCL model has no {test.op}")
    share = test.size // test.ranks if kind is C.ALL_GATHER else test.size
    case = Collective(alike(machine), kind, test.ranks // test.per_node, test.per_node)
    return runs.ask(case, share)


def _ask_reduction(runs: Runs, record: Record) -> Callable[[], float]:
    kernels, engine = KERNELS[record["gpu"]], record["kernel"].lower().split("_")[0]
    try:
        all_reduce_cost(load_kernels(kernels), engine, 2, 1)
    except InputError as why:
        raise UnsupportedRow(str(why)) from None
    library = {"library": "custom_all_reduce", "kernels": kernels, "engine": engine}
    machine, ranks = alike(MACHINES[record["gpu"]]), record.count("ranks")
    case = Collective(machine, C.ALL_REDUCE, 1, ranks, tuple(library.items()))
    return runs.ask(case, record.count("bytes"))


def _ask_exchange(runs: Runs, record: Record) -> Callable[[], float]:
    what, gpu = exchange(record), record["gpu"]
    kernel, _, direction = record["op"].removeprefix("deepep_").rpartition("_")
    if (kernel, direction) not in DEEPEP:
        raise UnsupportedRow(f"DeepEP has no kernel {record['op']!r}")
    library: dict[str, object] = {
        "library": "deepep",
        "kernels": KERNELS[gpu],
        "kernel": kernel,
        "direction": direction,
        "experts": what.experts,
        "topk": what.topk,
    }
    if record["sms"]:
        library["multiprocessors"] = record.count("sms")
    machine = (MACHINES if what.nodes == 1 else SEVERAL_NODES).get(gpu)
    if machine is None:
        raise UnsupportedRow(f"no machine file of {what.nodes} nodes of {gpu}")
    case = Collective(alike(machine), C.ALL_TO_ALL, what.nodes, what.per_node, tuple(library.items()))
    return runs.ask(case, round(what.copies))


@cache
def alike(machine: str) -> str:
    """Return the first of the machine files that communicate alike: names, GPUs and energy may differ."""
    wanted = _communication(machine)
    return next(name for name in sorted({*MACHINES.values(), machine}) if _communication(name) == wanted)


def _communication(machine: str) -> MachineSpec:
    spec = _machine(machine, ()).spec
    fabric = tuple(structs.replace(dimension, energy=None) for dimension in spec.fabric)
    return structs.replace(spec, name="", device="", fabric=fabric, host_power=None)


@dataclass(frozen=True)
class Collective:
    """A collective of a group: the first GPUs of the first nodes of a machine file."""

    machine: str
    kind: CollectiveType | None
    """None: every rank sends to the next one."""
    nodes: int
    per_node: int
    library: tuple[tuple[str, object], ...] = ()
    """The keys of a library that tensor-parallel groups get in place of the machine file's own."""


class Runs:
    """What rows ask for, simulated together: collectives of one group in one trace, one after the other."""

    def __init__(self) -> None:
        self._sizes: dict[Collective, set[int]] = defaultdict(set)
        self._times: dict[Collective, dict[int, float]] = {}

    def ask(self, case: Collective, size: int) -> Callable[[], float]:
        """Return what gives the microseconds of a collective with an input buffer of `size` bytes a rank."""
        self._sizes[case].add(size)
        return partial(self._time, case, size)

    def _time(self, case: Collective, size: int) -> float:
        if case not in self._times:
            self._times[case] = dict(_simulated(case, sorted(self._sizes[case])))
        return self._times[case][size]


def _simulated(case: Collective, sizes: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Yield each size with its microseconds: from the last member's arrival to the last one's end."""
    machine = _machine(case.machine, case.library)
    width = machine.spec.gpus_per_node or machine.fabric.gpus
    if case.per_node > (width if case.nodes > 1 else machine.fabric.gpus) or (
        case.nodes * width > machine.fabric.gpus and case.nodes > 1
    ):
        raise InputError(f"{case.machine} has no {case.nodes} nodes of {case.per_node} GPUs")
    ranks = [node * width + place for node in range(case.nodes) for place in range(case.per_node)]
    if case.kind is None:
        yield from _sent(ranks, sizes, machine)
        return
    at_once = max(1, min(_MOST_AT_ONCE, _MOST_TRANSFERS // (2 * len(ranks) ** 2)))
    for first in range(0, len(sizes), at_once):
        some = sizes[first : first + at_once]
        traces = collectives(ranks, case.kind, some, stream="tp" if case.library else "dp")
        run = run_traces(traces, machine, EngineChoice("compiled"))
        times = [rank_times(run.lowered, run.execution.records, place) for place in range(len(ranks))]
        ended = np.max([record.finish for record in times], axis=0)
        met = np.max([record.met for record in times], axis=0)
        for size, time in zip(some, (ended - met).tolist(), strict=True):
            yield size, time / PS_PER_US


def _sent(ranks: Sequence[int], sizes: Sequence[int], machine: Machine) -> Iterator[tuple[int, float]]:
    """Yield each size with the microseconds until all ranks have sent that to the next, and received it."""
    member = np.arange(len(ranks))
    for size in sizes:
        draft = Draft(demand(C.ALL_GATHER, len(ranks), size))
        draft.add(member, np.roll(member, -1), (0, size))
        result = replay(messages(draft.seal(), ranks, together=True), machine, engine="compiled")
        yield size, result.step_time / PS_PER_US


@cache
def _machine(name: str, library: tuple[tuple[str, object], ...]) -> Machine:
    if not library:
        return load_machine(name)
    captured = {
        "library": "nccl",
        "registered": True,
    }  # kernels of serving engines are measured in CUDA graphs
    libraries = {"default": captured, "tp": dict(library)}
    return load_machine(name, settings={"collectives.libraries": libraries})
