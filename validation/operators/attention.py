"""Attention kernels against measurements: prefill, decode and MLA of serving libraries, a call a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rapid_des.device import Device, Operator
from rapid_des.device.calibration import attention_operators, mla_operator
from validation.measurements import (
    DataFolder,
    Record,
    UnsupportedRow,
    device_for,
    engine_of,
    prices_on,
)
from validation.scoring import Row, Topic, roofline_null

ATTENTION = "operators/attention_aiconfigurator.csv"
MLA = "operators/mla_aiconfigurator.csv"
LIBRARIES = ("vllm", "trtllm")
"""Engines whose attention kernels have constants."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured call: the operators it runs, on which device, and its microseconds."""

    topic: str
    case_id: str
    measured_us: float
    operators: tuple[Operator, ...]
    device: Device

    def predicted_us(self) -> float:
        """Return the sum of the operators' estimates."""
        price = prices_on(self.device).estimate
        return sum(price(operator).duration for operator in self.operators) / 1e6


def topics(data: DataFolder) -> Iterable[Topic]:
    """Yield `operators/attention/…`, `operators/mla/…` and the host-bound A100 rows apart."""
    for file, topic, call in ((ATTENTION, _attention_topic, attention_call), (MLA, _mla_topic, mla_call)):
        groups: dict[str, list[Record]] = defaultdict(list)
        for record in data.read(file):
            groups[topic(record)].append(record)
        for name, records in groups.items():
            yield Topic(name, partial(rows, records, call, fitted=data.split))


def measured_calls(data: DataFolder) -> Iterator[Measured]:
    """Yield every measured call of both files (what a fit of constants needs)."""
    yield from map(attention_call, data.read(ATTENTION))
    yield from map(mla_call, data.read(MLA))


def rows(records: Sequence[Record], call: Callable[[Record], Measured], *, fitted: bool) -> list[Row]:
    """Return the rows of one topic, those of unknown devices, engines, dtypes and operators last."""
    known: list[Measured] = []
    unknown: list[Row] = []
    for record in records:
        try:
            known.append(call(record))
        except UnsupportedRow as why:
            unknown.append(Row(record["case_id"], record.time("time_us"), None, unsupported=str(why)))
    return (scored(known, fitted=fitted) if known else []) + unknown


def scored(calls: Sequence[Measured], *, fitted: bool) -> list[Row]:
    """Return rows beside a roofline of launch + max(FLOP / rate, compulsory bytes / bandwidth)."""
    cases = [(call.case_id, call.measured_us) for call in calls]
    null = roofline_null([_roofline_basis(call) for call in calls], cases, split=fitted)
    return [
        Row(call.case_id, call.measured_us, call.predicted_us(), time)
        for call, time in zip(calls, null, strict=True)
    ]


def _roofline_basis(call: Measured) -> tuple[float, float]:
    estimates = [prices_on(call.device).estimate(operator) for operator in call.operators]
    return (
        sum(float(estimate.flops) for estimate in estimates),
        sum(float(estimate.bytes.get("compulsory", estimate.bytes["l2"])) for estimate in estimates),
    )


def attention_call(record: Record) -> Measured:
    """Return a row of the prefill and decode file."""
    if record["op"] not in ("attention_prefill", "attention_decode"):
        raise UnsupportedRow(f"no attention operator {record['op']!r}")
    library = engine_of(record["framework"], LIBRARIES)
    operators = attention_operators(record, library)
    device = device_for(record["gpu"], library=library, l2="warm")
    return Measured(_attention_topic(record), record["case_id"], record.time("time_us"), operators, device)


def mla_call(record: Record) -> Measured:
    """Return a row of the MLA file."""
    if record["op"] not in ("mla_prefill", "mla_decode"):
        raise UnsupportedRow(f"no MLA operator {record['op']!r}")
    library = engine_of(record["framework"], LIBRARIES)
    device = device_for(record["gpu"], library=library, l2="warm")
    operators = (mla_operator(record),)
    return Measured(_mla_topic(record), record["case_id"], record.time("time_us"), operators, device)


def _attention_topic(record: Record) -> str:
    phase = record["op"].removeprefix("attention_")
    return f"operators/attention/{phase}/{record['gpu']}/{record['dtype']}"


def _mla_topic(record: Record) -> str:
    kind = "host-bound-mla" if record["gpu"].startswith("A100") else "mla"
    return f"operators/{kind}/{record['gpu']}"
