"""Fitting a machine's constants to what was measured on it, each beside what its base says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct, structs

from rapid_des.chakra.trace import CollectiveType
from rapid_des.device import Gemm
from rapid_des.device.calibration import MeasuredGemms, changed, dtype_of, fit_constants, pattern_search
from rapid_des.device.device import Device
from rapid_des.device.gemm.candidates import GemmConstants, gemm_constants
from rapid_des.device.operators import Dtype
from rapid_des.errors import InputError
from rapid_des.machine import Machine
from rapid_des.network.collectives.libraries.library import LinkRates
from rapid_des.network.collectives.libraries.nccl import GroupPlacement, cost_in_node, whole_size
from rapid_des.network.collectives.libraries.nccl_fabric import NcclFabric, load_fabric, on_links
from rapid_des.network.collectives.libraries.nccl_network import cost_over_nodes
from rapid_des.program.collectives.library import link_rates
from rapid_des.studies.calibration.findings import CalibratedPart, MeasuredCase, held_out, most_useful
from rapid_des.studies.calibration.readings import NcclRow, NcclRun
from rapid_des.units import PS_PER_S, Bandwidth, Duration, Frequency, seconds
from rapid_des.values import asdict

FOR_ONE = 4
"""Cases of a fit for each constant that it may move."""
_GEMM_ORDER = ("tensor", "start_us", "hbm", "step_us", "throttled", "overlap", "shared", "l2")
"""The constants of matrix products, those first that set most of a time."""
_NCCL = {
    True: ("node.simple.link", "node.nvls.link", "node.ll128.link", "node.point_to_point.link", "node.base",
           "node.nvls.base", "node.ll.hop", "node.ll128.hop", "node.simple.hop", "node.point_to_point.base"),
    False: ("network.nic", "network.tree.nic", "network.exchange_nic", "network.base", "network.tree.base",
            "network.exchange_base", "network.small.level", "network.simple_hop", "network.ll128_hop"),
}  # fmt: skip
"""NCCL's constants within a node and over nodes, which an output of nccl-tests may move."""
_MATTERS = 1e-3
"""A constant is moved if a tenth more of it changes some time by more than this share."""
_LARGE = 1 << 16
"""The bytes from which on messages are as fast as the wire allows."""
_SLACK = 1.005
"""How far rounding may lift a measurement above what is possible."""


def fit_clock(clocks: Mapping[str, Sequence[float]], device: Device) -> CalibratedPart:
    """Return the clock that GPUs hold under load: the median of the samples that are not held out."""
    boost, before = int(device.spec.clock.boost), int(device.spec.clock.sustained)
    for path, values in clocks.items():
        if max(values) > boost * 1.05:
            most, top = Frequency(round(max(values))), device.spec.clock.boost
            raise InputError(f"{path}: a clock of {most}; {device.spec.name} has at most {top}")
    named = [
        (f"{path} sample {number}", clock)
        for path, values in clocks.items()
        for number, clock in enumerate(values)
    ]
    apart = held_out([name for name, _ in named])
    chosen = [clock for (_, clock), out in zip(named, apart, strict=True) if not out]
    after = Frequency(min(round(median(chosen) / 1e6) * 1_000_000, boost))
    off = np.abs(np.array([clock for _, clock in named]) / after - 1.0)
    cases = [
        MeasuredCase(name, 1.0 / clock, 1.0 / before, 1.0 / after, out)
        for (name, clock), out in zip(named, apart, strict=True)
    ]
    changes = {
        "clock.sustained": str(after),
        "clock.sustained_from": "measured",
        "clock.sustained_within": float(f"{min(float(np.quantile(off, 0.9)), 1.0):.2g}"),
    }
    return CalibratedPart(f"{len(named):,} clocks under load ({_files(clocks)})", "device", changes, cases)


def _files(paths: Iterable[str]) -> str:
    return ", ".join(Path(path).name for path in paths)


class GemmTimes(Struct, frozen=True):
    """Measured matrix products of one dtype."""

    source: str
    dtype: Dtype
    gemms: tuple[Gemm, ...]
    micros: tuple[float, ...]


def gemms_of(path: Path, rows: Sequence[Mapping[str, str]], device: Device) -> Sequence[GemmTimes]:
    """Return a table's products by dtype; `InputError` for one that is faster than the device's peak."""
    found: dict[Dtype, list[tuple[Gemm, float]]] = {}
    for row in rows:
        try:
            (m, n, k), dtype = (int(row[name]) for name in "MNK"), dtype_of(row["dtype"])
            micros = float(row["time_us"])
            if not 1 <= min(m, n, k) <= max(m, n, k) <= 2**31 or not 0 < micros < 1e12:
                raise ValueError("sizes are 1 to 2^31, times above 0")
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"{row['where']}: is no matrix product: {error}") from None
        gemm = Gemm(m, n, k, dtype=dtype)
        check_utilisation(row["where"], gemm, micros, device)
        found.setdefault(dtype, []).append((gemm, micros))
    return [
        GemmTimes(path.name, dtype, *(tuple(column) for column in zip(*pairs, strict=True)))
        for dtype, pairs in found.items()
    ]


def joined(times: Sequence[GemmTimes]) -> Sequence[GemmTimes]:
    """Return measured products with those of one dtype together."""
    found: dict[Dtype, GemmTimes] = {}
    for each in times:
        if (other := found.get(each.dtype)) is not None:
            source = ", ".join(dict.fromkeys((other.source, each.source)))
            both = other.gemms + each.gemms, other.micros + each.micros
            found[each.dtype] = GemmTimes(source, each.dtype, *both)
        else:
            found[each.dtype] = each
    return list(found.values())


def check_utilisation(where: str, gemm: Gemm, micros: float, device: Device) -> None:
    """Raise `InputError` for a product that would use more than the device has."""
    if gemm.dtype not in device.spec.tensor_peak:
        raise InputError(f"{where}: {device.spec.name} has no peak in {gemm.dtype}")
    used = 2.0 * gemm.m * gemm.n * gemm.k / (micros * 1e-6)
    most = device.spec.tensor_peak[gemm.dtype] * device.spec.clock.boost / device.spec.clock.peak
    if used > most * _SLACK:
        raise InputError(
            f"{where}: {gemm.m} x {gemm.n} x {gemm.k} {gemm.dtype} in {micros:g} us is a utilisation of "
            f"{used / most:.2f} of {device.spec.name}; allowed: up to 1"
        )


def fit_gemms(times: GemmTimes, device: Device) -> CalibratedPart:
    """Return the constants of the matrix products of one dtype that were measured."""
    names = [f"{gemm.m}x{gemm.n}x{gemm.k}" for gemm in times.gemms]
    every = MeasuredGemms(device, times.gemms, np.array(times.micros), tuple(names))
    apart = held_out(names)
    fitted = _part(every, [number for number, out in enumerate(apart) if not out])
    known = device.constants("gemm", times.dtype)
    start = gemm_constants(known, device.spec.name)

    def error(free: Sequence[str], kept: Sequence[int], out: Sequence[int]) -> float:
        tried = fit_constants(start, [_part(fitted, kept)], free)
        return _part(fitted, out).log_error(_part(fitted, out).predicted_us(tried))

    free = most_useful(_GEMM_ORDER[: max(1, len(set(fitted.cases)) // FOR_ONE)], fitted.cases, error)
    moved = changed(known, asdict(fit_constants(start, [fitted], free)))
    after = GemmConstants(**{**asdict(start), **moved})
    columns = (every.measured_us, every.predicted_us(start), every.predicted_us(after))
    cases = [
        MeasuredCase(name, float(measured) / 1e6, float(first) / 1e6, float(last) / 1e6, out)
        for name, measured, first, last, out in zip(names, *columns, apart, strict=True)
    ]
    scope = f"{device.conditions.library}/{times.dtype}"
    changes = {f"constants.gemm.{scope}.{name}": value for name, value in moved.items()}
    return CalibratedPart(
        f"{len(names):,} matrix products in {times.dtype} ({times.source})", "device", changes, cases
    )


def _part(every: MeasuredGemms, numbers: Sequence[int]) -> MeasuredGemms:
    chosen = [(every.operators[number], every.cases[number]) for number in numbers]
    gemms, cases = zip(*chosen, strict=True)
    return MeasuredGemms(every.device, gemms, every.measured_us[list(numbers)], cases)


def fit_network(measured: Mapping[str, Mapping[int, float]], machine: Machine) -> CalibratedPart:
    """Return the rate of the links between nodes, from what large messages reach on them."""
    dimensions, path = machine.spec.fabric, next(iter(measured))
    outer = dimensions[1] if len(dimensions) > 1 else None
    stated = getattr(outer, "bandwidth", None)
    if not isinstance(stated, Bandwidth):
        raise InputError(f"{path}: {machine.name} has no network between nodes whose bandwidth is stated")
    protocol = machine.switching.protocol
    framing = 1.0 if protocol is None else (protocol.payload + protocol.header) / protocol.payload
    named = [
        (f"{path} {size} B", size, rate)
        for path, rates in measured.items()
        for size, rate in rates.items()
        if size >= min(_LARGE, max(rates))
    ]
    if (used := max(rate for *_, rate in named) / stated) > _SLACK:
        raise InputError(
            f"{path}: {used * stated / 1e9:.1f} GB/s is a utilisation of {used:.2f} of {machine.name}'s "
            f"{stated} links; allowed: up to 1"
        )
    apart = held_out([name for name, *_ in named])
    payload = median([rate for (*_, rate), out in zip(named, apart, strict=True) if not out])
    after = Bandwidth(min(round(payload * framing), int(stated)))
    cases = [
        MeasuredCase(name, size / rate, size * framing / stated, size * framing / after, out)
        for (name, size, rate), out in zip(named, apart, strict=True)
    ]
    changes = {"fabric.1.bandwidth": f"{after / 1e9:.4g} GB/s"}
    return CalibratedPart(
        f"{len(named)} bandwidths between nodes ({_files(measured)})", "machine", changes, cases
    )


class _Measured(Struct, frozen=True):
    """A measured collective, and where it ran."""

    path: Path
    row: NcclRow
    place: GroupPlacement
    rates: LinkRates

    @property
    def name(self) -> str:
        """The case, for people."""
        return f"{self.row.operation} of {self.row.size} B on {self.place.ranks} ranks"

    @property
    def collective(self) -> CollectiveType:
        """The collective as traces name it."""
        return CollectiveType[self.row.operation.upper()]

    def time(self, fabric: NcclFabric) -> float:
        """Return the seconds of the collective under some constants, on the machine's own links."""
        network = 1.0
        if fabric.network is not None and self.rates.network is not None:
            network = self.rates.network / int(fabric.network.wire)
        here = on_links(fabric, node=self.rates.node / int(fabric.node.wire), network=network)
        cost = cost_in_node if self.place.nodes == 1 else cost_over_nodes
        return seconds(cost(here, self.collective, self.place, self.row.size).duration)

    def check(self) -> None:
        """Raise `InputError` for a collective that takes less than its bytes on idle links."""
        nodes, row = self.place.nodes, self.row
        total, rate = whole_size(self.collective, self.place, row.size), self.rates.node
        parts = self.place.ranks
        if nodes > 1:
            parts, rate = nodes, self.place.per_node * (self.rates.network or 1)
            total *= self.place.per_node if row.operation == "all_to_all" else 1
        # switches that reduce let every member send its data once
        sent = total * (1.0 if row.operation == "all_reduce" else (parts - 1) / parts)
        if (used := sent / rate / row.seconds) > _SLACK:
            raise InputError(
                f"{self.path}: {self.name} in {row.seconds * 1e6:g} us is a utilisation of {used:.2f} of the "
                "machine's links; allowed: up to 1"
            )


def _measured(run: NcclRun, machine: Machine, base: NcclFabric) -> list[_Measured]:
    rates, counts = link_rates(machine), run.counts
    if sum(counts) > machine.fabric.gpus:
        raise InputError(f"{run.path}: {sum(counts)} ranks; {machine.name} has {machine.fabric.gpus} GPUs")
    if len(counts) > 1 and (base.network is None or rates.network is None):
        raise InputError(f"{run.path}: {len(counts)} hosts, but {machine.name} has no network between nodes")
    place = GroupPlacement(sum(counts), len(counts), min(counts))
    rows = [_Measured(run.path, row, place, rates) for row in run.rows]
    for each in rows:
        each.check()
    return rows


def fit_nccl(runs: Sequence[NcclRun], machine: Machine) -> Sequence[CalibratedPart]:
    """Return NCCL's constants that measured collectives move: within nodes, and over nodes."""
    name = machine.collectives.measured.nccl
    if name is None:
        raise InputError(
            f"{runs[0].path}: {machine.name} names no constants of NCCL (collectives.measured.nccl)"
        )
    base = load_fabric(name)
    rows = [row for run in runs for row in _measured(run, machine, base)]
    sides = ([row for row in rows if (row.place.nodes == 1) == inside] for inside in (True, False))
    return [_fit_nccl(side, base) for side in sides if side]


def _fit_nccl(rows: Sequence[_Measured], base: NcclFabric) -> CalibratedPart:
    names, inside = [row.name for row in rows], rows[0].place.nodes == 1
    apart = held_out(names)
    fitted = [row for row, out in zip(rows, apart, strict=True) if not out]
    start = _movable(fitted, base, inside=inside)
    wire = float(base.node.wire if inside else base.network.wire if base.network else 1)
    bounds = {
        path: (1.0, wire if isinstance(_value(base, path), Bandwidth) else float(PS_PER_S)) for path in start
    }

    def off(values: Mapping[str, float], cases: Sequence[_Measured]) -> float:
        tried = _with(base, values)
        return float(np.mean([abs(np.log(row.time(tried) / row.row.seconds)) for row in cases]))

    def fit(free: Sequence[str], cases: Sequence[_Measured]) -> dict[str, float]:
        chosen = {path: start[path] for path in free}
        limits = {path: bounds[path] for path in free}
        return pattern_search(chosen, lambda values: off(values, cases), free, bounds=limits)

    def error(free: Sequence[str], kept: Sequence[int], out: Sequence[int]) -> float:
        return off(fit(free, [fitted[number] for number in kept]), [fitted[number] for number in out])

    free = most_useful(tuple(start), [row.name for row in fitted], error)
    best = fit(free, fitted) if free else {}
    texts = {path: _text(base, path, value) for path, value in best.items() if value != start[path]}
    after = _with(base, {path: float(type(_value(base, path)).parse(text)) for path, text in texts.items()})
    cases = [
        MeasuredCase(name, row.row.seconds, row.time(base), row.time(after), out)
        for name, row, out in zip(names, rows, apart, strict=True)
    ]
    operations = ", ".join(dict.fromkeys(row.row.operation for row in rows))
    files = ", ".join(dict.fromkeys(row.path.name for row in rows))
    where = "within a node" if inside else "over nodes"
    return CalibratedPart(f"{len(rows)} times of {operations} {where} ({files})", "nccl", texts, cases)


def _movable(rows: Sequence[_Measured], base: NcclFabric, *, inside: bool) -> dict[str, float]:
    """Return the constants that set the times, as many as the rows can bear."""
    every = {path: float(value) for path in _NCCL[inside] if (value := _value(base, path)) is not None}
    first = [row.time(base) for row in rows]
    found = [
        path
        for path, value in every.items()
        if any(
            abs(row.time(_with(base, {path: value * 1.1})) / time - 1.0) > _MATTERS
            for row, time in zip(rows, first, strict=True)
        )
    ]
    return {path: every[path] for path in found[: max(1, len(rows) // FOR_ONE)]}


def _value(part: Any, path: str) -> Any:
    """Return the value at a key path of constants; None where a part of it is not there."""
    for step in path.split("."):
        part = None if part is None else getattr(part, step)
    return part


def _with(part: Any, values: Mapping[str, float]) -> Any:
    """Return constants with some values, by key path, in their own kinds of number."""
    for path, value in values.items():
        part = _replaced(part, path.split("."), value)
    return part


def _replaced(part: Any, steps: Sequence[str], value: float) -> Any:
    present = getattr(part, steps[0])
    inner = type(present)(round(value)) if len(steps) == 1 else _replaced(present, steps[1:], value)
    return structs.replace(part, **{steps[0]: inner})


def _text(base: NcclFabric, path: str, value: float) -> str:
    if isinstance(_value(base, path), Duration):
        return f"{value / 1e6:.4g} us"
    return f"{value / 1e9:.4g} GB/s"
