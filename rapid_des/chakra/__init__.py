"""Chakra execution traces: every wire generation and dialect, in memory and in files.

A module is imported when one of its names is first asked for: jobs need traces in memory, not protobuf.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rapid_des.chakra.checking import check, check_report, check_set, repair_lines, require_sound
    from rapid_des.chakra.convert import NodeFile, convert_set, converted_paths, read_nodes, write_nodes
    from rapid_des.chakra.dialects import ReadOptions
    from rapid_des.chakra.reader import ReadReport, read_report, read_set
    from rapid_des.chakra.statistics import RankStatistics, rank_statistics, statistics_json
    from rapid_des.chakra.trace import (
        UNSTATED,
        CollectiveType,
        Finding,
        NodeKind,
        NodeTable,
        RankTrace,
        TraceSet,
    )
    from rapid_des.chakra.writer import set_paths, write_set

_HOMES = {
    "checking": "check check_report check_set repair_lines require_sound",
    "convert": "NodeFile convert_set converted_paths read_nodes write_nodes",
    "dialects": "ReadOptions",
    "reader": "ReadReport read_report read_set",
    "statistics": "RankStatistics rank_statistics statistics_json",
    "trace": "UNSTATED CollectiveType Finding NodeKind NodeTable RankTrace TraceSet",
    "writer": "set_paths write_set",
}

__all__ = [
    "UNSTATED",
    "CollectiveType",
    "Finding",
    "NodeFile",
    "NodeKind",
    "NodeTable",
    "RankStatistics",
    "RankTrace",
    "ReadOptions",
    "ReadReport",
    "TraceSet",
    "check",
    "check_report",
    "check_set",
    "convert_set",
    "converted_paths",
    "rank_statistics",
    "read_nodes",
    "read_report",
    "read_set",
    "repair_lines",
    "require_sound",
    "set_paths",
    "statistics_json",
    "write_nodes",
    "write_set",
]


def __getattr__(name: str) -> Any:
    """Return a public name from its module."""
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
