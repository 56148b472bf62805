"""Learned regressors on the Perlmutter and Vista samples of arXiv 2509.22832, beside the paper's own errors.

The split is by row, not by case: a row whose sha256 is a multiple of five is test (20 %), the rest train. The
samples here are at most 600 of up to 4,861 an operator that the paper had. In the place of the null model the
table shows the paper's error, side by side.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from rapid_des.errors import InputError
from rapid_des.learned.fit import fit_regressor
from validation.measurements import DataFolder, Record
from validation.scoring import Row, Topic

FOLDER = "perlmutter_vista_2509.22832"
SAMPLES = f"{FOLDER}/operator_samples.csv"
REFERENCE = f"{FOLDER}/regressor_selection_and_test_error.csv"
SIZES = ("mp", "b", "l", "h", "dim", "encoders", "num_layers", "hidden_size", "params")
_PHASES = {"step": "dur"}
"""The reference file's word for a phase, where it differs."""


@dataclass(frozen=True)
class Group:
    """The samples of one operator and phase, with the error that the paper reports for it."""

    system: str
    operator: str
    phase: str
    rows: tuple[Record, ...]
    paper_error_pct: float | None


def topics(data: DataFolder) -> Iterable[Topic]:
    """Yield `operators/learned/perlmutter|vista/OP`; `constants` holds the paper's test error, in percent."""
    by_topic: dict[str, list[Group]] = defaultdict(list)
    for group in groups(data):
        by_topic[f"operators/learned/{group.system.lower()}/{group.operator}"].append(group)
    for name, members in by_topic.items():
        paper = {
            f"paper test error (%) {name}/{group.phase}": group.paper_error_pct
            for group in members
            if group.paper_error_pct is not None
        }
        yield Topic(name, partial(_rows, members), split=False, constants=paper)


def varying(values: Sequence[Sequence[float]], names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns that hold more than one value.

    >>> varying([[1, 5], [2, 5]], ["m", "k"])
    ('m',)
    """
    table = np.array(values)
    return tuple(name for i, name in enumerate(names) if len(np.unique(table[:, i])) > 1)


def groups(data: DataFolder) -> list[Group]:
    """Return the groups in the file's order; flagged rows and the copied `res_add` backward are left out."""
    paper = _paper_errors(data.read(REFERENCE))
    records: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in data.read(SAMPLES):
        key = (record["system"], record["op"], record["phase"])
        if not record["flag"] and key[1:] != ("res_add", "bwd"):
            records[key].append(record)
    return [Group(*key, tuple(rows), paper.get(key)) for key, rows in records.items()]


def is_test(record: Mapping[str, str]) -> bool:
    """Return whether a row belongs to the 20 % that test the regressors."""
    text = ",".join(record.values())
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % 5 == 0


def predicted_us(group: Group) -> list[tuple[Record, float]]:
    """Fit on the group's training rows and return its test rows with their predictions."""
    train = [record for record in group.rows if not is_test(record)]
    test = [record for record in group.rows if is_test(record)]
    if not train:
        raise InputError(f"no row of {group.operator} ({group.phase}) is left to learn from")
    filled = [name for name in SIZES if all(record[name] for record in group.rows)]
    names = varying([[record.number(name) for name in filled] for record in train], filled)
    times = np.array([record.time("time_us") for record in train])
    regressor = fit_regressor(_table(train, names), times, names)
    predictions = regressor.predict(_table(test, names)) if test else np.zeros(0)
    return [(record, float(time)) for record, time in zip(test, predictions, strict=True)]


def _rows(members: Sequence[Group]) -> list[Row]:
    rows = []
    for group in members:
        try:
            rows += [_row(group, record, time) for record, time in predicted_us(group)]
        except InputError as error:
            rows += [_row(group, record, None, str(error)) for record in group.rows if is_test(record)]
    return rows


def _row(group: Group, record: Record, predicted: float | None, reason: str = "") -> Row:
    """Return a row; in the null model's place stands the paper's regressor, off by its mean error."""
    case, measured = f"{record['case_id']}/{group.phase}", record.time("time_us")
    paper = None if group.paper_error_pct is None else measured * (1 + group.paper_error_pct / 100)
    return Row(case, measured, predicted, paper, unsupported=reason)


def _table(records: Sequence[Record], names: Sequence[str]) -> np.ndarray:
    return np.array([[record.number(name) for name in names] for record in records])


def _paper_errors(records: Sequence[Record]) -> dict[tuple[str, str, str], float]:
    """Return percent by system, operator and phase; the file holds fractions, invalid above 1."""
    errors = {}
    spelled = {word: phase for phase, word in _PHASES.items()}
    for record in records:
        if record["kind"] == "operator" and record.number("Best_error%") <= 1:
            phase = spelled.get(record["Propagation"], record["Propagation"])
            errors[record["system"], record["Function"], phase] = 100 * record.number("Best_error%")
    return errors
