"""A run as it is played."""

from __future__ import annotations

from msgspec import Struct

from rapid_des.runs.checkpoints import CheckpointCost
from rapid_des.runs.failures import FailingParts
from rapid_des.runs.treatment import RunPlan


class PlannedRun(Struct, frozen=True):
    """A run as it is played, with what its checkpoints cost."""

    plan: RunPlan
    costs: tuple[CheckpointCost, ...]
    """The cost of each level of checkpoints, that in storage last; none: none are made."""
    parts: tuple[FailingParts, ...]
