"""Algorithms that somebody wrote down: files of transfers among members, scaled to any size.

The logical buffer is cut into `blocks` parts; a transfer moves `count` of them from `block` on, and waits
for the transfers whose row numbers stand in `after`. JSON holds everything in one mapping; a CSV says
`collective`, `members` and `blocks` in a first line `# collective=all_reduce members=4 blocks=4`, then has
the columns source, destination, block, count, reduces (0 or 1) and after (row numbers, from 0, separated by
blanks). MSCCL's XML is read by `msccl`. Every file must prove its data property when it is loaded.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.config import Spec, decode
from rapid_des.config.documents import Document, load_document, read_text
from rapid_des.errors import ConfigError, InputError
from rapid_des.network.collectives.proof import prove
from rapid_des.network.collectives.schedule import Demand, Draft, Schedule, demand, even_bounds
from rapid_des.units import whole_number
from rapid_des.values import replace

MOST_STATE = 2**30
"""The most bytes of a proof's state: (members + switches) x members x blocks."""
MOST_WORK = 2**35
"""The most work of a proof: transfers x members x blocks."""
_CUT_ANYWHERE = (CollectiveType.ALL_REDUCE, CollectiveType.BROADCAST, CollectiveType.REDUCE)


class WrittenTransfer(Spec, frozen=True, kw_only=True):
    """One row of a file."""

    source: int
    """The member, or from `members` on the switch, that sends."""
    destination: int
    """The member or switch that receives."""
    block: int
    """The first block that is sent."""
    count: int = 1
    """The number of blocks that are sent, one after the other."""
    reduces: bool = False
    """Whether the receiver adds the data to its own; else it replaces that."""
    after: tuple[int, ...] = ()
    """Rows (from 0) whose data must have arrived before."""


class WrittenFile(Spec, frozen=True, kw_only=True):
    """An algorithm as its file states it."""

    collective: str
    """The name of the collective, such as all_reduce."""
    members: int
    """The number of GPUs that take part."""
    blocks: int
    """The number of equal blocks into which the buffer is cut."""
    switches: int = 0
    """The number of switches that take part; they are numbered after the members."""
    root: int = 0
    """The member that a rooted collective begins or ends at."""
    transfers: tuple[WrittenTransfer, ...]
    """The rows, in any order that `after` allows."""


class WrittenAlgorithm(Struct, frozen=True):
    """A file's algorithm, proved; it is called with the size like the built-in ones."""

    collective: CollectiveType
    file: WrittenFile

    def __call__(self, size: int) -> Schedule:
        """Return the transfers for an input buffer of `size` bytes on each member."""
        asked = demand(self.collective, self.file.members, size, root=self.file.root)
        draft = Draft(_cut(asked, self.file.blocks), switches=self.file.switches)
        rows = self.file.transfers
        first = np.array([row.block for row in rows], dtype=np.int64)
        last = first + np.array([row.count for row in rows], dtype=np.int64)
        numbers = draft.add(
            np.array([row.source for row in rows]),
            np.array([row.destination for row in rows]),
            (draft.bounds[first], draft.bounds[last]),
            reduces=np.array([row.reduces for row in rows]),
        )
        waiting = np.repeat(numbers, [len(row.after) for row in rows])
        draft.wait(waiting, np.array([number for row in rows for number in row.after], dtype=np.int64))
        return draft.seal()


def _cut(demand: Demand, blocks: int) -> Demand:
    """Return the demand with its buffer in `blocks` parts, several to a block where blocks have owners."""
    if demand.collective in _CUT_ANYWHERE:
        bounds = even_bounds(demand.total, blocks)
        return replace(demand, offset=bounds[:-1].copy(), size=np.diff(bounds))
    parts = blocks // len(demand.size)
    index = np.arange(parts, dtype=np.int64)
    quotients, remainders = (part[:, None] for part in np.divmod(demand.size, parts))
    start: Int64s = index * quotients + np.minimum(index, remainders)
    size: Int64s = quotients + (index < remainders)
    return replace(demand, offset=(demand.offset[:, None] + start).reshape(-1), size=size.reshape(-1))


def load_written(path: Path) -> WrittenAlgorithm:
    """Read a JSON or CSV file of transfers; a `ConfigError` names file, row, value and what is allowed."""
    document = _csv_document(path) if path.suffix.lower() == ".csv" else load_document(path)
    return written(decode(document, WrittenFile), str(path))


def written(file: WrittenFile, name: str) -> WrittenAlgorithm:
    """Check and prove an algorithm; errors name `name`."""
    kinds = {kind.name.lower(): kind for kind in CollectiveType if kind is not CollectiveType.BARRIER}
    if file.collective not in kinds:
        problem = f"{file.collective!r} is not one of {', '.join(kinds)}"
        raise ConfigError(problem, file=name, key="collective")
    kind = kinds[file.collective]
    _check_numbers(file, kind, name)
    _check_work(file, name)
    algorithm = WrittenAlgorithm(kind, file)
    size = file.blocks if kind in _CUT_ANYWHERE else max(file.blocks // file.members, 1)
    size = file.blocks if kind in (CollectiveType.REDUCE_SCATTER, CollectiveType.SCATTER) else size
    try:
        prove(algorithm(size), demand(kind, file.members, size, root=file.root))
    except InputError as error:
        raise ConfigError(f"the transfers do not do {file.collective}: {error}", file=name) from None
    return algorithm


def _check_numbers(file: WrittenFile, kind: CollectiveType, name: str) -> None:
    """Refuse what does not fit together."""
    owners = file.members**2 if kind is CollectiveType.ALL_TO_ALL else file.members
    if file.members < 1 or file.blocks < 1 or (kind not in _CUT_ANYWHERE and file.blocks % owners):
        problem = f"{file.blocks} blocks do not cut {file.collective} of {file.members} members"
        raise ConfigError(f"{problem}; allowed: a multiple of {max(owners, 1)}", file=name, key="blocks")
    ends_there = file.members + file.switches
    for number, row in enumerate(file.transfers):
        ends = (row.source, row.destination)
        if not all(0 <= end < ends_there for end in ends) or row.source == row.destination:
            problem = (
                f"source {row.source}, destination {row.destination}: two of 0 to {ends_there - 1} are needed"
            )
            raise ConfigError(problem, file=name, key=f"transfers[{number}]")
        if row.count < 1 or row.block < 0 or row.block + row.count > file.blocks:
            problem = (
                f"blocks {row.block} to {row.block + row.count - 1} are not within 0 to {file.blocks - 1}"
            )
            raise ConfigError(problem, file=name, key=f"transfers[{number}].block")
        if any(not 0 <= other < number for other in row.after):
            problem = f"{list(row.after)}: only earlier rows can be waited for"
            raise ConfigError(problem, file=name, key=f"transfers[{number}].after")


def _check_work(file: WrittenFile, name: str) -> None:
    """Refuse what would take more memory and time to prove than any algorithm that somebody wrote."""
    state = (file.members + file.switches) * file.members * file.blocks
    work = len(file.transfers) * file.members * file.blocks
    for what, amount, most in (("state", state, MOST_STATE), ("work", work, MOST_WORK)):
        if amount > most:
            problem = f"{file.members} members, {file.blocks} blocks and {len(file.transfers)} transfers"
            raise ConfigError(f"{problem}: the proof's {what} is {amount:,}; allowed: {most:,}", file=name)


def _csv_document(path: Path) -> Document:
    text = read_text(path)
    head, _, body = text.partition("\n")
    pairs = [pair.partition("=") for pair in head.lstrip("# ").split()]
    if not head.startswith("#") or any(not sign for _, sign, _ in pairs):
        example = "# collective=all_reduce members=4 blocks=4"
        raise ConfigError(f"the first line must be like {example!r}", file=str(path))
    tree: dict[str, Any] = {key: _number(value) for key, _, value in pairs}
    try:
        tree["transfers"] = [_row(row) for row in csv.DictReader(io.StringIO(body))]
    except csv.Error as error:
        raise ConfigError(f"not valid CSV: {error}", file=str(path)) from None
    return Document(path, tree)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    cells: dict[str, Any] = {str(key): _number(value) for key, value in row.items() if key != "after"}
    cells["after"] = [_number(number) for number in str(row.get("after") or "").split()]
    if cells.get("reduces") in (0, 1):
        cells["reduces"] = bool(cells["reduces"])
    return cells


def _number(text: str | Sequence[str] | None) -> object:
    """Return the number in a cell; text that is no number is returned for the spec to refuse."""
    try:
        return whole_number(text.strip(), least=-(2**63)) if isinstance(text, str) else text
    except ValueError:
        return text
