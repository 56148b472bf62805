"""Chakra execution traces: every wire generation and dialect, in memory and in files."""

from rapid_des.chakra.findings import Finding
from rapid_des.chakra.options import ReadOptions
from rapid_des.chakra.reader import ReadReport, read_report, read_set
from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, NodeTable, RankTrace, TraceSet
from rapid_des.chakra.writer import write_set

__all__ = [
    "UNSTATED",
    "CollectiveType",
    "Finding",
    "NodeKind",
    "NodeTable",
    "RankTrace",
    "ReadOptions",
    "ReadReport",
    "TraceSet",
    "read_report",
    "read_set",
    "write_set",
]
