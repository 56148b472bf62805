"""Reading the Parquet parts of a study's results: the unpacked size is checked before unpacking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.errors import ConfigError, InputError
from rapid_des.inputs import PART, open_input
from rapid_des.studies.figures import FIGURES, kind_of, most_of
from rapid_des.units import PS_PER_S

MOST_ROWS = 1 << 14
"""The largest number of rows of a part; the store writes up to 2,000."""
_MOST_COLUMNS = 1 << 10
_MOST_LISTED = 1 << 16
"""The largest number of entries of a list in the file's own description."""


def read_part(part: Path, schema: Any = None) -> Any:
    """Return a part as an Arrow table; `InputError` if it is damaged or was changed.

    With an Arrow `schema` the table has its columns only; a column that the part lacks is null.
    """
    import pyarrow

    try:
        with open_input(part, PART) as stream:
            table = _decoded(stream, None if schema is None else schema.names)
        table.validate(full=True)  # texts are UTF-8
        if (schema is None or "id" in schema.names) and _lacks_ids(table):
            raise InputError("rows without an id")
        _check_figures(table)
        return table if schema is None else _as(table, schema)
    except (pyarrow.ArrowException, OSError, InputError, UnicodeDecodeError) as error:  # also of names
        why = error.message if isinstance(error, ConfigError) else str(error).splitlines()[0].rstrip(".")
        raise InputError(
            f"{part}: {why}; without this file the same study simulates its points again"
        ) from None


def _lacks_ids(table: Any) -> bool:
    from pyarrow import types

    if "id" not in table.column_names:
        return True
    return bool(table["id"].null_count) or not types.is_integer(table["id"].type)


def _check_figures(table: Any) -> None:
    """Raise `InputError` for figures that no simulation gives: negative, not finite, too large."""
    from pyarrow import compute, types

    for name in FIGURES.keys() & set(table.column_names):
        column = table[name]
        if types.is_null(column.type) or kind_of(name) not in ("int64", "float64"):
            continue
        if not (types.is_integer(column.type) or types.is_floating(column.type)):
            raise InputError(f"{name}: values of type {column.type}; allowed: numbers")
        wrong = compute.or_(compute.less(column, 0), compute.greater(column, most_of(name)))
        if types.is_floating(column.type):
            wrong = compute.or_(wrong, compute.is_nan(column))
        if compute.any(wrong).as_py():
            value = column.filter(wrong)[0].as_py()
            raise InputError(f"{name}: {value}; allowed: 0 to {most_of(name):,}")
    if {"step_time_s", "step_time_ps"} <= set(table.column_names):
        stated, exact = (
            table[name].cast("float64", safe=False).to_numpy() for name in ("step_time_s", "step_time_ps")
        )
        if not np.isclose(stated, exact / PS_PER_S, rtol=1e-9, atol=0, equal_nan=True).all():
            raise InputError("step_time_s and step_time_ps are of different times")


def _decoded(stream: Any, names: list[str] | None) -> Any:
    """Return some columns of an opened part."""
    from pyarrow import parquet, types

    limits = {"thrift_string_size_limit": PART.most, "thrift_container_size_limit": _MOST_LISTED}
    described = parquet.ParquetFile(stream, **limits)
    _check(described.metadata)
    texts = [field.name for field in described.schema_arrow if types.is_string(field.type)]
    file = parquet.ParquetFile(stream, read_dictionary=texts, **limits)
    known = set(file.schema_arrow.names)
    wanted = None if names is None else [name for name in names if name in known]
    table = file.read(wanted, use_threads=False)
    for place, name in enumerate(table.column_names):
        table = table.set_column(place, name, _spelled(table[name], name))
    return table


def _check(metadata: Any) -> None:
    """Raise `InputError` for a part that claims to hold more than the store ever writes."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    stated = {
        "rows": (metadata.num_rows, MOST_ROWS),
        "columns": (metadata.num_columns, _MOST_COLUMNS),
        "bytes": (sum(group.total_byte_size for group in groups), PART.most),
    }
    for what, (count, most) in stated.items():
        if not 0 <= count <= most:
            raise InputError(f"says it holds {count:,} {what}; allowed: up to {most:,}")


def _spelled(column: Any, name: str) -> Any:
    """Return a dictionary column as plain texts; `InputError` if these exceed the size of a part."""
    from pyarrow import compute, types

    if not types.is_dictionary(column.type):
        return column
    size = 0
    for chunk in column.chunks:
        lengths = compute.binary_length(chunk.dictionary).take(chunk.indices)
        size += compute.sum(lengths.cast("int64")).as_py() or 0
    if size > PART.most:
        raise InputError(f"the texts of {name} are {size:,} bytes; allowed: up to {PART.most:,}")
    return column.cast(column.type.value_type)


def _as(table: Any, schema: Any) -> Any:
    """Return a table with the columns of a schema."""
    import pyarrow

    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pyarrow.nulls(len(table), field.type)
        for field in schema
    ]
    return pyarrow.table(columns, schema=schema)
