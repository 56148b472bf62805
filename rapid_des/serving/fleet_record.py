"""What results and reports read of a fleet that has run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import simpy

from rapid_des.serving.autoscaler import FleetSize
from rapid_des.serving.classes import RequestClass
from rapid_des.serving.engine import Engine
from rapid_des.serving.groups import ReplicaGroup
from rapid_des.serving.records import Stop
from rapid_des.serving.replica import Replica
from rapid_des.serving.requests import Request, Turns
from rapid_des.serving.workload import Workload


class FleetRecord(Protocol):
    """The attributes of a fleet (`fleet.Fleet`) that a result reads."""

    done: list[Request]
    members: list[Replica]
    engine: Engine
    env: simpy.Environment
    area: int
    lost: list[Request]
    stops: list[Stop]
    startup: int
    until: int | None
    turns: Turns
    beside: Sequence[ReplicaGroup]
    device: str
    workload: Workload
    shed: list[Request]
    classes: Sequence[RequestClass]

    @property
    def sizes(self) -> list[FleetSize]:
        """How many replicas each group has over time; empty if all serve always."""
        ...

    @property
    def groups(self) -> Sequence[ReplicaGroup]:
        """The replicas in order of their numbers, by engine and role."""
        ...
