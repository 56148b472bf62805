"""Transfers that closing links cut into pieces: the changing state of a run that reroutes."""

from __future__ import annotations

from dataclasses import dataclass, field

from rapid_des.engines.simpy.instances import Instance
from rapid_des.engines.simpy.servers import Request


@dataclass(eq=False)
class Task:
    """A transfer in flight, and how many of its pieces are."""

    key: tuple[int, int, int]
    instance: Instance
    number: int
    priority: int
    order: tuple[int, ...]
    label: int
    size: int
    pieces: int = 1
    made: int = 0
    arrived: int = 0


@dataclass(eq=False)
class Service:
    """A piece on a link."""

    piece: Piece
    place: int
    size: int
    start: int
    free: int
    row: list[int]
    ended: bool = False

    @property
    def link(self) -> int:
        """The link that serves."""
        return self.piece.links[self.place]


@dataclass(eq=False)
class Piece:
    """Some bytes of a transfer on a way of their own."""

    task: Task
    number: int
    links: tuple[int, ...]
    size: int
    part: int = 0
    """Which part of its message it is."""
    place: int = 0
    ready: int = 0
    version: int = 0
    """Wakes of an older version no longer count."""
    cut: int = -1
    """The farthest hop at which bytes were cut off: what earlier hops still serve is lost."""
    request: Request | None = None
    services: list[Service] = field(default_factory=list)
