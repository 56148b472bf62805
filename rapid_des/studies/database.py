"""A search's database: checks before Optuna opens it, and checks of the rows that it returns."""

from __future__ import annotations

import json
import re
import sqlite3
import traceback
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from rapid_des.errors import InputError, RapidDesError
from rapid_des.inputs import DATABASE, check_input
from rapid_des.studies.points import FIGURES, OK, kind_of, most_of
from rapid_des.studies.spaces import Case

_SQLITE = "sqlite:///"
_CALCULATES = re.compile(r"\b(GENERATED|VIRTUAL|DEFAULT|AS)\b", re.IGNORECASE)
"""Words in the description of a table whose cells are calculated on reading; Optuna's tables have none."""
_KINDS: Mapping[str, tuple[type, ...]] = {"int64": (int,), "float64": (int, float), "string": (str,)}


def check_database(storage: str | None) -> None:
    """Raise `InputError` for a file of SQLite that is no plain database: a device, too large, or with code.

    Views, triggers and calculated cells are programs, which may run for ever.
    """
    path = Path((storage or "").removeprefix(_SQLITE))
    if storage is None or not storage.startswith(_SQLITE) or "?" in storage or not path.exists():
        return
    check_input(path, DATABASE)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            described = database.execute("SELECT type, name, sql FROM sqlite_master").fetchmany(1000)
    except (sqlite3.Error, UnicodeError) as error:
        raise InputError(f"--storage {storage}: {error}") from None
    for kind, name, text in described:
        if kind not in {"table", "index"} or _CALCULATES.search(str(text)):
            raise InputError(f"--storage {storage}: the {kind} {str(name)[:60]!r} is none of Optuna's")


@contextmanager
def storage_named(storage: str | None) -> Iterator[None]:
    """Turn errors of Optuna and its database into an `InputError` that names the storage."""
    try:
        yield
    except RapidDesError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        if storage is None or not any("/optuna/" in Path(frame.filename).as_posix() for frame in frames):
            raise
        why = error.__cause__ or error  # a driver's absence is named below Optuna's advice
        text = str(why) or type(why).__name__
        raise InputError(f"--storage {storage}: {text}".splitlines()[0][:400]) from None


def checked_row(
    attributes: Mapping[str, Any], cases: Mapping[int, Case], identity: Any, storage: str | None
) -> dict[str, Any]:
    """Return a trial's row if it has the form of the study's rows and its digest fits; else `InputError`."""
    row = attributes["row"]
    problem = _problem_of(row, cases)
    if not problem and attributes.get("digest") != digest_of(row, identity):
        problem = f"point {row['id']} is not what its digest is of"
    if problem:
        raise altered(storage, problem)
    return dict(row)


def digest_of(row: Mapping[str, Any], identity: Any) -> str:
    """Return the digest that binds a row to its study."""
    return sha256(json.dumps([identity, row], sort_keys=True).encode()).hexdigest()


def altered(storage: str | None, problem: str) -> InputError:
    """Return the error for a row that was changed outside of the study."""
    return InputError(f"--storage {storage}: a row is not as it was written: {problem}")


def _problem_of(row: Any, cases: Mapping[int, Case]) -> str:
    """Return the first problem of a row; empty if there is none."""
    if not isinstance(row, dict) or type(row.get("id")) is not int or row["id"] not in cases:
        return "it is of no point of the study"
    labels = dict(cases[row["id"]].labels)
    if row.get("labels") != labels or any(row.get(name) != value for name, value in labels.items()):
        return f"point {row['id']} has other values"
    figures = {name: value for name, value in row.items() if name in FIGURES and name not in labels}
    wrong = next((name for name, value in figures.items() if not _fits(name, value)), None)
    if wrong is None and row.get("status") == OK and not _fits("step_time_ps", row.get("step_time_ps")):
        wrong = "step_time_ps"
    if wrong is None and row.get("status") != OK and row.get("error") is None:
        wrong = "error"
    if wrong or "status" not in figures:
        return f"point {row['id']}: {wrong or 'status'}: {str(row.get(wrong or 'status'))[:60]}"
    notes = row.get("not_validated", [])
    return "" if isinstance(notes, list) and all(isinstance(note, str) for note in notes) else "not_validated"


def _fits(name: str, value: Any) -> bool:
    """Return whether a value is allowed in a figure's column."""
    if value is None:
        return name not in {"status", "step_time_ps"}
    if isinstance(value, bool) or not isinstance(value, _KINDS[kind_of(name)]):
        return False
    number: Any = value
    return isinstance(value, str) or bool(0 <= number <= most_of(name))
