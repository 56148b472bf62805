"""Collective algorithms: pure functions from a group size and bytes to transfers."""

from rapid_des.network.collectives.algorithm_files import load_algorithm
from rapid_des.network.collectives.hierarchical import HIERARCHICAL, Hierarchy, Phase, flatten, plan
from rapid_des.network.collectives.in_switch import IN_SWITCH, fits
from rapid_des.network.collectives.on_fabric import (
    ON_FABRIC,
    Shaped,
    build_schedule,
    collectives_of,
    on_fabric,
)
from rapid_des.network.collectives.proof import prove
from rapid_des.network.collectives.registry import ALGORITHMS, Algorithm, algorithm, algorithms_for
from rapid_des.network.collectives.schedule import Pieces, Schedule
from rapid_des.network.collectives.task import Task, task

__all__ = [
    "ALGORITHMS",
    "HIERARCHICAL",
    "IN_SWITCH",
    "ON_FABRIC",
    "Algorithm",
    "Hierarchy",
    "Phase",
    "Pieces",
    "Schedule",
    "Shaped",
    "Task",
    "algorithm",
    "algorithms_for",
    "build_schedule",
    "collectives_of",
    "fits",
    "flatten",
    "load_algorithm",
    "on_fabric",
    "plan",
    "prove",
    "task",
]
