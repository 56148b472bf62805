"""Reading what people measured: nccl-tests, ib_write_bw, GPU monitors, and tables of matrix products."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from rapid_des.config import read_text
from rapid_des.errors import InputError

Kind: TypeAlias = Literal["nccl-tests", "ib_write_bw", "monitor", "gemms"]
GEMM_COLUMNS = ("M", "N", "K", "dtype", "time_us")
_OPERATIONS = {
    "all_reduce": "all_reduce", "allreduce": "all_reduce", "all_gather": "all_gather",
    "allgather": "all_gather",    "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all",
}  # fmt: skip
_BUS_FACTOR = {"all_reduce": 2.0}
"""Bus bandwidth over algorithm bandwidth, in parts of (ranks - 1) / ranks; 1 for the others."""
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s")
_NUMBERS = re.compile(r"\s*(\d+)\s+\d+\s+(\w+)\s+(\w+)\s+-?\d+\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)")
_BUSY = 0.8
"""The least use at which a clock counts as one under load."""
_USES = {"GPUTL": 100.0, "sm": 100.0, "GRACT": 1.0, "SMACT": 1.0}
"""Columns of how busy a GPU was, and their greatest value."""
_CLOCKS = ("SMCLK", "pclk")


class NcclRow(Struct, frozen=True):
    """A measured collective; `size` is the input buffer of a rank in bytes, as in traces."""

    operation: str
    size: int
    seconds: float


class NcclRun(Struct, frozen=True):
    """An output of nccl-tests."""

    path: Path
    counts: tuple[int, ...]
    """The number of ranks on each host."""
    rows: Sequence[NcclRow]


def kind_of(path: Path) -> Kind:
    """Return what a text file holds; `InputError` names what is read."""
    text = read_text(path)
    if "nccl-tests" in text or ("busbw" in text and "algbw" in text):
        return "nccl-tests"
    if "RDMA_Write" in text or ("BW peak" in text and "BW average" in text):
        return "ib_write_bw"
    first = next((line for line in text.splitlines() if line.strip()), "")
    if any(name in text.split()[:200] for name in _CLOCKS):
        return "monitor"
    if "time_us" in first:
        return "gemms"
    raise InputError(
        f"{path}: is no evidence that is read: a profile, output of nccl-tests, ib_write_bw, `dcgmi dmon` or "
        f"`nvidia-smi dmon`, or a CSV with the columns {', '.join(GEMM_COLUMNS)}"
    )


def read_nccl_tests(path: Path) -> NcclRun:
    """Return the rows of an output of nccl-tests: out-of-place times, and where its ranks were."""
    text = read_text(path)
    hosts = [host for _, host in sorted((int(rank), host) for rank, host in _RANK.findall(text))]
    if len(hosts) < 2:
        raise InputError(f"{path}: no lines '#  Rank  0 … on HOST', which say where the ranks were")
    operation, ranks = _operation(path, text), len(hosts)
    rows = []
    for line in text.splitlines():
        found = _NUMBERS.match(line)
        if found is None:
            continue
        size, (micros, algorithm, bus) = int(found[1]), (float(found[each]) for each in (4, 5, 6))
        if not size:
            continue
        factor = _BUS_FACTOR.get(operation, 1.0) * (ranks - 1) / ranks
        _check_row(path, line, (size, micros, algorithm, bus), factor)
        rows.append(NcclRow(operation, size // ranks if operation == "all_gather" else size, micros * 1e-6))
    if not rows:
        raise InputError(f"{path}: has no row of a size and its time")
    return NcclRun(path, tuple(hosts.count(host) for host in dict.fromkeys(hosts)), rows)


def _check_row(path: Path, line: str, row: tuple[int, float, float, float], factor: float) -> None:
    size, micros, algorithm, bus = row
    if micros <= 0:
        raise InputError(f"{path}: {line.strip()[:60]!r}: time {micros}; allowed: above 0")
    # what is printed has two digits behind the point: small bandwidths say nothing of the operation
    if algorithm >= 1.0 and abs(algorithm - size / micros * 1e-3) > 0.02 * algorithm:
        raise InputError(f"{path}: {line.strip()[:60]!r}: algbw {algorithm} is not size over time")
    if algorithm >= 1.0 and abs(bus - factor * algorithm) > 0.02 * bus:
        raise InputError(f"{path}: {line.strip()[:60]!r}: busbw {bus} is not that of the operation and ranks")


def _operation(path: Path, text: str) -> str:
    """Return the collective that was tested: as the file says, else as its name does."""
    for place in (re.findall(r"(\w+)_perf\b", text), [path.name.lower()]):
        for each in place:
            known = [name for spelling, name in _OPERATIONS.items() if spelling in each]
            if known:
                return known[0]
    raise InputError(
        f"{path}: names no collective; name the file after one, as all_reduce.txt: {', '.join(_OPERATIONS)}"
    )


def read_bandwidths(path: Path) -> Mapping[int, float]:
    """Return the average bandwidth in bytes a second in one direction by message size, of ib_write_bw."""
    text, found = read_text(path), dict[int, float]()
    unit = 1e9 / 8 if "Gb/sec" in text else 2.0**20
    both = 2.0 if "Bidirectional" in text else 1.0
    for line in text.splitlines():
        words = line.split()
        if len(words) in (4, 5) and words[0].isdecimal() and words[1].isdecimal():
            try:
                found[int(words[0])] = float(words[3]) * unit / both
            except ValueError:
                raise InputError(f"{path}: {line.strip()[:60]!r}: BW average is no number") from None
    if not found or min(found.values()) <= 0 or not all(map(isfinite, found.values())):
        raise InputError(f"{path}: has no row of #bytes, #iterations, BW peak and BW average above 0")
    return found


def read_clocks(path: Path) -> Sequence[float]:
    """Return the SM clocks in Hz of a GPU monitor's samples under load."""
    clocks, heads = list[float](), list[str]()
    for line in read_text(path).splitlines():
        words = line.replace("#", " ").split()
        if any(name in words for name in _CLOCKS):
            heads = [word for word in words if word != "Entity"]
            continue
        values = words[1:] if words and words[0] == "GPU" else words
        if heads and len(values) >= len(heads) - 1 and values[-1].replace(".", "").isdecimal():
            # a first column without a name is the GPU's number
            named = dict(zip(reversed(heads), reversed(values), strict=False))
            clocks += _clock_of(path, line, named)
    if not clocks:
        raise InputError(f"{path}: has no sample of {' or '.join(_CLOCKS)} under load (use of 80 % or more)")
    return clocks


def _clock_of(path: Path, line: str, named: Mapping[str, str]) -> Iterator[float]:
    """Yield the clock of a sample if the GPU was busy."""
    try:
        uses = {name: float(named[name]) / most for name, most in _USES.items() if name in named}
        clock = float(next(named[name] for name in _CLOCKS if name in named)) * 1e6
    except (ValueError, StopIteration):
        return
    above = [name for name, use in uses.items() if not 0 <= use <= 1]
    if above or not isfinite(clock) or clock <= 0:
        wrong = above[0] if above else "the clock"
        raise InputError(
            f"{path}: {line.strip()[:60]!r}: {wrong}: allowed: a use up to 100 %, a clock above 0"
        )
    if all(use >= _BUSY for use in uses.values()):
        yield clock


def read_gemms(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table of matrix products, each with its line as `where`."""
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    try:
        rows = [row | {"where": f"{path}: line {reader.line_num}"} for row in reader]
    except (csv.Error, TypeError) as error:
        raise InputError(f"{path}: is no table: {error}") from None
    missing = [name for name in GEMM_COLUMNS if name not in (reader.fieldnames or ())]
    if missing or not rows:
        problem = f"no column {missing[0]!r}" if missing else "no rows"
        raise InputError(f"{path}: {problem}; needed: {', '.join(GEMM_COLUMNS)}")
    return rows
