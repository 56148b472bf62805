"""Blocks that were simulated before: what a block's times follow from, as a key."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import fields

import numpy as np

from rapid_des.chakra.trace import NodeTable, TraceSet
from rapid_des.modes.execution import EngineChoice

_LABELS = frozenset({"ids", "name", "names"})
"""Columns that are for people: two tables that differ in nothing else run alike."""


def key_of(traces: TraceSet, choice: EngineChoice, *, analytic: bool) -> Hashable:
    """Return what the run of a trace set follows from on a given machine, by value.

    Groups count by their members, in order, and not by their names.
    """
    tables: dict[int, bytes] = {}
    ranks = []
    for one in traces.ranks:
        digest = tables.get(id(one.nodes)) or tables.setdefault(id(one.nodes), _digest(one.nodes))
        ranks.append((one.rank, digest, tuple(traces.groups[name] for name in one.groups), one.peers))
    return ("run", tuple(ranks), traces.unordered_streams, choice.engine, choice.fold, analytic)


def _digest(table: NodeTable) -> bytes:
    digest = hashlib.blake2b(repr(table.streams).encode(), digest_size=16)
    for column in fields(table):
        values = getattr(table, column.name)
        if column.name not in _LABELS and isinstance(values, np.ndarray):
            digest.update(np.ascontiguousarray(values).data)
    return digest.digest()
