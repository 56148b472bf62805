"""`operators/other/GPU`: rows of the layer files that are neither GEMMs nor vector kernels known here.

Attention inside a layer's profile, samplers, experts one by one, layers of one paper as a whole: none of them
is predicted, all are counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from validation.measurements import DataFolder, Record, UnsupportedRow
from validation.operators.gemm import SOURCES
from validation.operators.vector import VECTOR_FILES
from validation.scoring import Row, Topic


def topics(data: DataFolder) -> Iterable[Topic]:
    """Yield the topics of the files that hold GEMMs and vector kernels both."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for source in SOURCES:
        vectors = VECTOR_FILES.get(source.file)
        if vectors is None:
            continue
        for record in data.read(source.file):
            if record["time_us"] and not _is_read(record, source.shape, vectors):
                groups[f"operators/other/{record['gpu']}"].append(record)
    for name, records in groups.items():
        yield Topic(name, partial(_rows, records))


def _is_read(record: Record, shape: Callable[[Record], object], vectors: Mapping[str, object]) -> bool:
    if record["op"] in vectors:
        return True
    try:
        return shape(record) is not None
    except UnsupportedRow:
        return True


def _rows(records: Iterable[Record]) -> list[Row]:
    return [
        Row(
            record["case_id"], record.time("time_us"), None, unsupported=f"no model of {record['op']!r} alone"
        )
        for record in records
    ]
