"""Faults: what is hit, how and when; one language for machine files and the command line."""

from rapid_des.network.faults.effects import (
    GpuFactors,
    apply_static,
    drawn_names,
    gpu_factors,
    hits,
    mixed,
    on_links,
    require_hits,
    touches_links,
)
from rapid_des.network.faults.specs import Fault, check_fault, parse_fault
from rapid_des.network.faults.timing import (
    GpuTimetable,
    dead_at,
    gpu_timetables,
    link_timetables,
    placed_in_time,
)

__all__ = [
    "Fault",
    "GpuFactors",
    "GpuTimetable",
    "apply_static",
    "check_fault",
    "dead_at",
    "drawn_names",
    "gpu_factors",
    "gpu_timetables",
    "hits",
    "link_timetables",
    "mixed",
    "on_links",
    "parse_fault",
    "placed_in_time",
    "require_hits",
    "touches_links",
]
