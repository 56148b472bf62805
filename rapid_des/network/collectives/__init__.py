"""Collective algorithms: pure functions from a group size and bytes to transfers."""

from rapid_des.network.collectives.hierarchical import (
    HIERARCHICAL,
    DimensionPhase,
    Hierarchy,
    chunk_phases,
    flatten,
)
from rapid_des.network.collectives.in_switch import IN_SWITCH, fits
from rapid_des.network.collectives.on_fabric import (
    ON_FABRIC,
    PER_DIMENSION,
    ShapedCollective,
    build_schedule,
    collectives_of,
    hierarchy_of,
    on_fabric,
)
from rapid_des.network.collectives.proof import prove
from rapid_des.network.collectives.registry import ALGORITHMS, Algorithm, algorithm, algorithms_for
from rapid_des.network.collectives.schedule import Demand, Pieces, Schedule, demand

__all__ = [
    "ALGORITHMS",
    "HIERARCHICAL",
    "IN_SWITCH",
    "ON_FABRIC",
    "PER_DIMENSION",
    "Algorithm",
    "Hierarchy",
    "DimensionPhase",
    "Pieces",
    "Schedule",
    "ShapedCollective",
    "Demand",
    "algorithm",
    "algorithms_for",
    "build_schedule",
    "chunk_phases",
    "collectives_of",
    "fits",
    "flatten",
    "hierarchy_of",
    "on_fabric",
    "prove",
    "demand",
]
