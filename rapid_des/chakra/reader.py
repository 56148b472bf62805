"""Reading a whole trace set: discovery, one file after the other, and what ranks share is held once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import digest, frozen
from rapid_des.chakra.attributes import TableSource
from rapid_des.chakra.batched_reader import Prefetcher
from rapid_des.chakra.columns import RawTable, read_columns
from rapid_des.chakra.dependencies import Repair
from rapid_des.chakra.dialects import DIALECTS, Dialect, Evidence, ReadOptions, detect
from rapid_des.chakra.generations import Generation
from rapid_des.chakra.groups import (
    DIMENSIONS,
    WORLD,
    Groups,
    dimension_groups,
    find_group_file,
    groups_from_nodes,
    load_groups,
    which_group,
)
from rapid_des.chakra.interpret import Copies, Interpreted, Original, interpret
from rapid_des.chakra.source import (
    CONVERTED_FROM,
    TraceFile,
    TraceFiles,
    discover,
    likely_generation,
    open_trace,
)
from rapid_des.chakra.trace import (
    EXCHANGES,
    LIBRARIES,
    Exchange,
    Finding,
    FoundError,
    NodeTable,
    RankTrace,
    TraceSet,
)
from rapid_des.errors import TraceError
from rapid_des.values import fields, replace


class ReadReport(Struct):
    """A trace set as far as it could be read, and everything that was noticed."""

    files: TraceFiles
    traces: TraceSet
    findings: list[Finding] = field(default_factory=list)
    repairs: dict[int, tuple[Repair, ...]] = field(default_factory=dict)


def read_set(reference: str | Path, options: ReadOptions | None = None) -> TraceSet:
    """Read the trace set that a folder, a prefix or one file stands for.

    Anything that cannot be read, and with `strict` anything that would be repaired, is a `TraceError`.
    """
    report = read_report(reference, options or ReadOptions())
    errors = [finding for finding in report.findings if finding.severity == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more; `rapid-des trace check` lists them)" if len(errors) > 1 else ""
        raise TraceError(f"{errors[0].message}{more}")
    return report.traces


def read_report(reference: str | Path, options: ReadOptions) -> ReadReport:
    """Read a trace set and keep going where a rank cannot be read, collecting what is wrong."""
    files = discover(reference)
    reader = _SetReader(files, options)
    for rank, path in files.files.items():
        reader.read(rank, path)
    return reader.report()


class _SetReader:
    def __init__(self, files: TraceFiles, options: ReadOptions) -> None:
        self.files = files
        self.options = options
        self.world = tuple(files.files)
        shape = options.dimensions
        if shape and math.prod(shape) != len(self.world):
            raise TraceError(
                f"--dimensions: {shape} holds {math.prod(shape)} ranks, the set has {len(self.world)}"
            )
        self.notes: list[str] = []
        self.known, self.groups = self._stated_groups()
        self.dialect: Dialect | None = None
        self.generation: Generation | None = None
        self.ranks: list[RankTrace] = []
        self.unordered: set[str] = set()
        self.libraries = ""
        self.exchanges: tuple[Exchange, ...] = ()
        self.remarks: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self.repairs: dict[int, tuple[Repair, ...]] = {}
        self.shared = _Shared()
        self.copies = Copies(files.files.values())
        self.ahead = Prefetcher(files.files.values(), self.copies)

    def _stated_groups(self) -> tuple[Groups, Groups]:
        path, why = self.options.groups, "--groups"
        if path is None:
            path, why = find_group_file(self.files.folder, self.files.prefix, self.files.files.values())
        known = load_groups(path) if path else {}
        if why:
            self.notes.append(f"groups: {path.name} ({why})" if path else f"groups: {why}")
        return known, {WORLD: self.world, **known}

    def read(self, rank: int, path: Path) -> None:
        """Read one rank's file; what stops it becomes a finding."""
        key = self.copies.key(path)
        original = self.copies.known.get(key) if key else None
        same = original and original.for_rank(path, rank, lambda name: self._group(name, self.known, rank))
        if same:
            self._keep(rank, *same)
            return
        try:
            source, raw = self._columns(path)
            named: dict[str, str] = {}
            origin = self._origin(rank, source, raw, named)
            result = interpret(raw, origin)
        except FoundError as error:
            self.findings.append(error.finding)
            return
        except TraceError as error:
            self.findings.append(Finding("unreadable file", str(error), file=str(path), rank=rank))
            return
        result = replace(result, nodes=self.shared.table(result.nodes))
        if key and self.dialect and not raw.group_frames:
            self.copies.known[key] = Original(result, origin, named)
        self._keep(rank, result, origin)

    def _columns(self, path: Path) -> tuple[TraceFile, RawTable]:
        """Return a file's nodes; small files are read together once the dialect is known."""
        ahead = self.ahead.take(path) if self.dialect and self.options.generation == "auto" else None
        if ahead is None:
            source = self._open(path)
            return source, read_columns(source)
        self.generation = self.generation or ahead[0].generation
        return ahead

    def _open(self, path: Path) -> TraceFile:
        options = self.options
        named = None if options.generation == "auto" else Generation(options.generation)
        source = open_trace(path, generation=named, salvage=options.salvage)
        if source.generation is None and named is None:
            self.generation = self.generation or likely_generation(self.files.files.values())
            source = open_trace(path, generation=self.generation, salvage=options.salvage)
        self.generation = self.generation or source.generation
        return source

    def _origin(self, rank: int, source: TraceFile, raw: RawTable, named: dict[str, str]) -> TableSource:
        """Return where a table comes from; `named` comes to hold what its nodes call their groups."""
        if self.options.dialect != "auto":
            dialect, why = DIALECTS[self.options.dialect], "--dialect"
        elif self.dialect is None:
            dialect = detect(_evidence(source, raw))
            why = dialect.because
        else:
            dialect, why = self.dialect, ""
        if self.dialect is None and len(raw):
            self.dialect = dialect
            self.notes.append(f"dialect: {dialect.name} ({why}); generation: {source.generation or 'today'}")
        known = dict(self.known)
        if raw.group_frames:
            known = self._with_node_groups(raw, known)
        declared = _declared_unordered(source)
        marks = {mark.name: mark.string_val for mark in source.metadata.attr}
        self.libraries = marks.get(LIBRARIES, self.libraries)
        if EXCHANGES in marks:
            self.exchanges = _exchanges(marks[EXCHANGES], source)
        return TableSource(
            str(source.path),
            rank,
            dialect,
            self.options,
            lambda name: named.setdefault(name, self._group(name, known, rank)),
            declared,
        )

    def _with_node_groups(self, raw: RawTable, known: Groups) -> Groups:
        """Add the groups that this rank's nodes describe; a name that ranks use differently is split."""
        stated, implied = groups_from_nodes(raw.group_frames, self.world)
        mine = {**known}
        for name, members in {**implied, **stated}.items():
            if name in known:
                continue
            unique = name
            if self.groups.get(name, members) != members:
                unique = f"{name}@{members[0]}"
            self.groups[unique] = members
            mine[name] = members
        return mine

    def _group(self, name: str, known: Groups, rank: int) -> str:
        if name.startswith(DIMENSIONS) and self.options.dimensions:
            flags = tuple(flag == "1" for flag in name.removeprefix(DIMENSIONS).split(","))
            for group, members in dimension_groups(flags, self.options.dimensions, self.world).items():
                if rank in members:
                    self.groups[group] = members
                    return group
        group = which_group(name, known, zero_is_world=self.options.zero_is_world)
        if group in known and self.groups.get(group) != known[group]:
            return f"{group}@{known[group][0]}"
        return group

    def _keep(self, rank: int, result: Interpreted, origin: TableSource) -> None:
        nodes = result.nodes
        self.ranks.append(RankTrace(rank, nodes, result.groups, result.peers))
        self.unordered.update(stream for stream in nodes.streams if origin.is_unordered(stream))
        self.remarks.update(result.remarks)
        self.remarks[f"dependencies: {' and '.join(result.fields)}"] += 1
        if result.repairs:
            self.repairs[rank] = result.repairs
        severity: Any = "error" if self.options.strict else "repaired"
        self.findings += [_repair_finding(repair, origin, severity) for repair in result.repairs]

    def report(self) -> ReadReport:
        total = len(self.files.files)
        notes = [*self.notes]
        notes += [
            text if count == total else f"{text} ({count} ranks)" for text, count in self.remarks.items()
        ]
        notes += self._repair_notes()
        if self.files.missing:
            notes.append(f"ranks without a file: {', '.join(map(str, self.files.missing[:12]))}")
        self._note_empty()
        unordered = frozenset(self.unordered)
        ranks = tuple(self.ranks)
        traces = TraceSet(
            ranks, self.groups, unordered, self.libraries, tuple(notes), exchanges=self.exchanges
        )
        return ReadReport(self.files, traces, self.findings, self.repairs)

    def _note_empty(self) -> None:
        empty = [str(rank.rank) for rank in self.ranks if not len(rank.nodes)]
        location = self.files.folder / self.files.prefix
        if empty and len(empty) == len(self.files.files):
            text = f"{location}: 0 nodes in {len(empty)} files: there is nothing to replay"
            self.findings.append(Finding("no nodes", text, file=str(location)))
        elif empty:
            text = f"{location}: no nodes for {len(empty)} ranks: {', '.join(empty[:12])}"
            self.findings.append(Finding("no nodes", text, "warning", file=str(location)))

    def _repair_notes(self) -> Iterator[str]:
        totals: Counter[str] = Counter()
        for repairs in self.repairs.values():
            for repair in repairs:
                totals[repair.kind] += len(repair.nodes)
        for kind, count in totals.items():
            yield f"dropped {count} {kind} dependencies (--repairs lists them, --strict refuses them)"


def _repair_finding(repair: Repair, origin: TableSource, severity: Any) -> Finding:
    nodes, needs = repair.nodes.view(np.uint64), repair.needs.view(np.uint64)
    text = (
        f"{origin.file}: {len(nodes)} {repair.kind} dependencies, the first: node {nodes[0]} needs {needs[0]}"
    )
    return Finding(
        f"{repair.kind} dependency", text, severity, file=origin.file, rank=origin.rank, node=int(nodes[0])
    )


def _evidence(source: TraceFile, raw: RawTable) -> Evidence:
    texts = {attribute.name: attribute.string_val for attribute in source.metadata.attr}
    before = texts.get(CONVERTED_FROM, "")
    return Evidence(
        generation=Generation(before) if before in set(Generation) else source.generation,
        schema=texts.get("schema", ""),
        version=source.metadata.version,
        metadata_names=frozenset(texts),
        input_text=texts.get("input_file", "")[:64],
        attributes=frozenset(name.decode(errors="replace") for name in raw.attribute_names),
        names=tuple(name.decode(errors="replace") for name in raw.names),
        has_data=len(raw.dependencies["data"][1]) > 0,
        has_ctrl=len(raw.dependencies["ctrl"][1]) > 0,
    )


def _exchanges(text: str, source: TraceFile) -> tuple[Exchange, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[Exchange, ...])
    except msgspec.DecodeError as error:
        raise TraceError(f"{source.path}: metadata {EXCHANGES}: {error}") from None


def _declared_unordered(source: TraceFile) -> frozenset[str]:
    for attribute in source.metadata.attr:
        if attribute.name == "rapid_unordered_streams":
            return frozenset(attribute.string_list.values)
    return frozenset()


class _Shared:
    """Equal columns and equal tables, held once and read-only."""

    def __init__(self) -> None:
        self.parts: dict[Any, tuple[int, Any]] = {}
        self.tables: dict[tuple[int, ...], NodeTable] = {}

    def table(self, nodes: NodeTable) -> NodeTable:
        parts = {name: self._part(getattr(nodes, name)) for name in fields(nodes)}
        shared = {name: part for name, (_, part) in parts.items()}
        return self.tables.setdefault(tuple(key for key, _ in parts.values()), replace(nodes, **shared))

    def _part(self, part: Any) -> tuple[int, Any]:
        """Return the number that equal columns (or texts) share, and the one that stands for them all."""
        if isinstance(part, tuple):
            return self.parts.setdefault(part, (len(self.parts), part))
        column = np.ascontiguousarray(part)
        return self.parts.setdefault(digest(column), (len(self.parts), frozen(column)))
