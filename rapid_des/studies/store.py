"""A folder of results: Parquet parts, which are only added, and a manifest of the study that made them.

    FOLDER/manifest.json            the study: its file, job, machine, versions, seeds, hashes
    FOLDER/points/part-00001.parquet …  a row a point, in the order in which they finished

A part is written under another name and renamed: readers see whole parts only, and finished points
survive a crash. pandas, Polars and DuckDB read `FOLDER/points/*.parquet` as they are.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self, TypeVar

import msgspec
import numpy as np

from rapid_des.config.documents import Document, read_text
from rapid_des.config.specs import decode
from rapid_des.config.texts import parse_json
from rapid_des.errors import ConfigError, InputError
from rapid_des.inputs import PART, open_input
from rapid_des.report.writing import replacing, require_extra
from rapid_des.studies.points import FIGURES, kind_of, most_of
from rapid_des.units import PS_PER_S
from rapid_des.version import __version__

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


FORMAT = 1
_MANIFEST, _PARTS = "manifest.json", "points"
_PART = re.compile(r"part-\d+\Z")
_ROWS, _EVERY_S, _SHARE = 2000, 5.0, 0.02
"""A part is written after this number of rows, or after these seconds and this share of the elapsed time."""
_MOST_ROWS = 1 << 22
"""The largest number of rows of all parts."""

Row = Mapping[str, Any]


T = TypeVar("T", bound=msgspec.Struct)


class _Manifest(msgspec.Struct):
    """The keys that every manifest has."""

    kind: str
    study: dict[str, Any]
    columns: dict[str, Literal["bool_", "float64", "int64", "string"]]


class ResultStore:
    """Keeps the rows of one study in a folder; `create` or `open` one.

    `columns` are names and types as Arrow calls them; a row may leave columns out, and must have `id`.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest
        self.columns: Mapping[str, str] = manifest.get("columns", {})
        self._waiting: list[Row] = []
        self._began = self._written = time.monotonic()
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(cls, folder: Path, manifest: Mapping[str, Any], columns: Mapping[str, str]) -> Self:
        """Return a new store, or the existing one of the same study; `InputError` for one of another study.

        Studies are equal if the key `study` of their manifests is.
        """
        check_store(folder)
        if (folder / _MANIFEST).is_file():
            present = cls.open(folder)
            if present.manifest["kind"] != manifest["kind"]:
                what = f"holds results of {present.manifest['kind']}, not of {manifest['kind']}"
                raise InputError(f"{folder}: {what}; name another folder")
            differs = first_difference(present.manifest["study"], json.loads(json.dumps(manifest["study"])))
            if differs:
                problem = f"holds the results of another study ({differs}); name another folder"
                raise InputError(f"{folder}: {problem}")
            return present.locked()
        (folder / _PARTS).mkdir(parents=True, exist_ok=True)
        whole = {"format": FORMAT, **manifest, "columns": dict(columns)}
        with replacing(folder / _MANIFEST) as beside:
            beside.write_text(json.dumps(whole, indent=1), encoding="utf-8")
        return cls(folder, whole).locked()

    def locked(self) -> Self:
        """Lock the folder for this process until the store is closed; return the store."""
        self._lock = open_input(self.folder / _MANIFEST)
        try:
            import fcntl

            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows has none
            pass
        except OSError:
            self._lock.close()
            raise InputError(f"{self.folder}: another process writes its results here") from None
        return self

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Return the store in a folder; `InputError` if there is none."""
        require_extra("pyarrow", "parquet", f"{folder}: a study's results")
        if not (folder / _MANIFEST).is_file():
            raise InputError(f"{folder}: no results of a study: it has no {_MANIFEST}")
        manifest = parse_json(read_text(folder / _MANIFEST), folder / _MANIFEST, infinite=True)
        stated = manifest.get("format") if isinstance(manifest, dict) else None
        if stated != FORMAT:
            problem = f"{stated}; rapid_des {__version__} reads format {FORMAT}"
            raise ConfigError(problem, file=str(folder / _MANIFEST), key="format")
        store = cls(folder, manifest)
        columns = store.require(_Manifest).columns
        if columns.get("id") != "int64":
            problem = f"id: {columns['id']} is not int64" if "id" in columns else "no column 'id'"
            raise ConfigError(problem, file=str(folder / _MANIFEST), key="columns")
        return store

    def require(self, shape: type[T]) -> T:
        """Return the manifest as a structure; `ConfigError` for a key that is missing or of another type."""
        try:
            return decode(Document(self.folder / _MANIFEST, dict(self.manifest)), shape)
        except ConfigError as error:
            raise ConfigError(
                f"no manifest of a study: {error.message}", file=error.file, key=error.key
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()
        if self._lock is not None:
            self._lock.close()

    def append(self, row: Row) -> None:
        """Add a row; it is written with others within some seconds."""
        self._waiting.append(row)
        now = time.monotonic()
        if len(self._waiting) >= _ROWS or now - self._written > max(_EVERY_S, _SHARE * (now - self._began)):
            self.flush()

    def flush(self) -> None:
        """Write the waiting rows as a part."""
        if not self._waiting:
            return
        import pyarrow
        from pyarrow import parquet

        columns = {
            name: pyarrow.array([row.get(name) for row in self._waiting], getattr(pyarrow, kind)())
            for name, kind in self.columns.items()
        }
        number = 1 + max((int(part.stem.rpartition("-")[2]) for part in self.parts()), default=0)
        with replacing(self.folder / _PARTS / f"part-{number:05}.parquet") as beside:
            parquet.write_table(pyarrow.table(columns), beside, compression="zstd")
        self._waiting.clear()
        self._written = time.monotonic()

    def parts(self) -> list[Path]:
        """Return the files of the rows, in order."""
        return _parts(self.folder)

    def table(self, columns: Sequence[str] | None = None) -> Any:
        """Return the written rows as an Arrow table ordered by id; by default without the whole results."""
        import pyarrow

        wanted = [name for name in self.columns if name != "result"] if columns is None else list(columns)
        schema = pyarrow.schema([(name, getattr(pyarrow, self.columns[name])()) for name in wanted])
        read = list(self._read(schema))
        table = pyarrow.concat_tables(read) if read else schema.empty_table()
        if "id" not in wanted:
            return table
        table = table.sort_by("id")
        firsts = np.flatnonzero(np.diff(table["id"].to_numpy(), prepend=-1))  # a copied part counts once
        return table if len(firsts) == len(table) else table.take(firsts)

    def done(self) -> set[int]:
        """Return the ids of the rows that are written."""
        return set(self.table(["id"])["id"].to_pylist())

    def row(self, number: int) -> dict[str, Any]:
        """Return the whole row of an id; `InputError` if there is none."""
        for part in self.parts():
            table = read_part(part)
            places = np.flatnonzero(table["id"].to_numpy() == number)
            if len(places):
                read: dict[str, Any] = table.slice(int(places[0]), 1).to_pylist()[0]
                return read
        raise InputError(f"{self.folder}: no point {number}")

    def _read(self, schema: Any) -> Iterator[Any]:
        """Yield the columns of every part; a column that a part lacks is null."""
        rows = 0
        for part in self.parts():
            table = read_part(part, schema)
            rows += len(table)
            if rows > _MOST_ROWS:
                raise InputError(f"{self.folder}: more than {_MOST_ROWS:,} rows")
            yield table


def _parts(folder: Path) -> list[Path]:
    return sorted(part for part in (folder / _PARTS).glob("part-*.parquet") if _PART.match(part.stem))


def check_store(folder: Path) -> None:
    """Raise `InputError` if results cannot be written to a folder; call it before anything is simulated."""
    require_extra("pyarrow", "parquet", f"{folder}: a study's results")
    if folder.is_file():
        raise InputError(f"{folder}: cannot be written: it is a file, a folder is needed")
    others = {entry.name for entry in folder.iterdir()} - {_PARTS} if folder.is_dir() else set[str]()
    if _MANIFEST not in others and (others or _parts(folder)):
        what = "other files" if others else f"results without the {_MANIFEST} that says of what"
        raise InputError(f"{folder}: is there already and holds {what}; name a new folder")
    try:
        (folder / _PARTS).mkdir(parents=True, exist_ok=True)
        with replacing(folder / _PARTS / "written"):
            pass
        (folder / _PARTS / "written").unlink()
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from None


def first_difference(before: Any, after: Any, place: str = "") -> str:
    """Return the first place where two JSON values differ, and how; empty if they are equal."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            said = first_difference(before.get(key), after.get(key), f"{place}.{key}".removeprefix("."))
            if said:
                return said
        return ""
    if before == after:
        return ""
    before, after = (_short(value) for value in (before, after))
    return f"{place}: {before} there, {after} here"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
